"""The command line. It parses, shows progress and prints; the work is done by the rooms above."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from offbeat.cli import catalogue, choosing, deployment, node, partition, replay, runs, simulate, studies
from offbeat.cli.base import console
from offbeat.cli.progress import messages
from offbeat.core.errors import Interrupted, InvalidInput, OffbeatError

app = typer.Typer(
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
    choosing.tune,
    choosing.recommend,
    replay.replay,
    simulate.simulate,
    partition.partition,
    studies.plan,
    studies.advise,
    studies.pretrain,
    catalogue.list_,
    catalogue.describe,
    deployment.local_cluster,
    deployment.deploy,
    node.node,
    deployment.make_certificates,
    deployment.register_nodes,
):
    app.command(name=command.__name__.rstrip("_").replace("_", "-"))(command)


def _show_version(asked: bool) -> None:
    if asked:
        import offbeat

        console.print(f"offbeat {offbeat.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Federated learning over uneven devices: asynchronous, semi-asynchronous and deadline-driven methods on one clock.

    Start with `offbeat demo`.
    """


def main() -> None:
    """Run the command line; every error that we raise on purpose is one sentence and no traceback."""
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules, "module:function"
    try:
        app()
    except Interrupted as error:
        _print_error(error)
        if (command := resuming(sys.argv[1:], error)) is not None:
            messages.print(f"To go on: {command}", soft_wrap=True, highlight=False, markup=False)
        sys.exit(128 + error.number)
    except OffbeatError as error:
        _print_error(error)
        sys.exit(2 if isinstance(error, InvalidInput) else 1)
    except OSError as error:  # a directory that cannot be written, a full disk
        _print_error(error)
        sys.exit(2)


def _print_error(error: Exception) -> None:
    text = str(error).replace("[", r"\[")
    messages.print(f"[bold red]offbeat:[/] {text}", soft_wrap=True, highlight=False)


def resuming(words: Sequence[str], error: Interrupted) -> str | None:
    """The command that goes on with what was interrupted; None if nothing was kept."""
    if "--resume" not in str(error):
        return None
    return shlex.join(["offbeat", *(word for word in words if word not in ("--overwrite", "--resume")), "--resume"])
