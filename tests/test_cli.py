"""The command line as a user meets it: what it prints, what it leaves behind, and how it says no."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import pytest

from offbeat import Policy, Selector, cli
from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import Provenance, about_of
from offbeat.cli import catalogue
from offbeat.running.progress import ProgressLines
from offbeat.selection import SELECTORS

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
    root = file.parent / "runs" / "small-fedbuff-seed0-ratio2.0"
    assert said.code == 0
    assert "final_accuracy" in said.out
    assert (root / "metrics.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((root / "summary.json").read_text())["algorithm"] == "fedbuff"
    assert "ratio = 2.0" in (root / "config.toml").read_text()
    again = offbeat("run", "small.toml", "--set", "fleet.ratio=2.0")
    assert again.code == 2
    assert "already holds a run: use --resume to continue it or use --overwrite to replace it" in again.err
    assert offbeat("run", "small.toml", "--set", "fleet.ratio=2.0", "--resume").code == 0


def test_the_summary_of_a_private_run_says_what_epsilon_follows_from(offbeat, file: Path) -> None:  # type: ignore[no-untyped-def]
    private = ("privacy.noise_multiplier=1.0", "privacy.most_updates=9", "stop.epsilon=100.0")
    said = offbeat("run", "small.toml", *(word for change in private for word in ("--set", change)), "--format", "csv")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert "noise_multiplier (privacy),1" in lines and "level (privacy),device" in lines
    assert any(line.startswith("epsilon,") for line in lines)
    assert any(re.match(r'devices_by_contributions \(privacy\),"?\d+: \d+', line) for line in lines)


def test_compare_writes_table_plot_and_report(offbeat, file: Path) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("compare", "small.toml", "--algorithms", "fedavg,fedbuff", "--seeds", "2", "--target", "0.2")
    root = file.parent / "runs" / "small-compare-fedavg-fedbuff"
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


def test_the_version_is_shown(offbeat) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("--version")
    assert (said.code, said.out) == (0, f"offbeat {version('offbeat')}\n")


def test_help_explains_arguments(offbeat) -> None:  # type: ignore[no-untyped-def]
    assert "An experiment file (TOML)" in offbeat("run", "--help").out


@pytest.mark.parametrize("what", ["algorithms", "selections", "fleets", "datasets", "partitions", "models"])
def test_list_has_a_line_of_help_for_everything(offbeat, what: str) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("list", what)
    assert said.code == 0
    for name, thing in catalogue._registries()[what].items():
        assert name in said.out
        assert catalogue._first_line(thing)


def test_list_says_where_each_algorithm_comes_from_and_how_sure_its_rule_is(offbeat) -> None:  # type: ignore[no-untyped-def]
    rows = offbeat("list", "algorithms").out.split("│ ")
    for name, family, provenance in (("fedbuff", "buffered", "published"), ("port", "buffered", "authors' code")):
        place = next(number for number, cell in enumerate(rows) if cell.split() == [name])
        assert [cell.strip() for cell in rows[place + 1 : place + 3]] == [family, provenance]
    every: list[type[Policy] | type[Selector]] = [*POLICIES.values(), *SELECTORS.values()]
    assert {about_of(each).provenance for each in every} == set(get_args(Provenance))
    assert "provenance: our reading" in offbeat("describe", "fedsa").out
    assert "\nprovenance: ours" in offbeat("describe", "balanced").out
    assert "`[compare] in_training =" in offbeat("describe", "compare").out


@pytest.mark.parametrize("name", ["fedbuff", "oort", "ratio", "mnist", "dirichlet", "lenet5", "stop", "network"])
def test_describe_shows_settings(offbeat, name: str) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("describe", name)
    assert said.code == 0
    assert name in said.out
    if name == "fedbuff":
        assert "concurrency" in said.out and "int >= 1" in said.out and "AISTATS 2022" in said.out
    if name == "oort":
        assert "OSDI 2021" in said.out and "needs: squared losses of the training samples" in said.out


def test_describe_shows_an_algorithm_and_a_selection_of_one_name(offbeat) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("describe", "refl").out
    assert "hold_off" in said and "beta" in said


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
        (["compare", "small.toml", "--algorithms", "fedavg,fedavg"], "give at least one algorithm and one seed"),
        (["describe", "fedbuf"], "did you mean 'fedbuff'?"),
        (["list", "algorithm"], "did you mean 'algorithms'?"),
        (["report", "."], "holds no run"),
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
@pytest.mark.parametrize(
    ("words", "number"),
    [
        (["run"], signal.SIGINT),
        (["run"], signal.SIGTERM),
        (["run"], signal.SIGHUP),
        (["compare", "--algorithms", "fedbuff", "--seeds", "1"], signal.SIGTERM),
        (["sweep", "--over", "fleet.ratio=5", "--seeds", "1"], signal.SIGHUP),
        (["tune", "--algorithms", "fedbuff", "--trials", "2"], signal.SIGTERM),
        (["recommend", "--algorithms", "fedavg,fedbuff"], signal.SIGINT),
    ],
    ids=str,
)
def test_a_signal_leaves_a_checkpoint_and_the_command_that_goes_on(
    file: Path, words: list[str], number: signal.Signals
) -> None:
    file.write_text(EXPERIMENT.replace("time = 30.0", "time = 300000.0"))
    # Signals are heard also below a shell that ignores them.
    heard = "import signal; signal.signal(2, signal.default_int_handler); signal.signal(1, signal.SIG_DFL); "
    script = heard + "import sys; from offbeat.cli import main; sys.argv[0] = 'offbeat'; main()"
    given = [words[0], "small.toml", *words[1:]]
    replacing = [] if words[0] in ("tune", "recommend") else ["--overwrite"]
    command = [sys.executable, "-c", script, *given, "--out", "a b", *replacing]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=file.parent)
    while process.poll() is None and not list((file.parent / "a b").rglob("metrics.jsonl")):
        time.sleep(0.02)
    os.kill(process.pid, number)
    _, err = process.communicate()
    said = " ".join(err.split())
    assert process.returncode == 128 + number, said
    assert "interrupted" in said and " in a b" in said
    assert list((file.parent / "a b").rglob("checkpoint/latest.safetensors"))
    assert said.endswith(f"To continue: offbeat {' '.join(given)} --out 'a b' --resume")


def test_without_a_terminal_there_are_plain_lines_now_and_then() -> None:
    said: list[str] = []
    times = iter([0.0, 10.0, 30.0, 40.0, 61.0])
    lines = ProgressLines(said.append, 30.0, clock=lambda: next(times))
    first = lines.add_task("fedavg", total=1.0)
    second = lines.add_task("fedbuff", total=None, note="starting")
    lines.update(first, completed=0.1)
    assert said == []
    lines.update(first, completed=0.25, note="5 s")
    # 15 % in the 20 s since the first update: 75 % in 100 s
    assert said == ["fedavg: 25 %, 5 s, about 100 s left", "fedbuff: running, starting"]
    lines.update(second, total=2.0, completed=1.0, note="")
    lines.update(first, completed=1.0, visible=False)
    assert said[2:] == ["fedbuff: 50 %"]


def test_a_run_in_a_file_is_not_silent(offbeat, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("offbeat.running.progress.LINE_SECONDS", 0.0)
    assert "fedbuff: 98 %, 29 s, version 3" in offbeat("run", "small.toml").err


def test_directories_are_named_after_what_was_set(offbeat, file: Path) -> None:  # type: ignore[no-untyped-def]
    for words in ([], ["--set", "fleet.ratio=2"], ["--set", "algorithm.name=fedavg", "--set", "seed=3"]):
        assert offbeat("run", "small.toml", *words).code == 0
        assert offbeat("run", "small.toml", *words, "--resume").code == 0
    names = sorted(path.name for path in (file.parent / "runs").iterdir())
    assert names == ["small-fedavg-seed3", "small-fedbuff-seed0", "small-fedbuff-seed0-ratio2"]
    file.write_text(EXPERIMENT.replace("time = 30.0", "time = 40.0"))
    assert "another end (stop.time, 30.0 there and 40.0 here): use --resume" in offbeat("run", "small.toml").err


def test_a_setting_of_the_command_line_says_whom_it_reached(offbeat, file: Path) -> None:  # type: ignore[no-untyped-def]
    both = ["--algorithms", "fedavg,fedbuff", "--seeds", "1"]
    said = offbeat("compare", "small.toml", *both, "--set", "algorithm.buffer=1")
    assert said.code == 0
    assert "algorithm.buffer = 1: set for fedbuff; no such setting in fedavg." in said.out
    root = file.parent / "runs" / "small-compare-fedavg-fedbuff-buffer1"
    assert "buffer = 1" in (root / "fedbuff-seed0" / "config.toml").read_text()
    refused = offbeat("compare", "small.toml", *both, "--set", "algorithm.alpha=0.5", "--out", "other")
    assert (refused.code, (file.parent / "other").exists()) == (2, False)
    assert "no such setting in fedavg, fedbuff" in refused.err


def test_runs_that_crash_are_told_after_the_table(offbeat, file: Path) -> None:  # type: ignore[no-untyped-def]
    (file.parent / "crash_late.py").write_text(
        "from offbeat.algorithms import FedAvg\n"
        "class Crash(FedAvg):\n"
        "    def react(self, event, state, view):\n"
        "        yield from super().react(event, state, view)\n"
        "        assert view.version < 1, 'too many'\n"
    )
    said = offbeat("compare", "small.toml", "--algorithms", "fedbuff,crash_late:Crash", "--seeds", "1")
    assert said.code == 1
    assert "crash_late:Crash, seed 0 failed: AssertionError: too many" in said.err
    assert "Traceback" not in said.err
    assert "fedbuff" in said.out


@pytest.mark.parametrize(
    ("words", "now"),
    [
        (["advise", "small.toml"], "offbeat plan delays"),
        (["pretrain", "--help"], "offbeat plan slots"),
        (["plan", "small.toml"], "offbeat plan deadlines FILE"),
        (["plan", "--algorithm", "adel", "small.toml"], "offbeat plan deadlines FILE"),
        (["make-certificates", "keys"], "offbeat node certificates"),
        (["register-nodes", "a.pub"], "offbeat node register"),
        (["study", "delays"], "python -m experiments.delays"),
        (["reproduce", "seafl"], "python -m experiments.NAME"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_old_name_says_where_its_command_went(offbeat, words: list[str], now: str) -> None:  # type: ignore[no-untyped-def]
    said = offbeat(*words)
    assert (said.code, said.out) == (2, "")
    assert f"is now `{now}`" in said.err


def test_help_has_the_commands_in_the_order_of_use(offbeat) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("--help").out
    commands = [line.split()[1] for line in said.splitlines() if line.startswith("│ ") and line[2] not in " -"]
    assert commands == [cli._name(each) for panel in cli.PANELS.values() for each in panel]
    assert {"demo", "run", "compare", "recommend", "runs", "report", "simulate", "deploy"} <= set(commands)
    assert [line.split("─")[1].strip() for line in said.splitlines() if line.startswith("╭─")][1:] == list(cli.PANELS)
    for group, subcommands in (("plan", "deadlines delays slots"), ("node", "certificates register")):
        assert all(f"│ {name} " in offbeat(group, "--help").out for name in subcommands.split())


def test_a_node_without_a_superlink_is_refused(offbeat) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("node")
    assert (said.code, said.err) == (2, "offbeat: offbeat node needs --superlink HOST:PORT")


def test_help_teaches() -> None:
    script = "import sys; from offbeat.cli import main; sys.argv[0] = 'offbeat'; main()"
    for words, expected in ((["--help"], "offbeat demo"), (["compare", "--help"], "--algorithms")):
        said = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
        assert expected in said.stdout
    quick = "import sys; import offbeat.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", quick], check=False).returncode == 0


@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_a_wrong_setting_is_said_before_anything_heavy_is_imported(file: Path, command: str) -> None:
    script = (
        "import sys; from offbeat.cli import main; sys.argv[0] = 'offbeat'\n"
        "try: main()\n"
        "except SystemExit as end: sys.exit(end.code if not heavy() else 'heavy')"
    )
    heavy = (
        "heavy = lambda: [m for m in sys.modules if m in ('torch', 'offbeat.simulation.run', 'matplotlib', 'flwr')]\n"
    )
    words = [sys.executable, "-c", script.replace("try:", heavy + "try:"), command, "small.toml"]
    said = subprocess.run([*words, "--set", "fleet.ratio=x"], capture_output=True, text=True, cwd=file.parent)
    assert said.returncode == 2, said.stderr
    assert "fleet.ratio" in said.stderr


def test_what_cannot_be_resumed_is_refused_and_what_can_be_extended_is(offbeat, file: Path) -> None:  # type: ignore[no-untyped-def]
    said = offbeat("run", "small.toml", "--resume")
    assert said.code == 2 and "runs/small-fedbuff-seed0 does not exist, nothing to continue" in said.err
    assert "exclude each other" in offbeat("run", "small.toml", "--resume", "--overwrite").err
    assert not (file.parent / "runs").exists()
    assert "No runs in" in offbeat("runs").out
    assert offbeat("run", "small.toml").code == 0
    assert offbeat("run", "small.toml", "--resume", "--set", "stop.time=33.0").code == 0  # found under its old name
    listed = offbeat("runs").out
    assert "small-fedbuff-seed0" in listed and "finished" in listed and "33 s" in listed
