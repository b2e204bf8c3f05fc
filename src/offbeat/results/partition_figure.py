"""The figure of a partition: label counts per device as a heat map, and the number of samples per device below."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from offbeat.results.plots import COLOURS, INK, literal, style_axes

NUMBERED = 300
"""Most cells that show their counts."""
TICKED = 25
"""Most devices with a tick each."""
ORDERED = 50
"""Most devices that keep their own order; more are sorted."""
SHOWN = 2000
"""Most devices that are drawn."""
NAMED = 40
"""Most classes with a name each."""

Counts = NDArray[np.int64]


def partition_figure(counts: Counts, sizes: Counts, names: Sequence[str], title: str, what: str = "label") -> Figure:
    """Draw a column per device and a row per label; more than `ORDERED` devices are sorted by most frequent label."""
    classes = counts.shape[1]
    shown, axis = columns_shown(counts)
    cells = counts[shown].T
    height = min(9.0, max(4.2, 2.4 + 0.22 * min(classes, NAMED)))
    figure = Figure(figsize=(10.0, height), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    style_axes(upper, title)
    upper.grid(visible=False)
    # The square root keeps devices with few samples visible.
    image = upper.imshow(
        cells, aspect="auto", interpolation="nearest", cmap="Blues", norm=PowerNorm(0.5, 0, max(1, cells.max()))
    )
    if cells.size <= NUMBERED:
        for label, place in np.argwhere(cells > 0):
            dark = cells[label, place] > cells.max() / 3
            colour = "white" if dark else INK
            upper.text(place, label, f"{cells[label, place]}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, ax=upper, label="tokens" if what == "token" else "samples", pad=0.01)
    if classes <= NAMED:
        upper.set_yticks(range(classes), [_shortened(name) for name in names])
        upper.tick_params(axis="y", labelsize=8 if classes > 12 else 10)
    else:
        upper.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    upper.set_ylabel(what)
    style_axes(lower, "")
    lower.bar(np.arange(len(shown)), sizes[shown], width=0.8 if len(shown) <= ORDERED else 1.0, color=COLOURS[0])
    lower.set_ylabel("samples")
    lower.set_xlabel(axis)
    lower.set_xlim(-0.5, len(shown) - 0.5)
    if len(shown) <= TICKED:
        lower.set_xticks(range(len(shown)))
    else:
        lower.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    return figure


def columns_shown(counts: Counts) -> tuple[Counts, str]:
    """The devices in the order of the columns, and the label of the axis."""
    devices = len(counts)
    if devices <= ORDERED:
        return np.arange(devices), "device"
    largest = counts.argmax(axis=1)
    order = np.lexsort((-counts.max(axis=1), largest))
    if devices <= SHOWN:
        return order, f"{devices:,} devices, sorted by their most frequent label"
    chosen = np.linspace(0, devices - 1, SHOWN).round().astype(np.int64)
    return order[chosen], f"{SHOWN:,} of {devices:,} devices, sorted by their most frequent label"


def _shortened(name: str) -> str:
    """The name cut to 18 characters; whitespace and unprintable characters are quoted."""
    if not name.strip() or not name.isprintable():
        return repr(name)
    return literal(name if len(name) <= 18 else f"{name[:17]}…")
