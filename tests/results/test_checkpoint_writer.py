"""Large checkpoints are written while the run goes on: whole or not at all, and as the state was when asked for."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.results import checkpoint
from offbeat.results.checkpoint import CheckpointWriter, load_checkpoint
from offbeat.results.files import replace_file_by


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Everything counts as large, and files are replaced only when the event is set."""
    allowed = threading.Event()

    def wait_and_replace(path: Path, write: Callable[[BinaryIO], Any]) -> None:
        assert allowed.wait(30)
        replace_file_by(path, write)

    monkeypatch.setattr(checkpoint, "BACKGROUND_BYTES", 0)
    monkeypatch.setattr(checkpoint, "replace_file_by", wait_and_replace)
    return allowed


def test_a_small_checkpoint_is_there_at_once(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path / "latest", "mine")
    writer.save({"number": 1})
    assert not writer.busy
    assert load_checkpoint(tmp_path / "latest", "mine", ()) == {"number": 1}


def test_what_is_saved_is_the_state_of_when_it_was_asked_for(tmp_path: Path, slow: threading.Event) -> None:
    state: dict[str, Any] = {"moments": np.array([1.0, 2.0]), "view": np.arange(4)[1:], "list": [1]}
    writer = CheckpointWriter(tmp_path / "latest", "mine")
    writer.save(state)
    assert writer.busy and not (tmp_path / "latest").exists()
    state["moments"][0], state["view"][0] = 9.0, 9
    state["list"].append(2)
    slow.set()
    writer.wait()
    saved = load_checkpoint(tmp_path / "latest", "mine", ())
    assert (saved["moments"].tolist(), saved["view"].tolist(), saved["list"]) == ([1.0, 2.0], [1, 2, 3], [1])


def test_the_old_checkpoint_stays_until_the_new_one_is_whole(tmp_path: Path, slow: threading.Event) -> None:
    writer = CheckpointWriter(tmp_path / "latest", "mine")
    slow.set()
    writer.save({"a": np.zeros(3)})
    writer.wait()
    slow.clear()
    writer.save({"a": np.ones(3)})
    assert load_checkpoint(tmp_path / "latest", "mine", ())["a"].tolist() == [0, 0, 0]
    slow.set()
    writer.wait()
    assert load_checkpoint(tmp_path / "latest", "mine", ())["a"].tolist() == [1, 1, 1]


def test_a_failure_in_the_background_is_raised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "BACKGROUND_BYTES", 0)
    (tmp_path / "file").write_text("")
    writer = CheckpointWriter(tmp_path / "file" / "latest", "mine")
    writer.save({"a": np.zeros(3)})
    with pytest.raises(OSError):
        writer.wait()
    writer.wait()


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "float16", "int32", "float32", "int64", "uint64", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_arrays_of_every_type_and_shape_are_read_as_they_were_written(
    kind: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    array = np.ones((6, 4))[: shape[0], : shape[1]].T if len(shape) == 2 else np.ones(shape)
    CheckpointWriter(tmp_path / "latest", "mine").save({"a": array.astype(kind), "b": np.arange(5)})
    read = load_checkpoint(tmp_path / "latest", "mine", ())
    assert read["a"].dtype == kind and read["a"].shape == array.shape and (read["a"] == 1).all()
    assert read["b"].tolist() == [0, 1, 2, 3, 4]


def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "latest"
    CheckpointWriter(path, "mine").save({"a": np.arange(3.0), "b": np.arange(2)})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(InvalidInput):
            load_checkpoint(path, "mine", ())
