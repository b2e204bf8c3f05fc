"""Figures of runs, comparisons and sweeps.

They are plain `Figure` objects, so that matplotlib's global state stays untouched.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

from offbeat.core.errors import InvalidInput
from offbeat.results.algorithm_results import AlgorithmResults, seeds_text
from offbeat.results.comparison import Comparison
from offbeat.results.files import replace_file
from offbeat.results.metric import TargetMetric, amount
from offbeat.results.result import Result, read_device_names
from offbeat.results.rows import Row

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")
"""Okabe and Ito's palette, which is safe for colour-blind readers."""
STYLES = ("-", "--", "-.", (0, (1, 1.2)))
MARKERS = ("", "o", "s", "^", "D", "v", "P", "X")
"""The first seven lines have no marker; lines of one colour differ in style or marker, up to the 28th in both."""
SUFFIXES = (".png", ".svg", ".pdf")
INK, FAINT = "#333333", "#D9D9D9"
MOST_BARS = 60
"""Most bars in `devices_figure`."""
TIME, REAL_TIME = "virtual time (s)", "wall-clock time (s)"

Numbers = NDArray[np.float64]


class Picture(Figure):
    """A figure that a notebook shows without `matplotlib.pyplot`."""

    def _repr_png_(self) -> bytes:
        data = io.BytesIO()
        self.savefig(data, format="png", dpi=100, facecolor="white")
        return data.getvalue()


class LineStyle(NamedTuple):
    """The look of one algorithm's line."""

    colour: str
    style: str | tuple[float, tuple[float, ...]]
    marker: str


