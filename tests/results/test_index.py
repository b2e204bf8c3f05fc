"""The index of a results directory, read while runs are in progress, stopped or damaged."""

import json
import shutil
from pathlib import Path

import pytest

import offbeat
from offbeat.results.index import GroupEntry, RunEntry, read_entry, read_index
from offbeat.results.lock import DirectoryLock

TABLES = {
    "stop": {"versions": 4},
    "data": {"name": "digits", "devices": 4},
    "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg", "cohort": 2, "label": "mine"},
    "evaluation": {"every_versions": 1, "targets": [0.05, 0.1, 1.0]},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    offbeat.run(TABLES, path)
    return path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "some" / "run"))


def only(root: Path) -> RunEntry:
    (entry,) = read_index(root)
    assert isinstance(entry, RunEntry)
    return entry


def test_a_finished_run_is_listed_with_its_numbers(run: Path, tmp_path: Path) -> None:
    entry = only(tmp_path)
    result = offbeat.read_run(run)
    assert (entry.path, entry.state, entry.algorithm, entry.seed) == (run, "finished", "mine", 0)
    assert (entry.time, entry.versions, entry.data) == (result.rows[-1]["time"], 4, "digits")
    assert entry.value == result.rows[-1]["accuracy"] and entry.progress == 1.0 and not entry.real
    assert entry.target == (0.1, result.summary["time_to_accuracy"]["0.1"]), "the best target that was reached"


def test_a_run_without_a_summary_is_running_interrupted_or_failed(run: Path, tmp_path: Path) -> None:
    (run / "summary.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:3]) + '{"time": 3')
    with DirectoryLock(run):
        entry = only(tmp_path)
        assert entry.state == "running" and entry.versions == 2 and entry.progress == 0.5
    assert only(tmp_path).state == "interrupted"
    (run / "error.txt").write_text("Traceback ...\nValueError: no\n")
    entry = only(tmp_path)
    assert (entry.state, entry.stopped_by) == ("failed", "ValueError: no")


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[", b'{"time": "x"}\n[]\n', b'stop = 3\nalgorithm = "x"\n'])
def test_a_damaged_file_leaves_out_what_it_would_tell(run: Path, tmp_path: Path, name: str, content: bytes) -> None:
    (run / name).write_bytes(content)
    entry = only(tmp_path)
    assert entry.state == "finished" and entry.path == run
    (run / name).unlink()
    assert read_index(tmp_path) if name != "metrics.jsonl" else True


def test_a_comparison_is_one_entry_with_its_runs(run: Path, tmp_path: Path) -> None:
    root = tmp_path / "compared"
    for seed in (0, 1):
        shutil.copytree(run, root / f"mine-seed{seed}")
    (root / "mine-seed1" / "summary.json").unlink()
    shutil.copy(run / "config.toml", root)
    entry = read_entry(root)
    assert isinstance(entry, GroupEntry)
    assert (entry.kind, entry.state, [each.state for each in entry.runs]) == (
        "comparison", "interrupted", ["finished", "interrupted"],
    )  # fmt: skip
    with DirectoryLock(root):
        assert read_index(tmp_path)[0].path == root, "what is running comes first"
    (root / "comparison.csv").touch()
    assert {each.path: each.state for each in read_index(tmp_path)} == {root: "finished", run: "finished"}


def test_other_directories_hold_no_runs(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("x = 1")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "summary.json").write_text(json.dumps([1]))
    assert read_index(tmp_path) == [] and read_index(tmp_path / "absent") == []
