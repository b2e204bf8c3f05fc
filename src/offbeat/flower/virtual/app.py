"""A Flower app on disk: its pyproject.toml, and its ServerApp and ClientApp, loaded as Flower loads them."""

import re
import socket
import sys
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from logging import DEBUG
from pathlib import Path
from typing import Any

from click import ClickException
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from offbeat.core.errors import InvalidInput, unknown
from offbeat.flower import compat
from offbeat.flower.compat import (
    flatten_dict,
    flower_version,
    get_flwr_home,
    get_metadata_from_config,
    get_project_config,
    load_app,
    log,
    parse_config_args,
)

CONFIG_FILE = "pyproject.toml"
CONNECT_SECONDS = 1.0
"""Timeout in seconds of the connection to a SuperLink that may know the size of the federation."""
Scalar = bool | int | float | str


def place_of(trouble: BaseException | str | None) -> str:
    """File and line of the app in an exception or its traceback, in brackets; empty if there are none."""
    text = trouble if isinstance(trouble, str) else "".join(traceback.format_exception(trouble)) if trouble else ""
    frames = re.findall(r'File "([^"<]+)", line (\d+)', text)
    ours = str(Path(__file__).parents[2])
    own = [frame for frame in frames if "site-packages" not in frame[0] and not frame[0].startswith((ours, sys.prefix))]
    own = [frame for frame in own if not frame[0].startswith(sys.base_prefix)]
    return f" ({Path(own[-1][0]).name}, line {own[-1][1]})" if own else ""


