"""Commands that show what there is: list, describe. Settings are described by the fields that check them."""

import ast
import inspect
import sys
import textwrap
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from offbeat.cli.base import TableFormat, check_format, console, print_table
from offbeat.cli.next_commands import next_step
from offbeat.core.errors import unknown

if TYPE_CHECKING:  # pydantic and the registries are imported when a command runs, to keep --help fast
    from pydantic.fields import FieldInfo

    from offbeat.core.policy import Policy
    from offbeat.core.selection import Selector
    from offbeat.core.settings import Settings

EXPLAINED = ("offbeat.algorithms", "offbeat.selection", "offbeat.trust", "offbeat.fleet.attacks")
"""Modules whose docstring is part of the description of their classes: sources and equations."""
SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def list_(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="algorithms, selections, defences, attacks, fleets, availability, datasets, partitions, tasks, "
            "metrics, models or experiments.",
        ),
    ],
    form: TableFormat = None,
) -> None:
    """List algorithms, data sets, fleets and more, one line each.

    Each name can be used in an experiment file; `offbeat describe NAME` shows its settings.
    """
    check_format(form)
    registries = _registries()
    if what not in registries:
        raise unknown("list", what, registries)
    tables = {"algorithms": _algorithms, "selections": _selections}
    print_table(tables[what]() if what in tables else _with_help(what, registries[what]), form=form)
    example = "demo" if what == "experiments" else "fedbuff" if what == "algorithms" else next(iter(registries[what]))
    next_step("list experiments" if what == "experiments" else "list", form, name=example)


def describe(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A name from `offbeat list`, a table such as `stop`, a setting such as `seed`, or module:Class.",
        ),
    ],
) -> None:
    """Show the settings of an algorithm, data set, fleet or table: ranges, defaults and what they do.

    For an algorithm also its paper, its equations and where `offbeat tune` searches.
    """
    from offbeat.algorithms import known_name
    from offbeat.core.policy import Policy
    from offbeat.core.settings import Settings
    from offbeat.experiment.schema import Experiment
    from offbeat.models import MODEL_SETTINGS
    from offbeat.references import resolve

    registries = _registries()
    things = {key: thing for registry in registries.values() for key, thing in registry.items()}
    tables: dict[str, Any] = {key: field.annotation for key, field in Experiment.model_fields.items()}
    tables = {key: kind for key, kind in tables.items() if isinstance(kind, type) and issubclass(kind, Settings)}
    known = tables | things
    if ":" in name:
        known[name] = resolve(name)
    elif name not in known and known_name(name) in known:
        name = known_name(name)
    elif name not in known and _describe_setting(name):
        next_step("describe")
        return
    if name not in known:
        raise unknown("name", name, known)
    for thing in [each[name] for each in registries.values() if name in each] or [known[name]]:
        console.print(description(name, resolve(thing) if isinstance(thing, str) else thing))
    if name in MODEL_SETTINGS:
        console.print(description(name, MODEL_SETTINGS[name]))
    own = isinstance(thing, type) and issubclass(thing, Policy)
    kind = "algorithms" if own else "experiments" if name in registries["experiments"] else ""
    next_step(f"describe {kind}".rstrip(), name=name)


def _describe_setting(name: str) -> bool:
    """Print the settings with this key, as "table.key" or by itself; False if there is none."""
    from offbeat.core.settings import Settings
    from offbeat.experiment.objects import REGISTRIES
    from offbeat.experiment.schema import Experiment

    section, _, key = name.rpartition(".")
    table = _settings_table()
    for table_name, field in Experiment.model_fields.items():
        if table_name == name:
            table.add_row(*_setting_cells(name, Experiment, name))
        kinds = {table_name: field.annotation} | dict(REGISTRIES.get(table_name, {}))
        for kind_name, kind in kinds.items() if section in ("", table_name) else ():
            if isinstance(kind, type) and issubclass(kind, Settings) and key in kind.model_fields:
                owner = "" if kind_name == table_name else f" ({kind_name})"
                table.add_row(*_setting_cells(f"{table_name}.{key}{owner}", kind, key))
    if table.row_count:
        console.print(table)
    return table.row_count > 0


