"""Controls runs on an existing SuperLink: start a run, follow its log, wait for its end, stop it.

It calls the functions behind `flwr run`, `flwr log`, `flwr list`, `flwr stop` and `flwr supernode register` directly,
without starting processes. A login (`flwr login`) is used if there is one.
"""

import io
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from queue import Empty, Queue

import click
import httpx

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.flower.compat import (
    SUPERLINK_UNAVAILABLE_MESSAGE,
    ControlHttpClient,
    Fab,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    Status,
    StopRunRequest,
    StreamLogsRequest,
    SubStatus,
    SuperLinkConnection,
    build_fab_from_disk,
    fab_to_proto,
    flwr_cli_exc_handler,
    init_http_client_from_connection,
    run_from_proto,
    try_load_public_key,
)

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class RunFailed(OffbeatError):
    """A run on a SuperLink failed or was stopped, or the SuperLink refused a request."""


@dataclass(frozen=True, kw_only=True)
class SuperLink:
    """Address of a SuperLink, and the CA certificates that verify it (default: system store)."""

    address: str
    root_certificates: Path | None = None
    insecure: bool = False
    client_certificate: Path | None = None
    """Certificate and private key in one PEM file, for a proxy that asks people who start runs for one."""

    def __post_init__(self) -> None:
        host_and_port("superlink", self.address)
        if self.insecure and self.root_certificates is not None:
            raise InvalidInput("root certificates have no use on an insecure connection: give one of the two")
        if self.root_certificates is not None and not self.root_certificates.is_file():
            raise InvalidInput(f"root certificates {self.root_certificates}: no such file")
        if self.client_certificate is not None and not self.client_certificate.is_file():
            raise InvalidInput(f"client certificate {self.client_certificate}: no such file")
        if self.insecure and self.client_certificate is not None:
            raise InvalidInput("a client certificate needs TLS: the connection to the SuperLink must not be insecure")

    @property
    def local(self) -> bool:
        """Whether it runs on this machine, so that paths are the same."""
        return self.address.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")


def host_and_port(option: str, address: str) -> tuple[str, int]:
    """Split an address into host and port; `option` is its name in the error message."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidInput(f"{option} {address}: must be HOST:PORT, for instance 127.0.0.1:8000")
    return host, int(port)


class Launched:
    """A run that was started on a SuperLink."""

    def __init__(self, superlink: SuperLink, run_id: int) -> None:
        self.superlink = superlink
        self.run_id = run_id

    def follow(self) -> Iterator[str | None]:
        """Yield the lines of its log, and None every half second without one, until the run has ended.

        Raises RunFailed if it failed or was stopped.
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
        """Stop the run."""
        with _control(self.superlink) as control:
            control.StopRun(StopRunRequest(run_id=self.run_id))

    def ended(self) -> bool:
        """Whether the run has completed; raises RunFailed if it failed or was stopped."""
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
    """Start a run of the app in a directory on the SuperLink."""
    built = build_fab_from_disk(bundle)
    request = StartRunRequest(fab=fab_to_proto(Fab(sha256(built).hexdigest(), built, {})))
    with _control(superlink) as control:
        answer = control.StartRun(request)
    if not answer.HasField("run_id"):
        raise RunFailed(f"the SuperLink at {superlink.address} did not start the run")
    return Launched(superlink, answer.run_id)


def register(superlink: SuperLink, public_key: Path) -> int:
    """Register the node with this public key; returns its id."""
    with _control(superlink) as control:
        return control.RegisterNode(RegisterNodeRequest(public_key=try_load_public_key(public_key))).node_id


@contextmanager
def _control(superlink: SuperLink) -> Iterator[ControlHttpClient]:
    """Connect to a SuperLink; any failure raises RunFailed."""
    certificates = str(superlink.root_certificates.resolve()) if superlink.root_certificates is not None else None
    connection = SuperLinkConnection(
        "offbeat", address=superlink.address, root_certificates=certificates, insecure=superlink.insecure
    )
    try:
        with redirect_stdout(io.StringIO()):  # Flower prints which SuperLink it uses
            control = init_http_client_from_connection(connection)
            if superlink.client_certificate is not None:
                _present(control, superlink.client_certificate, certificates)
        try:
            with flwr_cli_exc_handler():
                yield control
        finally:
            control.close()
    except click.ClickException as error:
        if error.message == SUPERLINK_UNAVAILABLE_MESSAGE:
            raise RunFailed(_diagnosis(superlink)) from None
        raise RunFailed(f"SuperLink at {superlink.address}: {' '.join(error.message.split())}") from None


def _present(control: ControlHttpClient, certificate: Path, authorities: str | None) -> None:
    """Make Flower's client, which cannot do it, present a certificate."""
    context = ssl.create_default_context(cafile=authorities)
    try:
        context.load_cert_chain(certificate)
    except ssl.SSLError as error:
        raise InvalidInput(f"client certificate {certificate}: {error.reason or error}") from None
    before = control._client
    control._client = httpx.Client(verify=context, timeout=before.timeout, follow_redirects=True)
    before.close()


def _diagnosis(superlink: SuperLink) -> str:
    """Why a SuperLink could not be reached: nothing listens, TLS on one side only, or a certificate of another CA."""
    where, address = f"the SuperLink at {superlink.address}", host_and_port("superlink", superlink.address)
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(address, timeout=5.0) as plain:
            try:
                with unverified.wrap_socket(plain, server_hostname=address[0]):
                    pass
            except (OSError, ssl.SSLError):
                if superlink.insecure:
                    return f"{where} does not answer: is it a SuperLink?"
                return f"{where} speaks no TLS: connect without TLS (insecure), or start it with certificates"
    except OSError as error:
        return f"no SuperLink answers at {superlink.address}: {error.strerror or error}"
    if superlink.insecure:
        return f"{where} speaks TLS: give its root certificates instead of connecting without TLS (insecure)"
    trusted = "the system store" if superlink.root_certificates is None else str(superlink.root_certificates)
    try:
        verified = ssl.create_default_context(cafile=superlink.root_certificates)
        with (
            socket.create_connection(address, timeout=5.0) as plain,
            verified.wrap_socket(plain, server_hostname=address[0]),
        ):
            return f"{where} does not answer: is it a SuperLink?"
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of {where} is not accepted by {trusted}: {error.verify_message}"
    except OSError as error:  # ssl.SSLError is one
        return f"the certificates in {trusted} cannot be used: {error}"