@dataclass(frozen=True, kw_only=True)
class FlowerApp:
    """An app as `flwr run` takes it. Its fields are plain values, so that worker processes can load it too."""

    directory: Path
    identity: str
    """The app as `publisher/name`."""
    version: str
    server_reference: str
    client_reference: str
    run_config: dict[str, Scalar]
    """`[tool.flwr.app.config]` with the user's overrides."""
    overrides: dict[str, Scalar]
    nodes: int | None
    """Number of nodes of the federation that `flwr run` would use, as far as it is written down."""
    flower_wanted: str = ""
    """The version of Flower that the app says it is for."""

    @property
    def name(self) -> str:
        """The name of the project."""
        return self.identity.rpartition("/")[2]

    def files(self) -> list[Path]:
        """The Python files of the packages or modules that define the ServerApp and the ClientApp."""
        halves = (self.server_reference, self.client_reference)
        tops = dict.fromkeys(half.partition(":")[0].partition(".")[0] for half in halves)
        found = [file for top in tops for file in sorted((self.directory / top).rglob("*.py"))]
        return found + [file for top in tops if (file := self.directory / f"{top}.py").is_file()]

    def server_app(self) -> ServerApp:
        """Load the ServerApp. Call it within `importable`."""
        found: ServerApp = self._load(self.server_reference, "serverapp", ServerApp)
        return found

    def client_app(self) -> ClientApp:
        """Load the ClientApp. Call it within `importable`."""
        found: ClientApp = self._load(self.client_reference, "clientapp", ClientApp)
        return found

    def _load(self, reference: str, component: str, kind: type[Any]) -> Any:
        where = f"{component} = {reference!r} in {self.directory / CONFIG_FILE}"
        try:
            found = load_app(reference, InvalidInput, self.directory)
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {str(error).strip().partition(chr(10))[0]}") from None
        except ImportError as error:
            if (error.name or "").partition(".")[0] == "flwr":
                says = (
                    f"says it is for Flower {self.flower_wanted}" if self.flower_wanted else "does not say its version"
                )
                raise InvalidInput(f"{where}: {error}. This is Flower {flower_version()}; the app {says}") from error
            if not isinstance(error, ModuleNotFoundError):
                raise InvalidInput(f"{where} cannot be imported: {error}") from error
            raise InvalidInput(
                f"{where}: the module {error.name!r} is not installed: install the app's dependencies, for instance "
                f"with `pip install {self.directory}`"
            ) from error
        except Exception as error:
            raise InvalidInput(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
        if not isinstance(found, kind):
            raise InvalidInput(f"{where} is a {type(found).__name__}, not a {kind.__name__}")
        return found

    @contextmanager
    def importable(self) -> Iterator[None]:
        """Put the app's directory first on `sys.path`; unload its modules afterwards."""
        before, directory = set(sys.modules), str(self.directory)
        for name in [name for name, module in sys.modules.items() if _lies_in(module, self.directory)]:
            del sys.modules[name]
        sys.path.insert(0, directory)
        try:
            yield
        finally:
            if directory in sys.path:
                sys.path.remove(directory)
            for name in set(sys.modules) - before:
                if _lies_in(sys.modules.get(name), self.directory):
                    del sys.modules[name]


def _lies_in(module: Any, directory: Path) -> bool:
    """Whether a module belongs to the app, and not to a virtual environment within its directory."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or "site-packages" in file:
        return False
    return Path(file).is_relative_to(directory)


def read_app(path: Path, run_config: Sequence[str] = (), federation_config: Sequence[str] = ()) -> FlowerApp:
    """Read the app in a directory; overrides are in the format of `flwr run --run-config` and `--federation-config`."""
    directory = path.parent if path.name == CONFIG_FILE else path
    if not (directory / CONFIG_FILE).is_file():
        raise InvalidInput(f"{path} is not a Flower app: it has no {CONFIG_FILE}")
    directory = directory.resolve()
    try:
        config = get_project_config(directory)
        defaults = flatten_dict(config["tool"]["flwr"]["app"].get("config", {}))
    except (ValueError, OSError) as error:
        lines = [line.strip(" -") for line in str(error).splitlines()]
        raise InvalidInput(f"{path} is not a Flower app: {' '.join(lines)}") from None
    components = config["tool"]["flwr"]["app"]["components"]
    for component in ("serverapp", "clientapp"):
        if component not in components:
            raise InvalidInput(
                f"{path}: [tool.flwr.app.components] has no {component}: a simulation needs a serverapp and a clientapp"
            )
    overrides = _overrides(run_config, defaults)
    identity, version = get_metadata_from_config(config)
    return FlowerApp(
        directory=directory,
        identity=identity,
        version=version,
        server_reference=components["serverapp"],
        client_reference=components["clientapp"],
        run_config=defaults | overrides,
        overrides=overrides,
        nodes=_given_nodes(federation_config)
        or _nodes(config["tool"]["flwr"].get("federations"))
        or _configured_nodes(),
        flower_wanted=_flower_wanted(config),
    )


def _flower_wanted(config: dict[str, Any]) -> str:
    """`flwr-version-target` of the app, else its requirement."""
    requirements = config.get("project", {}).get("dependencies", [])
    required = [each.partition("]")[2] if "]" in each else each[4:] for each in requirements if each.startswith("flwr")]
    return str(config["tool"]["flwr"]["app"].get("flwr-version-target") or "".join(required[:1]).strip())


def _overrides(given: Sequence[str], defaults: dict[str, Scalar]) -> dict[str, Scalar]:
    try:
        overrides: dict[str, Scalar] = parse_config_args(list(given) or None)
    except (ClickException, ValueError, OSError) as error:
        raise InvalidInput(f"run config {' '.join(given)!r}: {getattr(error, 'message', error)}") from None
    if given and not overrides:
        raise InvalidInput(f"run config {' '.join(given)!r}: write it as \"key=value key='text'\"")
    for key in overrides:
        if key not in defaults:
            raise unknown("key of the run config", key, defaults)
    return overrides


def _given_nodes(federation_config: Sequence[str]) -> int | None:
    """The number of nodes in the user's federation config."""
    try:
        given = parse_config_args(list(federation_config) or None)
    except (ClickException, ValueError, OSError) as error:
        raise InvalidInput(f"federation config: {getattr(error, 'message', error)}") from None
    number = given.get("num-supernodes")
    if federation_config and not _is_count(number):
        raise InvalidInput(
            f'federation config {" ".join(federation_config)!r}: write it as "num-supernodes=50"; other keys are for '
            "Flower's own simulation"
        )
    return int(number) if _is_count(number) else None  # type: ignore[arg-type]


def _nodes(federations: Any) -> int | None:
    """Number of nodes in the default one of these tables: an app's before Flower 1.27, or a user's connections."""
    if not isinstance(federations, dict):
        return None
    chosen = federations.get(federations.get("default", ""), {})
    number = chosen.get("options", {}).get("num-supernodes") if isinstance(chosen, dict) else None
    return number if _is_count(number) else None


def _configured_nodes() -> int | None:
    """Number of nodes of the default SuperLink connection in the Flower configuration file, if there is one.

    It is in the file, or the SuperLink has it (`flwr federation simulation-config`).
    """
    try:
        config = tomllib.loads((get_flwr_home() / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return _nodes(config.get("superlink")) or _stored_nodes(config.get("superlink"))


def _stored_nodes(connections: Any) -> int | None:
    """Number of nodes that the default connection's SuperLink has stored; None if it is not running or has none."""
    try:
        chosen = connections[connections["default"]]
        address = str(chosen["address"])
        local = f"127.0.0.1:{compat.LOCAL_SUPERLINK_HTTP_API_PORT}"
        host, _, port = (local if address.startswith(":local") else address).rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS):
            pass  # so that Flower does not start a SuperLink, or wait for one that is not there
        with redirect_stdout(StringIO()):  # Flower prints the address
            client = compat.init_http_client_from_connection(compat.read_superlink_connection())
        with closing(client):
            wanted = chosen.get("federation") or next(
                each.name for each in client.ListFederations(compat.ListFederationsRequest()).federations
            )
            shown = client.ShowFederation(compat.ShowFederationRequest(federation_name=wanted)).federation
    except Exception as error:  # an older Flower, no SuperLink, no account: the number is then not known
        log(DEBUG, "No federation size from the SuperLink: %s: %s", type(error).__name__, error)
        return None
    return int(shown.config.num_supernodes) or None if shown.simulation else None


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0
