"""What a run gives back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offbeat.core.parameters import Vector
from offbeat.results.rows import Row
from offbeat.settings.schema import Experiment


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run gives: its metrics, their summary, and the final parameters (None if it had ended before)."""

    experiment: Experiment
    rows: list[Row]
    summary: dict[str, Any]
    parameters: Vector | None
    directory: Path | None
