"""The direction of imports: each subpackage imports only those above it."""

import ast
import re
from pathlib import Path

import pytest

import offbeat

ROOT = Path(offbeat.__file__).parent
PLAN = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"


def import_table() -> dict[str, set[str]]:
    """The subpackages from top to bottom, each with those it may import, as the documentation lists them."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\w, ]*?) ?\|$", PLAN.read_text(), re.MULTILINE)
    names = [subpackage for subpackage, _ in rows]
    return {subpackage: set(names) if may == "all" else set(filter(None, may.split(", "))) for subpackage, may in rows}


SUBPACKAGES = import_table()


def subpackage_of(name: str) -> str:
    return name.split(".")[1]


def files_of(subpackage: str) -> list[Path]:
    folder = ROOT / subpackage
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{subpackage}.py"]


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("offbeat."):
            found.add(subpackage_of(node.module))
        elif isinstance(node, ast.Import):
            found |= {subpackage_of(alias.name) for alias in node.names if alias.name.startswith("offbeat.")}
    return found


def test_the_import_table_has_a_direction() -> None:
    above: set[str] = set()
    for subpackage, may in SUBPACKAGES.items():
        assert may - {subpackage} <= above, f"{subpackage} may import a subpackage that does not stand above it"
        above.add(subpackage)


@pytest.mark.parametrize("subpackage", SUBPACKAGES)
def test_each_subpackage_imports_only_what_the_table_allows(subpackage: str) -> None:
    for file in files_of(subpackage):
        assert imports_of(file) <= SUBPACKAGES[subpackage] | {subpackage}, (
            f"{file.relative_to(ROOT)} imports a subpackage that it may not"
        )


def test_every_folder_and_module_is_in_the_table() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert folders | modules == set(SUBPACKAGES)


@pytest.mark.parametrize("subpackage", ["core", "algorithms"])
def test_core_and_algorithms_know_no_torch_no_clock_and_no_files(subpackage: str) -> None:
    forbidden = {"torch", "time", "datetime", "os", "pathlib", "random", "io", "socket"}
    for file in files_of(subpackage):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & forbidden, file.name


def test_no_two_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
