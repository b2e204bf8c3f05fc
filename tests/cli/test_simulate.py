"""`offbeat simulate`: a Flower app from the command line, and runs of it in one report."""

import re
import shlex
import sys
import tomllib
from pathlib import Path
from shutil import copytree

import pytest

from offbeat import cli

APP = Path(__file__).parents[1] / "flower_apps" / "quickstart-numpy"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "flower.md"


SCRIPT = """
import sys

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

assert sys.argv[1:] == ["--rounds", "20"]
server = ServerApp()
server.main()(lambda grid, context: print(len(grid.get_node_ids()), "nodes"))
run_simulation(server, ClientApp(), num_supernodes=3)
"""


def offbeat(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """Run a command; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["offbeat", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_the_commands_of_the_documentation_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = copytree(APP, tmp_path / "path" / "to" / "app")
    project = (app / "pyproject.toml").read_text()
    shorter = project.replace('"quickstart-numpy"', '"app"').replace("num-server-rounds = 3", "num-server-rounds = 1")
    (app / "pyproject.toml").write_text(shorter)
    monkeypatch.chdir(tmp_path)
    section = PAGE.read_text().partition("## Simulate a Flower app on a virtual clock")[2]
    commands = [shlex.split(line) for line in re.findall(r"^    offbeat (.*)$", section, re.MULTILINE)]
    one, compared, script = commands
    assert compared[:2] == one[:2] and "--strategies" in compared  # run by a test of its own
    (tmp_path / "path" / "to" / "sim.py").write_text(SCRIPT)
    for command in (one, script):
        assert offbeat(monkeypatch, *command) == 0
    assert list(Path("runs").glob("app-*/metrics.png"))
    table = tomllib.loads((Path("runs") / "sim-seed0-ratio-ratio110-epochs5" / "config.toml").read_text())
    assert (table["data"]["devices"], table["work"]["epochs"]) == (3, 5)


def test_a_mistake_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert offbeat(monkeypatch, "simulate", "nowhere") == 2
    assert capsys.readouterr().err == "offbeat: nowhere is not a Flower app: it has no pyproject.toml\n"
    assert offbeat(monkeypatch, "simulate", "sim.py", "--nodes", "3") == 2
    assert "sim.py is a script: it sets the number of nodes itself" in capsys.readouterr().err
    assert offbeat(monkeypatch, "simulate", str(APP), "rounds") == 2
    assert "is not a script, so it takes no arguments: rounds" in capsys.readouterr().err
