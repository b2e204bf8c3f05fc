"""The measurements of a reproduction as tables: medians with intervals, beside what the paper has in their place."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf

from experiments.claims import Judged
from experiments.measurements import Measurement, by_seed
from experiments.reproduction import Reproduction
from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import about_of
from offbeat.results.statistics import median_of

SHARES = ("final_accuracy", "mean_accuracy", "wasted_share", "slow_share")
MISSING = "not yet run"
SURE = ("published", "authors' code")


def number(name: str, value: float) -> str:
    """A measure as people read it.

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
    """A method's name, and how sure its rule is where we could not read it in its paper or its authors' code.

    >>> marked("fedbuff"), marked("FedSA"), marked("SEAFL² 3")
    ('fedbuff', 'FedSA (our reading)', 'SEAFL² 3')
    """
    policy = POLICIES.get(method.lower())
    provenance = "published" if policy is None else about_of(policy).provenance
    return method if provenance in SURE else f"{method} ({provenance})"


def summary(measurements: Sequence[Measurement], part: str, method: str, name: str) -> str:
    """The median over seeds and its interval, or that there is nothing yet."""
    values = by_seed(measurements, part, method, name).values()
    if not values:
        return MISSING
    return median_of(values).text(lambda value: number(name, value))


def part_lines(reproduction: Reproduction, part: str, measurements: Sequence[Measurement]) -> list[list[str]]:
    """A heading and a line for each method of a part: each measure, the paper's number where it has one, how many seeds
    there are, and the settings that were chosen on the tuning seed."""
    known = {name for method in reproduction.methods(part) for name in reproduction.published.get((part, method), {})}
    heading = ["method"]
    for name, title in reproduction.shown.items():
        unit = " (%)" if name in SHARES else " (s)" if name == "time_to_target" else ""
        heading += [title + unit, "published"] if name in known else [title + unit]
    tuned = any(each.settings for each in measurements if each.part == part)
    lines = [[*heading, "seeds", *(["chosen"] if tuned else [])]]
    for method in reproduction.methods(part):
        line = [marked(method)]
        printed = reproduction.published.get((part, method), {})
        for name in reproduction.shown:
            line.append(summary(measurements, part, method, name))
            if name in known:
                line.append(number(name, printed[name]) if name in printed else "-")
        own = [each for each in measurements if (each.part, each.method) == (part, method)]
        lines.append([*line, _seeds(own), *([_chosen(own)] if tuned else [])])
    return lines


def _seeds(runs: Sequence[Measurement]) -> str:
    """How many runs there are, and how many of them diverged."""
    diverged = sum("diverged" in each.values for each in runs)
    return f"{len(runs)}, {diverged} diverged" if diverged else str(len(runs))


def _chosen(runs: Sequence[Measurement]) -> str:
    """The settings that were chosen for the runs, without the names of their tables."""
    settings = next((each.settings for each in runs if each.settings), "")
    return ", ".join(each.partition(".")[2].replace("=", " ") for each in settings.split("; ")) or "-"


def claim_lines(judged: Sequence[Judged]) -> list[list[str]]:
    """A heading and a line for each claim: what is published, what was measured, and the verdict."""
    lines = [["claim", "where", "published", "measured", "seeds", "verdict"]]
    for each in judged:
        claim = each.claim
        lines.append([claim.says, claim.where, claim.published, each.measured, str(each.seeds), f"**{each.verdict}**"])
    return lines


def in_short(rows: Iterable[str], columns: Mapping[str, Callable[[str], str]]) -> list[list[str]]:
    """A table of numbers by parts: a row for each part of which something is known, a column for each question.

    >>> in_short(["here", "there"], {"A above B": {"here": "+2.0", "there": ""}.__getitem__})
    [['part', 'A above B'], ['here', '+2.0']]
    """
    lines = [[row, *(answer(row) for answer in columns.values())] for row in rows]
    known = [[cell or "-" for cell in line] for line in lines if any(line[1:])]
    return [["part", *columns], *known] if known else []


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Lines as a table of Markdown, the first of them its heading."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
