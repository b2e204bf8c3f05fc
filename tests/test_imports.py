"""The direction of imports: each room of the package imports only those above it."""

import ast
from pathlib import Path

import pytest

import offbeat

ROOT = Path(offbeat.__file__).parent
ROOMS = [
    "core",
    "algorithms",
    "policy",
    "models",
    "device",
    "fleet",
    "data",
    "settings",
    "results",
    "running",
    "simulation",
    "deployment",
    "comparison",
    "studies",
    "testing",
    "cli",
]
MAY_NOT = {
    "models": {"algorithms"},
    "fleet": {"algorithms", "models", "device"},
    "data": {"algorithms", "models", "device", "fleet"},
    "results": {"algorithms", "models", "device", "fleet", "data"},
    "deployment": {"simulation"},
}
"""Rooms that know nothing of some of those above them."""


def room_of(name: str) -> str:
    return name.split(".")[1]


def files_of(room: str) -> list[Path]:
    folder = ROOT / room
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [ROOT / f"{room}.py"]


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("offbeat."):
            found.add(room_of(node.module))
        elif isinstance(node, ast.Import):
            found |= {room_of(alias.name) for alias in node.names if alias.name.startswith("offbeat.")}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_imports_only_those_above_it(room: str) -> None:
    allowed = set(ROOMS[: ROOMS.index(room) + 1]) - MAY_NOT.get(room, set())
    for file in files_of(room):
        assert imports_of(file) <= allowed, f"{file.relative_to(ROOT)} imports from a room that it may not"


def test_every_folder_and_module_has_its_place() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert folders | modules == set(ROOMS)


@pytest.mark.parametrize("room", ["core", "algorithms"])
def test_core_and_algorithms_know_no_torch_no_clock_and_no_files(room: str) -> None:
    forbidden = {"torch", "time", "datetime", "os", "pathlib", "random", "io", "socket"}
    for file in files_of(room):
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
