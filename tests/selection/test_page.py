"""The page on selections: its tables and its Python work as printed."""

import re
import tomllib
from pathlib import Path
from typing import Any

from offbeat.algorithms import FedAvg
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import merge
from offbeat.testing import ScriptedSession

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "algorithms" / "selection.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_its_tables_are_valid() -> None:
    table: dict[str, Any] = {"stop": {"versions": 3}}
    for block in blocks("toml"):
        table = merge(table, tomllib.loads(block))
    assert Experiment.parse(table).for_algorithm("oort", 0).selection.name == "oort"


def test_its_own_selector_picks_the_devices_with_the_most_samples() -> None:
    (block,) = blocks("python")
    names: dict[str, Any] = {"__name__": "page"}
    exec(block, names)
    session = ScriptedSession(FedAvg(cohort=2), samples=[5, 40, 7, 30], selector=names["MostSamples"]())
    assert session.first.ordered == [1, 3]
