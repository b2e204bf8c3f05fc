"""What `offbeat describe` shows: the settings of a thing, from the same fields that check them."""

import inspect
import sys
from typing import Any

from pydantic.fields import FieldInfo
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offbeat.core.settings import Settings


def description(name: str, thing: Any) -> RenderableType:
    """The docstring, the settings if it has any, and for an algorithm the source and the equations."""
    parts: list[RenderableType] = [Text(f"{name}: {inspect.getdoc(thing) or ''}\n")]
    if isinstance(thing, type) and issubclass(thing, Settings):
        settings = {key: field for key, field in thing.model_fields.items() if key != "name"}
        if settings:
            table = Table("setting", "type", "default", "what it does")
            for key, field in settings.items():
                table.add_row(key, Text(_type(field)), Text(_default(field)), Text(_help(field)))
            parts.append(table)
        module = sys.modules[thing.__module__]
        if module.__name__.startswith("offbeat.algorithms"):
            parts.append(Text(f"\n{inspect.getdoc(module) or ''}"))
    return Group(*parts)


def _type(field: FieldInfo) -> str:
    annotation = field.annotation
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
    ranges = [str(part) for part in field.metadata if type(part).__module__.startswith("annotated_types")]
    return text + "".join(f", {_range(part)}" for part in ranges)


def _range(text: str) -> str:
    """`Ge(ge=1)` as `>= 1`."""
    sign, value = text[text.index("(") + 1 : -1].split("=")
    return {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}.get(sign, sign) + f" {value}"


def _default(field: FieldInfo) -> str:
    return "(needed)" if field.is_required() else repr(field.get_default(call_default_factory=True))


def _help(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())