def _settings_table() -> Table:
    return Table(*(Column(heading, overflow="fold") for heading in ("setting", "values", "default", "what it does")))


def _setting_cells(label: str, kind: "type[Settings]", key: str) -> list[Text]:
    field = kind.model_fields[key]
    helps = help_on_fields(kind).get(key, "")
    return [Text(cell) for cell in (label, words(field.annotation) + ranges(field), _default(field), helps)]


def description(name: str, thing: Any) -> RenderableType:
    """Render a docstring with its settings, for an algorithm also paper and equations; for a file its text."""
    from rich.markdown import Markdown

    from offbeat.algorithms import POLICIES
    from offbeat.algorithms.sizes import RULE, governed
    from offbeat.core.policy import Policy
    from offbeat.core.settings import Settings
    from offbeat.metrics import Metric
    from offbeat.selection import SELECTORS

    if isinstance(thing, Path):
        return Text(thing.read_text(encoding="utf-8"))
    parts: list[RenderableType] = [Text(f"{name}: {inspect.getdoc(thing) or ''}\n")]
    if name in POLICIES and thing is POLICIES[name]:
        parts.append(Text(source(thing)))
    if name in SELECTORS and thing is SELECTORS[name]:
        from_updates = f"\nneeds: {needs(thing)}" if needs(thing) else ""
        paper = f"paper: {thing.about.paper}; " if thing.about.paper else ""
        parts.append(Text(f"{paper}provenance: {thing.about.provenance}{from_updates}\n"))
    if isinstance(thing, type) and issubclass(thing, Metric):
        better = "higher" if thing.direction == "max" else "lower"
        shown = "; shown in percent" if thing.share else ""
        parts.append(Text(f"{better} is better{shown}; tasks: {', '.join(thing.tasks) or 'all'}\n"))
    if isinstance(thing, type) and issubclass(thing, Settings):
        settings = {key: field for key, field in thing.model_fields.items() if key != "name"}
        if settings:
            table = _settings_table()
            following = governed(thing) if issubclass(thing, Policy) else []
            for key in settings:
                table.add_row(*_setting_cells(key, thing, key))
            parts.append(table)
            if following:
                rule = f"the number of devices in training ({RULE}) in proportion to these defaults."
                parts.append(Text(f"Unless set, {' and '.join(following)} follow {rule}\n"))
        if issubclass(thing, Policy):
            parts.append(searched(thing))
        module = sys.modules[thing.__module__]
        if module.__name__.startswith(EXPLAINED):
            parts.append(Markdown(inspect.getdoc(module) or ""))
    return Group(*parts)


def help_on_fields(settings: "type[Settings]") -> dict[str, str]:
    """Return the docstring below each field, read from the source of a class and its bases.

    >>> from offbeat.algorithms import POLICIES
    >>> help_on_fields(POLICIES["fedbuff"])["concurrency"]
    'Devices kept in training.'
    """
    from offbeat.core.settings import Settings

    found: dict[str, str] = {}
    for each in reversed(settings.__mro__):
        if not issubclass(each, Settings):
            continue
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        except OSError:  # a class defined in an interactive session has no source
            continue
        for field, below in pairwise(body.body if isinstance(body, ast.ClassDef) else []):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[key] = " ".join(text.split())
    return found


def source(policy: "type[Policy]") -> str:
    """Describe where an algorithm comes from, what it needs, and which Flower client apps it works with.

    >>> from offbeat.algorithms import POLICIES
    >>> print(source(POLICIES["fedasmu"]))
    family: asynchronous; paper: Liu et al., AAAI 2024; provenance: published
    versions from single uploads, which need individual updates
    server memory, in models: 1 per base in use + 1
    needs: nothing else
    takes the rules of trust.combine that judge single updates
    Flower: any client app with fresh_models = False
    <BLANKLINE>
    """
    from offbeat.algorithms.about import about_of, compatibility_of

    about = about_of(policy)
    origin = f"family: {about.family}; paper: {about.paper}; provenance: {about.provenance}"
    return f"{origin}\n{compatibility_of(policy)}\n"


