"""Commands that show what there is: list, describe."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from offbeat.cli.base import console
from offbeat.core.errors import unknown


def list_(
    what: Annotated[
        str,
        typer.Argument(help="algorithms, fleets, availability, datasets, partitions, tasks, models or experiments."),
    ],
) -> None:
    """List what there is, with a line of help each."""
    registries = _registries()
    if what not in registries:
        raise unknown("list", what, registries)
    console.print(_algorithms() if what == "algorithms" else _with_help(what, registries[what]))


def describe(
    name: Annotated[str, typer.Argument(help="A name from `offbeat list`, or a table of the file such as stop.")],
) -> None:
    """Show the settings of a thing, with ranges and defaults, and where it comes from."""
    from offbeat.cli.describe import description
    from offbeat.core.settings import Settings
    from offbeat.experiment.schema import Experiment
    from offbeat.models import MODEL_SETTINGS
    from offbeat.references import resolve

    things = {key: thing for registry in _registries().values() for key, thing in registry.items()}
    tables: dict[str, Any] = {key: field.annotation for key, field in Experiment.model_fields.items()}
    tables = {key: kind for key, kind in tables.items() if isinstance(kind, type) and issubclass(kind, Settings)}
    known = tables | things
    if name not in known:
        raise unknown("name", name, known)
    thing = known[name]
    console.print(description(name, resolve(thing) if isinstance(thing, str) else thing))
    if name in MODEL_SETTINGS:
        console.print(description(name, MODEL_SETTINGS[name]))


def _with_help(title: str, things: dict[str, Any]) -> Table:
    table = Table("name", "what it is", title=title)
    for name, thing in things.items():
        table.add_row(name, _first_line(thing))
    return table


def _algorithms() -> Table:
    from offbeat.algorithms import POLICIES
    from offbeat.algorithms.about import about_of

    table = Table(Column("name", no_wrap=True), "family", Column("provenance", no_wrap=True), "what it is, paper")
    for name, policy in POLICIES.items():
        about = about_of(policy)
        table.add_row(name, about.family, about.provenance, f"{_first_line(policy)}\n[dim]{about.paper}[/dim]")
    return table


def _registries() -> dict[str, dict[str, Any]]:
    from offbeat.algorithms import POLICIES
    from offbeat.data import DATASETS, PARTITIONS
    from offbeat.experiment.named import TASKS
    from offbeat.experiment.shipped import shipped
    from offbeat.fleet import AVAILABILITIES, FLEETS
    from offbeat.models import MODELS

    return {
        "algorithms": dict(POLICIES),
        "fleets": dict(FLEETS),
        "availability": dict(AVAILABILITIES),
        "datasets": dict(DATASETS),
        "partitions": dict(PARTITIONS),
        "tasks": dict(TASKS),
        "models": dict(MODELS),
        "experiments": shipped(),
    }


def _first_line(thing: Any) -> str:
    if isinstance(thing, Path):  # an experiment file opens with a comment that says what it is
        return thing.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    if isinstance(thing, str):  # a model or a task, which is read and not imported: torch takes seconds
        return _docstring(thing).partition("\n")[0]
    return (thing.__doc__ or "").strip().partition("\n")[0]


def _docstring(reference: str) -> str:
    """The docstring of a function or class of ours that is named as "module:thing"."""
    module, _, name = reference.partition(":")
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    (found,) = (node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name)
    return ast.get_docstring(found) or ""
