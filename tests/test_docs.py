"""What the documentation says can be done is done: its code runs, its links lead somewhere."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from offbeat.core.policy import Policy
from offbeat.settings.schema import Experiment
from offbeat.testing import check_policy

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_experiment_file_of_the_readme_is_valid() -> None:
    (block,) = blocks("README.md", "toml")
    assert Experiment.parse(tomllib.loads(block)).algorithm.name == "fedbuff"


def test_the_python_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("README.md", "python")
    exec(block.replace("200.0", "20.0"), {})
    assert "0.5" in capsys.readouterr().out


@pytest.mark.parametrize("number", range(3))
def test_the_tables_of_the_how_to_are_valid(number: int) -> None:
    block = blocks("docs/how-to.md", "toml")[number]
    Experiment.parse({"stop": {"time": 1.0}} | tomllib.loads(block)).for_algorithm("fedbuff", 0)


def test_data_model_and_policy_of_the_how_to_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from offbeat import run

    monkeypatch.syspath_prepend(tmp_path)
    things, policy, _, notebook = blocks("docs/how-to.md", "python")
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
    check_policy(kind())
    exec(notebook, {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_ci_finds_the_two_commands_of_the_readme() -> None:
    commands = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("python3 -m venv")]
    assert [command.split()[-1] for command in commands] == ["demo", ".venv/bin/pytest"]
