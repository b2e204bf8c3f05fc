"""The timeline of a run in the Chrome trace format: one row per device, open it in Perfetto or chrome://tracing."""

import json
from pathlib import Path

from offbeat.results.files import Log
from offbeat.results.rows import Span

MOST_ORDERS = 20_000
"""A longer run's timeline ends here: viewers do not like more."""


class Timeline:
    """Written as the run goes; a viewer reads it even if the closing bracket is missing."""

    def __init__(self, path: Path, position: int = 0, orders: int = 0) -> None:
        self._log = Log(path, position)
        self.orders = orders
        if not position:
            self._log.write("[")

    def write(self, span: Span) -> None:
        if self.orders < MOST_ORDERS:
            self.orders += 1
            self._event(span, "download", span.sent, span.arrived)
            self._event(span, f"train and upload ({span.outcome})", span.arrived, max(span.arrived, span.landed))

    def _event(self, span: Span, name: str, start: float, end: float) -> None:
        event = {
            "name": name,
            "ph": "X",
            "pid": 0,
            "tid": span.device,
            "ts": round(start * 1e6),
            "dur": round((end - start) * 1e6),
            "args": {"ticket": span.ticket, "base": span.base, "slices": span.slices},
        }
        self._log.write(json.dumps(event) + ",")

    @property
    def position(self) -> int:
        return self._log.position

    def finish(self) -> None:
        self._log.write(json.dumps({"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "devices"}}) + "]")

    def close(self) -> None:
        self._log.close()
