"""The file `record.jsonl` of a real run, whose lines `core.record` describes."""

from pathlib import Path

import msgspec

from offbeat.core.record import RecordLine
from offbeat.results.files import Log


class RunRecord:
    """The record of a run, opened when the run begins or goes on, after its directory was cleared of an older one."""

    def __init__(self, path: Path | None) -> None:
        """Open the record at a path; without one nothing is written."""
        self._path = path
        self._log: Log | None = None

    def open(self, position: int = 0) -> None:
        """Go on from a position, forgetting what comes after it."""
        self._log = None if self._path is None else Log(self._path, position)

    def write(self, line: RecordLine) -> None:
        """Add a line."""
        if self._path is None:
            return
        assert self._log is not None
        self._log.write(msgspec.json.encode(line).decode())

    @property
    def position(self) -> int:
        """The length of what was written."""
        return 0 if self._log is None else self._log.position

    def close(self) -> None:
        """Let go of the file."""
        if self._log is not None:
            self._log.close()
