"""Converts "module:attribute" in a setting to the Python object, and a Python object to such a name.

An object that cannot be imported (a lambda, a class in a notebook) gets a name that is valid in this process only, and
only while the object is alive.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

from offbeat.core.errors import InvalidInput

GIVEN = "python:"
"""Prefix of names that are valid in this process only."""

_given: WeakValueDictionary[str, Any] = WeakValueDictionary()
_numbers = count(1)


_reading = ContextVar("reading", default=False)


@contextmanager
def importing_nothing() -> Iterator[None]:
    """Let `resolve` return only what this process has imported before: reading files from elsewhere runs no code."""
    token = _reading.set(True)
    try:
        yield
    finally:
        _reading.reset(token)


def resolve(reference: str) -> Any:
    """Return the object that "module:attribute" names.

    >>> resolve("math:floor")(2.5)
    2
    """
    if reference.startswith(GIVEN):
        if reference not in _given:
            raise InvalidInput(
                f"{reference!r} names an object of another process: put the object into a module and refer to it as "
                '"module:attribute".'
            )
        return _given[reference]
    module_name, colon, attribute = reference.partition(":")
    if not colon or not attribute.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidInput(f'{reference!r} is not a reference of the form "module:attribute".')
    if _reading.get() and module_name not in sys.modules:
        raise InvalidInput(f"{reference!r} is not imported to read results.")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is not None and f"{module_name}.".startswith(f"{absent}."):
            raise InvalidInput(f"{reference!r}: no module {absent!r} on the Python path.") from error
        # The module exists, but one of its own imports failed: only that message helps.
        raise InvalidInput(f"{reference!r}: importing {module_name!r} failed: {error}") from error
    except Exception as error:
        raise InvalidInput(f"{reference!r}: importing {module_name!r} failed: {describe(error)}") from error
    if not hasattr(module, attribute):
        raise InvalidInput(f"{reference!r}: module {module_name!r} has no attribute {attribute!r}.")
    return getattr(module, attribute)


def describe(error: BaseException) -> str:
    """Describe an exception of user code in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def reference_to(thing: Any) -> str:
    """Return the name by which `resolve` finds this object, in other processes too if it can be imported there.

    >>> import math
    >>> reference_to(math.floor), resolve(reference_to(double := lambda x: 2 * x)) is double
    ('math:floor', True)
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and _is_found(module, name, thing):
        return f"{module}:{name}"
    known = next((reference for reference, other in _given.items() if other is thing), None)
    if known is None:
        known = f"{GIVEN}{name or type(thing).__name__}-{next(_numbers)}"
        _given[known] = thing
    return known


def thing_name(reference: str) -> str:
    """Return the name for titles: the reference, or the bare name of an object that is in no importable module.

    >>> thing_name("my_module:Net"), thing_name("python:Net-3"), thing_name("__main__:Net")
    ('my_module:Net', 'Net', 'Net')
    """
    if reference.startswith(GIVEN):
        return reference.removeprefix(GIVEN).rpartition("-")[0].rpartition(".")[2]
    return reference.removeprefix("__main__:")


def _is_found(module: str, name: str, thing: Any) -> bool:
    """Whether another process can import the object; what a notebook or a console defines, it cannot."""
    home = sys.modules.get(module)
    interactive = module == "__main__" and not hasattr(home, "__file__")
    return not interactive and name.isidentifier() and getattr(home, name, None) is thing
