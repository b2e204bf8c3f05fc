"""The base class of all settings: frozen, strict about types; unknown keys are errors, in one sentence."""

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class InvalidSettings(InvalidInput):
    """Arguments that a settings class refuses; `error` is pydantic's list of what is wrong with them."""

    def __init__(self, name: str, error: ValidationError, known: Sequence[str]) -> None:
        super().__init__(explain(error, name, known))
        self.error = error

    def __reduce__(self) -> tuple[type[InvalidInput], tuple[str]]:
        return InvalidInput, (str(self),)


class _Explained(ModelMetaclass):
    """Makes `FedBuff(bufer=3)` raise InvalidSettings. Nested tables are not made by a call, so their path is kept."""

    if not TYPE_CHECKING:  # the signature of the class stays that of its fields

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except ValidationError as error:
                raise InvalidSettings(self.__name__, error, list(self.model_fields)) from None


class Settings(BaseModel, metaclass=_Explained):
    """Settings that are parsed once and passed down. The string below a field is its help text.

    `offbeat describe` reads the help texts from the source: letting pydantic do that at import would double the
    start-up time of every command.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Make settings from a table; raises InvalidSettings."""
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise InvalidSettings(cls.__name__, error, list(cls.model_fields)) from None


def explain(error: ValidationError, section: str, known: Sequence[str] = ()) -> str:
    """Explain the first error in one sentence: the key, the value, what is allowed. Unknown keys come first."""
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    path = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "constrained-"))]
    key = ".".join([section, *path] if section else path)
    match first["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(path[-1], list(known), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(known)}"
            return f"unknown key {key!r}: {hint}"
        case "missing":
            return f"{key} is missing"
        case "value_error":
            return f"{key}: {first['ctx']['error']}" if key else str(first["ctx"]["error"])
    if first["type"] == "model_type":
        return f"{key} = {first['input']!r}: must be a table"
    message = first["msg"].replace("Input should be a valid", "must be a valid").replace("Input should be", "must be")
    return f"{key} = {first['input']!r}: {message}"
