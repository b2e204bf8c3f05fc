"""Runs one or several nodes in one process (`offbeat node`)."""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import click
import msgspec
from msgspec import Struct

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.flower.compat import parse_config_args
from offbeat.flower.launch.superlink import SuperLink
from offbeat.flower.node.children import ForkServer
from offbeat.flower.node.connection import FleetConnection, Keys, load_key
from offbeat.flower.node.node import NodeConfig, Polling, WarmNode
from offbeat.flower.node.sandbox import Limits, check_limits, guard_own_memory, landlock_version
from offbeat.flower.node.storage import Installation, NodeStore

SILENCE = 60.0
"""Seconds without an answer of the SuperLink after which a node counts as unhealthy."""


class NodeSettings(Struct, frozen=True, kw_only=True):
    """Settings of the nodes of a process."""

    superlink: SuperLink
    configs: list[NodeConfig]
    """The node config of each node."""
    keys: list[Path] = []
    """Private keys, one per node; none: nodes register themselves."""
    trusted: dict[str, str] | None = None
    """Public keys by id: only apps signed by one of them are run. None: all apps."""
    home: Path
    """Folder in which apps are unpacked."""
    state: Path | None = None
    """Folder for the state that apps store; None: in memory only."""
    polling: Polling = Polling()
    answer_seconds: float | None = None
    """Response timeout of an app; None: the time to live of the message."""
    limits: Limits = Limits()
    health: tuple[str, int] | None = None
    """Host and port of the health check over HTTP."""

    def check(self) -> None:
        """Raise InvalidInput if settings contradict each other."""
        if self.keys and len(self.keys) != len(self.configs):
            raise InvalidInput(f"{len(self.keys)} keys for {len(self.configs)} nodes: give one key per node")
        if self.keys and self.superlink.insecure:
            raise InvalidInput("private keys need TLS: the connection to the SuperLink must not be insecure")
        check_limits(self.limits)


def parse_node_config(text: str) -> NodeConfig:
    """Parse a node config in the format of `flower-supernode --node-config`: `partition-id=3 site="a b"`."""
    try:
        found = dict(parse_config_args([text]))
    except (click.ClickException, ValueError, SystemExit) as error:
        raise InvalidInput(f"node config {text!r}: {error}") from None
    if text.strip() and not found:
        raise InvalidInput(f"node config {text!r}: write it as partition-id=3 site='\"a\"'")
    return found


def log_line(what: str) -> None:
    """Write a line with the time to standard error, which children share."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} offbeat node: {what}", file=sys.stderr, flush=True)


def serve_nodes(settings: NodeSettings, stop: Event | None = None, log: Callable[[str], None] = log_line) -> None:
    """Run the nodes until SIGTERM or Ctrl-C (or `stop`). Raises if the SuperLink refused all of them."""
    settings.check()
    loaded = [load_key(path) for path in settings.keys]
    stop = stop or _stopped_by_signals()
    keys = [str(path.resolve()) for path in settings.keys]
    limits = msgspec.structs.replace(settings.limits, hidden=[*settings.limits.hidden, *keys])
    if keys and not landlock_version() and limits.user is None:
        log("warning: this kernel has no Landlock, so apps can read the node's key: run apps as another user")
    fork_server = ForkServer(limits)
    fork_server.start()
    guard_own_memory()
    try:
        nodes = _nodes(settings, loaded, fork_server, log)
        server = None if settings.health is None else _health_server(settings.health, nodes)
        failures = _serve(nodes, stop)
        if server is not None:
            server.shutdown()
    finally:
        fork_server.close()
    if len(failures) == len(nodes):
        raise failures[0]
    log("ended")


def _nodes(
    settings: NodeSettings, keys: Sequence[Keys], fork_server: ForkServer, log: Callable[[str], None]
) -> Sequence[WarmNode]:
    installation = Installation(settings.home, settings.trusted)
    nodes = []
    for number, config in enumerate(settings.configs):
        name = f"node {number}: " if len(settings.configs) > 1 else ""

        def say(what: str, name: str = name) -> None:
            log(name + what)

        folder = None if settings.state is None else settings.state / f"node-{config.get('partition-id', number)}"
        nodes.append(
            WarmNode(
                FleetConnection(settings.superlink, keys[number] if keys else None),
                fork_server,
                installation,
                NodeStore(folder, say),
                config=config,
                polling=settings.polling,
                log=say,
                answer_seconds=settings.answer_seconds,
            )
        )
    return nodes


def _serve(nodes: Sequence[WarmNode], stop: Event) -> list[OffbeatError]:
    """Run each node in a thread until all have ended; returns the errors of nodes that were refused."""
    failures: list[OffbeatError] = []

    def run(node: WarmNode) -> None:
        try:
            node.run(stop)
        except OffbeatError as error:
            failures.append(error)

    threads = [Thread(target=run, args=(node,), daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # a join without timeout would block signals
            thread.join(0.2)
    return failures


def _stopped_by_signals() -> Event:
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _health_server(address: tuple[str, int], nodes: Sequence[WarmNode]) -> ThreadingHTTPServer:
    """Answer any GET with 200 if the SuperLink answered each node within the last minute, else 503."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            now = time.monotonic()
            silent = [n for n, node in enumerate(nodes) if node.contact < 0 or now - node.contact > SILENCE]
            body = msgspec.json.encode({"nodes": len(nodes), "silent": silent})
            self.send_response(503 if silent else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    server = ThreadingHTTPServer(address, Health)
    Thread(target=server.serve_forever, daemon=True).start()
    return server
