"""How commands end: with the next command, and with tables that a paper can take as they are."""

import csv
import inspect
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from offbeat import cli
from offbeat.cli.next_commands import NEXT

ENDLESS = ("serve", "node")
"""Commands that run until they are stopped."""


def commands() -> dict[str, Callable[..., None]]:
    """Every command and subcommand by name."""
    found: dict[str, Callable[..., None]] = {}
    for command in (each for panel in cli.PANELS.values() for each in panel):
        if isinstance(command, typer.Typer):
            own = {f"{command.info.name} {each.callback.__name__}": each.callback  # type: ignore[union-attr]
                   for each in command.registered_commands}  # fmt: skip
            found |= {name: function for name, function in own.items() if function is not None}
        else:
            found[cli._name(command)] = command
    return {name: each for name, each in found.items() if name not in ENDLESS}


@pytest.mark.parametrize("name", commands())
def test_every_command_names_the_next_one(name: str) -> None:
    assert name in NEXT
    source = inspect.getsource(cli.init if name == "init" else commands()[name])
    assert "next_step(" in source and f'"{name}' in source


def test_a_table_for_a_paper_is_all_of_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ("stop.time=30", "model.name=logistic", "data.name=digits", "data.devices=12", "local.epochs=1")
    small = [word for change in settings for word in ("--set", change)]
    deadlines = ["--set", "algorithm.name=salf", "--set", "algorithm.rounds=2"]
    for words in (
        ["list", "algorithms"],
        ["list", "fleets"],
        ["partition", "demo", *small],
        ["plan", "deadlines", "demo", *small, *deadlines],
        ["run", "demo", *small],
        ["runs"],
        ["report", "runs/demo-fedavg*"],
    ):
        given = [str(each) for each in tmp_path.glob(words[-1])] if "*" in words[-1] else words[-1:]
        said = CliRunner().invoke(cli.app, [*words[:-1], *given, "--format", "csv"])
        assert said.exit_code == 0, said.output
        widths = [len(row) for row in csv.reader(io.StringIO(said.stdout)) if row]
        assert widths[0] > 1 and said.stdout[0] not in "┏ " and "Next:" not in said.output
        assert set(widths) == {widths[0]}
    said = CliRunner().invoke(cli.app, ["runs"])
    assert said.stderr.startswith("Next: offbeat report runs/demo-fedavg-seed0-devices12")


WITHOUT = ("demo", "init", "describe", "watch", "replay", "node certificates", "node register")
"""Commands that print no table, or one that is drawn again and again."""


@pytest.mark.parametrize("name", [name for name in commands() if name not in WITHOUT])
def test_every_other_command_has_its_tables_for_papers(name: str) -> None:
    assert "form" in inspect.signature(commands()[name]).parameters
    assert "check_format(form)" in inspect.getsource(commands()[name])
