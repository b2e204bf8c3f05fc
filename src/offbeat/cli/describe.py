"""What `offbeat describe` shows: the settings of a thing, from the same fields that check them."""

import ast
import inspect
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import About, about_of
from offbeat.core.policy import Policy
from offbeat.core.settings import Settings

SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def description(name: str, thing: Any) -> RenderableType:
    """The docstring, the settings if it has any, and for an algorithm the source and the equations; a file's text."""
    if isinstance(thing, Path):
        return Text(thing.read_text(encoding="utf-8"))
    parts: list[RenderableType] = [Text(f"{name}: {inspect.getdoc(thing) or ''}\n")]
    if name in POLICIES and thing is POLICIES[name]:
        parts.append(Text(source(about_of(thing))))
    if isinstance(thing, type) and issubclass(thing, Settings):
        settings = {key: field for key, field in thing.model_fields.items() if key != "name"}
        if settings:
            table = Table("setting", "values", "default", "what it does")
            helps = help_on_fields(thing)
            for key, field in settings.items():
                values = words(field.annotation) + ranges(field)
                table.add_row(key, Text(values), Text(_default(field)), Text(helps.get(key, "")))
            parts.append(table)
        if issubclass(thing, Policy):
            parts.append(searched(thing))
        module = sys.modules[thing.__module__]
        if module.__name__.startswith("offbeat.algorithms"):
            parts.append(Markdown(inspect.getdoc(module) or ""))
    return Group(*parts)


def help_on_fields(settings: type[Settings]) -> dict[str, str]:
    """The string below each field in the source of a class and of those that it inherits from.

    >>> help_on_fields(POLICIES["fedbuff"])["concurrency"]
    'Devices kept in training.'
    """
    found: dict[str, str] = {}
    for each in reversed(settings.__mro__):
        if not issubclass(each, Settings):
            continue
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        except OSError:  # a class of an interactive session has no source
            continue
        for field, below in pairwise(body.body if isinstance(body, ast.ClassDef) else []):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[key] = " ".join(text.split())
    return found


def source(about: About) -> str:
    """Where an algorithm comes from, and which Flower client apps it works with.

    >>> print(source(about_of(POLICIES["fedasmu"])))
    family: asynchronous; paper: Liu et al., AAAI 2024; provenance: published
    Flower: any client app with fresh_models = False
    <BLANKLINE>
    """
    settings = ", ".join(f"{key} = {value}" for key, value in (about.flower or {}).items())
    clients = "offbeat's client app only" if about.flower is None else "any client app"
    return (
        f"family: {about.family}; paper: {about.paper}; provenance: {about.provenance}\n"
        f"Flower: {clients}{' with ' + settings if settings else ''}\n"
    )


def searched(policy: type[Policy]) -> Text:
    """Where `offbeat tune` looks for the best values of an algorithm's settings."""
    lines = [f"  {key}: {each}" for key, each in about_of(policy).search.items()]
    return Text("\n".join(["offbeat tune varies local.learning_rate" + (" and" if lines else "."), *lines, ""]))


def words(annotation: Any) -> str:
    """A type as a reader would say it.

    >>> words(Literal["K", "weights"]), words(Annotated[int, FieldInfo(ge=1)] | None), words(list[float])
    ("'K' or 'weights'", 'int >= 1 or none', 'list of float')
    """
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


def ranges(field: FieldInfo) -> str:
    """The limits of a number, as ` >= 1`."""
    limits = ((sign, getattr(limit, key, None)) for limit in field.metadata for key, sign in SIGNS.items())
    return ",".join(f" {sign} {value}" for sign, value in limits if value is not None)


def _default(field: FieldInfo) -> str:
    return "(needed)" if field.is_required() else repr(field.get_default(call_default_factory=True))
