"""Figures of a search: the best result over trials, and the front of results against what they cost."""

from math import isfinite
from typing import TYPE_CHECKING

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from offbeat.comparison.tuning import Tuned
from offbeat.results.criterion import COSTS
from offbeat.results.plots import INK, Picture, legend_below, line_style, literal, style_axes
from offbeat.results.text_plot import Points

if TYPE_CHECKING:
    from offbeat.comparison.tuning_table import Tuning


def best_so_far(tuned: Tuned) -> Points:
    """The measure of the best trial up to each trial that finished, by its number, counted from 1."""
    points, best = list[tuple[float, float]](), float("nan")
    for trial in tuned.finished:
        best = trial.measure if trial.best else best
        points.append((trial.number + 1, best))
    return [*points, *([(tuned.trials, best)] if points and points[-1][0] < tuned.trials else [])]


def search_figure(tuning: "Tuning") -> Figure:
    """The best measure so far over trials, a line per algorithm; dots are trials that ran to their end."""
    figure = Picture(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.add_subplot()
    style_axes(axes, f"Best {tuning.criterion.title} so far (mean of the tuning seeds)")
    for number, tuned in enumerate(tuning.tuned):
        style = line_style(number)
        known = [point for point in best_so_far(tuned) if isfinite(point[1])]
        axes.step(
            [x for x, _ in known], [y for _, y in known], where="post", color=style.colour, linestyle=style.style,
            linewidth=2.0, label=literal(tuned.algorithm),
        )  # fmt: skip
        dots = [trial for trial in tuned.finished if isfinite(trial.measure)]
        axes.plot(
            [trial.number + 1 for trial in dots], [trial.measure for trial in dots], "o", color=style.colour,
            markersize=4, alpha=0.6,
        )  # fmt: skip
    axes.set_xlabel("trial")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _measure_axis(axes.yaxis, tuning)
    legend_below(figure, *axes.get_legend_handles_labels())
    return figure


def front_figure(tuning: "Tuning") -> Figure:
    """Each cost over the measure: all finished trials, the front as a line, and the chosen settings as stars."""
    names = tuning.costs or tuple(COSTS)[:1]
    figure = Picture(figsize=(5.6 * len(names), 4.6), layout="constrained")
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    front = [trial for _, trial in tuning.front]
    for axes, cost in zip(panels, names, strict=True):
        style_axes(axes, f"{COSTS[cost][0].capitalize()} against {tuning.criterion.title}")
        line = sorted((trial.measure, trial.costs[cost]) for trial in front)
        axes.plot([x for x, _ in line], [y for _, y in line], color=INK, linewidth=1.2, zorder=1.5, label="front")
        for number, tuned in enumerate(tuning.tuned):
            known = [trial for trial in tuned.finished if isfinite(trial.measure)]
            chosen = [trial for trial in known if trial.settings == tuned.settings]
            for trials, marker, size, name in (
                (known, "o", 5, tuned.algorithm),
                (chosen, "*", 14, "its best settings"),
            ):
                axes.plot(
                    [trial.measure for trial in trials], [trial.costs[cost] for trial in trials], marker, zorder=2.5,
                    color=line_style(number).colour, markersize=size, markeredgecolor="white", label=literal(name),
                )  # fmt: skip
        axes.set_ylabel(COSTS[cost][0])
        axes.set_ylim(bottom=0.0)
        _measure_axis(axes.xaxis, tuning)
    legend_below(figure, *panels[0].get_legend_handles_labels())
    return figure


def _measure_axis(axis: Axis, tuning: "Tuning") -> None:
    """Label an axis with the criterion; shares are in percent, times in virtual seconds."""
    criterion = tuning.criterion
    axis.set_label_text(f"{criterion.title} (virtual s)" if criterion.kind == "time" else criterion.title)
    if criterion.kind != "time" and criterion.metric.is_share:
        axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
