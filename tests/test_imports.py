"""The direction of imports: each room of the package imports only those above it."""

import ast
import re
from pathlib import Path

import pytest

import offbeat

ROOT = Path(offbeat.__file__).parent
PLAN = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"


def floor_plan() -> dict[str, set[str]]:
    """The rooms from top to bottom, each with the rooms that it may import, as the documentation has it."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\w, ]*?) ?\|$", PLAN.read_text(), re.MULTILINE)
    rooms = [room for room, _ in rows]
    return {room: set(rooms) if may == "all" else set(filter(None, may.split(", "))) for room, may in rows}


ROOMS = floor_plan()


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


def test_the_floor_plan_has_a_direction() -> None:
    above: set[str] = set()
    for room, may in ROOMS.items():
        assert may - {room} <= above, f"{room} may import a room that does not stand above it"
        above.add(room)


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_imports_only_what_the_floor_plan_allows(room: str) -> None:
    for file in files_of(room):
        assert imports_of(file) <= ROOMS[room] | {room}, f"{file.relative_to(ROOT)} imports from a room that it may not"


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
