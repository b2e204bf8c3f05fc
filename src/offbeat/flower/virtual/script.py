"""Runs scripts that call Flower's `run_simulation` or `start_simulation`, on a virtual clock.

The script runs as usual, but these two functions are replaced: they simulate the script's ServerApp and ClientApp on
our virtual clock, with the script's number of nodes, and return.
"""

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flwr.simulation
from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.server import History
from flwr.serverapp import Grid, ServerApp

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.flower.compat import start_grid
from offbeat.flower.virtual.app import FlowerApp, place_of
from offbeat.flower.virtual.clients import seed_generators
from offbeat.flower.virtual.run import AppDirectory, AppFailed, SimulatedApp
from offbeat.flower.virtual.settings import AppSettings
from offbeat.flower.virtual.wall_clock import AppTime
from offbeat.results.result import Result


@dataclass(frozen=True, kw_only=True)
class ScriptApp(FlowerApp):
    """An app whose ServerApp and ClientApp a script has created."""

    server: ServerApp
    client: ClientApp

    def server_app(self) -> ServerApp:
        """The script's ServerApp."""
        return self.server

    def client_app(self) -> ClientApp:
        """The script's ClientApp."""
        return self.client

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Do nothing: the script is running already."""
        yield


class Script:
    """A script, and the results of its simulations so far."""

    def __init__(self, path: Path, settings: AppSettings, out: Path | None = None, *, overwrite: bool = False) -> None:
        if not path.is_file():
            raise InvalidInput(f"{path}: no such file")
        if settings.clients.workers:
            raise InvalidInput(
                f"clients.workers = {settings.clients.workers}: must be 0, as a script runs its clients itself"
            )
        self.path = path.resolve()
        self.results: list[Result] = []
        self._settings = settings
        self._out = out
        self._overwrite = overwrite
        self._time = AppTime(self.path.parent)

    def run(self, arguments: Sequence[str] = ()) -> list[Result]:
        """Run the script with these arguments and return the results of its simulations."""
        script = _app(self.path, ServerApp(), ClientApp())
        if self._settings.clients.seeded:
            import torch  # noqa: F401  (so that what the script draws before its simulation is seeded too)

            seed_generators(self._settings.seed)
        with FlowerApp.importable(script), self._time.installed(), self._replaced(), _arguments(self.path, arguments):
            try:
                runpy.run_path(str(self.path), run_name="__main__")
            except OffbeatError:
                raise
            except (Exception, SystemExit) as error:
                if not (isinstance(error, SystemExit) and self.results and not error.code):
                    raise AppFailed(
                        f"{self.path.name} raised {type(error).__name__}: {error}{place_of(error)}"
                    ) from error
        if not self.results:
            raise InvalidInput(f"{self.path} calls neither run_simulation nor start_simulation of flwr.simulation")
        return self.results

    def directory(self, number: int) -> Path | None:
        """Run directory of the first, second, ... simulation; None without an output directory."""
        return self._out if self._out is None or number == 1 else self._out.with_name(f"{self._out.name}-{number}")

    # Called by the script ---------------------------------------------------------------------------------------------

    def _run_simulation(
        self, server_app: ServerApp, client_app: ClientApp, num_supernodes: int, *_: Any, **__: Any
    ) -> None:
        """Replaces `flwr.simulation.run_simulation`."""
        where = self.directory(len(self.results) + 1)
        settings = self._settings.model_copy(update={"nodes": num_supernodes})
        directory = None if where is None else AppDirectory(where, overwrite=self._overwrite)
        simulated = SimulatedApp(_app(self.path, server_app, client_app), settings, self._time)
        with closing(directory) if directory is not None else ExitStack(), closing(simulated):
            self.results.append(simulated.run(directory))

    def _start_simulation(self, *, client_fn: Callable[..., Any], num_clients: int, **settings: Any) -> History:
        """Replaces `flwr.simulation.start_simulation`."""
        parts = {name: settings.get(name) for name in ("server", "config", "strategy", "client_manager")}
        histories = [History()]
        server_app = ServerApp()

        @server_app.main()
        def main(grid: Grid, context: Context) -> None:
            histories.append(start_grid(grid=grid, **parts))

        self._run_simulation(server_app, ClientApp(client_fn=client_fn), num_clients)
        return histories[-1]

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        module: Any = flwr.simulation
        before = module.run_simulation, module.start_simulation
        module.run_simulation, module.start_simulation = self._run_simulation, self._start_simulation
        try:
            yield
        finally:
            module.run_simulation, module.start_simulation = before


def _app(path: Path, server: ServerApp, client: ClientApp) -> ScriptApp:
    return ScriptApp(
        directory=path.parent,
        identity=path.stem,
        version="",
        server_reference=path.stem,
        client_reference=path.stem,
        run_config={},
        overrides={},
        nodes=None,
        server=server,
        client=client,
    )


@contextmanager
def _arguments(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        yield
    finally:
        sys.argv = before
