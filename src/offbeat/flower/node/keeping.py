"""What a node keeps for its apps: by the name that the app gives it, in memory and, if there is a folder, in a file.

A name is for instance an experiment's identity: so what a device remembers of it outlives the child, the run of Flower
and, with a folder, the node.
"""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

from offbeat.results.files import replace_file

MOST = 64
"""Names that are kept; the one that was used least recently is forgotten first."""


class Keeping:
    """A small store of bytes by name, of one node."""

    def __init__(self, folder: Path | None, log: Callable[[str], None]) -> None:
        self._folder = folder
        self._log = log
        self._kept: dict[str, bytes] = {}

    def keep(self, name: str, content: bytes) -> None:
        """Keep something under a name, in the place of what was there."""
        self._kept.pop(name, None)
        self._kept[name] = content
        while len(self._kept) > MOST:
            self._forget(next(iter(self._kept)))
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                replace_file(self._file(self._folder, name), content)
            except OSError as error:  # a full disk: what is in memory still serves
                self._log(f"what an app wants kept is only in memory: {error}")

    def recall(self, name: str) -> bytes | None:
        """What was kept under a name, or None."""
        if name not in self._kept and self._folder is not None:
            with contextlib.suppress(OSError):  # most often there is none
                self._kept[name] = self._file(self._folder, name).read_bytes()
        return self._kept.get(name)

    def _forget(self, name: str) -> None:
        del self._kept[name]
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._file(self._folder, name).unlink(missing_ok=True)

    @staticmethod
    def _file(folder: Path, name: str) -> Path:
        return folder / hashlib.sha256(name.encode()).hexdigest()[:32]
