"""`record.jsonl`: what happened in a real run, a line each, so that it can be read and replayed."""

import json
from pathlib import Path
from typing import Any

from offbeat.results.files import Log


class RunRecord:
    """Opened when the run begins or goes on, which is after its directory was cleared of an older one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log: Log | None = None

    def open(self, position: int = 0) -> None:
        """Go on from a position, forgetting what comes after it."""
        self._log = Log(self._path, position)

    def write(self, at: float, what: str, **details: Any) -> None:
        assert self._log is not None
        self._log.write(json.dumps({"at": at, "what": what} | details))

    @property
    def position(self) -> int:
        assert self._log is not None
        return self._log.position

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
