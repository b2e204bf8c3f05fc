"""A SuperLink and nodes as processes on this machine, for tests and for trying out a deployment.

All processes (see `supervisor`) and the temporary directory end with the context, also if offbeat itself is killed.
Each process has its own Flower home: in a shared one, processes would see each other's half-written apps.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType

from offbeat.core.errors import OffbeatError
from offbeat.flower.launch import supervisor
from offbeat.flower.launch.certificates import Credentials
from offbeat.flower.launch.superlink import SuperLink, register

HOST = "127.0.0.1"
START_SECONDS = 90.0
"""Timeout until a Flower process accepts connections."""
CHECKPOINT_SECONDS = 20.0
"""Timeout until an interrupted ServerApp has written its checkpoint."""
POLL_SECONDS = 0.05
FEW_NODES = 4
"""Up to this number of persistent nodes, each polls every `POLL_SECONDS`."""
POLLS_A_SECOND = 40.0
"""Polls per second of all nodes, if there are more: a poll costs 5 to 15 ms of CPU time on this machine."""
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # a shorter interval would keep a core busy with a few nodes
    "OMP_NUM_THREADS": "1",  # several devices share the machine
    "PYTHONUNBUFFERED": "1",
}


SUPERVISED = 3
"""Where the command of a process begins, after that of its supervisor."""


class FlowerProcess:
    """One Flower process and its descendants, below a supervisor."""

    def __init__(
        self, command: Sequence[str], *, name: str, folder: Path, logs: Path, port: int, home: Path | None = None
    ) -> None:
        self.name = name
        self.port = port
        self.log = logs / f"{name}.log"
        self._command = [sys.executable, "-I", supervisor.__file__, *command]
        self._environment = os.environ | ENVIRONMENT | {"FLWR_HOME": str(home or folder / name), "PATH": _path()}
        self._supervisor: subprocess.Popen[bytes] | None = None

    def start(self, python: str | None = None) -> None:
        """Start or restart the process, also with another Python interpreter; its log is appended to."""
        if python is not None:
            self._command[SUPERVISED] = python
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C must not reach it: `Cluster` ends it
            )

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def pids(self, command: str = "") -> list[int]:
        """Descendants whose command line contains a text, for instance "flwr-clientapp" (Linux only)."""
        found = supervisor.descendants(self._supervisor.pid) if self._supervisor is not None else []
        return [pid for pid in found if command in supervisor.command_line(pid)]

    def wait_until_it_answers(self) -> None:
        """Wait until the port accepts connections; raises if the process ends or times out."""
        deadline = time.monotonic() + START_SECONDS
        while not _answers(self.port):
            if not self.alive or time.monotonic() > deadline:
                raise OffbeatError(f"{self.name} did not start: {last_line(self.log)} (log: {self.log})")
            time.sleep(0.05)

    def ask_to_end(self) -> None:
        """Ask the process to terminate; after a grace period it is killed."""
        if self._supervisor is not None and self._supervisor.stdin is not None and self.alive:
            with contextlib.suppress(BrokenPipeError):  # the supervisor has ended
                os.write(self._supervisor.stdin.fileno(), b"x")

    def kill(self) -> None:
        """Kill the process and its descendants with SIGKILL, as in a power failure."""
        if self._supervisor is not None:
            if self._supervisor.stdin is not None:
                self._supervisor.stdin.close()
            self._supervisor.wait()

    def wait(self, seconds: float) -> None:
        """Wait for the process to end; kill it after this number of seconds."""
        if self._supervisor is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._supervisor.wait(seconds)
            self.kill()


class Cluster:
    """A SuperLink with nodes, which run while the context is open.

    The SuperLink answers only processes of this user (Linux). With credentials, it uses TLS and accepts only registered
    nodes. A durable SuperLink keeps its state in a file and so knows its nodes after a restart. Persistent nodes
    (`offbeat node`) share one process; a node that is added later has its own.
    """

    def __init__(
        self,
        nodes: int,
        *,
        warm: bool = False,
        credentials: Credentials | None = None,
        durable: bool = False,
        logs: Path | None = None,
    ) -> None:
        self._folder = Path(mkdtemp(prefix="offbeat-cluster-"))
        self._count = nodes
        self._warm = warm
        self._credentials = credentials
        self.logs = logs or self._folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.nodes: list[FlowerProcess] = []
        self._keys_given = 0
        port = free_port()
        authority = None if credentials is None else credentials.authority
        self.address = SuperLink(address=f"{HOST}:{port}", root_certificates=authority, insecure=credentials is None)
        program = "offbeat.flower.launch.private_superlink"
        command = [sys.executable, "-P", "-m", program, "--host", HOST, "--port", str(port)]
        command += self._superlink_options(durable)
        self.superlink = FlowerProcess(command, name="superlink", folder=self._folder, logs=self.logs, port=port)

    def __enter__(self) -> "Cluster":
        try:
            self.superlink.start()
            together = self._warm and self._count > 0
            if (
                together and self._credentials is None
            ):  # nodes without keys need no registration, and wait for the SuperLink themselves
                self._start_nodes(list(range(self._count)), warm=True)
            self.superlink.wait_until_it_answers()
            if together and self._credentials is not None:
                self._start_nodes(list(range(self._count)), warm=True)
            elif not together:
                for device in range(self._count):
                    self.add_node(device, wait=False)
            for node in self.nodes:
                node.wait_until_it_answers()
        except BaseException:
            self._end(keep_logs=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)  # any stopping signal
        try:
            if interrupted:
                self._interrupt_server_app()
        finally:
            self._end(keep_logs=kind is not None and not interrupted)

    def add_node(
        self,
        device: int | None = None,
        *,
        warm: bool | None = None,
        registered: bool = True,
        wait: bool = True,
        options: Sequence[str] = (),
        address: str | None = None,
        home: Path | None = None,
    ) -> FlowerProcess:
        """Start one more node, for this device, or for one that the server chooses if None.

        `options` are further command-line options, `address` another address of the SuperLink, `home` another home.
        """
        node = self._start_nodes(
            [device],
            warm=self._warm if warm is None else warm,
            registered=registered,
            options=options,
            address=address,
            home=home,
        )
        if wait:
            node.wait_until_it_answers()
        return node

    def _start_nodes(
        self,
        devices: Sequence[int | None],
        *,
        warm: bool,
        registered: bool = True,
        options: Sequence[str] = (),
        address: str | None = None,
        home: Path | None = None,
    ) -> FlowerProcess:
        """Start a process with one node per device; a SuperNode has exactly one."""
        options = ["--superlink", address or self.address.address, *options]
        if self._credentials is None:
            options.append("--insecure")
        else:
            options += ["--root-certificates", str(self._credentials.authority)]
            for number in range(self._keys_given, self._keys_given + len(devices)):
                if registered:
                    register(self.address, self._credentials.node_public_key(number))
                options += ["--auth-supernode-private-key", str(self._credentials.node_key(number))]
            self._keys_given += len(devices)
        for device in devices:
            if device is not None:
                options += ["--node-config", f"partition-id={device} num-partitions={max(self._count, device + 1)}"]
        port, name = free_port(), f"node-{len(self.nodes)}" if len(devices) == 1 else "nodes"
        if warm:
            busy = POLL_SECONDS if len(devices) <= FEW_NODES else len(devices) / POLLS_A_SECOND
            options += ["--health", f"{HOST}:{port}", "--poll-seconds", f"{busy:g}"]
            options += ["--readable", "/", "--writable", str(Path.cwd())]  # the app is the user's own
            command = [sys.executable, "-c", "from offbeat.cli import main; main()", "node", *options]
            node = FlowerProcess(command, name=name, folder=self._folder, logs=self.logs, port=port, home=home)
        else:
            command = [str(Path(_scripts()) / "flower-supernode"), "--host", HOST, "--port", str(port), *options]
            node = FlowerProcess(command, name=name, folder=self._folder, logs=self.logs, port=port)
        self.nodes.append(node)
        node.start()
        return node

    def restart_superlink(self) -> None:
        """Kill the SuperLink, and so the ServerApp, and start it again on the same port."""
        self.superlink.kill()
        self.superlink.start()
        self.superlink.wait_until_it_answers()

    def server_app(self) -> list[int]:
        """Process ids of the ServerApp; empty if none is running."""
        return self.superlink.pids("flwr-serverapp")

    def _interrupt_server_app(self) -> None:
        """Interrupt the ServerApp and wait until it has written its checkpoint."""
        for pid in self.server_app():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        deadline = time.monotonic() + CHECKPOINT_SECONDS
        while self.server_app() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _superlink_options(self, durable: bool) -> list[str]:
        options = ["--database", str(self._folder / "superlink.db")] if durable else []
        if self._credentials is None:
            return [*options, "--insecure"]
        files = {
            "--ssl-ca-certfile": self._credentials.authority,
            "--ssl-certfile": self._credentials.certificate,
            "--ssl-keyfile": self._credentials.key,
        }
        security = [text for option, file in files.items() for text in (option, str(file))]
        return [*options, "--enable-supernode-auth", *security]

    def _end(self, *, keep_logs: bool) -> None:
        """End the nodes first, so that they can deactivate, then the SuperLink; a second Ctrl-C kills the rest."""
        try:
            for node in self.nodes:
                node.ask_to_end()
            for node in self.nodes:
                node.wait(2 * supervisor.GRACE)
            self.superlink.ask_to_end()
            self.superlink.wait(2 * supervisor.GRACE)
        finally:
            for process in (*self.nodes, self.superlink):
                process.kill()
            for path in self._folder.iterdir():
                if path.is_file():
                    path.unlink()
                elif not (keep_logs and path == self.logs):
                    shutil.rmtree(path, ignore_errors=True)
            if not any(self._folder.iterdir()):
                self._folder.rmdir()


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def last_line(log: Path) -> str:
    """The last line of a log that is not empty."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "its log is empty"


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _scripts() -> str:
    return sysconfig.get_path("scripts")


def _path() -> str:
    """PATH with our environment's scripts first: Flower starts its programs by name."""
    return os.pathsep.join([_scripts(), os.environ.get("PATH", "")])
