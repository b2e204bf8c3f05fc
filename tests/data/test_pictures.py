"""Folders of JPEG and PNG files come back as pixels and labels; damaged or mislabelled ones are refused by name."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from offbeat.core.errors import InvalidInput
from offbeat.data import pictures
from offbeat.data.cifar import CLASS_NAMES
from offbeat.data.pictures import Cinic10, TinyImageNet, decode
from offbeat.data.transforms import Bytes


def save(path: Path, colour: tuple[int, int, int] | int, side: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(colour, int) else "RGB", (side, side), colour).save(path)


@pytest.fixture
def cinic(tmp_path: Path) -> Path:
    for part, count in (("train", 2), ("valid", 1), ("test", 1)):
        for label, name in enumerate(CLASS_NAMES):
            for number in range(count):
                save(tmp_path / part / name / f"cifar10-{part}-{number}.png", (10 * label, number, 255), 32)
    return tmp_path


def test_cinic10_has_its_ten_folders_as_classes(cinic: Path) -> None:
    dataset = Cinic10(dir=str(cinic), as_bytes=True).load(seed=0)
    assert dataset.train_y.tolist() == np.repeat(np.arange(10), 2).tolist()
    assert dataset.test_y.tolist() == list(range(10))
    assert dataset.class_names[3] == "cat"
    assert dataset.train_x[7, :, 31, 0].tolist() == [30, 1, 255]
    assert len(Cinic10(dir=str(cinic), with_valid=True).load(seed=0).train_y) == 30


def test_cinic10_standardises_per_channel(cinic: Path) -> None:
    dataset = Cinic10(dir=str(cinic)).load(seed=0)
    expected = [(30 / 255 - 0.4789) / 0.2421, (1 / 255 - 0.4723) / 0.2383, (1 - 0.4305) / 0.2587]
    np.testing.assert_allclose(dataset.train_x[7, :, 0, 0], expected, rtol=1e-5)


def test_a_limit_is_drawn_before_images_are_decoded(cinic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def counted(path: Path, side: int) -> Bytes:
        seen.append(path)
        return decode(path, side)

    monkeypatch.setattr(pictures, "decode", counted)
    dataset = Cinic10(dir=str(cinic), limit=3, as_bytes=True).load(seed=0)
    assert len(seen) == 3 + 10
    assert (dataset.train_x[:, 0, 0, 0] == 10 * dataset.train_y).all()


def test_a_cache_is_written_once_mapped_into_memory_and_made_anew_when_an_image_changes(
    cinic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Cinic10(dir=str(cinic), cache=str(tmp_path / "cache"), as_bytes=True)
    plain = Cinic10(dir=str(cinic), as_bytes=True).load(seed=0)
    np.testing.assert_array_equal(settings.load(seed=0).train_x, plain.train_x)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    with monkeypatch.context() as patched:
        patched.setattr(pictures, "decode", None)  # nobody decodes again
        again = settings.load(seed=0)
    np.testing.assert_array_equal(again.train_x, plain.train_x)
    assert isinstance(again.train_x.base, np.memmap)
    changed = cinic / "train" / "cat" / "cifar10-train-0.png"
    for time, colour in ((1, (1, 2, 3)), (2, (4, 5, 6))):
        save(changed, colour, 32)
        changed.write_bytes(changed.read_bytes().ljust(1000, b"\0"))  # of one size, so that the time alone tells
        os.utime(changed, ns=(time, time))
        assert settings.load(seed=0).train_x[6, :, 0, 0].tolist() == list(colour)


def test_a_cache_that_could_not_be_finished_leaves_nothing(cinic: Path, tmp_path: Path) -> None:
    (cinic / "train" / "truck" / "cifar10-train-1.png").write_bytes(b"\x89PNG")
    with pytest.raises(InvalidInput, match=r"truck.*cifar10-train-1\.png cannot be read as an image"):
        Cinic10(dir=str(cinic), cache=str(tmp_path / "cache")).load(seed=0)
    assert list((tmp_path / "cache").iterdir()) == []


def test_pixels_are_channel_row_and_column(tmp_path: Path) -> None:
    image = Image.new("RGB", (32, 32))
    image.putpixel((3, 20), (9, 8, 7))  # the fourth from the left, far down
    image.save(tmp_path / "one.png")
    pixels = decode(tmp_path / "one.png", 32)
    assert pixels[:, 20, 3].tolist() == [9, 8, 7]
    assert not pixels[:, 3, 20].any()


def test_a_truncated_or_wrongly_sized_image_is_named(cinic: Path) -> None:
    path = cinic / "test" / "frog" / "cifar10-test-0.png"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InvalidInput, match=r"frog.*cifar10-test-0\.png cannot be read as an image"):
        Cinic10(dir=str(cinic)).load(seed=0)
    save(path, (0, 0, 0), 31)
    with pytest.raises(InvalidInput, match=r"cifar10-test-0\.png has 31 x 31 pixels; it must have 32 x 32"):
        Cinic10(dir=str(cinic)).load(seed=0)


def test_missing_and_strange_folders_are_named(cinic: Path) -> None:
    (cinic / "train" / "lorry").mkdir()
    with pytest.raises(InvalidInput, match=r"train has an unknown folder 'lorry'"):
        Cinic10(dir=str(cinic)).load(seed=0)
    (cinic / "train" / "lorry").rmdir()
    for path in (cinic / "train" / "ship").iterdir():
        path.unlink()
    with pytest.raises(InvalidInput, match=r"ship has no images \*\.png"):
        Cinic10(dir=str(cinic)).load(seed=0)
    with pytest.raises(InvalidInput, match=r"the directory .* does not exist"):
        Cinic10(dir=str(cinic / "nowhere")).load(seed=0)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Two classes, in an order that is not that of the alphabet; one image is grey."""
    (tmp_path / "wnids.txt").write_text("n02\nn01\n")
    (tmp_path / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\ttabby, tabby cat\nn03\tunused\n")
    save(tmp_path / "train" / "n01" / "images" / "n01_0.JPEG", 200, 64)
    save(tmp_path / "train" / "n02" / "images" / "n02_0.JPEG", (0, 0, 0), 64)
    save(tmp_path / "train" / "n02" / "images" / "n02_1.JPEG", (255, 255, 255), 64)
    save(tmp_path / "val" / "images" / "val_0.JPEG", 100, 64)
    (tmp_path / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t10\t10\n")
    return tmp_path


def test_tiny_imagenet_labels_follow_wnids_and_grey_images_have_three_channels(tiny: Path) -> None:
    dataset = TinyImageNet(dir=str(tiny), as_bytes=True).load(seed=0)
    assert dataset.train_y.tolist() == [0, 0, 1]
    assert dataset.test_y.tolist() == [1]
    assert dataset.class_names == ("tabby", "goldfish")
    assert dataset.input_shape == (3, 64, 64)
    assert dataset.train_x[:, :, 9, 9].tolist() == [[0, 0, 0], [255, 255, 255], [200, 200, 200]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_0.JPEG\tn99\t0\t0\t1\t1", r"val_annotations\.txt, line 1: the class 'n99' is not in wnids\.txt"),
        ("val_7.JPEG\tn01\t0\t0\t1\t1", r"val_annotations\.txt, line 1: the image .*val_7\.JPEG does not exist"),
        ("", r"val_annotations\.txt is empty"),
    ],
)
def test_wrong_annotations_are_named_by_their_line(tiny: Path, line: str, message: str) -> None:
    (tiny / "val" / "val_annotations.txt").write_text(line)
    with pytest.raises(InvalidInput, match=message):
        TinyImageNet(dir=str(tiny)).load(seed=0)
