"""The direction of imports: each folder imports only those above it."""

import ast
from pathlib import Path

import pytest

import offbeat

ROOT = Path(offbeat.__file__).parent
LAYERS = [
    "core",
    "theory",
    "planning",
    "algorithms",
    "models",
    "device",
    "fleet",
    "data",
    "records",
    "simulation",
    "results",
    "tables",
    "config",
    "ingredients",
    "driving",
    "deployment",
    "experiment",
    "pretrain",
    "contest",
    "studies",
    "estimates",
    "advise",
    "plan",
    "testing",
    "cli",
]
MAY_NOT = {
    "device": {"fleet", "data"},
    "fleet": {"models", "device"},
    "data": {"fleet", "models", "device"},
    "results": {"simulation"},
    "config": {"simulation"},
    "driving": {"simulation"},
    "deployment": {"simulation"},
}
"""Neighbours of the same height that know nothing of each other."""


def layer_of(name: str) -> str:
    return name.split(".")[1]


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("offbeat."):
            found.add(layer_of(node.module))
        elif isinstance(node, ast.Import):
            found |= {layer_of(alias.name) for alias in node.names if alias.name.startswith("offbeat.")}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_imports_only_those_above_it(layer: str) -> None:
    folder = ROOT / layer
    files = list(folder.glob("*.py")) if folder.is_dir() else [ROOT / f"{layer}.py"]
    allowed = set(LAYERS[: LAYERS.index(layer) + 1]) - MAY_NOT.get(layer, set())
    for file in files:
        assert imports_of(file) <= allowed, f"{file.name} imports from below"


def test_every_folder_has_its_place() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert folders | modules == set(LAYERS)


@pytest.mark.parametrize("layer", ["core", "planning", "algorithms"])
def test_core_and_algorithms_know_no_torch_no_clock_and_no_files(layer: str) -> None:
    forbidden = {"torch", "time", "datetime", "os", "pathlib", "random", "io", "socket"}
    for file in (ROOT / layer).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & forbidden, file.name
