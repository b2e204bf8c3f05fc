"""One writer per directory: a lock of the kernel, which ends with its owner however that ends."""

import errno
import fcntl
import os
from pathlib import Path
from time import sleep

from offbeat.core.errors import InvalidInput

LOCK_FILE = ".lock"
"""Lies in the directory, empty, while somebody writes into it."""
PROBE_SECONDS = 0.05
"""Longer than `check_unlocked` holds a lock, only to look whether it can."""
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What a file system answers that has no locks; there nobody can be kept out."""


class DirectoryInUse(InvalidInput):
    """Another process is writing to a directory, so that ours may not."""


class DirectoryLock:
    """Held by the one process that writes into a directory. `flock` also works on NFS, across machines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> None:
        """Make the directory ours, or say in a sentence that it is another's."""
        if self._file is not None:
            return
        self._path.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(self._path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
            if not _locked(file):
                sleep(PROBE_SECONDS)
                if not _locked(file):
                    os.close(file)
                    raise taken(self._path)
            if self._is_current(file):
                self._file = file
                return
            os.close(file)  # its last owner has removed it between our opening and locking it

    def _is_current(self, file: int) -> bool:
        """Whether others who come now see the file that we have locked, and not a newer one of its name."""
        try:
            return os.path.samestat(os.fstat(file), (self._path / LOCK_FILE).stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let other processes write to the directory."""
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
    """Refuse a directory that another process is writing into at this moment; nothing is written."""
    try:
        file = os.open(path / LOCK_FILE, os.O_RDWR)
    except OSError:
        return  # nobody has ever written here, or we may not: taking the lock will say so
    try:
        if not _locked(file):
            raise taken(path)
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return True


def taken(path: Path) -> DirectoryInUse:
    """The mistake of writing to a directory that another process is writing to."""
    return DirectoryInUse(f"another process is writing to {path}: wait until it has ended, or choose another directory")
