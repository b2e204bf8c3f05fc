"""The base of everything a user can set: frozen, strict about types, and unknown keys are errors."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Parsed once, then passed down. Each field carries its range and, as a string below it, a line of help.

    The help is read from the source when somebody asks for it (`cli.describe`): to let pydantic do that at import
    would double the time that a command takes to start.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
