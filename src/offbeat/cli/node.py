"""The node command, which hosts devices on this machine, and its subcommands for certificates and keys."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.base import console
from offbeat.cli.deployment import ClientCertificate, Insecure, RootCertificates
from offbeat.cli.next_commands import next_step
from offbeat.core.errors import InvalidInput
from offbeat.flower.compat import FOR_NODES, check_flower

node = typer.Typer(name="node", invoke_without_command=True)


class Network(StrEnum):
    """Network access of apps."""

    any = "any"
    none = "none"


@node.callback()
def serve(
    context: typer.Context,
    superlink: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of the SuperLink. Required.")
    ] = None,
    insecure: Insecure = False,
    root_certificates: RootCertificates = None,
    keys: Annotated[
        list[Path] | None,
        typer.Option(
            "--auth-supernode-private-key",
            metavar="FILE",
            help="Private key of the node, registered with the SuperLink. Repeat for further nodes.",
        ),
    ] = None,
    configs: Annotated[
        list[str] | None,
        typer.Option(
            "--node-config",
            metavar="'KEY=VALUE ...'",
            help="Node config for apps, e.g. partition-id=3. Each repetition starts one more node.",
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help="Name of the device, as in the data (`name` in the node config). Repeat for further nodes.",
        ),
    ] = None,
    trusted_entities: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run only apps signed by one of these keys (YAML, id: key).")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory for the devices' state (default: in memory, lost when this process ends)."
        ),
    ] = None,
    readable: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Directory or file that apps may read, such as the device's data. Repeatable. Without it, they read "
            "only the system, Python's packages and their own code.",
        ),
    ] = None,
    writable: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Directory that apps may change. Repeatable. Without it, they write only to a temporary directory.",
        ),
    ] = None,
    network: Annotated[
        Network, typer.Option(help="Network access of apps: `any`, or `none` (no sockets except Unix sockets).")
    ] = Network.any,
    memory_mb: Annotated[
        int | None,
        typer.Option(min=64, help="Memory limit of an app, in MB (default: three quarters of this machine's)."),
    ] = None,
    processes: Annotated[int, typer.Option(min=8, help="Limit on the processes and threads of an app.")] = 1024,
    child_user: Annotated[str | None, typer.Option(help="Run apps as this user (needs root).")] = None,
    answer_seconds: Annotated[
        float | None,
        typer.Option(
            min=1.0, help="Response timeout of an app, in seconds (default: the time to live of the message)."
        ),
    ] = None,
    poll_seconds: Annotated[float, typer.Option(min=0.005, help="Polling interval while busy, in seconds.")] = 0.05,
    work_seconds: Annotated[
        float, typer.Option(min=0.005, help="Longest polling interval while an app runs, in seconds.")
    ] = 0.5,
    idle_seconds: Annotated[
        float, typer.Option(min=0.005, help="Longest polling interval when idle, in seconds.")
    ] = 10.0,
    health: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve a health check over HTTP: 200 if healthy, else 503.")
    ] = None,
) -> None:
    """Run a persistent Flower node: apps stay loaded between messages, so a round trip takes a fraction of a second.

    Replaces `flower-supernode`; both kinds of node can take part in the same run. The app of a run lives in its own
    process, and stop notices and fresh models reach it while it trains. Ends on Ctrl-C or SIGTERM.

    An app is foreign code and runs confined: it cannot read the node's key, change files, or signal other processes.

    Example: `offbeat node --superlink HOST:PORT --root-certificates ca.pem --node-config partition-id=0`
    """
    if context.invoked_subcommand is not None:
        return
    if superlink is None:
        raise InvalidInput("offbeat node needs --superlink HOST:PORT")
    check_flower(FOR_NODES)
    from offbeat.flower.launch.superlink import SuperLink, host_and_port
    from offbeat.flower.node.node import Polling
    from offbeat.flower.node.sandbox import AppLimits
    from offbeat.flower.node.service import NodeSettings, most_of_memory, named_configs, parse_node_config, serve_nodes
    from offbeat.flower.node.storage import load_trusted_entities

    serve_nodes(
        NodeSettings(
            superlink=SuperLink(address=superlink, insecure=insecure, root_certificates=root_certificates),
            configs=named_configs([parse_node_config(text) for text in configs or []], names or []),
            keys=keys or [],
            trusted=None if trusted_entities is None else load_trusted_entities(trusted_entities),
            home=Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr"),
            state=state,
            polling=Polling(busy=poll_seconds, work=work_seconds, idle=idle_seconds),
            answer_seconds=answer_seconds,
            limits=AppLimits(
                readable=[str(path.absolute()) for path in readable or ()],
                writable=[str(path.absolute()) for path in writable or ()],
                network=network is Network.any,
                memory_mb=memory_mb or most_of_memory(),
                processes=processes,
                user=child_user,
            ),
            health=None if health is None else host_and_port("--health", health),
        )
    )


@node.command()
def certificates(
    directory: Annotated[Path, typer.Argument(help="New directory for the files.")],
    nodes: Annotated[int, typer.Option(min=0, help="Number of nodes to make a key pair for.")] = 4,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", help="Additional host name of the SuperLink. Repeatable.")
    ] = None,
) -> None:
    """Make short-lived certificates and keys to try out TLS and node authentication.

    Writes a certificate authority (`ca.pem`), the SuperLink's certificate for localhost and 127.0.0.1 (`superlink.pem`,
    `superlink.key`), a client certificate for people who start runs (`operator.pem`), and per node a private key
    (`node-0`) and the public key to register (`node-0.pub`). They are valid for 30 days and not meant for production.
    """
    check_flower(FOR_NODES)
    from offbeat.flower.launch.certificates import make_credentials

    make_credentials(directory, nodes, hosts or ())
    console.print(
        f"Certificates in {directory}: ca.pem, superlink.pem, superlink.key, operator.pem and keys for {nodes} nodes"
    )
    next_step("node certificates", root=directory)


@node.command()
def register(
    public_keys: Annotated[list[Path], typer.Argument(help="Public keys of the nodes, e.g. keys/node-*.pub.")],
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the SuperLink.")],
    root_certificates: RootCertificates = None,
    client_certificate: ClientCertificate = None,
) -> None:
    """Register nodes, by public key, with a SuperLink that authenticates nodes (like `flwr supernode register`)."""
    check_flower(FOR_NODES)
    from offbeat.flower.launch.superlink import SuperLink
    from offbeat.flower.launch.superlink import register as register_node

    link = SuperLink(address=superlink, root_certificates=root_certificates, client_certificate=client_certificate)
    for key in public_keys:
        if not key.is_file():
            raise InvalidInput(f"{key}: no such file")
        content = key.read_bytes()[:100]
        if b"PRIVATE KEY" in content:
            raise InvalidInput(f"{key} is a private key, which never leaves its node: register its public key (.pub)")
        if not content.startswith(b"ecdsa-sha2-"):
            raise InvalidInput(f"{key} is no public key (.pub) of `offbeat node certificates` or `ssh-keygen -t ecdsa`")
    for key in public_keys:
        console.print(f"{key}: node {register_node(link, key)}", highlight=False)
    next_step("node register")
