"""The simulate command: runs a Flower app on a virtual clock."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.base import Changes, Out, Overwrite, console, joined, print_summary, suffix
from offbeat.core.errors import InvalidInput
from offbeat.flower.compat import check_flower

if TYPE_CHECKING:
    from offbeat.results.result import Result


def simulate(
    app: Annotated[
        Path,
        typer.Argument(
            help="Directory of a Flower app (with its pyproject.toml), or a script that starts a simulation."
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script; put -- before options.")
    ] = None,
    fleet: Annotated[
        str | None, typer.Option(help="Speed model of the devices (`offbeat list fleets`; default: ratio).")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of devices (default: from the app's federation, else 10).")
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option("--run-config", help="Override the app's run config, as in `flwr run`. Repeatable."),
    ] = None,
    changes: Changes = None,
    stop_time: Annotated[float | None, typer.Option(help="Stop after this many virtual seconds.")] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None,
    label: Annotated[str, typer.Option(help="Name of the run in tables (default: its strategy).")] = "",
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Run an unmodified Flower app on a virtual clock over an uneven fleet.

    Loads the ServerApp and ClientApp as `flwr run` does. Training and messages take the virtual time that the fleet and
    the network imply; devices leave, return and fail (`--set availability.name=on-off`, `--set failures.vanish=0.1`).
    Settings: seed, fleet, network, availability, failures, work, stop, clients, evaluation.

    In a script that calls `run_simulation` or `start_simulation`, this simulation replaces Flower's.

    `offbeat report` compares the results.

    Example: `offbeat simulate path/to/app --fleet ratio --set fleet.ratio=110`
    """
    check_flower()
    from offbeat.experiment.tables import merge, parse_changes
    from offbeat.flower.virtual.app import read_app
    from offbeat.flower.virtual.run import simulate as simulate_app
    from offbeat.flower.virtual.script import Script
    from offbeat.flower.virtual.settings import AppSettings

    found = None if app.suffix == ".py" else read_app(app, run_config or ())
    if found is None and (nodes is not None or run_config):
        raise InvalidInput(f"{app} is a script: it sets the number of nodes itself and has no run config")
    if found is not None and arguments:
        raise InvalidInput(f"{app} is not a script, so it takes no arguments: {' '.join(arguments)}")
    given: dict[str, Any] = {"nodes": nodes or (found and found.nodes) or 10, "label": label}
    given |= {"fleet": {"name": fleet}} if fleet is not None else {}
    limits = {"time": stop_time, "messages": max_messages}
    given["stop"] = {key: value for key, value in limits.items() if value is not None}
    settings = AppSettings.parse(merge(given, parse_changes(changes or ())))
    overrides = {} if found is None else found.overrides
    parts = [*([fleet] if fleet else []), *(f"{key}{value}" for key, value in sorted(overrides.items()))]
    name = f"{app.stem if found is None else found.name}-seed{settings.seed}"
    root = out or Path("runs") / f"{name}{joined(parts)}{suffix(changes, but=('seed',))}"
    if found is not None:
        _present(simulate_app(found, settings, root, overwrite=overwrite), root)
        return
    for result in Script(app, settings, root, overwrite=overwrite).run(arguments or ()):
        _present(result, result.directory or root)


def _present(result: "Result", root: Path) -> None:
    """Draw the figures of a finished run, print its summary and list the files."""
    from offbeat.results.plots import draw_figures

    draw_figures(result)
    print_summary(f"{result.algorithm}, seed {result.seed}", result.summary)
    console.print(f"Results in {root}: {', '.join(sorted(path.name for path in root.iterdir()))}", soft_wrap=True)
