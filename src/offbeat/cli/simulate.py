"""The simulate command: runs a Flower app on a virtual clock."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.base import (
    Changes,
    Out,
    Overwrite,
    TableFormat,
    Target,
    Verbose,
    beside,
    check_format,
    joined,
    print_summary,
    print_table,
    suffix,
)
from offbeat.cli.next_commands import next_step
from offbeat.cli.progress import messages
from offbeat.core.errors import InvalidInput
from offbeat.flower.compat import check_flower

if TYPE_CHECKING:
    from offbeat.flower.virtual.app import FlowerApp
    from offbeat.flower.virtual.settings import AppSettings
    from offbeat.results.comparison import Comparison
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
        int | None,
        typer.Option(min=1, help="Number of devices (default: as for `flwr run`, else 10)."),
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option("--run-config", help="Override the app's run config, as in `flwr run`. Repeatable."),
    ] = None,
    federation_config: Annotated[
        list[str] | None,
        typer.Option("--federation-config", help='As in `flwr run`: "num-supernodes=50".'),
    ] = None,
    changes: Changes = None,
    stop_time: Annotated[float | None, typer.Option(help="Stop after this many virtual seconds.")] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Compare these in place of the app's strategy, e.g. fedavg,fedbuff,fedasmu. `app`: the app as it is; "
            "other names: values of `strategy` in its run config."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, counting up from `seed`.")] = 1,
    target: Target = None,
    label: Annotated[str, typer.Option(help="Name of the run in tables (default: its strategy).")] = "",
    out: Out = None,
    overwrite: Overwrite = False,
    form: TableFormat = None,
    verbose: Verbose = False,
) -> None:
    """Run an unmodified Flower app on a virtual clock over an uneven fleet.

    Loads the ServerApp and ClientApp as `flwr run` does. Training and messages take the virtual time that the fleet and
    the network imply; devices leave, return and fail (`--set availability.name=on-off`, `--set failures.vanish=0.1`).
    Settings: seed, fleet, network, availability, failures, work, stop, clients, evaluation.

    In a script that calls `run_simulation` or `start_simulation`, this simulation replaces Flower's.

    `--strategies` and `--seeds` run the app several times and compare the runs, as `offbeat compare` does. The first
    algorithm runs for the app's number of rounds, the others for the same virtual time; `--stop-time` sets it for all.

    Example: `offbeat simulate path/to/app --fleet ratio --set fleet.ratio=110 --strategies fedavg,fedbuff --seeds 3`
    """
    check_flower()
    check_format(form)
    from offbeat.experiment.tables import merge, parse_changes
    from offbeat.flower.virtual.app import CONFIG_FILE, read_app
    from offbeat.flower.virtual.run import simulate as simulate_app
    from offbeat.flower.virtual.script import Script
    from offbeat.flower.virtual.settings import AppSettings

    found = None if app.suffix == ".py" else read_app(app, run_config or (), federation_config or ())
    if found is None and (nodes is not None or run_config or federation_config):
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
    several = strategies is not None or seeds > 1
    if several:
        names = ["app"] if strategies is None else [each.strip() for each in strategies.split(",")]
        name, parts = f"{app.stem if found is None else found.name}-compare", [*names, *parts]
    root = out or Path("runs") / f"{name}{joined(parts)}{suffix(changes, but=('seed',))}"
    if several:
        if found is None:
            raise InvalidInput(f"{app} is a script: --strategies and --seeds need an app with a {CONFIG_FILE}")
        compared = _compare(found, settings, root, names, seeds, target=target, overwrite=overwrite)
        print_table(compared.rich_table(verbose=verbose), form=form)
        files = "report.html (with all notes), accuracy.png, comparison.csv and one directory per run"
        beside(form).print(f"Results in {root}: {files}", soft_wrap=True, highlight=False)
        next_step("simulate --strategies", form, root=root)
        return
    if found is not None:
        _present(simulate_app(found, settings, root, overwrite=overwrite), root, form)
    else:
        for result in Script(app, settings, root, overwrite=overwrite).run(arguments or ()):
            _present(result, result.directory or root, form)
    next_step("simulate", form, app=app, root=root)


def _compare(
    app: "FlowerApp",
    settings: "AppSettings",
    root: Path,
    names: list[str],
    seeds: int,
    *,
    target: float | None,
    overwrite: bool,
) -> "Comparison":
    """Run the app with each strategy and seed, and write the comparison as `offbeat compare` does."""
    from offbeat.comparison.compare import write_comparison
    from offbeat.comparison.gathered import comparison_of
    from offbeat.flower.virtual.run import simulate_strategies
    from offbeat.results.result import read_run

    if len(set(names)) < len(names):
        raise InvalidInput(f"--strategies {','.join(names)}: a name is given twice")

    def watch(name: str, seed: int) -> None:
        messages.print(f"{name}, seed {seed}", highlight=False)

    runs = simulate_strategies(app, settings, root, names, seeds, overwrite=overwrite, watch=watch)
    comparison = comparison_of([read_run(each.directory) for each in runs if each.directory is not None], target)
    first = {each.algorithm: each.config for each in reversed(comparison.entries)}
    write_comparison(comparison, root, list(reversed(first.values())))
    return comparison


def _present(result: "Result", root: Path, form: str | None) -> None:
    """Draw the figures of a finished run, print its summary and list the files."""
    from offbeat.results.plots import draw_figures

    draw_figures(result)
    print_summary(f"{result.algorithm}, seed {result.seed}", result.summary, form)
    names = ", ".join(sorted(path.name for path in root.iterdir()))
    beside(form).print(f"Results in {root}: {names}", soft_wrap=True, highlight=False)
