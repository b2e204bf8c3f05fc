"""Measurements and verdicts as tables: medians over seeds with intervals, beside the published values."""

import csv
import io
from collections.abc import Sequence
from math import inf

from experiments.harness.claims import Judged
from experiments.harness.measurements import Measurement, by_seed
from experiments.harness.study import Study
from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import about_of
from offbeat.results.statistics import median_of

SHARES = ("final_accuracy", "mean_accuracy", "wasted_share", "slow_share")
MISSING = "not yet run"
READ = ("published", "authors' code")
"""Provenance of rules that we have read in the paper or in its authors' code."""


def number(name: str, value: float) -> str:
    """Write the value of a measure.

    >>> number("final_accuracy", 0.8571), number("time_to_target", 123.4), number("time_to_target", inf)
    ('85.7', '123', 'never')
    """
    if value == inf:
        return "never"
    if name in SHARES:
        return f"{100 * value:.1f}"
    if name == "training_loss":
        return f"{value:.3f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def marked(method: str) -> str:
    """A method's name, with the provenance of its rule unless we have read it in the paper or its authors' code.

    >>> marked("fedbuff"), marked("FedSA"), marked("SEAFL² 3")
    ('fedbuff', 'FedSA (our reading)', 'SEAFL² 3')
    """
    policy = POLICIES.get(method.lower())
    provenance = "published" if policy is None else about_of(policy).provenance
    return method if provenance in READ else f"{method} ({provenance})"


def summary(measurements: Sequence[Measurement], part: str, method: str, name: str) -> str:
    """The median over seeds and its interval."""
    values = by_seed(measurements, part, method, name).values()
    if not values:
        return MISSING
    return median_of(values, log=name == "time_to_target").text(lambda value: number(name, value))


def part_lines(study: Study, part: str, measurements: Sequence[Measurement]) -> list[list[str]]:
    """A heading, and for each method of a part its measures with the published values, seeds and chosen settings."""
    published = study.published.get(part, {})
    known = {name for method in study.parts[part] for name in published.get(method, {})}
    heading = ["method"]
    for name, title in study.shown.items():
        unit = " (%)" if name in SHARES else " (s)" if name == "time_to_target" else ""
        heading += [title + unit, f"published {title}"] if name in known else [title + unit]
    tuned = any(each.settings for each in measurements if each.part == part)
    lines = [[*heading, "seeds", *(["chosen"] if tuned else [])]]
    for method in study.parts[part]:
        line = [marked(method)]
        printed = published.get(method, {})
        for name in study.shown:
            line.append(summary(measurements, part, method, name))
            if name in known:
                line.append(number(name, printed[name]) if name in printed else "-")
        own = [each for each in measurements if (each.part, each.method) == (part, method)]
        lines.append([*line, _seeds(own), *([_chosen(own)] if tuned else [])])
    return lines


def _seeds(runs: Sequence[Measurement]) -> str:
    """The number of runs, and how many of them diverged."""
    diverged = sum("diverged" in each.values for each in runs)
    return f"{len(runs)}, {diverged} diverged" if diverged else str(len(runs))


def _chosen(runs: Sequence[Measurement]) -> str:
    """The chosen settings, without the names of their tables."""
    settings = next((each.settings for each in runs if each.settings), "")
    return ", ".join(each.partition(".")[2].replace("=", " ") for each in settings.split("; ")) or "-"


def claim_lines(judged: Sequence[Judged]) -> list[list[str]]:
    """A heading, and for each claim the published gap, the measured one and the verdict."""
    lines = [["claim", "where", "published", "measured", "seeds", "verdict", "seeds to decide"]]
    for each in judged:
        claim = each.claim
        found = [claim.published, each.measured, str(each.seeds), each.verdict, each.needed_text]
        lines.append([claim.says, claim.where, *found])
    return lines


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Write lines as a table of Markdown; the first is the heading."""
    heading, *rows = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([heading, f"|{'---|' * len(lines[0])}", *rows])


def csv_table(lines: Sequence[Sequence[str]]) -> str:
    """Write lines as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
