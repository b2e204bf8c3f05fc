"""The page and the figure of the leaderboard, made from its file of measurements alone."""

from collections.abc import Sequence
from itertools import product
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.leaderboard import FAMILIES, IN_TRAINING, LEADERBOARD, SECONDS, TIME
from experiments.leaderboard_ranking import best_of_families, equally_busy, in_words, rank
from experiments.measurements import Measurement, by_seed
from experiments.page import unfinished
from experiments.tables import markdown_table, marked, part_lines, summary
from offbeat.results.plots import legend_below, line_style, style_axes
from offbeat.results.statistics import median_of, speed_up, speed_up_text

FIGURE = "leaderboard.png"
NEVER = 1.1 * SECONDS
"""Where the figure has a target that is not reached."""


def leaderboard_page(measurements: Sequence[Measurement]) -> str:
    """The whole page as Markdown."""
    measured = [part for part in LEADERBOARD.parts if any(each.part == part for each in measurements)]
    parts = [
        "# Leaderboard",
        "Which family of algorithms on which fleet, by how much, tuned alike. This page and its figure are written by "
        "`offbeat reproduce leaderboard --full --out docs` from `docs/results/leaderboard.csv`, a line per run with "
        "the settings that were chosen; edit neither by hand.",
    ]
    if measured:
        parts += [
            in_words(measurements, measured),
            f"Of those that keep about {IN_TRAINING} devices in training:",
            winners(equally_busy(measurements), measured),
            "Of all, also those that keep every device in training:",
            winners(measurements, measured),
            f"![the best of each family on each fleet, equally busy ones and all]({FIGURE})",
        ]
    parts.append(LEADERBOARD.about)
    parts.append(
        "Numbers are medians over seeds, in brackets their 95 % bootstrap intervals; shares and accuracies are in %. "
        "*Device seconds* are what all devices spent in training, *of them wasted* those behind updates that were "
        "never used. *Share of the slow fifth*: how much of the data behind the used updates lies on the slowest fifth "
        "of the devices, where 20 % would be their due if all held as much."
    )
    parts += [f"## {part}\n\n" + markdown_table(_sorted_lines(part, measurements)) for part in measured]
    parts.append(unfinished(LEADERBOARD, measurements))
    return "\n\n".join(parts) + "\n"


def _sorted_lines(part: str, measurements: Sequence[Measurement]) -> list[list[str]]:
    """The table of a part with a column for the family, the fastest first."""
    heading, *lines = part_lines(LEADERBOARD, part, measurements)
    named = zip(LEADERBOARD.methods(part), lines, strict=True)
    ranked = sorted(named, key=lambda pair: rank(measurements, part, pair[0]))
    return [[heading[0], "family", *heading[1:]]] + [[line[0], FAMILIES[name], *line[1:]] for name, line in ranked]


def winners(measurements: Sequence[Measurement], parts: Sequence[str]) -> str:
    """Who is the fastest on each fleet, and by how much before the best of the next family, seed by seed.

    What the devices of both spent on it stands beside, because some families keep all devices in training.
    """
    lines = [
        [
            "fleet",
            "fastest",
            f"{TIME} (s)",
            "device seconds",
            "best of the next family",
            "its device seconds",
            "times as fast",
        ]
    ]
    for part in parts:
        best = list(best_of_families(measurements, part).items())
        if not best:
            continue
        (family, first), *others = best
        times = by_seed(measurements, part, first, "time_to_target")
        line = [part, f"{marked(first)}, {family}", *_summaries(measurements, part, first)]
        if others:
            other, second = others[0]
            ratio = speed_up(times, by_seed(measurements, part, second, "time_to_target"))
            _, spent = _summaries(measurements, part, second)
            lines.append([*line, f"{marked(second)}, {other}", spent, speed_up_text(ratio).replace("inf", "∞")])
        else:
            lines.append([*line, "-", "-", "-"])
    return markdown_table(lines)


def _summaries(measurements: Sequence[Measurement], part: str, method: str) -> list[str]:
    """A method's time to the target, and what its devices spent in the whole run."""
    return [summary(measurements, part, method, name) for name in ("time_to_target", "device_seconds")]


def leaderboard_figure(measurements: Sequence[Measurement]) -> Figure:
    """The best algorithm of each family on each fleet: its time to the target, and its accuracy at the end.

    On the left are algorithms with about equally many devices in training, on the right all of them.
    """
    parts = [part for part in LEADERBOARD.parts if any(each.part == part for each in measurements)]
    families = list(dict.fromkeys(FAMILIES.values()))
    figure = Figure(figsize=(12.0, 9.0), layout="constrained")
    rows = {"time_to_target": f"{TIME[0].upper()}{TIME[1:]}, virtual s", "final_accuracy": "Accuracy at the end (%)"}
    columns = {f"about {IN_TRAINING} devices in training": equally_busy(measurements), "all algorithms": measurements}
    panels = figure.subplots(2, 2, sharey="row")
    for (axes, (name, title)), (column, (who, these)) in product(
        zip(panels, rows.items(), strict=True), enumerate(columns.items())
    ):
        style_axes(axes[column], f"{title}: {who}")
        for place, family in enumerate(families):
            _draw_family(axes[column], these, parts, family, name, place)
        axes[column].set_xticks(range(len(parts)), [fill(part, 11) for part in parts], fontsize="small")
        axes[column].set_xlim(-0.5, len(parts) - 0.3)
    ticks = np.linspace(0.0, SECONDS, 5)
    panels[0, 0].set_yticks([*ticks, NEVER], [*(f"{tick:g}" for tick in ticks), "never"])
    panels[0, 0].set_ylim(0.0, 1.05 * NEVER)
    legend_below(figure, *panels[0, 1].get_legend_handles_labels())
    return figure


def _draw_family(
    axes: Axes, measurements: Sequence[Measurement], parts: Sequence[str], family: str, name: str, place: int
) -> None:
    """Medians with intervals; a target that is not reached stands above the others, as never."""
    colour, _, marker = line_style(place)
    methods = {x: best_of_families(measurements, part).get(family) for x, part in enumerate(parts)}
    found = {
        x: median_of(by_seed(measurements, parts[x], method, name).values())
        for x, method in methods.items()
        if method is not None
    }
    if not found:
        return
    scale = 100.0 if name == "final_accuracy" else 1.0
    middle, low, high = (
        np.minimum([scale * getattr(each, end) for each in found.values()], NEVER) for end in ("median", "low", "high")
    )
    axes.errorbar(
        [x + 0.07 * place for x in found],
        middle,
        yerr=[middle - low, high - middle],
        color=colour,
        marker=marker or "o",
        linestyle="none",
        capsize=3,
        label=family,
    )