def line_style(number: int) -> LineStyle:
    """The style of the algorithm with this index in its plot; the first 56 are all different.

    >>> line_style(1) == line_style(8), line_style(1).colour == line_style(8).colour
    (False, True)
    """
    return LineStyle(
        COLOURS[number % len(COLOURS)],
        STYLES[number % len(STYLES)],
        MARKERS[number // len(COLOURS) % len(MARKERS)],
    )


def accuracy_figure(comparison: Comparison) -> Figure:
    """Target metric over time and, if there is a target, time to target, by algorithm."""
    has_target = comparison.target is not None
    lines = len(comparison.by_algorithm) + has_target
    height = max(4.6, 1.4 + 0.3 * lines)  # room for the names beside the bars
    figure = Picture(figsize=(11.0 if has_target else 7.5, height), layout="constrained")
    if comparison.target is None:
        draw_curves(figure.add_subplot(), comparison)
    else:
        curves, bars = figure.subplots(1, 2, width_ratios=(3, 2))
        draw_curves(curves, comparison)
        _bars(bars, comparison, comparison.target)
    legend_below(figure, *figure.axes[0].get_legend_handles_labels())
    return figure


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[Any], most: int = 5) -> None:
    """Put a legend below all panels; long labels get fewer columns."""
    columns = max(1, min(most, len(labels), 110 // (max((len(str(label)) for label in labels), default=0) + 10)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.0)


def legend_above(axes: Axes) -> None:
    """Put the legend of one panel above it on the right, opposite the title."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, borderaxespad=0.0)


def run_figure(run: Result) -> Figure:
    """One run over time: its target metric and the loss, and below them the staleness of the updates."""
    figure = Picture(figsize=(8.0, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.4))
    rows, metrics = run.rows, run.metrics
    time = _column(rows, "time")
    target = TargetMetric.of(run.summary)
    shown = target if target.name in rows[0] else TargetMetric(metrics[0])
    values = _column(rows, shown.name)
    style_axes(upper, f"{run.title}, seed {run.seed}")
    upper.plot(time, values, color=COLOURS[0], linewidth=2.0)
    upper.plot(time[-1:], values[-1:], "o", color=COLOURS[0], clip_on=False, zorder=5)
    final = shown.text(float(values[-1]), 1)
    upper.annotate(final, (time[-1], values[-1]), (-8, -14), textcoords="offset points", ha="right", color=COLOURS[0])
    upper.set_ylabel(held_out(shown), color=COLOURS[0])
    _scale(upper, shown)
    if "loss" in metrics and shown.name != "loss":
        loss = upper.twinx()
        loss.plot(time, _column(rows, "loss"), color=COLOURS[1], linewidth=1.6, linestyle="--")
        loss.plot(time[-1:], _column(rows, "loss")[-1:], "s", color=COLOURS[1], markersize=5, clip_on=False, zorder=5)
        loss.set_ylabel("loss on held-out data", color=COLOURS[1])
        loss.set_ylim(bottom=0.0)
        loss.spines[["top", "left", "bottom"]].set_visible(False)
        loss.spines["right"].set_color(FAINT)
        loss.tick_params(color=FAINT, labelcolor=INK)
    style_axes(lower, "")
    lower.fill_between(time, _column(rows, "max_staleness"), color=FAINT, step="post", label="highest so far")
    lower.plot(time, _column(rows, "mean_staleness"), color=COLOURS[2], linewidth=2.0, label="mean so far")
    lower.set_ylabel("staleness (versions)")
    lower.set_ylim(bottom=0.0, top=max(1.0, 1.1 * float(_column(rows, "max_staleness").max())))
    lower.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    lower.set_xlabel(REAL_TIME if run.real else TIME)
    lower.set_xlim(0.0, 1.02 * float(time[-1]) or 1.0)
    legend_below(figure, *lower.get_legend_handles_labels())
    return figure


def devices_figure(run: Result) -> Figure | None:
    """The time, the mean staleness and the traffic of each device; None if the run has no devices.csv.

    In a fleet larger than `MOST_BARS` each bar is the mean over neighbouring devices.
    """
    if not run.devices:
        return None
    group = -(-len(run.devices) // MOST_BARS)
    devices = _means(run.devices, group)
    figure = Picture(figsize=(10.0, max(2.8, 1.6 + 0.28 * len(devices))), layout="constrained")
    time, staleness, traffic = figure.subplots(1, 3, sharey=True, width_ratios=(3, 1, 1.6))
    places = _column(devices, "device")
    style_axes(time, "")
    uses = {"training_seconds": "training", "way_seconds": "transfer", "idle_seconds": "idle"}
    _stack(time, places, devices, uses, COLOURS)
    time.set_xlabel("seconds")
    time.set_ylabel("device" if group == 1 else f"device (each bar: mean of {group} neighbouring devices)")
    time.yaxis.set_major_locator(MaxNLocator(integer=True))
    names = read_device_names(run.directory) if group == 1 and run.directory is not None else {}
    if names:
        time.set_yticks([*names], [*names.values()], fontsize=8)
    time.invert_yaxis()
    style_axes(staleness, "")
    staleness.plot(_column(devices, "mean_staleness"), places, "o", color=COLOURS[3])
    staleness.set_xlim(left=0.0)
    staleness.set_xlabel("mean staleness")
    style_axes(traffic, "")
    _stack(traffic, places, devices, {"bytes_down": "down", "bytes_up": "up"}, COLOURS[4:], unit=1e6)
    traffic.set_xlabel("megabytes")
    for axes in (time, traffic):
        legend_above(axes)
    figure.suptitle(literal(f"{run.title}, seed {run.seed}"), color=INK)
    return figure


def _means(devices: Sequence[Row], group: int) -> list[Row]:
    """The mean of every column over each group of neighbouring devices."""
    groups = [devices[k : k + group] for k in range(0, len(devices), group)]
    return [{name: sum(each[name] for each in some) / len(some) for name in some[0]} for some in groups]


def _stack(
    axes: Axes,
    places: Numbers,
    devices: Sequence[Row],
    parts: Mapping[str, str],
    colours: Sequence[str],
    unit: float = 1.0,
) -> None:
    """Draw stacked bars, one part after the other."""
    left, step = np.zeros(len(devices)), float(places[1] - places[0]) if len(places) > 1 else 1.0
    for (name, label), colour in zip(parts.items(), colours, strict=False):
        width = _column(devices, name) / unit
        axes.barh(places, width, left=left, color=colour, label=label, height=0.7 * step)
        left += width


def sweep_figure(comparison: Comparison, over: Mapping[str, Sequence[Any]]) -> Figure:
    """Time to target over the last setting; the one before it gives the lines, the one before that the panels."""
    paths = [path.split(".")[-1] for path in over]
    panels, lines, ticks = ([("", "")] * (3 - len(over)) + list(over.items()))[-3:]
    figure = Picture(figsize=(max(5.5, 4.6 * len(panels[1] or [""])), 4.4), layout="constrained")
    axes = figure.subplots(1, len(panels[1] or [""]), sharey=True, squeeze=False)[0]
    algorithms = iter(comparison.by_algorithm)  # in the order of the combinations
    for number, panel in enumerate(panels[1] or [""]):
        target = "" if comparison.target is None else f"time to {comparison.goal}"
        style_axes(axes[number], f"{paths[-3]} = {panel}" if len(over) > 2 else target)
        for place, line in enumerate(lines[1] or [""]):
            row = [next(algorithms) for _ in ticks[1]]
            label = literal(f"{paths[-2]} = {line}") if len(over) > 1 else None
            _times(axes[number], row, place, label)
        axes[number].set_xticks(range(len(ticks[1])), [literal(str(value)) for value in ticks[1]])
        axes[number].set_xlabel(paths[-1])
    axes[0].set_ylim(bottom=0.0)  # after all panels are drawn, since they share the axis
    axes[0].set_ylabel(f"{target or 'time'} (virtual s)")
    handles, labels = axes[0].get_legend_handles_labels()
    if labels:
        legend_below(figure, handles, labels, most=max(2, 2 * len(axes)))
    return figure


def _times(axes: Axes, algorithms: Sequence[AlgorithmResults], place: int, label: str | None) -> None:
    """Draw one line of a sweep: medians with the interval or range over seeds, where all seeds reached the target."""
    places = [x + 0.06 * place for x in range(len(algorithms))]
    known = [(x, results) for x, results in zip(places, algorithms, strict=True) if results.reached_by_all]
    middle = np.array([results.median_time for _, results in known], dtype=np.float64)
    ends = np.array([_ends(results) for _, results in known], dtype=np.float64).reshape(-1, 2)
    style = line_style(place)
    axes.errorbar(
        [x for x, _ in known],
        middle,
        yerr=np.abs(ends - middle[:, None]).T,
        color=style.colour,
        linestyle=style.style,
        marker=style.marker or ".",
        capsize=3,
        label=label,
    )


def check_figure_path(path: Path) -> None:
    """Raise InvalidInput if the suffix of the path is not .png, .svg or .pdf."""
    if path.suffix.lower() not in SUFFIXES:
        kind = f"ends in {path.suffix!r}" if path.suffix else "has no suffix"
        raise InvalidInput(f"{path}: the name of the figure {kind}: choose .png, .svg or .pdf")


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the suffix of the path; equal figures give equal bytes."""
    check_figure_path(path)
    data = io.BytesIO()
    kind = path.suffix.lower()[1:]
    removed: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "svg": dict.fromkeys(("Date", "Creator", "Format", "Type")),
        "pdf": dict.fromkeys(("CreationDate", "Creator", "Producer")),
    }
    with matplotlib.rc_context({"svg.hashsalt": "offbeat", "svg.fonttype": "path", "pdf.fonttype": 42}):  # fonts inside
        figure.savefig(data, format=kind, dpi=150, facecolor="white", metadata=removed[kind])
    replace_file(path, data.getvalue())


def mean_and_range(entries: Sequence[Result]) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """The times at which a run was evaluated, and the mean, lowest and highest target metric of all runs then.

    Between evaluations a run keeps its last value. A run that has ended keeps its final value: otherwise the mean would
    jump when the best run is the first to stop.
    """
    name = TargetMetric.of(entries[0].summary).name
    runs = [(_column(entry.rows, "time"), _column(entry.rows, name)) for entry in entries]
    start = max(time[0] for time, _ in runs)
    grid = np.unique(np.concatenate([time for time, _ in runs]))
    grid = grid[grid >= start]
    values = np.stack([accuracy[np.searchsorted(time, grid, side="right") - 1] for time, accuracy in runs])
    return grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0)


