"""The overview figure: accuracy over time, and what the devices in training did.

Orders in flight are drawn in lanes, as many as there are orders at a time: a lane shows training, transfers and idle
time, and stays readable in a fleet with far more devices than lanes.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from offbeat.core.errors import InvalidInput
from offbeat.results.comparison import Comparison
from offbeat.results.plots import COLOURS, INK, TIME, draw_curves, save, style_axes
from offbeat.results.result import read_run

LOOKS = {"training": COLOURS[5], "transfer": COLOURS[4], "no order": "#EDEDED"}
TRANSFERS = ("download", "upload", "fresh model", "transfer", "on the way")
"""Names of parts in timelines; "on the way" is that of earlier versions."""


def read_timeline(path: Path) -> list[dict[str, Any]]:
    """The events of a finished run's timeline.json."""
    try:
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} is not the timeline of a finished run: {error}") from None
    return events


def lanes_of(orders: Sequence[tuple[float, float, int]]) -> list[int]:
    """The lane of each order (from, to, device): the lowest free one, given to the shorter of two that begin together.

    >>> lanes_of([(0.0, 5.0, 7), (0.0, 2.0, 8), (2.0, 4.0, 9), (4.0, 9.0, 8)])
    [1, 0, 0, 0]
    """
    taken: list[float] = []
    lanes = [0] * len(orders)
    for number in sorted(range(len(orders)), key=lambda each: orders[each]):
        begin, end, _ = orders[number]
        free = next((lane for lane, until in enumerate(taken) if until <= begin), len(taken))
        taken[free : free + 1] = [end]
        lanes[number] = free
    return lanes


def draw_occupation(axes: Axes, events: Sequence[dict[str, Any]], title: str, until: float) -> None:
    """Draw the lanes of one run with what its devices did, and a mark for every new version."""
    style_axes(axes, title)
    axes.grid(visible=False)
    shown = [event for event in events if event["ph"] != "M" and event["ts"] < until * 1e6]
    orders = [event for event in shown if event["name"].startswith("order (")]
    spans = [(event["ts"], event["ts"] + event["dur"], event["tid"]) for event in orders]
    lanes = dict(zip(((device, begin) for begin, _, device in spans), lanes_of(spans), strict=True))
    rows = max(lanes.values(), default=0) + 1
    bars: dict[str, list[tuple[int, float, float]]] = {name: [] for name in LOOKS}
    bars["no order"] = [(lane, 0.0, until) for lane in range(rows)]
    lane = 0
    for event in shown:  # the event of an order precedes those of its parts
        if event["name"].startswith("order ("):
            lane = lanes[event["tid"], event["ts"]]
        elif event["name"] == "training" or event["name"] in TRANSFERS:
            use = "training" if event["name"] == "training" else "transfer"
            bars[use].append((lane, event["ts"] / 1e6, event["dur"] / 1e6))
    for use in ("no order", "training", "transfer"):
        heights, begins, lengths = zip(*bars[use], strict=True) if bars[use] else ((), (), ())
        axes.barh(heights, lengths, left=begins, height=0.84, color=LOOKS[use], linewidth=0)
    axes.barh(
        [lanes[device, begin] for begin, _, device in spans],
        [(end - begin) / 1e6 for begin, end, _ in spans],
        left=[begin / 1e6 for begin, _, _ in spans],
        height=0.84,
        color="none",
        edgecolor="white",
        linewidth=0.8,
    )
    marks = [event["ts"] / 1e6 for event in shown if event["ph"] == "i"]
    if marks:  # an empty line that is not clipped has no extent, and the layout would fail
        axes.plot(marks, [-0.9] * len(marks), "v", color=INK, markersize=3.5, clip_on=False)
    axes.set_xlim(0.0, until)
    axes.set_ylim(rows - 0.5, -1.4)
    axes.set_yticks([])
    axes.set_ylabel(f"{rows} orders at a time")


def overview_figure(comparison: Comparison, timelines: Mapping[str, Sequence[dict[str, Any]]], until: float) -> Figure:
    """Accuracy over virtual time, and beside it what the devices in each timeline did until a time."""
    figure = Figure(figsize=(12.0, max(4.6, 2.3 * len(timelines))), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.15), squeeze=False)[0]
    curves = left.subplots()
    draw_curves(curves, comparison)
    below: dict[str, Any] = {"loc": "outside lower center", "ncols": 4, "frameon": False, "handlelength": 2.6}
    left.legend(*curves.get_legend_handles_labels(), **below)
    panels = right.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, events) in zip(panels, timelines.items(), strict=True):
        versions = sum(event["ph"] == "i" and event["ts"] < until * 1e6 for event in events)
        draw_occupation(axes, events, f"{name}: {versions} versions in {until:g} s", until)
    panels[-1].set_xlabel(TIME)
    handles: list[Any] = [Patch(color=colour, label=use) for use, colour in LOOKS.items()]
    handles.append(Line2D([], [], color=INK, marker="v", markersize=4, linestyle="none", label="new version"))
    right.legend(handles=handles, **below)
    return figure


def draw_overview(root: Path, algorithms: Sequence[str], shown: Sequence[str], until: float, out: Path) -> None:
    """Draw the finished runs of these algorithms under a directory, and what the devices of some did until a time.

    The devices are shown for the run with the lowest seed.
    """
    runs = [(path.parent, read_run(path.parent)) for path in root.glob("*/summary.json")]
    runs = sorted(
        (each for each in runs if each[1].algorithm in algorithms),
        key=lambda each: (algorithms.index(each[1].algorithm), each[1].seed),
    )
    firsts = {name: next(folder for folder, entry in runs if entry.algorithm == name) for name in shown}
    timelines = {name: read_timeline(folder / "timeline.json") for name, folder in firsts.items()}
    save(overview_figure(Comparison([entry for _, entry in runs]), timelines, until), out)
