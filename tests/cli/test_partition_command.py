"""`offbeat partition`: what it prints, what it draws, and how it says no."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from offbeat import cli

EXPERIMENT = """
[stop]
versions = 1
[data]
name = "digits"
devices = 10
[partition]
name = "shards"
labels_per_device = 1
"""

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def offbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(EXPERIMENT)

    def call(*words: str) -> tuple[int, str]:
        """The exit code and everything that was said, in one line."""
        monkeypatch.setattr(sys, "argv", ["offbeat", "partition", "small.toml", *words])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return code, " ".join((captured.out + captured.err).split())

    return call


def test_it_prints_sizes_and_measures_and_draws_a_figure(offbeat: Call, tmp_path: Path) -> None:
    code, said = offbeat("--set", "partition.name=iid")
    assert code == 0
    assert "digits, iid, 10 devices, seed 0" in said
    assert "largest device │ 145" in said  # 1,442 samples over 10 devices
    assert "mean total-variation distance │ 0." in said
    assert "mean effective number of classes │ 9." in said
    assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")
    code, said = offbeat()
    assert code == 2
    assert "partition.png exists: use --overwrite" in said
    assert offbeat("--overwrite")[0] == 0


@pytest.mark.parametrize(("suffix", "beginning"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_suffix_chooses_the_format(offbeat: Call, tmp_path: Path, suffix: str, beginning: bytes) -> None:
    assert offbeat("--out", f"who.{suffix}")[0] == 0
    assert (tmp_path / f"who.{suffix}").read_bytes().startswith(beginning)
    assert offbeat("--out", "who.txt")[0] == 2
    assert not (tmp_path / "who.txt").exists()


def test_a_thousand_devices_and_a_division_of_the_data_are_shown_too(offbeat: Call, tmp_path: Path) -> None:
    assert offbeat("--set", "data.devices=1000")[0] == 0
    (tmp_path / "small.toml").write_text('[stop]\nversions = 1\n[data]\nname = "synthetic"\ndevices = 12\n')
    code, said = offbeat("--overwrite")
    assert code == 0
    assert "synthetic, as the data come, 12 devices" in said


def test_numbers_as_targets_are_explained(offbeat: Call, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for part in ("train", "test"):
        np.save(tmp_path / f"{part}_x.npy", random.normal(size=(40, 3)).astype(np.float32))
        np.save(tmp_path / f"{part}_y.npy", random.normal(size=40).astype(np.float32))
    table = '[stop]\nversions = 1\n[task]\nname = "regression"\n[data]\nname = "folder"\ndir = "."\ndevices = 4\n'
    (tmp_path / "small.toml").write_text(table)
    code, said = offbeat()
    assert code == 0
    assert "The targets are numbers: shown are their deciles" in said


def test_damaged_data_are_one_sentence_and_nothing_is_drawn(offbeat: Call, tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(b"\0" * 10)
    table = f'[stop]\nversions = 1\n[data]\nname = "cifar100"\ndir = "{tmp_path}"\n'
    (tmp_path / "small.toml").write_text(table)
    code, said = offbeat()
    assert code == 2
    assert "train.bin has 10 bytes: it must hold whole records of 3074 bytes." in said
    assert not (tmp_path / "partition.png").exists()
