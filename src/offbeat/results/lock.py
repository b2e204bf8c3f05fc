"""One writer per directory: a kernel lock, released when its process ends for any reason."""

import errno
import fcntl
import os
from pathlib import Path
from time import sleep

from offbeat.core.errors import InvalidInput

LOCK_FILE = ".lock"
"""An empty file in the directory while a process writes to it."""
OWN_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Follow no symbolic link to a file elsewhere, and do not wait for a named pipe."""
PROBE_SECONDS = 0.05
"""Wait before a second attempt, longer than `is_locked` holds the lock."""
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems without locks, where other writers cannot be detected."""


class DirectoryInUse(InvalidInput):
    """Another process is writing to the directory."""


class DirectoryLock:
    """Lock of the process that writes to a directory. `flock` also works on NFS, across machines."""

    __slots__ = ("_file", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> None:
        """Take the lock; raises DirectoryInUse if another process holds it."""
        if self._file is not None:
            return
        self._path.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                file = os.open(self._path / LOCK_FILE, os.O_RDWR | os.O_CREAT | OWN_FILE, 0o666)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise InvalidInput(f"{self._path / LOCK_FILE} is a symbolic link: remove it") from None
            if not _locked(file):
                sleep(PROBE_SECONDS)
                if not _locked(file):
                    os.close(file)
                    raise taken(self._path)
            if self._is_current(file):
                self._file = file
                return
            os.close(file)  # its owner removed it between our opening and locking

    def _is_current(self, file: int) -> bool:
        """Whether the locked file is still the one at its path, and not removed or replaced."""
        try:
            return os.path.samestat(os.fstat(file), (self._path / LOCK_FILE).lstat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            (self._path / LOCK_FILE).unlink(missing_ok=True)
            os.close(self._file)
            self._file = None

    def __enter__(self) -> "DirectoryLock":
        self.take()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def check_unlocked(path: Path) -> None:
    """Raise DirectoryInUse if another process is writing to the directory; writes nothing."""
    if is_locked(path):
        raise taken(path)


def is_locked(path: Path) -> bool:
    """Whether a process is writing to the directory. Writes nothing; a shared lock keeps no other reader out."""
    try:
        file = os.open(path / LOCK_FILE, os.O_RDONLY | OWN_FILE)
    except OSError:
        return False  # no lock file, or no permission, which `take` reports
    try:
        return not _locked(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


def _locked(file: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return True


def taken(path: Path) -> DirectoryInUse:
    """Make the error for a directory that another process is writing to."""
    return DirectoryInUse(f"another process is writing to {path}: wait until it has ended, or choose another directory")
