"""Runs one or several nodes in one process (`offbeat node`)."""

import dataclasses
import os
import platform
import pwd
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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
from offbeat.flower.node.sandbox import (
    SCOPED,
    AppLimits,
    can_cut_network,
    guard_own_memory,
    landlock_version,
    needed_by_python,
    without,
)
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
    limits: AppLimits = AppLimits()
    health: tuple[str, int] | None = None
    """Host and port of the health check over HTTP."""

    def check(self) -> None:
        """Raise InvalidInput if settings contradict each other."""
        if self.keys and len(self.keys) != len(self.configs):
            raise InvalidInput(f"{len(self.keys)} keys for {len(self.configs)} nodes: give one key per node")
        if self.keys and self.superlink.insecure:
            raise InvalidInput("private keys need TLS: the connection to the SuperLink must not be insecure")
        _check_limits(self.limits)


def _check_limits(limits: AppLimits) -> None:
    for option, paths in (("--readable", limits.readable), ("--writable", limits.writable)):
        for path in paths:
            if not Path(path).exists():
                raise InvalidInput(f"{option} {path}: no such file or directory")
    if not limits.network and not can_cut_network():
        raise InvalidInput(
            f"--network none: not possible on {platform.system()} {platform.machine()}; "
            "run the node in a container or a virtual machine without a network for apps"
        )
    if limits.user is not None:
        try:
            pwd.getpwnam(limits.user)
        except KeyError:
            raise InvalidInput(f"--child-user {limits.user}: no such user") from None
        if os.geteuid() != 0:
            raise InvalidInput(f"--child-user {limits.user}: only root can run apps as another user")


def parse_node_config(text: str) -> NodeConfig:
    """Parse a node config in the format of `flower-supernode --node-config`: `partition-id=3 site="a b"`."""
    try:
        found = dict(parse_config_args([text]))
    except (click.ClickException, ValueError, SystemExit) as error:
        raise InvalidInput(f"node config {text!r}: {error}") from None
    if text.strip() and not found:
        raise InvalidInput(f"node config {text!r}: write it as partition-id=3 site='\"a\"'")
    return found


def named_configs(configs: Sequence[NodeConfig], names: Sequence[str]) -> list[NodeConfig]:
    """The node configs with a name each, if there are names; one empty config if there is neither."""
    if names and configs and len(names) != len(configs):
        raise InvalidInput(f"--name is given {len(names)} times, but --node-config {len(configs)} times")
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(f"--name {repeated[0]} is given twice: each node needs another name")
    nodes = list(configs) or [{} for _ in names] or [{}]
    return [config | {"name": name} for config, name in zip(nodes, names, strict=True)] if names else nodes


def most_of_memory() -> int:
    """Three quarters of this machine's memory, in MB: the default limit of an app."""
    return max(1000, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4 // 2**20)


def log_line(what: str) -> None:
    """Write a line with the time to standard error, which children share."""
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} offbeat node: {what}", file=sys.stderr, flush=True)


def serve_nodes(settings: NodeSettings, stop: Event | None = None, log: Callable[[str], None] = log_line) -> None:
    """Run the nodes until SIGTERM or Ctrl-C (or `stop`). Raises if the SuperLink refused all of them."""
    settings.check()
    loaded = [load_key(path) for path in settings.keys]
    stop = stop or _stopped_by_signals()
    apps = settings.home / "apps"
    apps.mkdir(parents=True, exist_ok=True)
    limits = _without_secrets(
        dataclasses.replace(settings.limits, readable=[*settings.limits.readable, str(apps)]), settings.keys
    )
    for weakness in _weaknesses(limits):
        log(f"warning: {weakness}")
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=settings.home))
    scratch.chmod(0o711)  # another user passes through to the folder of its run
    fork_server = ForkServer(limits, scratch)
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


def _without_secrets(limits: AppLimits, keys: Sequence[Path]) -> AppLimits:
    """These limits, without the folders of the keys and the user's secrets inside what apps may open."""
    granted = [Path(path).resolve() for path in (*limits.readable, *limits.writable, *needed_by_python())]
    secrets = {Path.home() / name for name in (".ssh", ".gnupg", ".aws", ".netrc", ".docker", ".kube")}
    secrets |= {Path(f"/etc/{name}") for name in ("shadow", "shadow-", "gshadow", "gshadow-", "ssl/private", "ssh")}
    for key in (key.resolve() for key in keys):
        holds_something_granted = any(key.parent == path or key.parent in path.parents for path in granted)
        secrets.add(key if holds_something_granted else key.parent)

    def open_to_apps(paths: Sequence[str]) -> list[str]:
        return [str(part) for path in paths for part in without(Path(path).resolve(), secrets)]

    return dataclasses.replace(limits, readable=open_to_apps(limits.readable), writable=open_to_apps(limits.writable))


def _weaknesses(limits: AppLimits) -> Iterator[str]:
    """What this machine cannot keep apps from."""
    version = landlock_version()
    if not version and limits.user is None:
        yield "no Landlock on this machine: apps can read the node's key and change its files; use --child-user"
    elif not version:
        yield "no Landlock on this machine: apps can open all files that their user can"
    elif version < SCOPED and limits.user is None:
        yield "Landlock here is older than Linux 6.12: apps can kill the node and each other; use --child-user"
    if os.geteuid() == 0 and limits.user is None:
        yield "apps run as root: their number of processes is limited only in a control group; use --child-user"


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
