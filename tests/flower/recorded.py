"""The lines of a record as flat dicts, so that tests need not know how events are nested in them."""

import json
from pathlib import Path
from typing import Any


def recorded(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's record; an event is a line under its own name, with its progress beside its other fields."""
    return [flat(json.loads(line)) for line in (out / "record.jsonl").read_text().splitlines()]


def flat(line: dict[str, Any]) -> dict[str, Any]:
    event: dict[str, Any] = line.get("event", {})
    own = {"what": event["type"], "remembered": line["remembered"]} if event else {}
    progress: dict[str, Any] = event.get("progress", {})
    return {**line, **event, **progress, **own}
