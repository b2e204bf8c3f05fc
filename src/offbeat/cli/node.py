"""The command that makes this machine a device: node."""

import os
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli.deployment import check_flower


def node(
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the SuperLink listens.")],
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS.")] = False,
    root_certificates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who vouches for the SuperLink (default: the system's).")
    ] = None,
    keys: Annotated[
        list[Path] | None,
        typer.Option(
            "--auth-supernode-private-key",
            metavar="FILE",
            help="The node's private key, registered with the SuperLink.",
        ),
    ] = None,
    configs: Annotated[
        list[str] | None,
        typer.Option(
            "--node-config",
            metavar="'KEY=VALUE ...'",
            help="What apps may know of this node, for instance partition-id=3; each further one is one more node.",
        ),
    ] = None,
    trusted_entities: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run only apps that one of these has signed (YAML, id: key).")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep what devices remember here (default: as long as this process lives)."),
    ] = None,
    memory_mb: Annotated[int | None, typer.Option(min=64, help="Memory that the process of an app may have.")] = None,
    child_user: Annotated[str | None, typer.Option(help="Run apps as this user (if this process is root's).")] = None,
    answer_seconds: Annotated[
        float | None,
        typer.Option(min=1.0, help="End an app that has not answered for so long (default: its message's)."),
    ] = None,
    poll_seconds: Annotated[
        float, typer.Option(min=0.005, help="Ask for messages so often while something goes on.")
    ] = 0.05,
    work_seconds: Annotated[
        float, typer.Option(min=0.005, help="And at least so often while an app is at work.")
    ] = 0.5,
    idle_seconds: Annotated[float, typer.Option(min=0.005, help="And at least so often when nothing comes.")] = 10.0,
    health: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Answer HTTP here: 200 if all is well, else 503.")
    ] = None,
) -> None:
    """Be a device of the runs on a Flower SuperLink: warm, where a SuperNode starts a process for each message.

    Takes the place of `flower-supernode`. The app of a run stays loaded in a process of its own, so that a message and
    its answer take a fraction of a second, and hears of stop notices and fresh models while it trains. Both kinds may
    take part in one run. Ends on Ctrl-C or SIGTERM.
    """
    check_flower()
    from offbeat.flower.launch.superlink import SuperLink, host_and_port
    from offbeat.flower.node.installation import load_trusted_entities
    from offbeat.flower.node.node import Polling
    from offbeat.flower.node.sandbox import Limits
    from offbeat.flower.node.service import NodeSettings, parse_node_config, serve_nodes

    serve_nodes(
        NodeSettings(
            superlink=SuperLink(address=superlink, insecure=insecure, root_certificates=root_certificates),
            configs=[parse_node_config(text) for text in configs or [""]],
            keys=keys or [],
            trusted=None if trusted_entities is None else load_trusted_entities(trusted_entities),
            home=Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr"),
            state=state,
            polling=Polling(busy=poll_seconds, work=work_seconds, idle=idle_seconds),
            answer_seconds=answer_seconds,
            limits=Limits(memory_mb=memory_mb, user=child_user),
            health=None if health is None else host_and_port("--health", health),
        )
    )
