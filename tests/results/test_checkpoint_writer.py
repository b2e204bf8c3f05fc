"""Large checkpoints are written while the run goes on: whole or not at all, and as the state was when asked for."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.results import checkpoint
from offbeat.results.checkpoint import CheckpointWriter, load_checkpoint
from offbeat.results.files import replace_file


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Everything counts as large, and files are replaced only when the event is set."""
    allowed = threading.Event()

    def wait_and_replace(path: Path, data: bytes) -> None:
        assert allowed.wait(30)
        replace_file(path, data)

    monkeypatch.setattr(checkpoint, "BACKGROUND_BYTES", 0)
    monkeypatch.setattr(checkpoint, "replace_file", wait_and_replace)
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
