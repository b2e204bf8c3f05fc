"""The user's own Python by name: "module:attribute" in a setting becomes the object itself."""

import importlib
from typing import Any

from offbeat.core.errors import InvalidInput


def resolve(reference: str) -> Any:
    """The object that "module:attribute" names.

    >>> resolve("math:floor")(2.5)
    2
    """
    module_name, colon, attribute = reference.partition(":")
    if not colon or not attribute.isidentifier() or not all(part.isidentifier() for part in module_name.split(".")):
        raise InvalidInput(f'{reference!r} is not a reference of the form "module:attribute".')
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is not None and f"{module_name}.".startswith(f"{absent}."):
            raise InvalidInput(f"{reference!r}: there is no module {absent!r} on the Python path.") from error
        # The module exists and failed on an import of its own: only its own words help.
        raise InvalidInput(f"{reference!r}: importing {module_name!r} failed: {error}") from error
    except Exception as error:
        raise InvalidInput(f"{reference!r}: importing {module_name!r} failed: {describe(error)}") from error
    if not hasattr(module, attribute):
        raise InvalidInput(f"{reference!r}: module {module_name!r} has no attribute {attribute!r}.")
    return getattr(module, attribute)


def describe(error: BaseException) -> str:
    """An error of the user's code in one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
