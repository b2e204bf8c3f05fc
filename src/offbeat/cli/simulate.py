"""The command that runs a Flower app on a virtual clock: simulate."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.base import Changes, Out, Overwrite, console, joined, print_summary, suffix
from offbeat.cli.deployment import check_flower

if TYPE_CHECKING:
    from offbeat.flower_simulation.app import FlowerApp
    from offbeat.results.result import Result


def simulate(
    app: Annotated[Path, typer.Argument(help="The directory of a Flower app, with its pyproject.toml.")],
    fleet: Annotated[
        str | None, typer.Option(help="How fast the devices are (`offbeat list fleets`; default: ratio).")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Devices (default: what the app's own federation has, or 10).")
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option("--run-config", help="Override the app's config, as `flwr run` takes it; may be repeated."),
    ] = None,
    changes: Changes = None,
    stop_time: Annotated[float | None, typer.Option(help="End the app after so many virtual seconds.")] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="End the app after so many messages.")] = None,
    label: Annotated[str, typer.Option(help="What tables call the run (default: its strategy).")] = "",
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Run a Flower app, as it is, on a virtual clock over an uneven fleet.

    Its ServerApp and ClientApp are loaded as `flwr run` loads them. Messages take the time that the fleet and the links
    say, devices come, go and fail (`--set availability.name=on-off`, `--set failures.vanish=0.1`), and what the app
    waits for is waited for in virtual seconds. Settings are the tables seed, fleet, network, availability, failures,
    work, stop, clients and evaluation, for instance `--set work.epochs=5`.

    Results go to `runs/NAME-seedN`, with what was given added, unless `--out` says otherwise; `offbeat report` compares
    them.
    """
    check_flower()
    from offbeat.flower_simulation.app import read_app
    from offbeat.flower_simulation.run import simulate as simulate_app
    from offbeat.flower_simulation.settings import AppSettings
    from offbeat.settings.tables import merge, parse_changes

    found = read_app(app, run_config or ())
    given: dict[str, Any] = {"nodes": nodes or found.nodes or 10, "label": label}
    given |= {"fleet": {"name": fleet}} if fleet is not None else {}
    limits = {"time": stop_time, "messages": max_messages}
    given["stop"] = {key: value for key, value in limits.items() if value is not None}
    settings = AppSettings.parse(merge(given, parse_changes(changes or ())))
    root = out or Path("runs") / _name(found, settings.seed, fleet, run_config or (), changes)
    result = simulate_app(found, settings, root, overwrite=overwrite)
    _present(result, root)


def _name(
    app: "FlowerApp", seed: int, fleet: str | None, run_config: Sequence[str], changes: Sequence[str] | None
) -> str:
    """What the directory of a run is called, unless the user says otherwise."""
    overrides = [f"{key}{value}" for key, value in sorted(app.overrides.items())]
    parts = [*([fleet] if fleet else []), *overrides]
    return f"{app.name}-seed{seed}{joined(parts)}{suffix(changes, but=('seed',))}"


def _present(result: "Result", root: Path) -> None:
    """Draw the figures of a run that has ended, print its summary, and say where everything is."""
    from offbeat.results.plots import devices_figure, run_figure, save
    from offbeat.running.directory import read_devices

    title = f"{result.algorithm}, seed {result.seed}"
    save(run_figure(result.rows, title), root / "metrics.png")
    if devices := read_devices(root):
        save(devices_figure(devices, title), root / "devices.png")
    print_summary(title, result.summary)
    console.print(f"Results in {root}: {', '.join(sorted(path.name for path in root.iterdir()))}", soft_wrap=True)
