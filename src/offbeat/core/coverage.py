"""The elements of the model that an order covers: a narrower submodel, and the layers that training reached.

**Width** (HeteroFL). Of a layer with C output channels a submodel of width r has the first ceil(r C), and those inputs
that come from the remaining channels of the layer before. The model's inputs and outputs stay whole. This needs a chain
of dense and convolutional layers in the order of the layout, optionally with normalisation layers between them: a layer
after C channels must have a multiple of C inputs (flattened maps) or be a vector of C elements. A layer fed by an
earlier one (the projection of a residual network's shortcut) must have as many inputs as that one has channels.

**Depth**. Slices of unit "layer" go through the layers from the last to the first, once for every local step. A run
that ends within its first step has reached only the last layers; after that every layer has been trained.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import ceil

import numpy as np

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.parameters import Layout, Mask, TensorEntry


def part_of(channels: int, width: float) -> int:
    """ceil(r C), robust against rounding errors.

    >>> part_of(16, 0.0625), part_of(10, 0.25), part_of(10, 0.3)
    (1, 3, 3)
    """
    return max(1, ceil(channels * width - 1e-9))


@lru_cache(maxsize=64)
def submodel_shapes(layout: Layout, width: float) -> tuple[tuple[int, ...], ...]:
    """The shape of each tensor of the layout in a submodel.

    >>> layout = Layout.of([("a.weight", (4, 3), True), ("a.bias", (4,), True), ("b.weight", (2, 4), True)])
    >>> submodel_shapes(layout, 0.5)
    ((2, 3), (2,), (2, 2))
    """
    shapes: dict[str, tuple[int, ...]] = {}
    matrices = [entry for entry in forward_order(layout) if len(entry.shape) > 1]
    channels = kept = None
    earlier: set[int] = set()
    for entry in forward_order(layout):
        size, *rest = entry.shape or (1,)
        if rest:
            inputs = rest[0]
            if channels is not None and kept is not None:
                if inputs % channels == 0:
                    inputs = inputs // channels * kept
                elif inputs in earlier:
                    inputs = part_of(inputs, width)
                else:
                    raise InvalidInput(
                        f"a width below 1 needs layers that feed each other: {entry.name!r} has {inputs} inputs, which "
                        f"is no multiple of the {channels} outputs before it and no earlier layer's number of outputs."
                    )
            channels, kept = size, size if entry is matrices[-1] else part_of(size, width)
            earlier.add(channels)
            shapes[entry.name] = (kept, inputs, *rest[1:])
        elif channels is None or kept is None:  # before the first layer with a matrix
            shapes[entry.name] = entry.shape
        elif size == channels:
            shapes[entry.name] = (kept,)
        else:
            raise InvalidInput(
                f"a width below 1 needs a chain of layers: {entry.name!r} has {size} elements, but the layer before it "
                f"{channels} outputs."
            )
    return tuple(shapes[entry.name] for entry in layout.entries)


def forward_order(layout: Layout) -> Iterator[TensorEntry]:
    """The entries layer by layer, with the running statistics, which are last in the vector, beside their module."""
    modules: dict[str, list[TensorEntry]] = {}
    for entry in layout.entries:
        modules.setdefault(entry.name.rpartition(".")[0], []).append(entry)
    for entries in sorted(modules.values(), key=lambda entries: entries[0].layer):
        yield from entries


@lru_cache(maxsize=64)
def submodel(layout: Layout, width: float) -> Mask:
    """The elements of the flat vector that belong to a submodel, in the order of the submodel's vector."""
    chosen = np.zeros(layout.size, dtype=bool)
    for entry, shape in zip(layout.entries, submodel_shapes(layout, width), strict=True):
        chosen[entry.span].reshape(entry.shape)[tuple(slice(part) for part in shape)] = True
    chosen.flags.writeable = False
    return Mask(chosen)


@lru_cache(maxsize=64)
def last_layers(layout: Layout, count: int) -> Mask:
    """The elements of the last `count` trained layers."""
    mask = layout.mask(range(layout.trained_layers - count, layout.trained_layers))
    mask.chosen.flags.writeable = False
    return mask


def coverage(order: Order, slices: int, layout: Layout) -> Mask | None:
    """The elements that an update carries after this many slices; None: all."""
    if not order.partial and slices < order.slices:
        return last_layers(layout, 0)
    deep = order.unit != "layer" or slices >= layout.trained_layers
    if order.width == 1.0:
        return None if deep else last_layers(layout, slices)
    narrow = submodel(layout, order.width)
    return narrow if deep else Mask(narrow.chosen & last_layers(layout, slices).chosen)


def bytes_down(order: Order, layout: Layout) -> int:
    """Bytes of the model that comes with an order; a device that trains a submodel is sent only that."""
    return layout.bytes if order.width == 1.0 else submodel(layout, order.width).bytes
