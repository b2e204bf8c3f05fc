"""What the documentation says can be done is done: its code runs, its links lead somewhere."""

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from offbeat import cli
from offbeat.algorithms import POLICIES
from offbeat.core.orders import Order
from offbeat.core.policy import Policy
from offbeat.data import DATASETS
from offbeat.experiment.schema import Experiment
from offbeat.simulation.run import simulation_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_experiment_file_of_the_readme_is_valid() -> None:
    (block,) = blocks("README.md", "toml")
    assert Experiment.parse(tomllib.loads(block)).algorithm.name == "fedbuff"


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("README.md", "python")
    exec(block.replace("200.0", "20.0"), {})
    assert "0.5" in capsys.readouterr().out


@pytest.mark.parametrize("number", range(5))
def test_the_tables_of_the_how_to_are_valid(number: int) -> None:
    block = blocks("docs/how-to.md", "toml")[number]
    Experiment.parse({"stop": {"time": 1.0}} | tomllib.loads(block)).for_algorithm("fedbuff", 0)


def test_the_tables_and_commands_of_the_data_page_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = "flwr_datasets.partitioner:DirichletPartitioner"
    for block in blocks("docs/data.md", "toml"):
        table = tomllib.loads(block)
        if find_spec("flwr_datasets") is None and table.get("partition", {}).get("name") == theirs:
            del table["partition"]  # not installed: its requirements do not fit beside ours
        Experiment.parse({"stop": {"time": 1.0}} | table)
    (text,) = blocks("README.md", "toml")
    (tmp_path / "experiment.toml").write_text(text)
    for command in commands("docs/data.md"):
        monkeypatch.setattr(sys, "argv", ["offbeat", *command])
        cli.app(standalone_mode=False)
    assert (tmp_path / "partition.png").is_file()
    assert (tmp_path / "uneven.svg").is_file()


def test_every_data_set_is_on_the_data_page() -> None:
    assert set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE)) == set(DATASETS)


def test_the_measured_devices_of_the_how_to_can_be_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (table,) = [block for block in blocks("docs/how-to.md", "toml") if "devices.csv" in block]
    (tmp_path / "devices.csv").write_text("".join(blocks("docs/how-to.md", "csv")))
    rest = {"stop": {"time": 40_000.0}, "model": {"name": "logistic"}, "local": {"epochs": 1}}
    read = tomllib.loads(table)
    read["data"]["name"] = "digits"
    experiment = Experiment.parse(rest | read | {"algorithm": {"name": "fedasync", "concurrency": 3}})
    with simulation_of(experiment) as simulation:
        fleet = simulation.fleet
        assert fleet.speeds.names == ["Pixel 8", "Galaxy A5", "Moto G"]
        assert [fleet.speeds.slice_seconds(device, 0, Order())[0] for device in range(3)] == [0.85, 4.2, 9.1]
        assert fleet.availability.present(7 * 3600.0).tolist() == [True, True, True]
        assert fleet.availability.present(9 * 3600.0).tolist() == [False, True, True]
        # 3 MB are 24 Mbit: a second at night, and 8 s by day.
        assert [fleet.links.down_seconds(0, 3_000_000, at) - 0.05 for at in (0.0, 36_000.0)] == pytest.approx([1, 8])
        for _, _ in zip(range(200), simulation, strict=False):
            pass
        assert {span.device for span in simulation.spans} == {0, 1}, "the third comes at six"


def test_data_model_and_policy_of_the_how_to_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from offbeat import run

    monkeypatch.syspath_prepend(tmp_path)
    things, policy, tests, notebook = blocks("docs/how-to.md", "python")
    (tmp_path / "my_module.py").write_text(things)
    (tmp_path / "my_policy.py").write_text(policy)
    table = {
        "stop": {"time": 400.0},
        "data": {"name": "my_module:load", "devices": 20},
        "model": {"name": "my_module:network"},
        "local": {"learning_rate": 0.3},
        "algorithm": {"name": "my_policy:EveryMinute", "concurrency": 5},
    }
    assert run(Experiment.parse(table)).summary["final_accuracy"] > 0.8
    kind = sys.modules["my_policy"].EveryMinute
    assert issubclass(kind, Policy)
    exec(tests, vars(sys.modules["my_policy"]))
    exec(notebook, {})