def clock_of(comparison: Comparison) -> str:
    """The label of a time axis for these runs."""
    real = {entry.real for entry in comparison.entries}
    return TIME if real == {False} else REAL_TIME if real == {True} else "time (s), virtual in simulations"


def held_out(metric: TargetMetric) -> str:
    """The label of an axis with this metric."""
    return f"{metric.title} on held-out data"


def _scale(axes: Axes, metric: TargetMetric) -> None:
    """Show a share in percent, with an axis from 0; other metrics keep the automatic scale."""
    if metric.is_share:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        axes.set_ylim(bottom=0.0)


def _column(rows: Sequence[Row], key: str) -> Numbers:
    return np.array([row[key] for row in rows], dtype=np.float64)


def draw_curves(axes: Axes, comparison: Comparison) -> None:
    """Draw the target metric of every algorithm over time: mean and range over its seeds."""
    several = any(len(results.entries) > 1 for results in comparison.by_algorithm)
    note = f"mean and range of {seeds_text(comparison.by_algorithm)}" if several else "one seed"
    metric = comparison.metric
    style_axes(axes, f"{metric.title.capitalize()} over time ({note})")
    for number, results in enumerate(comparison.by_algorithm):
        time, mean, low, high = mean_and_range(results.entries)
        colour, style, marker = line_style(number)
        every = max(1, len(time) // 8)  # markers are shifted from line to line, so that they do not coincide
        axes.fill_between(time, low, high, color=colour, alpha=0.15 if len(comparison.by_algorithm) < 8 else 0.05, lw=0)
        axes.plot(
            time,
            mean,
            color=colour,
            linestyle=style,
            marker=marker,
            markevery=(number % every, every),
            markersize=5.5,
            linewidth=1.8,
            label=_label(results),
        )
        for end in (entry.rows[-1] for entry in results.entries if entry.diverged):
            axes.plot(
                end["time"], end[metric.name], "x", color=colour, markersize=9, markeredgewidth=2.2, clip_on=False
            )
    if comparison.target is not None:
        label = f"target {metric.text(comparison.target)}"
        axes.axhline(comparison.target, color=INK, linestyle=":", linewidth=1.2, zorder=1.5, label=label)
    axes.set_xlabel(clock_of(comparison))
    axes.set_ylabel(held_out(metric))
    axes.set_xlim(0.0, 1.01 * max(entry.rows[-1]["time"] for entry in comparison.entries) or 1.0)
    _scale(axes, metric)


def _label(results: AlgorithmResults) -> str:
    return literal(f"{results.algorithm} (x: diverged)" if results.diverged else results.algorithm)


def _bars(axes: Axes, comparison: Comparison, target: float) -> None:
    style_axes(axes, f"Time to {comparison.metric.goal(target)}")
    axes.grid(visible=False, axis="y")
    longest = max((_ends(results)[1] for results in comparison.by_algorithm if results.reached), default=0.0) or 1.0
    for number, results in enumerate(comparison.by_algorithm):
        _bar(axes, number, results, longest)
    names = [literal(results.algorithm) for results in comparison.by_algorithm]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(3, len(comparison.by_algorithm)) - 0.4, -0.6)
    axes.set_xlim(0.0, 1.38 * longest)
    axes.tick_params(axis="y", length=0, labelsize="medium")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    several = any(len(results.entries) > 1 for results in comparison.by_algorithm)
    clock = clock_of(comparison)
    axes.set_xlabel(f"{clock}: median, {comparison.spread} over seeds" if several else clock)


