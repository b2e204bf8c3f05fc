"""Commands that look ahead or repeat a paper: pretrain, advise, plan, study."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from offbeat.cli.base import Changes, ExperimentFile, Seeds, console, load
from offbeat.cli.progress import bars, messages
from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    pass


def pretrain(file: ExperimentFile, changes: Changes = None) -> None:
    """Measure what FedASMU's slots are worth, as a history to pre-train its meta model on.

    Runs the experiment with devices that ask at random times and prints the line to add to its `[algorithm]` table. Use
    another seed than the one you want to report, for instance `--set seed=100`.
    """
    from offbeat.comparison.slots import measure_slots

    experiment = load(file, changes)
    with bars() as shown:
        bar = shown.add_task("random slots", total=1.0, note="")
        records = measure_slots(experiment, lambda fraction, _: shown.update(bar, completed=fraction))
    table = Table("ask before epoch", "merges", "mean reward (fall of the loss)")
    for record in records:
        table.add_row(str(record.slot), str(record.merges), f"{record.reward:.4g}")
    console.print(table)
    console.print(f"history = [{', '.join(f'{record.reward:.4g}' for record in records)}]", highlight=False)


def advise(
    file: ExperimentFile,
    simulate: Annotated[bool, typer.Option("--simulate", help="Also run both, and compare with the theory.")] = False,
    seeds: Seeds = 3,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations that the bounds and the simulation are for.")] = 50,
    iteration: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds of an iteration (default: the file's, or the median time of an order)."),
    ] = None,
    changes: Changes = None,
) -> None:
    """AUDG or PSURDG? What the theory of delayed gradients says for an experiment's fleet, model and data.

    Estimates delays and constants and prints the sign of Theta; with `--simulate` a short simulation stands beside it.
    """
    from offbeat.comparison.delayed_gradients.advice import advise as advise_on
    from offbeat.comparison.delayed_gradients.advice import rendered

    experiment = load(file, changes)
    chosen = list(range(experiment.seed, experiment.seed + seeds))
    with bars() as shown:
        bar = shown.add_task("advise", total=1.0, note="")
        advice = advise_on(
            experiment,
            iteration_seconds=iteration,
            iterations=iterations,
            simulate=simulate,
            seeds=chosen,
            watch=lambda done: shown.update(bar, completed=done),
        )
    console.print(rendered(advice))


def plan(
    file: ExperimentFile,
    algorithm: Annotated[
        str | None, typer.Option(help="One of those that the file compares (default: its [algorithm]).")
    ] = None,
    estimate: Annotated[
        int | None, typer.Option(min=2, help="Measure sigma² and G² from so many gradients of each device (adel).")
    ] = None,
    changes: Changes = None,
    out: Annotated[Path, typer.Option(help="The figure to write: PNG, SVG or PDF, by its suffix.")] = Path("plan.png"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the figure if it exists.")] = False,
) -> None:
    """Show what a deadline algorithm plans before anything is trained: deadlines, batch sizes, expected depth.

    For `adel`, `salf`, `drop-stragglers` and `heterofl`. Prints a table and draws a figure. Too little time for the
    rounds is answered with the least that would do.
    """
    from offbeat.comparison.deadline_plan import gradient_constants, plan_of
    from offbeat.results.plots import check_figure_path, save

    check_figure_path(out)
    if out.exists() and not overwrite:
        raise InvalidInput(f"{out} exists: use --overwrite to replace it, or choose another --out")
    experiment = load(file, changes)
    if algorithm is not None:
        experiment = experiment.for_algorithm(algorithm, experiment.seed)
    if estimate is not None:
        with messages.status("measuring gradients"):
            measured = gradient_constants(experiment, estimate)
        if measured is None or experiment.algorithm.name != "adel":
            raise InvalidInput("--estimate: it needs algorithm adel, and devices that hold at least two samples")
        constants = {"gradient_variance": measured.gradient_variance, "gradient_bound": measured.gradient_bound}
        experiment = experiment.changed({"algorithm": {"name": experiment.algorithm.name} | constants})
        console.print("Measured: " + ", ".join(f"{key} = {value:.4g}" for key, value in constants.items()))
    with messages.status("planning"):
        planned = plan_of(experiment)
    save(planned.figure(), out)
    console.print(planned.table())
    if planned.scale is not None:
        console.print(f"Batch scale m = {planned.scale:.5g}")
    for remark in planned.remarks:
        console.print(remark)
    console.print(f"Figure in {out}")
