"""Defences and attacks are listed and described like everything else."""

import pytest
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.fleet.attacks import ATTACKS
from offbeat.trust.settings import COMBINERS


@pytest.mark.parametrize(("kind", "names"), [("defences", COMBINERS), ("attacks", ATTACKS)])
def test_all_are_listed(kind: str, names: dict[str, object]) -> None:
    said = CliRunner().invoke(app, ["list", kind]).output
    assert all(name in said for name in names)


@pytest.mark.parametrize(
    ("name", "words"), [("median", "attackers"), ("trust", "combine"), ("attack", "Fall of Empires"), ("ipm", "mean")]
)
def test_each_is_described(name: str, words: str) -> None:
    assert words in CliRunner().invoke(app, ["describe", name]).output