def _bar(axes: Axes, number: int, results: AlgorithmResults, longest: float) -> None:
    """Draw the median with its interval or range; pale if not all seeds reached the target: the slowest are missing."""
    middle, gap = results.median_time, 0.025 * longest
    if middle is None:
        axes.text(gap, number, "not reached", va="center", color=INK, style="italic")
        return
    first, last = _ends(results)
    whole = results.reached_by_all
    axes.barh(number, middle, height=0.5, color=line_style(number).colour, alpha=1.0 if whole else 0.35)
    if first != last:
        spread = ([middle - first], [last - middle])
        axes.errorbar(middle, number, xerr=spread, color=INK, capsize=4, linewidth=1.2, linestyle="none")
    label = f"{amount(middle)} s"
    if not whole:
        label += f"\n{len(results.reached)} of {len(results.entries)} seeds"
    axes.text(last + gap, number, label, va="center", color=INK)


def _ends(results: AlgorithmResults) -> tuple[float, float]:
    """The ends of the interval or range; of one seed, or of seeds some of which missed the target, first and last."""
    known = results.time
    if known is None or known.seeds == 1:
        return min(results.reached), max(results.reached)
    return known.low, known.high


def literal(text: str) -> str:
    """The text without formulas: matplotlib would parse what is between dollar signs.

    >>> literal("$x$")
    '\\\\$x\\\\$'
    """
    return text.replace("$", r"\$")


def style_axes(axes: Axes, title: str) -> None:
    """Apply the style that all panels share."""
    axes.set_title(literal(title), loc="left", fontsize="large", color=INK, pad=10)
    axes.grid(visible=True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(color=FAINT, labelcolor=INK)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


# The lists of figures ------------------------------------------------------------------------------------------------

RUN_FIGURES: dict[str, Callable[[Result], Figure | None]] = {"metrics": run_figure, "devices": devices_figure}
"""The figures of a run by file name. A new one is a function and a line here."""
COMPARISON_FIGURES: dict[str, Callable[[Comparison], Figure | None]] = {"accuracy": accuracy_figure}
"""The figures of a comparison by file name, which its report shows too. A new one is a function and a line here."""


def draw_figures(run: Result) -> list[str]:
    """Draw the figures of a run into its directory; returns the names of the files."""
    assert run.directory is not None
    return _draw({name: draw(run) for name, draw in RUN_FIGURES.items()}, run.directory)


def draw_comparison(comparison: Comparison, directory: Path) -> list[str]:
    """Draw the figures of a comparison into a directory, also as PDF and SVG; returns the names of the files."""
    return _draw({name: draw(comparison) for name, draw in COMPARISON_FIGURES.items()}, directory, SUFFIXES)


def _draw(figures: Mapping[str, Figure | None], directory: Path, suffixes: Sequence[str] = (".png",)) -> list[str]:
    drawn = {f"{name}{kind}": figure for name, figure in figures.items() if figure is not None for kind in suffixes}
    for name, figure in drawn.items():
        save(figure, directory / name)
    return list(drawn)
