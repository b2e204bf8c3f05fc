"""The `offbeat` command: parses arguments, shows progress and prints results. The other subpackages do the work."""

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text
from typer.core import TyperGroup

from offbeat.cli import catalogue, choosing, deployment, init, looking, node, runs, simulate, verify, watch
from offbeat.cli.base import console
from offbeat.cli.progress import messages
from offbeat.core.errors import Interrupted, InvalidInput, OffbeatError, OutputRefused, Remedy

if TYPE_CHECKING:
    from click import Command, Context

FLAGS: dict[Remedy, str] = {
    "resume": "use --resume to continue it",
    "overwrite": "use --overwrite to replace it",
    "out": "choose another --out",
}
"""What the command line calls the arguments that `OutputRefused` names."""

PANELS: dict[str, tuple[Callable[..., None] | typer.Typer, ...]] = {
    "Start": (runs.demo, init.init, catalogue.list_, catalogue.describe),
    "Run and compare": (runs.run, runs.compare, runs.sweep),
    "Choose": (choosing.recommend, choosing.tune, choosing.plan, verify.verify),
    "Look": (looking.runs, watch.watch, looking.report, looking.serve, looking.partition, looking.replay),
    "Flower": (simulate.simulate,),
    "Deploy": (deployment.local_cluster, deployment.deploy, node.node),
}
"""All commands in the order in which a user needs them; a group of subcommands is a Typer app."""

MOVED = {
    "advise": "`offbeat advise` is now `offbeat plan delays`",
    "pretrain": "`offbeat pretrain` is now `offbeat plan slots`",
    "make-certificates": "`offbeat make-certificates` is now `offbeat node certificates`",
    "register-nodes": "`offbeat register-nodes` is now `offbeat node register`",
    "study": "`offbeat study` is now `python -m experiments.delays`, run in a checkout of the repository",
    "reproduce": "`offbeat reproduce NAME` is now `python -m experiments.NAME`, run in a checkout of the repository",
}
"""Commands of version 0.1 and where they went."""


class Commands(TyperGroup):
    """The commands in the order of PANELS; the name of a command that has moved raises InvalidInput."""

    def list_commands(self, ctx: "Context") -> list[str]:
        """Return the names in the order of PANELS; typer would list groups before commands."""
        return [_name(command) for commands in PANELS.values() for command in commands]

    def get_command(self, ctx: "Context", cmd_name: str) -> "Command | None":
        """Return a command by its name."""
        if cmd_name in MOVED:
            raise InvalidInput(MOVED[cmd_name])
        return super().get_command(ctx, cmd_name)


def _name(command: object) -> str:
    if isinstance(command, typer.Typer):
        return str(command.info.name)
    return str(getattr(command, "__name__", "")).rstrip("_").replace("_", "-")


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=panel)
        else:
            app.command(_name(command), rich_help_panel=panel)(command)


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
    """Simulate, compare and deploy federated learning over uneven devices.

    Start with `offbeat demo`, then `offbeat list experiments` and `offbeat run NAME`. `offbeat COMMAND --help` explains
    a command.
    """


def main() -> None:
    """Run the command line. Errors that offbeat raises on purpose are printed as one sentence, without a traceback."""
    sys.path.append(str(Path.cwd()))  # for "module:name" references; last, so that no file there shadows a library
    try:
        app()
    except OffbeatError as error:
        _print_error(error)
        if error.resumable:
            messages.print(f"To continue: {resuming(sys.argv[1:])}", soft_wrap=True, highlight=False, markup=False)
        if isinstance(error, Interrupted):
            sys.exit(128 + error.number)
        sys.exit(2 if isinstance(error, InvalidInput) else 1)
    except OSError as error:  # a directory that cannot be written, a full disk
        _print_error(error)
        sys.exit(2)


def _print_error(error: Exception) -> None:
    text = str(error)
    if isinstance(error, OutputRefused):
        text = f"{error.fact}: {' or '.join(FLAGS[each] for each in error.remedies)}"
    messages.print(Text.assemble(("offbeat:", "bold red"), f" {text}"), soft_wrap=True, highlight=False)


def resuming(words: Sequence[str]) -> str:
    """The command that continues an interrupted one."""
    return shlex.join(["offbeat", *(word for word in words if word not in ("--overwrite", "--resume")), "--resume"])