NOT_HERE = {
    "local-cluster": "it starts Flower processes: tests/processes/test_local_cluster.py runs it",
    "replay": "it replays the run of local-cluster: tests/processes/test_local_cluster.py runs it",
    "deploy": "it needs a SuperLink: tests/processes/test_warm_nodes.py has one",
    "node": "it needs a SuperLink: tests/processes/test_warm_nodes.py has one",
    "recommend": "the test of the page on choosing runs it",
    "tune": "the test of the page on choosing runs it",
    "simulate": "it needs a Flower app: tests/cli/test_simulate.py has some",
}
CHOOSING = {"--trials 24": "--trials 1", "fedavg,fedasync,fedbuff": "fedavg", ",seafl": "", "500,501,502": "500"}
"""What makes the commands that choose an algorithm take seconds in place of minutes."""
SHORTER = {
    "time = 600.0 ": "time = 12.0 ",
    'name = "lenet5"': 'name = "logistic"',
    "epochs = 5": "epochs = 1",
    "every_seconds = 20.0": "every_seconds = 4.0",
}
"""What makes the experiment of the README take a second in place of minutes."""


def commands(page: str) -> list[list[str]]:
    """The indented commands of a page, in order, without what follows a #."""
    lines = re.findall(r"^    (offbeat .*)$", (ROOT / page).read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def commands_in_tables(page: str) -> list[list[str]]:
    """The commands in the tables of a page, but for those of a cluster."""
    rows = re.findall(r"^\|.*$", (ROOT / page).read_text(), re.MULTILINE)
    found = [shlex.split(command)[1:] for row in rows for command in re.findall(r"`(offbeat [^`]+)`", row)]
    return [command for command in found if "--address" not in command]


def test_the_commands_of_readme_and_how_to_work_one_after_the_other_in_one_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,) = blocks("README.md", "toml")
    for long, short in SHORTER.items():
        assert long in text
        text = text.replace(long, short)
    (tmp_path / "experiment.toml").write_text(text)
    for name, block in zip(("my_module", "my_policy"), blocks("docs/how-to.md", "python"), strict=False):
        (tmp_path / f"{name}.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    words = [*commands("README.md"), *commands("docs/how-to.md")]
    assert len(words) >= 14
    others = [command for command in commands_in_tables("README.md") if command not in words]
    assert len(others) >= 5
    for command in [*words, *others]:
        if command[0] in NOT_HERE:
            continue
        monkeypatch.setattr(sys, "argv", ["offbeat", *command])
        try:
            cli.main()
        except SystemExit as end:
            assert not end.code, f"{command}: {capsys.readouterr().err}"
    made = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {"experiment-fedbuff-seed0", "experiment-fedbuff-seed0-ratio110", "first"} <= made
    assert any("my_module_load" in name for name in made) and any("my_policy" in name for name in made)
    assert (tmp_path / "page.html").is_file()


def test_the_commands_and_the_python_of_the_page_on_choosing_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = """stop = {time = 9.0}
model = "logistic"
data = {name = "digits", devices = 6}
local = {epochs = 1}
fleet = {epoch_seconds = 0.3}
evaluation = {every_seconds = 1.0}
execution = {save_model = false}
[compare]
in_training = 3
"""
    (tmp_path / "experiment.toml").write_text(tiny)
    text = (ROOT / "docs" / "choosing.md").read_text()
    for long, short in CHOOSING.items():
        assert long in text
        text = text.replace(long, short)
    lines = re.findall(r"^    (offbeat .*)$", text, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        less = ["--seeds", "1", "--jobs", "1"] + ([] if "--algorithms" in line else ["--algorithms", "fedavg"])
        monkeypatch.setattr(sys, "argv", [*shlex.split(line), *less])
        try:
            cli.main()
        except SystemExit as end:
            assert not end.code, f"{line}: {capsys.readouterr().err}"
    shown = capsys.readouterr().out
    assert "Run fedavg with learning rate" in shown
    assert "on tuning seeds" in shown.replace("\n", " ")
    tuned, own = blocks("docs/choosing.md", "python")
    exec(tuned, {})
    exec(own, {"__name__": "own"})
    (record,) = blocks("docs/choosing.md", "toml")
    Experiment.parse({"stop": {"time": 1.0}} | tomllib.loads(record))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_ci_finds_the_two_commands_of_the_readme() -> None:
    commands = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("python3 -m venv")]
    assert [command.split()[-1] for command in commands] == ["demo", ".venv/bin/pytest"]


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    # Not --quiet, which also silences --strict.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    reference = tmp_path / "site" / "reference"
    assert "offbeat.Experiment" in (reference / "offbeat" / "index.html").read_text()
    algorithms = (reference / "algorithms" / "index.html").read_text()
    for name, policy in POLICIES.items():
        assert f"<td><code>{name}</code></td>" in algorithms
        assert f'id="{policy.__module__}.{policy.__name__}"' in algorithms, f"{name} is not on the reference page"


def test_the_citation_names_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
