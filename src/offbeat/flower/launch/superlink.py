"""Runs on an existing SuperLink: hand in an app, follow its log, know how it ended, stop it.

These are the functions behind `flwr run`, `flwr log`, `flwr list`, `flwr stop` and `flwr supernode register`: used
directly they start no process and say how a run ended. A login (`flwr login`) is used if there is one.
"""

import io
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from queue import Empty, Queue

import click
from flwr.cli.build import build_fab_from_disk
from flwr.cli.supernode.register import try_load_public_key
from flwr.cli.typing import SuperLinkConnection
from flwr.cli.utils import SUPERLINK_UNAVAILABLE_MESSAGE, flwr_cli_exc_handler, init_http_client_from_connection
from flwr.common.constant import Status, SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab

from offbeat.core.errors import InvalidInput, OffbeatError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class RunFailed(OffbeatError):
    """A run on a SuperLink did not end well."""


@dataclass(frozen=True, kw_only=True)
class SuperLink:
    """Where a SuperLink is, and how to trust it: by these certificates, or by the system's if there are none."""

    address: str
    root_certificates: Path | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        host_and_port("--superlink", self.address)
        if self.insecure and self.root_certificates is not None:
            raise InvalidInput("give either --insecure or --root-certificates, not both")
        if self.root_certificates is not None and not self.root_certificates.is_file():
            raise InvalidInput(f"--root-certificates {self.root_certificates}: there is no such file")

    @property
    def local(self) -> bool:
        """On this machine, so that its files are ours."""
        return self.address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")


def host_and_port(option: str, address: str) -> tuple[str, int]:
    """The two halves of an address that was given with an option."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidInput(f"{option} {address}: it must be HOST:PORT, for instance 127.0.0.1:8000")
    return host, int(port)


class Launched:
    """A run that was handed in."""

    def __init__(self, superlink: SuperLink, run_id: int) -> None:
        self.superlink = superlink
        self.run_id = run_id

    def follow(self) -> Iterator[str | None]:
        """The lines of its log as they come, and None twice a second while none come, until it has ended.

        That it failed or was stopped is an error.
        """
        lines: Queue[str | OffbeatError | None] = Queue()
        threading.Thread(target=self._read_log, args=(lines,), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=0.5)
            except Empty:
                yield None
                continue
            if isinstance(line, OffbeatError):
                raise line
            if line is None:
                break
            yield line
        while not self.ended():
            time.sleep(0.2)
            yield None

    def _read_log(self, lines: "Queue[str | OffbeatError | None]") -> None:
        rest = ""
        try:
            with _control(self.superlink) as control:
                for part in control.StreamLogs(StreamLogsRequest(run_id=self.run_id, after_timestamp=0.0)):
                    *whole, rest = (rest + _COLOUR.sub("", part.log_output)).split("\n")
                    for line in whole:
                        lines.put(line)
        except OffbeatError as error:
            lines.put(error)
        lines.put(rest)
        lines.put(None)

    def stop(self) -> None:
        """Have the SuperLink stop the run."""
        with _control(self.superlink) as control:
            control.StopRun(StopRunRequest(run_id=self.run_id))

    def ended(self) -> bool:
        """Whether it has ended well; that it failed or was stopped is an error in one sentence."""
        with _control(self.superlink) as control:
            answer = control.ListRuns(ListRunsRequest(run_id=self.run_id))
        status = run_from_proto(answer.run_dict[self.run_id]).status
        if status.status != Status.FINISHED:
            return False
        if status.sub_status == SubStatus.STOPPED:
            raise RunFailed(f"run {self.run_id} was stopped")
        if status.sub_status != SubStatus.COMPLETED:
            reason = " ".join(status.details.removeprefix("ServerApp failed with exception: ").split())
            raise RunFailed(f"the run failed: {reason or 'Flower gives no reason'}")
        return True


def submit(bundle: Path, superlink: SuperLink) -> Launched:
    """Start a run of the app in a directory."""
    built = build_fab_from_disk(bundle)
    request = StartRunRequest(fab=fab_to_proto(Fab(sha256(built).hexdigest(), built, {})))
    with _control(superlink) as control:
        answer = control.StartRun(request)
    if not answer.HasField("run_id"):
        raise RunFailed(f"the SuperLink at {superlink.address} did not start the run")
    return Launched(superlink, answer.run_id)


def register(superlink: SuperLink, public_key: Path) -> int:
    """Admit the SuperNode that has this key; returns its id."""
    with _control(superlink) as control:
        return control.RegisterNode(RegisterNodeRequest(public_key=try_load_public_key(public_key))).node_id


@contextmanager
def _control(superlink: SuperLink) -> Iterator[ControlHttpClient]:
    """A connection to a SuperLink; whatever goes wrong on it is an error in one sentence."""
    certificates = str(superlink.root_certificates.resolve()) if superlink.root_certificates is not None else None
    connection = SuperLinkConnection(
        "offbeat", address=superlink.address, root_certificates=certificates, insecure=superlink.insecure
    )
    try:
        with redirect_stdout(io.StringIO()):  # it says which SuperLink it uses
            control = init_http_client_from_connection(connection)
        try:
            with flwr_cli_exc_handler():
                yield control
        finally:
            control.close()
    except click.ClickException as error:
        if error.message == SUPERLINK_UNAVAILABLE_MESSAGE:
            raise RunFailed(
                f"no SuperLink answers at {superlink.address} {'without' if superlink.insecure else 'with'} TLS "
                "(--insecure, or --root-certificates for TLS): is it running?"
            ) from None
        raise RunFailed(f"SuperLink at {superlink.address}: {' '.join(error.message.split())}") from None
