"""What is done to inputs batch by batch: pixels kept as bytes are normalised, images are cropped, flipped, cut out.

A transform gets normalised samples and a random generator, which is a stream of its own for each (device, ticket,
epoch); it draws for every sample, so that the result does not depend on anything else. So it makes no difference
whether pixels were kept as bytes or as numbers. An evaluation normalises and does nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.settings import Settings
from offbeat.data.samples import Array
from offbeat.references import describe, resolve

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Channels = float | tuple[float, ...]
"""One number for all channels, or one for each."""
Transform = Callable[[Array, np.random.Generator], Array]
"""A function from samples [n, ...] and a generator to samples of the same shape."""


class Crop(Settings):
    """Pad with zeros on all sides and take a window of the old size at a random place."""

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
    """Zero a square of `size` pixels whose centre is anywhere in the image."""

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
    """Pixels scaled from 0..255 to 0..1, then (pixel - mean) / std in each channel, all in float32.

    >>> Standardisation(mean=0.5, std=0.25)(np.array([[[[0, 255]]]], dtype=np.uint8)).tolist()
    [[[[-2.0, 2.0]]]]
    """

    mean: Channels = 0.0
    std: Channels = 1.0

    def __call__(self, pixels: Array, out: Floats | None = None) -> Floats:
        """The images [..., channels, height, width] as numbers, in `out` if that is given."""
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
    """The normalisation of pixels that are kept as bytes, then transforms for training."""

    transforms: tuple[Transform, ...] = ()
    standardisation: Standardisation | None = None
    """How bytes become numbers; None: inputs are numbers already."""

    def training(self, x: Array, random: np.random.Generator) -> Floats:
        """The batch after the random transforms, as the model takes it."""
        x = self.evaluation(x)
        for transform in self.transforms:
            x = transform(x, random)
        return np.asarray(x, dtype=np.float32)

    def evaluation(self, x: Array) -> Floats:
        """The batch without random transforms, as the model takes it."""
        return np.asarray(x, dtype=np.float32) if self.standardisation is None else self.standardisation(x)


def transforms_of(tables: Sequence[Mapping[str, Any]]) -> tuple[Transform, ...]:
    """The transforms that the settings name, in their order."""
    return tuple(_transform(place, table) for place, table in enumerate(tables))


def _transform(place: int, table: Mapping[str, Any]) -> Transform:
    where, name = f"data.transforms[{place}]", table.get("name")
    settings = {key: value for key, value in table.items() if key != "name"}
    if not isinstance(name, str):
        raise InvalidInput(f'{where}.name is missing: one of {", ".join(TRANSFORMS)}, or your own as "module:function"')
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
    except ValidationError as error:
        wrong = error.errors()[0]
        key = ".".join(str(part) for part in wrong["loc"])
        raise InvalidInput(f"{where}.{key} = {wrong['input']!r}: {wrong['msg'][0].lower()}{wrong['msg'][1:]}") from None
    except Exception as error:
        raise InvalidInput(f"{where}: {name!r} cannot be made: {describe(error)}") from None
    return made
