"""The recipes in CONTRIBUTING.md work as printed, in a clean copy of the tree."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECIPE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add an algorithm")[2].partition("\n## ")[0]
METRIC = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a metric")[2].partition("\n## ")[0]
OFFBEAT = [sys.executable, "-c", "from offbeat.cli import main; main()"]
PYTEST = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree in which steps 1 to 3 of the recipe have been carried out."""
    copy = tmp_path_factory.mktemp("offbeat")
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("flower_apps"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for path in (copy / name for name in re.findall(r"^\*\*\d\. Write .*?\*\*, `(.*)`", RECIPE, re.MULTILINE)):
        assert not path.exists() and path.parent.is_dir()
        shutil.copy(ROOT / "examples" / "new_algorithm" / path.name, path)
    (registration,) = re.findall(r"```python\n(.*?)```", RECIPE, re.DOTALL)
    registry, above = re.search(r"one line in `(.*)`, above `(.*)`", RECIPE).groups()  # type: ignore[union-attr]
    before, mark, after = (copy / registry).read_text().partition(f"{above}\n")
    assert mark and registration.count("\n") == 1
    (copy / registry).write_text(before + registration + mark + after)
    metric, golden = re.findall(r"```python\n(.*?)```", METRIC, re.DOTALL)
    place, _, code = metric.partition("\n")
    file, mark = re.fullmatch(r"# (.*), above (.*)", place).groups()  # type: ignore[union-attr]
    before, mark, after = (copy / file).read_text().partition(f"\n{mark}:")
    line = re.search(r"one line, `(.*)`, in", METRIC)[1]  # type: ignore[index]
    (copy / file).write_text(before + code + mark + after.replace("for each in (", f"for each in (\n{line}", 1))
    (copy / golden.partition("\n")[0].removeprefix("# ")).write_text(golden)
    return copy


def run(command: str, copy: Path) -> str:
    """What a command of the recipe prints; it must succeed."""
    program, *arguments = shlex.split(command)
    full = [*{"offbeat": OFFBEAT, ".venv/bin/pytest": PYTEST}[program], *arguments]
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "COLUMNS": "200"}
    done = subprocess.run(full, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_command_of_the_recipe_works(copy: Path) -> None:
    commands = re.findall(r"^    ((?:offbeat|\.venv/bin/pytest) .*)$", RECIPE, re.MULTILINE)
    listed, described, compared, tested = (run(command, copy) for command in commands)
    assert "fedavgm" in listed and "Hsu et al. 2019" in listed
    assert "beta, the share of the last step" in described and "provenance: published" in described
    assert re.search(r"fedavgm\W", compared)
    assert " passed" in tested and "skipped" not in tested


def test_every_command_of_the_recipe_for_a_metric_works(copy: Path) -> None:
    commands = re.findall(r"^    ((?:offbeat|\.venv/bin/pytest) .*)$", METRIC, re.MULTILINE)
    described, tested = (run(command, copy) for command in commands)
    assert "higher is better; shown in percent; tasks: classification" in described
    assert "1 passed" in tested


def test_the_page_is_short() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().split()) <= 1200
