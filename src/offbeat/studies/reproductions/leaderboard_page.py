"""The page and the figure of the leaderboard, made from its file of measurements alone."""

from collections.abc import Sequence
from math import inf, isfinite
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from offbeat.results.plots import legend_below, line_style, style_axes
from offbeat.results.statistics import median_of, speed_up, speed_up_text
from offbeat.studies.reproductions.leaderboard import FAMILIES, IN_TRAINING, LEADERBOARD, TARGET
from offbeat.studies.reproductions.measurements import Measurement, by_seed
from offbeat.studies.reproductions.page import unfinished
from offbeat.studies.reproductions.tables import markdown_table, marked, part_lines, summary

FIGURE = "leaderboard.png"
TIME = f"time to {100 * TARGET:g} % (s)"


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
            f"Of those that keep about {IN_TRAINING} devices in training:",
            winners(_equally_busy(measurements), measured),
            "Of all, also those that keep every device in training:",
            winners(measurements, measured),
            f"![the best of each family on each fleet]({FIGURE})",
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


def _equally_busy(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The runs with no more devices in training than all were given, but for a fifth."""
    return [each for each in measurements if each.values.get("in_training", 0.0) <= 1.2 * IN_TRAINING]


def _sorted_lines(part: str, measurements: Sequence[Measurement]) -> list[list[str]]:
    """The table of a part with a column for the family, the fastest first."""
    heading, *lines = part_lines(LEADERBOARD, part, measurements)
    named = zip(LEADERBOARD.methods(part), lines, strict=True)
    ranked = sorted(named, key=lambda pair: _rank(measurements, part, pair[0]))
    return [[heading[0], "family", *heading[1:]]] + [[line[0], FAMILIES[name], *line[1:]] for name, line in ranked]


def _rank(measurements: Sequence[Measurement], part: str, method: str) -> tuple[float, float]:
    """Sooner at the target first; among those that never get there, the more accurate first."""
    times = by_seed(measurements, part, method, "time_to_target")
    accuracies = by_seed(measurements, part, method, "final_accuracy")
    if not times:
        return inf, inf
    return median(times.values()), -median(accuracies.values())


def best_of_families(measurements: Sequence[Measurement], part: str) -> dict[str, str]:
    """The best algorithm of each family on a fleet, the best family first."""
    known = {each.method for each in measurements if each.part == part}
    best: dict[str, str] = {}
    for method in sorted(known, key=lambda method: _rank(measurements, part, method)):
        best.setdefault(FAMILIES[method], method)
    return best


def winners(measurements: Sequence[Measurement], parts: Sequence[str]) -> str:
    """Who is the fastest on each fleet, and by how much before the best of the next family, seed by seed.

    What the devices of both spent on it stands beside, because some families keep all devices in training.
    """
    lines = [
        ["fleet", "fastest", TIME, "device seconds", "best of the next family", "its device seconds", "times as fast"]
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
    """The best algorithm of each family on each fleet: its time to the target, and its accuracy at the end."""
    parts = [part for part in LEADERBOARD.parts if any(each.part == part for each in measurements)]
    families = list(dict.fromkeys(FAMILIES.values()))
    figure = Figure(figsize=(11.0, 4.8), layout="constrained")
    panels = {"time_to_target": f"Time to {100 * TARGET:g} % (virtual s)", "final_accuracy": "Accuracy at the end (%)"}
    for axes, (name, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        style_axes(axes, f"{title}: the best of each family")
        for place, family in enumerate(families):
            _draw_family(axes, measurements, parts, family, name, place)
        axes.set_xticks(range(len(parts)), [part.replace(", ", ",\n") for part in parts], fontsize="small")
        axes.set_xlim(-0.5, len(parts) - 0.3)
    figure.axes[0].set_ylim(bottom=0.0)
    legend_below(figure, *figure.axes[0].get_legend_handles_labels())
    return figure


def _draw_family(
    axes: Axes, measurements: Sequence[Measurement], parts: Sequence[str], family: str, name: str, place: int
) -> None:
    """Medians with intervals; what is not reached is left out."""
    colour, _, marker = line_style(place)
    shown = []
    for x, part in enumerate(parts):
        method = best_of_families(measurements, part).get(family)
        if method is None:
            continue
        estimate = median_of(by_seed(measurements, part, method, name).values())
        scale = 100.0 if name == "final_accuracy" else 1.0
        if isfinite(estimate.median):
            low = estimate.low if isfinite(estimate.low) else estimate.median
            high = estimate.high if isfinite(estimate.high) else estimate.median
            shown.append((x + 0.07 * place, scale * estimate.median, scale * low, scale * high))
    if not shown:
        return
    xs, middle, lows, highs = zip(*shown, strict=True)
    below = [m - low for m, low in zip(middle, lows, strict=True)]
    above = [high - m for m, high in zip(middle, highs, strict=True)]
    axes.errorbar(
        xs, middle, yerr=[below, above], color=colour, marker=marker or "o", linestyle="none", capsize=3, label=family
    )
