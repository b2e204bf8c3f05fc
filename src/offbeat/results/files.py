"""Files that are never half-written: whole files replaced at once, logs that can be cut back to where they were."""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offbeat.core.errors import OutputRefused


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old one or the new one and nothing between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".draft")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Replace a file by this value as indented JSON."""
    replace_file(path, (json.dumps(value, indent=2) + "\n").encode())


def csv_of(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as the text of a CSV file with a header; nothing for none."""
    text = io.StringIO()
    if records:
        writer = csv.DictWriter(text, records[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
    return text.getvalue()


class Log:
    """An append-only file of lines. A run that resumes cuts it back to its checkpoint."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self._file = path.open("ab")
        self.cut(position)

    def cut(self, position: int) -> None:
        """Forget what comes after this position."""
        if position > self._file.seek(0, os.SEEK_END):
            raise OutputRefused(f"{self._file.name} has lost lines since the checkpoint of the run", "overwrite")
        self._file.truncate(position)

    def write(self, line: str) -> None:
        """Append one line; `flush` and `position` see to it that it arrives."""
        self._file.write(line.encode() + b"\n")

    def flush(self) -> None:
        """Let other processes read what was written."""
        self._file.flush()

    @property
    def position(self) -> int:
        """The length of what was written, after making sure that it is on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Write what is left and let another process have the file."""
        self._file.close()
