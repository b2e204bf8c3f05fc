"""The figure of a study: published and measured gaps, one line per claim."""

from collections.abc import Sequence
from math import inf, isfinite

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.harness.claims import Judged, Verdict
from offbeat.results.plots import COLOURS, FAINT, INK, style_axes

WIDTH, ROW, REST = 9.0, 0.26, 1.0
"""Inches: the width of the figure, the height of a claim, and the rest of a panel's height."""
PANELS = {
    "accuracy": "Difference of accuracies (points)",
    "time": "Times as fast to the target",
    "loss": "Difference of training losses",
}
COLOUR_OF: dict[Verdict, str] = {
    "agrees": COLOURS[2],
    "contradicts": COLOURS[1],
    "undecided": COLOURS[4],
    "no claim": INK,
}
BOUNDS = {"time": (1 / 8, 8.0)}
"""Ratios outside these bounds are drawn at the edge, as arrows."""


def claims_figure(verdicts: Sequence[Judged]) -> Figure | None:
    """Draw each claim that has a number: the published gap as a diamond, the measured one with its interval, in the
    colour of the verdict. None if no claim has one."""
    panels = {name: [each for each in verdicts if each.estimate and _panel(each) == name] for name in PANELS}
    panels = {name: lines for name, lines in panels.items() if lines}
    if not panels:
        return None
    heights = [ROW * len(lines) + REST for lines in panels.values()]
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (name, lines) in zip(axes, panels.items(), strict=True):
        _draw(panel, name, lines)
    handles = [Line2D([], [], color=INK, marker="D", markerfacecolor="white", linestyle="none")]
    found = [verdict for verdict in COLOUR_OF if any(each.verdict == verdict for each in verdicts)]
    handles += [Line2D([], [], color=COLOUR_OF[verdict], marker="o") for verdict in found]
    labels = ["published", *found]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    return figure


def _panel(judged: Judged) -> str:
    if judged.claim.about_time:
        return "time"
    return "loss" if judged.claim.measure == "training_loss" else "accuracy"


def _draw(axes: Axes, name: str, lines: Sequence[Judged]) -> None:
    style_axes(axes, PANELS[name])
    scale, none = 100.0 if name == "accuracy" else 1.0, 1.0 if name == "time" else 0.0
    low, high = BOUNDS.get(name, (-inf, inf))

    def shown(value: float) -> float:
        return min(max(scale * value, low), high)

    if name == "time":
        axes.set_xscale("log", base=2)
        axes.set_xlim(low, high)
        axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(none, color=INK, linewidth=0.8)
    for row, each in enumerate(lines):
        estimate, colour = each.estimate, COLOUR_OF[each.verdict]
        assert estimate is not None
        axes.axhline(row, color=FAINT, linewidth=0.4, zorder=0)
        if isfinite(shown(estimate.low)) and isfinite(shown(estimate.high)):
            axes.plot([shown(estimate.low), shown(estimate.high)], [row, row], color=colour, linewidth=1.6)
        beyond = scale * estimate.median > high, scale * estimate.median < low
        marker = ">" if beyond[0] else "<" if beyond[1] else "o"
        axes.plot(shown(estimate.median), row, marker=marker, markersize=4.5, color=colour, clip_on=False)
        if each.claim.gap is not None:
            axes.plot(shown(each.claim.gap), row, marker="D", markersize=4.5, color=INK, markerfacecolor="white")
    axes.set_yticks(range(len(lines)), [each.claim.says for each in lines], fontsize=8)
    axes.set_ylim(len(lines) - 0.4, -0.6)
