"""The base class of all settings: frozen, strict about types; unknown keys are errors."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings that are parsed once and passed down. The string below a field is its help text.

    `offbeat describe` reads the help texts from the source: letting pydantic do that at import would double the
    start-up time of every command.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
