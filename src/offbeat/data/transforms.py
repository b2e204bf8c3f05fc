"""The input pipeline: normalises pixels that are kept as bytes and applies random transforms to training batches.

A transform gets normalised samples and a random generator of its own for each (device, ticket, epoch), and draws for
every sample. The result is therefore the same whether pixels are kept as bytes or as numbers. Evaluations normalise and
do nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.settings import InvalidSettings, Settings
from offbeat.data.samples import Array
from offbeat.references import describe, resolve

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Channels = float | tuple[float, ...]
"""One number for all channels, or one per channel."""
Transform = Callable[[Array, np.random.Generator], Array]
"""A function of samples [n, ...] and a generator that returns samples of the same shape."""


class Crop(Settings):
    """Pad with zeros on all sides and take a random window of the original size."""

    padding: Annotated[int, Field(ge=1)] = 4

    def __call__(self, x: Array, random: np.random.Generator) -> Array:
        n, _, height, width = x.shape
        top, left = random.integers(0, 2 * self.padding + 1, size=(2, n))
        sides = ((0, 0), (0, 0), (self.padding, self.padding), (self.padding, self.padding))
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, sides), (height, width), axis=(2, 3))
        return np.ascontiguousarray(windows[np.arange(n), :, top, left])


class Flip(Settings):
    """Mirror left and right, with probability `share`."""

    share: Annotated[float, Field(gt=0, le=1)] = 0.5

    def __call__(self, x: Array, random: np.random.Generator) -> Array:
        chosen = random.random(len(x)) < self.share
        flipped = x.copy()
        flipped[chosen] = x[chosen, ..., ::-1]
        return flipped


class Cutout(Settings):
    """Zero a square of `size` x `size` pixels at a random centre."""

    size: Annotated[int, Field(ge=1)] = 8

    def __call__(self, x: Array, random: np.random.Generator) -> Array:
        n, _, height, width = x.shape
        top = random.integers(0, height, size=(n, 1)) - self.size // 2
        left = random.integers(0, width, size=(n, 1)) - self.size // 2
        rows, columns = np.arange(height) - top, np.arange(width) - left
        inside = ((rows >= 0) & (rows < self.size))[:, :, None] & ((columns >= 0) & (columns < self.size))[:, None, :]
        return np.where(inside[:, None], np.zeros((), dtype=x.dtype), x)


TRANSFORMS: dict[str, type[Crop] | type[Flip] | type[Cutout]] = {"crop": Crop, "flip": Flip, "cutout": Cutout}


@dataclass(frozen=True, slots=True)
class Standardisation:
    """Scales pixels from 0..255 to 0..1, then computes (pixel - mean) / std per channel, all in float32.

    >>> Standardisation(mean=0.5, std=0.25)(np.array([[[[0, 255]]]], dtype=np.uint8)).tolist()
    [[[[-2.0, 2.0]]]]
    """

    mean: Channels = 0.0
    std: Channels = 1.0

    def __call__(self, pixels: Array, out: Floats | None = None) -> Floats:
        """The images [..., channels, height, width] as float32, written to `out` if given."""
        images: Floats = np.divide(pixels, np.float32(255), out=out, dtype=np.float32, order="C")
        mean, std = self.by_channel()
        images -= mean
        images /= std
        return images

    def by_channel(self) -> tuple[Floats, Floats]:
        """Mean and deviation, shaped [channels, 1, 1]."""
        mean, std = (np.asarray(each, dtype=np.float32).reshape(-1, 1, 1) for each in (self.mean, self.std))
        return mean, std


@dataclass(frozen=True, kw_only=True, eq=False)
class InputPipeline:
    """Normalises pixels that are kept as bytes, then applies transforms in training."""

    transforms: tuple[Transform, ...] = ()
    standardisation: Standardisation | None = None
    """Normalises bytes; None: inputs are numbers already."""

    def training(self, x: Array, random: np.random.Generator) -> Floats:
        """A training batch: normalised and transformed."""
        x = self.evaluation(x)
        for transform in self.transforms:
            x = transform(x, random)
        return np.asarray(x, dtype=np.float32)

    def evaluation(self, x: Array) -> Floats:
        """An evaluation batch: normalised."""
        return np.asarray(x, dtype=np.float32) if self.standardisation is None else self.standardisation(x)


def transforms_of(tables: Sequence[Mapping[str, Any]]) -> tuple[Transform, ...]:
    """The transforms of the tables `data.transforms`, in this order."""
    return tuple(_transform(position, table) for position, table in enumerate(tables))


def _transform(position: int, table: Mapping[str, Any]) -> Transform:
    where, name = f"data.transforms[{position}]", table.get("name")
    settings = {key: value for key, value in table.items() if key != "name"}
    if not isinstance(name, str):
        raise InvalidInput(
            f'{where}.name is missing: give one of {", ".join(TRANSFORMS)}, or your own as "module:function"'
        )
    if ":" not in name and name not in TRANSFORMS:
        raise unknown("transform", name, TRANSFORMS)
    thing: Any = resolve(name) if ":" in name else TRANSFORMS[name]
    if not isinstance(thing, type):
        if settings or not callable(thing):
            raise InvalidInput(f"{where}: {name!r} must be a function of (samples, random generator), without settings")
        made: Transform = thing
        return made
    try:
        made = thing(**settings)
    except InvalidSettings as invalid:
        wrong = invalid.error.errors()[0]
        key = ".".join(str(part) for part in wrong["loc"])
        raise InvalidInput(f"{where}.{key} = {wrong['input']!r}: {wrong['msg'][0].lower()}{wrong['msg'][1:]}") from None
    except Exception as error:
        raise InvalidInput(f"{where}: {name!r} cannot be created: {describe(error)}") from None
    return made
