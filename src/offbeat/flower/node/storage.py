"""What a node stores: the apps that it has verified and unpacked, and the bytes that apps ask it to keep."""

import contextlib
import hashlib
import io
import shutil
import zipfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from threading import Lock

import click
import yaml  # type: ignore[import-untyped]

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.flower.compat import Fab, Run, install_from_fab
from offbeat.results.files import replace_file

MOST_NAMES = 64
"""Names that a `NodeStore` keeps; the least recently written is deleted first."""


class AppRefused(OffbeatError):
    """The app of a run failed verification or could not be unpacked; it is not run."""


class Installation:
    """A folder of unpacked apps, shared by all nodes of a process. Apps are verified as a SuperNode does it."""

    def __init__(self, folder: Path, trusted: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._trusted = trusted or {}
        self._lock = Lock()

    def install(self, run: Run, app: Fab) -> Path:
        """Verify the app's hash and, if there are trusted entities, its signature; unpack it and return its folder."""
        found = hashlib.sha256(app.content).hexdigest()
        if found != run.fab_hash:
            raise AppRefused(f"the app has hash {found[:12]}..., but the run names {run.fab_hash[:12]}...")
        if self._trusted and not (app.verifications.get("valid_license") and self._verified(app)):
            raise AppRefused("no trusted entity has signed the app")
        with self._lock, redirect_stdout(io.StringIO()):  # Flower prints where it installs
            before = self._apps()
            try:
                return install_from_fab(app.content, install_dir=self._folder, skip_prompt=True)
            except (click.ClickException, zipfile.BadZipFile, ValueError, KeyError) as error:
                raise AppRefused(f"the app cannot be unpacked: {error}") from None
            except OSError as error:  # for instance a full disk
                for partial in self._apps() - before:  # Flower would take it for a complete app next time
                    shutil.rmtree(partial, ignore_errors=True)
                raise AppRefused(f"the app cannot be written to {self._folder}: {error.strerror or error}") from None

    def _apps(self) -> set[Path]:
        """The folders of all apps that Flower has unpacked here."""
        return set((self._folder / "apps").glob("*"))

    def _verified(self, app: Fab) -> bool:
        from offbeat.flower.compat import verify_fab  # its import takes a second, and is rarely needed

        return bool(verify_fab(app, self._trusted))


def load_trusted_entities(path: Path) -> dict[str, str]:
    """Read public keys by entity id from a YAML file in the format of `flower-supernode --trusted-entities`."""
    try:
        table = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError) as error:
        raise InvalidInput(f"trusted entities: {path} cannot be read: {error}") from None
    if not isinstance(table, dict) or not table or not all(isinstance(key, str) for key in table.values()):
        raise InvalidInput(f"trusted entities: {path} must hold one line `id: key` per entity")
    return {str(name): key for name, key in table.items()}


class NodeStore:
    """Bytes by name that the apps of one node have asked it to keep, in memory and, with a folder, in files.

    A name is, for instance, an experiment's identity: what a device remembers of the experiment then outlives the
    app's process, Flower's run and, with a folder, the node.
    """

    def __init__(self, folder: Path | None, log: Callable[[str], None]) -> None:
        self._folder = folder
        self._log = log
        self._kept: dict[str, bytes] = {}

    def keep(self, name: str, content: bytes) -> None:
        """Store bytes under a name, replacing what was there."""
        self._kept.pop(name, None)
        self._kept[name] = content
        while len(self._kept) > MOST_NAMES:
            self._delete(next(iter(self._kept)))
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                replace_file(self._file(self._folder, name), content)
            except OSError as error:  # a full disk: the copy in memory still serves
                self._log(f"state that an app stores is only in memory: {error}")

    def recall(self, name: str) -> bytes | None:
        """Return the bytes stored under a name, or None."""
        if name not in self._kept and self._folder is not None:
            with contextlib.suppress(OSError):  # most often there is no such file
                self._kept[name] = self._file(self._folder, name).read_bytes()
        return self._kept.get(name)

    def _delete(self, name: str) -> None:
        del self._kept[name]
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._file(self._folder, name).unlink(missing_ok=True)

    @staticmethod
    def _file(folder: Path, name: str) -> Path:
        return folder / hashlib.sha256(name.encode()).hexdigest()[:32]