def searched(policy: "type[Policy]") -> Text:
    """Describe the search space of `offbeat tune` for an algorithm."""
    from offbeat.algorithms.about import about_of

    lines = [f"  {key}: {each}" for key, each in about_of(policy).search.items()]
    return Text("\n".join(["offbeat tune varies local.learning_rate" + (" and" if lines else "."), *lines, ""]))


def words(annotation: Any) -> str:
    """Describe a type in words.

    >>> from pydantic.fields import FieldInfo
    >>> words(Literal["K", "weights"]), words(Annotated[int, FieldInfo(ge=1)] | None), words(list[float])
    ("'K' or 'weights'", 'int >= 1 or none', 'list of float')
    """
    from pydantic.fields import FieldInfo

    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Literal:
        return " or ".join(repr(each) for each in inner)
    if kind in (Union, UnionType):
        return " or ".join(words(each) for each in inner)
    if kind is Annotated:
        return words(inner[0]) + "".join(ranges(each) for each in inner[1:] if isinstance(each, FieldInfo))
    if kind is list:
        return f"list of {words(inner[0])}"
    return "none" if annotation is NoneType else getattr(annotation, "__name__", str(annotation))


def ranges(field: "FieldInfo") -> str:
    """Return the limits of a number, for instance ` >= 1`."""
    limits = ((sign, getattr(limit, key, None)) for limit in field.metadata for key, sign in SIGNS.items())
    return ",".join(f" {sign} {value}" for sign, value in limits if value is not None)


def _with_help(title: str, things: dict[str, Any]) -> Table:
    table = Table(Column("name", no_wrap=True), "what it is", title=title)
    for name, thing in things.items():
        table.add_row(name, _first_line(thing))
    return table


def _algorithms() -> Table:
    from offbeat.algorithms import POLICIES
    from offbeat.algorithms.about import about_of, compatibility_of

    names = (Column("name", no_wrap=True), "family", Column("provenance", no_wrap=True))
    table = Table(*names, "what it is (paper)", "compatibility")
    for name, policy in POLICIES.items():
        about = about_of(policy)
        line = _first_line(policy)
        paper = "" if about.paper[-4:] in line else f" ({about.paper})"  # most lines end with the paper
        table.add_row(
            name, about.family, about.provenance, Text.assemble(line, (paper, "dim")), compatibility_of(policy).brief
        )
    return table


def _selections() -> Table:
    from offbeat.selection import SELECTORS

    table = Table(Column("name", no_wrap=True), Column("provenance", no_wrap=True), "what it is", "needs")
    for name, selector in SELECTORS.items():
        table.add_row(name, selector.about.provenance, _first_line(selector), needs(selector))
    return table


def needs(selector: "type[Selector]") -> str:
    """What a selector with its default settings needs of every update.

    >>> from offbeat.selection import SELECTORS
    >>> needs(SELECTORS["oort"]), needs(SELECTORS["tifl"])
    ('squared losses of the training samples', '')
    """
    kinds = {"squared": "squared losses of the training samples", "mean": "the mean training loss", None: ""}
    return kinds[selector().reads]


def _registries() -> dict[str, dict[str, Any]]:
    from offbeat.algorithms import POLICIES
    from offbeat.data import DATASETS, PARTITIONS
    from offbeat.experiment.named import TASKS
    from offbeat.experiment.shipped import shipped
    from offbeat.fleet import AVAILABILITIES, FLEETS
    from offbeat.fleet.attacks import ATTACKS
    from offbeat.metrics import METRICS
    from offbeat.models import MODELS
    from offbeat.selection import SELECTORS
    from offbeat.trust.settings import COMBINERS

    return {
        "algorithms": dict(POLICIES),
        "selections": dict(SELECTORS),
        "defences": dict(COMBINERS),
        "attacks": dict(ATTACKS),
        "fleets": dict(FLEETS),
        "availability": dict(AVAILABILITIES),
        "datasets": dict(DATASETS),
        "partitions": dict(PARTITIONS),
        "tasks": dict(TASKS),
        "metrics": dict(METRICS),
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


def _default(field: "FieldInfo") -> str:
    return "(required)" if field.is_required() else repr(field.get_default(call_default_factory=True))
