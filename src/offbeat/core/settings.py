"""The base of everything a user can set: frozen, strict about types, and unknown keys are errors."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Parsed once, then passed down. Each field carries its range and one line of help (see `offbeat describe`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
