"""Files on a full disk."""

import errno
import os
from pathlib import Path

import pytest

import offbeat
from offbeat.core.errors import DiskFull
from offbeat.results.files import replace_file


def test_a_full_disk_is_said_with_the_file_and_the_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latest.safetensors"
    replace_file(path, b"before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=r"disk is full: .*latest.safetensors could not be written; .* is good"):
        replace_file(path, b"after")
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]
    tables = {"stop": {"versions": 1}, "data": {"name": "digits", "devices": 4}, "model": {"name": "logistic"}}
    with pytest.raises(DiskFull) as caught:
        offbeat.run(tables | {"algorithm": {"name": "fedavg", "cohort": 2}}, tmp_path / "run")
    assert "config.toml" in str(caught.value)
