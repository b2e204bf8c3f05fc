"""The documentation is true: its tutorials and commands run, its tables are valid, its links lead somewhere."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
import typer

from offbeat import cli
from offbeat.algorithms import POLICIES
from offbeat.core.orders import Order
from offbeat.data import DATASETS
from offbeat.experiment.schema import Experiment
from offbeat.simulation.run import simulation_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """Run an offbeat command, which must succeed, and return what it prints."""
    monkeypatch.setattr(sys, "argv", ["offbeat", *words])
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code, f"{words}: {capsys.readouterr().err}"
    return capsys.readouterr().out


# Tutorials: every block, in order ------------------------------------------------------------------------------------


def follow(page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Do what a tutorial says in the current directory and return what its commands print.

    A block that begins with `# path` is a file, one that begins with `# replace: LINE` changes a line of a file, other
    Python is executed, and commands of offbeat are run.
    """
    said = []
    text = (ROOT / "docs" / "tutorials" / page).read_text()
    for language, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        first, _, rest = block.partition("\n")
        if first.startswith("# replace: "):
            (file,) = (path for path in Path().rglob("*.py") if first[11:] in path.read_text())
            file.write_text(file.read_text().replace(first[11:], rest.strip()))
        elif re.fullmatch(r"# [\w/]+\.\w+", first):
            path = Path(first[2:])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rest)
        elif language == "python":
            exec(block, {})
        elif language == "sh":
            lines = [shlex.split(line) for line in block.splitlines()]
            said += [call(monkeypatch, capsys, line[1:]) for line in lines if line[0] == "offbeat"]
    return said


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, whose modules can be imported and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_tutorial_on_own_algorithms(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran, compared = follow("own-algorithm.md", monkeypatch, capsys)
    assert "final_accuracy" in ran
    assert "my_policy:Periodic" in compared and "fedbuff" in compared


def test_the_tutorial_on_own_data(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, partition, compared, recommended, ran = follow("own-data.md", monkeypatch, capsys)
    assert "Wrote experiment.toml" in begun
    assert "devices" in partition and (here / "partition.png").is_file()
    assert "r2" in compared and "mine" in compared
    assert "learning rate" in recommended
    assert "final_r2" in ran and (here / "final" / "model.safetensors").is_file()
    assert "r2" in (here / "final" / "devices.csv").read_text().partition("\n")[0]


def test_the_tutorial_on_flower(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, report = follow("flower.md", monkeypatch, capsys)
    assert "fedavg" in report and "fedbuff" in report
    summaries = [json.loads(path.read_text()) for path in sorted(here.glob("runs/*/summary.json"))]
    synchronous, buffered = sorted(summaries, key=lambda summary: -summary["time"])
    assert synchronous["updates_used"] == buffered["updates_used"] == 50


# README and how-to pages ---------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_its_python_runs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 500
    (block,) = blocks("README.md", "python")
    exec(block.replace("200.0", "20.0"), {})
    assert "0.5" in capsys.readouterr().out and (here / "metrics.png").is_file()


@pytest.mark.parametrize("folder", ["tutorials", "how-to"])
def test_a_page_has_at_most_2000_words(folder: str) -> None:
    for page in (ROOT / "docs" / folder).glob("*.md"):
        assert len(page.read_text().split()) <= 2000, page.name


def experiment_of_the_how_to() -> str:
    """The experiment file of the page on experiments."""
    (block,) = (
        block for block in blocks("docs/how-to/experiments.md", "toml") if block.startswith("# experiment.toml")
    )
    return block


def test_the_tables_of_the_how_to_pages_are_valid() -> None:
    for page in ("experiments", "fleets", "scaling", "training"):
        for block in blocks(f"docs/how-to/{page}.md", "toml"):
            Experiment.parse({"stop": {"time": 1.0}} | tomllib.loads(block)).for_algorithm("fedbuff", 0)


def test_the_tables_and_commands_of_the_data_page_are_valid(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = "flwr_datasets.partitioner:DirichletPartitioner"
    for block in blocks("docs/how-to/data.md", "toml"):
        table = tomllib.loads(block)
        if find_spec("flwr_datasets") is None and table.get("partition", {}).get("name") == theirs:
            del table["partition"]  # Flower Datasets is not installed
        Experiment.parse({"stop": {"time": 1.0}} | table)
    (here / "experiment.toml").write_text(experiment_of_the_how_to())
    for command in commands("docs/how-to/data.md"):
        call(monkeypatch, capsys, command)
    assert (here / "partition.png").is_file()
    assert (here / "uneven.svg").is_file()


def test_every_data_set_is_on_the_data_page() -> None:
    page = (ROOT / "docs" / "how-to" / "data.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == set(DATASETS)


def test_the_measured_devices_of_the_page_on_fleets_can_be_simulated(here: Path) -> None:
    (table,) = [block for block in blocks("docs/how-to/fleets.md", "toml") if "devices.csv" in block]
    (measured,) = blocks("docs/how-to/fleets.md", "csv")
    (here / "devices.csv").write_text(measured.partition("\n")[2])
    rest = {"stop": {"time": 40_000.0}, "model": {"name": "logistic"}, "local": {"epochs": 1}}
    read = tomllib.loads(table)
    read["data"]["name"] = "digits"
    experiment = Experiment.parse(rest | read | {"algorithm": {"name": "fedasync", "concurrency": 3}})
    with simulation_of(experiment) as simulation:
        fleet = simulation.fleet
        assert fleet.speeds.names == ["Galaxy A5", "Moto G", "Pixel 8"]
        assert [fleet.speeds.slice_seconds(device, 0, Order())[0] for device in range(3)] == [4.2, 9.1, 0.85]
        assert fleet.availability.present(7 * 3600.0).tolist() == [True, True, True]
        assert fleet.availability.present(9 * 3600.0).tolist() == [True, True, False]
        # 3 MB are 24 Mbit: a second at night, and 8 s by day.
        assert [fleet.links.down_seconds(2, 3_000_000, at) - 0.05 for at in (0.0, 36_000.0)] == pytest.approx([1, 8])
        for _, _ in zip(range(200), simulation, strict=False):
            pass
        assert {span.device for span in simulation.spans} == {0, 2}, "the Moto G comes at six"


NOT_HERE = {
    "local-cluster": "it starts Flower processes: tests/processes/test_local_cluster.py runs it",
    "replay": "it replays a real run: tests/test_docs_real_nodes.py has one",
    "init": "it asks about a file of the user: tests/cli/test_init.py runs it",
    "deploy": "it needs a SuperLink: tests/test_docs_real_nodes.py has one",
    "recommend": "the test of the page on choosing runs it",
    "tune": "the test of the page on choosing runs it",
    "simulate": "it needs a Flower app: tests/cli/test_simulate.py has some",
}
CHOOSING = {"--trials 24": "--trials 1", "fedavg,fedasync,fedbuff": "fedavg", ",seafl": "", "500,501,502": "500"}
"""Replacements that make the commands that choose an algorithm take seconds instead of minutes."""
SHORTER = {
    "time = 600.0 ": "time = 12.0 ",
    'name = "lenet5"': 'name = "logistic"',
    "epochs = 5": "epochs = 1",
    "buffer = 10": "buffer = 2",
    "every_seconds = 20.0": "every_seconds = 4.0",
}
"""Replacements that make the experiment of the how-to page take a second instead of minutes."""


def commands(page: str) -> list[list[str]]:
    """The indented commands of a page, in order, without comments."""
    lines = re.findall(r"^    (offbeat .*)$", (ROOT / page).read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def commands_in_tables(page: str) -> list[list[str]]:
    """The commands in the tables of a page."""
    rows = re.findall(r"^\|.*$", (ROOT / page).read_text(), re.MULTILINE)
    return [shlex.split(command)[1:] for row in rows for command in re.findall(r"`(offbeat [^`]+)`", row)]


def test_the_commands_of_readme_and_how_to_work_one_after_the_other_in_one_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = experiment_of_the_how_to()
    for long, short in SHORTER.items():
        assert long in text
        text = text.replace(long, short)
    (here / "experiment.toml").write_text(text)
    own = blocks("docs/tutorials/own-algorithm.md", "python")[0]
    (here / "my_policy.py").write_text(own.replace("period: float = 20.0", "period: float = 4.0"))
    words = commands("docs/how-to/experiments.md")
    assert len(words) == 5
    table = [command for command in commands_in_tables("README.md") if command[0] not in NOT_HERE]
    assert len(table) == 3
    for command in [*words, *([*command, "--overwrite"] for command in table)]:
        call(monkeypatch, capsys, ["experiment.toml" if word == "demo" else word for word in command])
    made = {path.name for path in (here / "runs").iterdir()}
    assert {"experiment-fedbuff-seed0-ratio110", "first"} <= made
    assert any("my_policy" in name for name in made)
    assert (here / "page.html").is_file()


def test_the_python_of_the_how_to_runs() -> None:
    (block,) = blocks("docs/how-to/experiments.md", "python")
    exec(block, {})


def test_every_command_in_a_page_exists() -> None:
    root, context = typer.main.get_command(cli.app), click.Context(click.Command("offbeat"))
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue
        for text in re.findall(r"(?:^    |`)(offbeat [a-z-]+[^`\n]*)", page.read_text(), re.MULTILINE):
            words = text.split()[1:]
            command = root
            while isinstance(command, click.Group) and words and words[0] in command.list_commands(context):
                command = command.get_command(context, words.pop(0)) or root
            assert command is not root, f"{page.name}: {text}"
            known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            given = [word for word in " ".join(words).partition(" -- ")[0].split() if re.match(r"--[a-z]", word)]
            assert {word.partition("=")[0] for word in given} <= known, f"{page.name}: {text}"


def test_the_commands_and_the_python_of_the_page_on_choosing_work(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = """stop = {time = 9.0}
model = "logistic"
data = {name = "digits", devices = 6}
local = {epochs = 1}
fleet = {epoch_seconds = 0.3}
evaluation = {every_seconds = 1.0}
execution = {save_model = false}
algorithm = {name = "fedavg", cohort = 3}
[compare]
in_training = 3
"""
    (here / "experiment.toml").write_text(tiny)
    text = (ROOT / "docs" / "how-to" / "choosing.md").read_text()
    for long, short in CHOOSING.items():
        assert long in text
        text = text.replace(long, short)
    lines = [shlex.split(line)[1:] for line in re.findall(r"^    (offbeat .*)$", text, re.MULTILINE)]
    assert len(lines) == 6
    shown = ""
    for line in lines:
        less = ["--seeds", "1", "--jobs", "1"] if line[0] != "plan" else ["--seeds", "1"] if line[1] == "delays" else []
        less += ["--algorithms", "fedavg"] if line[0] == "recommend" and "--algorithms" not in line else []
        shown += call(monkeypatch, capsys, [*line, *less])
    assert "Run fedavg with learning rate" in shown
    assert "on tuning seeds" in shown.replace("\n", " ")
    assert (here / "plan.png").is_file()
    tuned, own = blocks("docs/how-to/choosing.md", "python")
    exec(tuned, {})
    exec(own, {"__name__": "own"})


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
