"""The command line. It parses, shows progress and prints; the work is done by the rooms above."""

import sys
from pathlib import Path

import typer

from offbeat.cli import catalogue, deployment, node, replay, runs, studies
from offbeat.cli.progress import messages
from offbeat.core.errors import InvalidInput, OffbeatError

app = typer.Typer(
    help="Federated learning over uneven devices: asynchronous, semi-asynchronous and deadline-driven methods on one "
    "clock. Start with `offbeat demo`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

for command in (
    runs.demo,
    runs.run,
    runs.compare,
    runs.sweep,
    runs.report,
    replay.replay,
    studies.plan,
    studies.advise,
    studies.pretrain,
    studies.study,
    catalogue.list_,
    catalogue.describe,
    deployment.local_cluster,
    deployment.deploy,
    node.node,
    deployment.make_certificates,
    deployment.register_nodes,
):
    app.command(name=command.__name__.rstrip("_").replace("_", "-"))(command)


def main() -> None:
    """Run the command line; every error that we raise on purpose is one sentence and no traceback."""
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules, "module:function"
    try:
        app()
    except OffbeatError as error:
        messages.print(f"[bold red]offbeat:[/] {_escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(_exit_code(error))
    except OSError as error:  # a directory that cannot be written, a full disk
        messages.print(f"[bold red]offbeat:[/] {_escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _exit_code(error: OffbeatError) -> int:
    from offbeat.running.loop import Interrupted

    if isinstance(error, Interrupted):
        return 130
    return 2 if isinstance(error, InvalidInput) else 1


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
