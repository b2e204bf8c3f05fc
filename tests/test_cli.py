"""The command line as a user meets it: what it prints, what it leaves behind, and how it says no."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from offbeat import cli
from offbeat.cli import catalogue

EXPERIMENT = """
[stop]
time = 30.0
[data]
name = "digits"
devices = 10
[model]
name = "mlp"
[algorithm]
name = "fedbuff"
buffer = 2
concurrency = 4
[compare.fedavg.algorithm]
cohort = 4
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(EXPERIMENT)
    return path


class Said:
    """What a call of the command line said and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out = code, out
        self.err = " ".join(err.split())


@pytest.fixture
def offbeat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def call(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["offbeat", *words])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return call


def test_run_writes_a_directory_and_prints_the_summary(offbeat, file: Path) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("run", "small.toml", "--set", "fleet.ratio=2.0")
    root = file.parent / "runs" / "small-fedbuff-seed0"
    assert said.code == 0
    assert "final_accuracy" in said.out
    assert (root / "metrics.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((root / "summary.json").read_text())["algorithm"] == "fedbuff"
    assert "ratio = 2.0" in (root / "config.toml").read_text()
    again = offbeat("run", "small.toml", "--set", "fleet.ratio=2.0")
    assert again.code == 2
    assert "use --resume to go on with it or --overwrite to replace it" in again.err
    assert offbeat("run", "small.toml", "--set", "fleet.ratio=2.0", "--resume").code == 0


def test_compare_writes_table_plot_and_report(offbeat, file: Path) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("compare", "small.toml", "--algorithms", "fedavg,fedbuff", "--seeds", "2", "--target", "0.2")
    root = file.parent / "runs" / "small-compare"
    assert said.code == 0
    assert "time to 20 %" in said.out and "fedbuff" in said.out
    assert (root / "comparison.csv").read_text().startswith("algorithm,seeds,target")
    assert (root / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert (root / "report.html").read_text().startswith("<!DOCTYPE html>")
    runs = sorted(path.name for path in root.iterdir() if path.is_dir())
    assert runs == ["fedavg-seed0", "fedavg-seed1", "fedbuff-seed0", "fedbuff-seed1"]
    refused = offbeat("compare", "small.toml", "--algorithms", "fedavg,fedbuff", "--seeds", "2")
    assert refused.code == 2
    more = offbeat("compare", "small.toml", "--algorithms", "fedavg,fedbuff", "--seeds", "3", "--resume")
    assert more.code == 0
    page = file.parent / "page.html"
    assert offbeat("report", *(str(root / name) for name in runs), "--out", str(page)).code == 0
    assert page.is_file()


def test_help_explains_arguments(offbeat) -> None:  # type: ignore[no-untyped-def]
    assert "An experiment file (TOML)" in offbeat("run", "--help").out


@pytest.mark.parametrize("what", ["algorithms", "fleets", "datasets", "partitions", "models"])
def test_list_has_a_line_of_help_for_everything(offbeat, what: str) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("list", what)
    assert said.code == 0
    for name, thing in catalogue._registries()[what].items():
        assert name in said.out
        assert catalogue._first_line(thing)


@pytest.mark.parametrize("name", ["fedbuff", "ratio", "mnist", "dirichlet", "lenet5", "stop", "network"])
def test_describe_shows_settings(offbeat, name: str) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("describe", name)
    assert said.code == 0
    assert name in said.out
    if name == "fedbuff":
        assert "concurrency" in said.out and "int >= 1" in said.out and "AISTATS 2022" in said.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["run", "none.toml"], "there is no experiment file none.toml"),
        (["run", "small.toml", "--set", "algorithm.name=fedbuf"], "did you mean 'fedbuff'?"),
        (["run", "small.toml", "--set", "data.name=mnist", "--set", "data.dir=nowhere"], "nowhere"),
        (
            ["run", "small.toml", "--set", "data.devices=2000"],
            "data.devices = 2000: there are only 1442",
        ),
        (["run", "small.toml", "--set", "model.name=lenet5"], "model 'lenet5' does not fit"),
        (["run", "small.toml", "--set", "algorithm.concurrency=11"], "there are only 10 devices"),
        (["compare", "small.toml", "--algorithms", "fedavg,fedbuf"], "did you mean 'fedbuff'?"),
        (["compare", "small.toml", "--algorithms", "fedavg,fedavg"], "give each algorithm once"),
        (["describe", "fedbuf"], "did you mean 'fedbuff'?"),
        (["list", "algorithm"], "did you mean 'algorithms'?"),
        (["report", "."], "does not hold a finished run"),
        (["run", "small.toml", "--set", "nonsense"], "write it as table.key=value"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(  # type: ignore[no-untyped-def]
    offbeat, file: Path, words: list[str], complaint: str
) -> None:
    said = offbeat(*words)
    assert said.code == 2
    assert complaint in said.err
    assert "Traceback" not in said.err
    assert not (file.parent / "runs").exists()


def test_a_corrupt_data_file_is_named(offbeat, file: Path) -> None:  # type: ignore[no-untyped-def]
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (file.parent / name).write_bytes(b"nonsense")
    (file.parent / "t10k-labels-idx1-ubyte").write_bytes(b"nonsense")
    said = offbeat("run", "small.toml", "--set", "data.name=mnist", "--set", "data.dir=.")
    assert said.code == 2
    assert "ubyte" in said.err


@pytest.mark.processes
def test_ctrl_c_leaves_a_checkpoint(file: Path) -> None:
    file.write_text(EXPERIMENT.replace("time = 30.0", "time = 30000.0"))
    heard = "import signal; signal.signal(2, signal.default_int_handler); "  # also below a shell that ignores Ctrl-C
    script = heard + "import sys; from offbeat.cli import main; sys.argv[0] = 'offbeat'; main()"
    command = [sys.executable, "-c", script, "run", "small.toml", "--out", "run", "--resume"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=file.parent)
    metrics = file.parent / "run" / "metrics.jsonl"
    while process.poll() is None and not metrics.exists():
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert "go on with --resume" in " ".join(err.split())
    assert (file.parent / "run" / "checkpoint" / "latest.safetensors").is_file()


def test_help_teaches() -> None:
    script = "import sys; from offbeat.cli import main; sys.argv[0] = 'offbeat'; main()"
    for words, expected in ((["--help"], "offbeat demo"), (["compare", "--help"], "--algorithms")):
        said = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
        assert expected in said.stdout
    quick = "import sys; import offbeat.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", quick], check=False).returncode == 0
