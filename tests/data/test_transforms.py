"""Transforms: what they do to an image by hand, one stream for each training, and pixels that stay bytes."""

from typing import Any

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.core.streams import stream
from offbeat.data.images import image_dataset
from offbeat.data.transforms import Crop, Cutout, Flip, InputPipeline, Standardisation, transforms_of


class Drawn:
    """A generator that draws what it is told to."""

    def __init__(self, *values: Any) -> None:
        self.values = [np.asarray(value) for value in values]

    def integers(self, *_: Any, **__: Any) -> Any:
        return self.values.pop(0)

    def random(self, *_: Any) -> Any:
        return self.values.pop(0)


IMAGE = np.arange(1, 10, dtype=np.uint8).reshape(1, 1, 3, 3)


def test_a_crop_by_hand() -> None:
    # Padded by one on all sides; the window begins at row 0, column 2 of that: one up, one to the right.
    cropped = Crop(padding=1)(IMAGE, Drawn([[0], [2]]))  # type: ignore[arg-type]
    assert cropped[0, 0].tolist() == [[0, 0, 0], [2, 3, 0], [5, 6, 0]]


def test_a_flip_by_hand() -> None:
    both = np.concatenate([IMAGE, IMAGE])
    flipped = Flip(share=0.5)(both, Drawn([0.4, 0.6]))  # type: ignore[arg-type]
    assert flipped[0, 0, 0].tolist() == [3, 2, 1]
    assert flipped[1, 0, 0].tolist() == [1, 2, 3]


def test_a_cutout_by_hand() -> None:
    # A square of 2 around row 1, column 0 begins at row 0, column -1.
    cut = Cutout(size=2)(IMAGE, Drawn([[1]], [[0]]))  # type: ignore[arg-type]
    assert cut[0, 0].tolist() == [[0, 2, 3], [0, 5, 6], [7, 8, 9]]


def test_places_are_drawn_from_all_that_there_are() -> None:
    # 3 x 3 windows in an image that is padded by one: nine of them, which differ in what is cut off.
    windows = Crop(padding=1)(IMAGE.repeat(400, axis=0), np.random.default_rng(0))
    assert len({window.tobytes() for window in windows}) == 9
    # One pixel of two rows and five columns: ten places.
    wide = np.ones((400, 1, 2, 5), dtype=np.float32)
    cut = Cutout(size=1)(wide, np.random.default_rng(0))
    assert sorted({int(np.argmin(image)) for image in cut}) == list(range(10))


def test_an_image_is_normalised_channel_by_channel_before_it_is_padded() -> None:
    # Pixels 255 and 51 are 1 and 0.2: (1 - 0.5) / 0.25 = 2 and (0.2 - 0.2) / 0.1 = 0; what is padded is 0 after that.
    norm = Standardisation(mean=(0.5, 0.2), std=(0.25, 0.1))
    pipeline = InputPipeline(transforms=(Crop(padding=1),), standardisation=norm)
    pixels = np.array([255, 51], dtype=np.uint8).reshape(1, 2, 1, 1)
    inside, outside = (pipeline.training(pixels, Drawn([[top], [1]])) for top in (1, 0))  # type: ignore[arg-type]
    assert inside.ravel() == pytest.approx([2.0, 0.0], abs=1e-6)
    assert outside.ravel().tolist() == [0.0, 0.0]
    low = pipeline.evaluation(np.array([0, 0], dtype=np.uint8).reshape(1, 2, 1, 1))
    assert low.ravel() == pytest.approx([-2.0, -2.0])


def test_pixels_that_stay_bytes_become_the_same_numbers_to_the_bit() -> None:
    random = stream(0, "pixels")
    pixels, labels = random.integers(0, 256, (6, 3, 4, 4), dtype=np.uint8), np.arange(6, dtype=np.uint8)
    how: dict[str, Any] = {"mean": (0.49, 0.48, 0.44), "std": (0.2, 0.21, 0.19), "classes": 6}
    floats = image_dataset(train=(pixels, labels), test=(pixels, labels), **how)
    kept = image_dataset(train=(pixels, labels), test=(pixels, labels), as_bytes=True, **how)
    assert kept.train_x.dtype == np.uint8
    assert kept.pipeline is not None
    assert kept.pipeline.evaluation(kept.train_x).tobytes() == floats.train_x.tobytes()


def test_transforms_by_name_and_what_is_no_transform() -> None:
    crop, flip = transforms_of([{"name": "crop", "padding": 2}, {"name": "flip"}])
    assert (crop, flip) == (Crop(padding=2), Flip())
    for table, words in (
        ({"name": "rotate"}, "unknown transform 'rotate'"),
        ({}, "name is missing"),
        ({"name": "crop", "padding": 0}, r"data\.transforms\[0\]\.padding = 0: input should be greater"),
        ({"name": "math:floor", "x": 1}, "must be a function"),
    ):
        with pytest.raises(InvalidInput, match=words):
            transforms_of([table])
