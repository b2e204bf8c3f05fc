"""The pages about algorithms are short, and name commands and settings that exist."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from offbeat import cli
from offbeat.algorithms import POLICIES
from offbeat.selection import SELECTORS

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "algorithms").glob("*.md"))


def test_they_have_at_most_4350_words() -> None:
    assert sum(len(page.read_text().split()) for page in PAGES) <= 4350


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_they_name_exist(page: Path) -> None:
    known = typer.main.get_command(cli.app)
    for command in re.findall(r"`offbeat ([a-z -]+)", page.read_text()):
        words, group = command.split(), known
        while words and hasattr(group, "commands"):
            assert words[0] in group.commands, f"{page.name}: offbeat {command}"
            group = group.commands[words.pop(0)]
    for module in re.findall(r"python -m (experiments\.\w+)", page.read_text()):
        assert find_spec(module), f"{page.name}: python -m {module}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_settings_they_give_values_to_exist(page: Path) -> None:
    kinds = (*POLICIES.values(), *SELECTORS.values())
    settings = {key for kind in kinds for key in kind.model_fields} | {"layers", "projection"}
    for setting in re.findall(r"`(\w+) = (?:\"|true|false|\d)", page.read_text()):
        assert setting in settings, f"{page.name}: {setting}"


@pytest.mark.parametrize("name", POLICIES)
def test_every_algorithm_is_on_a_page(name: str) -> None:
    text = "".join(page.read_text() for page in PAGES).lower()
    assert name in text or name.replace("2", "²") in text
