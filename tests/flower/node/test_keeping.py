"""What a node keeps for its apps outlives the app, and with a folder the node."""

from pathlib import Path

import pytest

from offbeat.flower.node import keeping
from offbeat.flower.node.keeping import Keeping


def test_the_last_that_was_kept_under_a_name_is_recalled() -> None:
    kept = Keeping(None, print)
    assert kept.recall("a") is None
    kept.keep("a", b"1")
    kept.keep("a", b"2")
    kept.keep("b", b"3")
    assert (kept.recall("a"), kept.recall("b")) == (b"2", b"3")


def test_with_a_folder_it_outlives_the_node(tmp_path: Path) -> None:
    Keeping(tmp_path / "state", print).keep("../../etc/passwd", b"1")
    assert Keeping(tmp_path / "state", print).recall("../../etc/passwd") == b"1"
    assert [path.parent for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "state"]


def test_on_a_full_disk_it_is_kept_in_memory_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    monkeypatch.setattr(keeping, "replace_file", full)
    kept = Keeping(tmp_path, said.append)
    kept.keep("a", b"1")
    assert kept.recall("a") == b"1"
    assert said == ["what an app wants kept is only in memory: [Errno 28] No space left on device"]


def test_only_so_many_names_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MOST", 2)
    kept = Keeping(tmp_path, print)
    for name in "abcb":
        kept.keep(name, name.encode())
    assert [kept.recall(name) for name in "abc"] == [None, b"b", b"c"]
    assert len(list(tmp_path.iterdir())) == 2
