"""Builds a Flower app from an experiment: the directory that is sent to a SuperLink and from there to the nodes.

The experiment is one JSON string in the run config (it may contain Infinity, as Python's `json` writes it). The user's
own modules that it names are copied beside the app's package: Flower puts the app's directory on the Python path.
Installed packages are not copied; they must be installed on the nodes as well.
"""

import ast
import json
import shutil
import sysconfig
import zipfile
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import tomli_w

from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.flower.compat import build_fab_from_disk
from offbeat.results.files import replace_file

PACKAGE = "offbeat_app"
APP = '''"""The {side} of an experiment."""

from offbeat.flower import experiment_{side}_app

app = experiment_{side}_app()
'''
LICENSE = "Made by offbeat from an experiment file. Modules beside this file belong to the experiment.\n"


def write_bundle(
    directory: Path, experiment: Experiment, *, out: str, resume: bool = False, overwrite: bool = False
) -> list[str]:
    """Write the app into an empty directory. `out` is the run directory on the SuperLink's machine.

    Returns the files that are not sent: those of the user's packages that are neither Python nor plain text, which
    Flower leaves out, and those beside a module that the module names.
    """
    modules = own_modules(experiment)
    config: dict[str, str | bool] = {
        "experiment": json.dumps(experiment.given_table()),
        "out": out,
        "resume": resume,
        "overwrite": overwrite,
    }
    for path in modules:
        if path.is_dir():
            shutil.copytree(path, directory / path.name, ignore=shutil.ignore_patterns("__pycache__", ".git"))
        else:
            shutil.copy2(path, directory / path.name)
    files = {
        "LICENSE": LICENSE,
        f"{PACKAGE}/__init__.py": '"""Made by offbeat from an experiment file."""\n',
        f"{PACKAGE}/server_app.py": APP.format(side="server"),
        f"{PACKAGE}/client_app.py": APP.format(side="client"),
        "pyproject.toml": tomli_w.dumps(_project(config)),
    }
    for name, text in files.items():
        replace_file(directory / name, text.encode())
    return [*_left_behind(directory, modules), *mentioned_files(modules)]


def mentioned_files(modules: list[Path]) -> list[str]:
    """Files beside a module that its code names and that do not travel with it: data files, for instance."""
    found = set()
    for module in modules:
        if module.is_file():
            code = module.read_text(encoding="utf-8", errors="replace")
            beside = (each for each in module.parent.iterdir() if each.is_file() and each.suffix != ".py")
            found |= {str(each) for each in beside if each.name in code}
    return sorted(found)


def own_modules(experiment: Experiment) -> list[Path]:
    """The user's modules and packages that "module:function" names, and those beside them that they import."""
    experiment.check_importable()
    wanted = [_source(name.partition(":")[0].partition(".")[0]) for name in experiment.own.values()]
    found: list[Path] = []
    while wanted:
        path = wanted.pop()
        if path is None or path in found:
            continue
        found.append(path)
        for name in _imported(path):
            beside = (path.parent / name / "__init__.py", path.parent / f"{name}.py")
            if any(file.is_file() for file in beside):
                wanted.append(_source(name))
    return sorted(found)


def _source(name: str) -> Path | None:
    """The file or package of a top-level module; None if it is installed, and so need not be sent."""
    spec = find_spec(name)
    if spec is None:
        raise InvalidInput(f"module {name!r} is not on the Python path")
    if name == "offbeat" or spec.origin in ("built-in", "frozen"):
        return None
    if spec.origin is None:
        raise InvalidInput(f"{name!r} cannot be sent to the nodes: the package has no __init__.py")
    origin = Path(spec.origin).resolve()
    installed = [Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "purelib", "platlib")]
    if any(origin.is_relative_to(path) for path in installed):
        return None
    if origin.suffix != ".py":
        raise InvalidInput(f"{name!r} cannot be sent to the nodes because it is compiled: install it there")
    if name == PACKAGE:
        raise InvalidInput(f"{name!r} cannot be sent to the nodes: the app itself has this name; rename the module")
    return origin.parent if origin.name == "__init__.py" else origin


def _imported(path: Path) -> set[str]:
    """The top-level modules that a file or a package imports."""
    names: set[str] = set()
    for file in path.rglob("*.py") if path.is_dir() else [path]:
        try:
            tree = ast.parse(file.read_bytes())
        except SyntaxError as error:
            raise InvalidInput(f"{file} is not valid Python: {error}") from None
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names.add(node.module.partition(".")[0])
    return names


def _project(config: dict[str, str | bool]) -> dict[str, object]:
    app = {
        "publisher": "offbeat",
        "fab-format-version": 1,
        "flwr-version-target": "1.41.0",
        "components": {"serverapp": f"{PACKAGE}.server_app:app", "clientapp": f"{PACKAGE}.client_app:app"},
        "config": config,
    }
    project = {
        "name": "offbeat-experiment",
        "version": "1.0.0",
        "description": "An experiment of offbeat",
        "license": {"file": "LICENSE"},
        "dependencies": ["flwr>=1.41.0,<2"],
    }
    build = {"requires": ["hatchling"], "build-backend": "hatchling.build"}
    return {"build-system": build, "project": project, "tool": {"flwr": {"app": app}}}


def _left_behind(directory: Path, modules: list[Path]) -> list[str]:
    """The files that Flower leaves out of the app that it builds from the directory."""
    try:
        built = build_fab_from_disk(directory)
    except ValueError as error:
        raise InvalidInput(f"Flower refuses the app: {str(error).partition(chr(10))[0]}") from None
    with zipfile.ZipFile(BytesIO(built)) as archive:
        taken = set(archive.namelist())
    for path in modules:
        if (f"{path.stem}/__init__.py" if path.is_dir() else path.name) not in taken:
            raise InvalidInput(f"{path} cannot be sent to the nodes: Flower excludes modules of this name; rename it")
    files = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    return sorted(files - taken)
