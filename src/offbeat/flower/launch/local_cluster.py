"""A SuperLink and some SuperNodes on loopback, as processes of this machine, for trying things out and for tests.

Everything ends with the context: every process (see `supervisor`), the temporary directory, and so also if offbeat
itself is killed. Each process has a Flower home of its own, because Flower's processes would see each other's
half-written apps in a shared one.
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
"""How long a Flower process may take to answer on its port."""
CHECKPOINT_SECONDS = 20.0
"""How long a ServerApp that was interrupted may take to leave a checkpoint."""
POLL_SECONDS = 0.05
FEW_NODES = 4
"""Up to this many warm nodes may ask the SuperLink as often as they like."""
POLLS_A_SECOND = 40.0
"""How often more of them may ask together: a question takes the SuperLink 5 to 15 ms of a core, which they share."""
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",  # shorter, and the polling of a few nodes keeps a core busy
    "OMP_NUM_THREADS": "1",  # several devices share the machine
    "PYTHONUNBUFFERED": "1",
}


class FlowerProcess:
    """One Flower process with all that it starts, below a supervisor."""

    def __init__(
        self, command: Sequence[str], *, name: str, folder: Path, logs: Path, port: int, home: Path | None = None
    ) -> None:
        self.name = name
        self.port = port
        self.log = logs / f"{name}.log"
        self._command = [sys.executable, "-I", supervisor.__file__, *command]
        self._environment = os.environ | ENVIRONMENT | {"FLWR_HOME": str(home or folder / name), "PATH": _path()}
        self._supervisor: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again; its log goes on."""
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for us, and we end them
            )

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._supervisor is not None and self._supervisor.poll() is None

    def pids(self, command: str = "") -> list[int]:
        """The processes below this one whose command has a text in it, for instance "flwr-clientapp" (Linux only)."""
        found = supervisor.descendants(self._supervisor.pid) if self._supervisor is not None else []
        return [pid for pid in found if command in supervisor.command_line(pid)]

    def wait_until_it_answers(self) -> None:
        """Wait until the port accepts connections; fail if the process ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not _answers(self.port):
            if not self.alive or time.monotonic() > deadline:
                raise OffbeatError(f"{self.name} did not start: {last_line(self.log)} (log: {self.log})")
            time.sleep(0.05)

    def ask_to_end(self) -> None:
        """Ask it to end in good order; whatever is left after a grace period is killed."""
        if self._supervisor is not None and self._supervisor.stdin is not None and self.alive:
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                os.write(self._supervisor.stdin.fileno(), b"x")

    def kill(self) -> None:
        """End it and all that it started with SIGKILL, as if the power had failed."""
        if self._supervisor is not None:
            if self._supervisor.stdin is not None:
                self._supervisor.stdin.close()
            self._supervisor.wait()

    def wait(self, seconds: float) -> None:
        """Wait for it to have ended, and kill what has not."""
        if self._supervisor is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._supervisor.wait(seconds)
            self.kill()


class Cluster:
    """Runs while its context is open.

    With credentials it uses TLS and admits only nodes whose keys are registered. A durable SuperLink keeps its state in
    a file and so remembers its nodes when it is restarted. Warm nodes (`offbeat node`) share one process, and their
    children what they import; nodes that are added later have a process each.
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
        self.superlink = self._process("flower-superlink", "superlink", port, self._superlink_options(durable))

    def __enter__(self) -> "Cluster":
        try:
            self.superlink.start()
            together = self._warm and self._count > 0
            if together and self._credentials is None:  # they wait for the SuperLink by themselves
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
        """Start one more node, as this device or as whichever the server makes of it.

        It may be given further options, another way to the SuperLink, and another home.
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
        """A process with a node for each of these devices; a SuperNode is one by itself."""
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
            command = [sys.executable, "-c", "from offbeat.cli import main; main()", "node", *options]
            node = FlowerProcess(command, name=name, folder=self._folder, logs=self.logs, port=port, home=home)
        else:
            node = self._process("flower-supernode", name, port, options)
        self.nodes.append(node)
        node.start()
        return node

    def restart_superlink(self) -> None:
        """Kill the SuperLink, and with it the ServerApp, and start it again on the same port."""
        self.superlink.kill()
        self.superlink.start()
        self.superlink.wait_until_it_answers()

    def server_app(self) -> list[int]:
        """The process of the ServerApp, if one is running."""
        return self.superlink.pids("flwr-serverapp")

    def _interrupt_server_app(self) -> None:
        """Ctrl-C is for the ServerApp, too: it leaves a checkpoint if it is given the time."""
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

    def _process(self, program: str, name: str, port: int, options: Sequence[str]) -> FlowerProcess:
        command = [str(Path(_scripts()) / program), "--host", HOST, "--port", str(port), *options]
        return FlowerProcess(command, name=name, folder=self._folder, logs=self.logs, port=port)

    def _end(self, *, keep_logs: bool) -> None:
        """Nodes first, so that they can say good-bye to the SuperLink; a second Ctrl-C kills what is left."""
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
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _scripts() -> str:
    return sysconfig.get_path("scripts")


def _path() -> str:
    """Flower starts its own programs by name."""
    return os.pathsep.join([_scripts(), os.environ.get("PATH", "")])
