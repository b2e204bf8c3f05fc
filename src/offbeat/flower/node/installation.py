"""The app of a run on a node: checked as a SuperNode checks it, and unpacked where children find it."""

import hashlib
import io
import shutil
import zipfile
from contextlib import redirect_stdout
from pathlib import Path
from threading import Lock

import click
import yaml  # type: ignore[import-untyped]
from flwr.cli.install import install_from_fab
from flwr.supercore.fab import Fab
from flwr.supercore.run import Run

from offbeat.core.errors import InvalidInput, OffbeatError


class AppRefused(OffbeatError):
    """The app of a run is not what it should be, and is not run."""


class Installation:
    """A folder of apps, for all nodes of a process."""

    def __init__(self, folder: Path, trusted: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._trusted = trusted or {}
        self._lock = Lock()

    def install(self, run: Run, app: Fab) -> Path:
        """Where the app is, which is exactly the one that the run says and that somebody trusted has signed."""
        found = hashlib.sha256(app.content).hexdigest()
        if found != run.fab_hash:
            raise AppRefused(f"the app's hash is {found[:12]}..., not {run.fab_hash[:12]}..., as the run says")
        if self._trusted and not (app.verifications.get("valid_license") and self._verified(app)):
            raise AppRefused("no trusted entity has signed the app")
        with self._lock, redirect_stdout(io.StringIO()):  # it says where it installs
            before = self._apps()
            try:
                return install_from_fab(app.content, install_dir=self._folder, skip_prompt=True)
            except (click.ClickException, zipfile.BadZipFile, ValueError, KeyError) as error:
                raise AppRefused(f"the app cannot be unpacked: {error}") from None
            except OSError as error:  # for instance a full disk
                for half in self._apps() - before:  # which Flower would take for a whole one the next time
                    shutil.rmtree(half, ignore_errors=True)
                raise AppRefused(f"the app cannot be written to {self._folder}: {error.strerror or error}") from None

    def _apps(self) -> set[Path]:
        """The folders of all apps that Flower has unpacked here."""
        return set((self._folder / "apps").glob("*"))

    def _verified(self, app: Fab) -> bool:
        from flwr.supernode.start_client_internal import _verify_fab  # takes a second, and few need it

        return bool(_verify_fab(app, self._trusted))


def load_trusted_entities(path: Path) -> dict[str, str]:
    """Public keys by their ids, from a YAML file as `flower-supernode --trusted-entities` takes it."""
    try:
        table = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError) as error:
        raise InvalidInput(f"--trusted-entities {path}: cannot be read: {error}") from None
    if not isinstance(table, dict) or not table or not all(isinstance(key, str) for key in table.values()):
        raise InvalidInput(f"--trusted-entities {path}: it must hold a line `id: key` for each entity")
    return {str(name): key for name, key in table.items()}
