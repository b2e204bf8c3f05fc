"""What the commands share: options, the console, loading an experiment."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # what needs torch is imported when a command runs, so that --help is quick
    from offbeat.results.rows import Row
    from offbeat.settings.schema import Experiment

console = Console()

ExperimentFile = Annotated[
    Path,
    typer.Argument(help="An experiment file (TOML), or the name of one that is shipped.", metavar="EXPERIMENT.toml"),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting, for instance `--set fleet.ratio=110`; may be repeated."),
]
Out = Annotated[Path | None, typer.Option(help="Directory for the results. Never overwritten unasked.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run that is in the directory.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the directory, from its checkpoint.")]
Seeds = Annotated[int, typer.Option(min=1, help="How many seeds, counted from the experiment's.")]
Target = Annotated[
    float | None, typer.Option(min=0, max=1, help="Accuracy to reach (default: the highest that all of them reach).")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at a time (default: one per core).")]


def load(file: Path, changes: Iterable[str] | None) -> "Experiment":
    from offbeat.settings.shipped import experiment_from

    sys.path.insert(1, str(file.resolve().parent))
    experiment = experiment_from(file, changes or ())
    for note in experiment.notes:
        print(f"offbeat: note: {note}", file=sys.stderr)
    return experiment


def run_name(file: Path, experiment: "Experiment") -> str:
    """What the directory of a run is called, unless the user says otherwise."""
    return f"{file.stem}-{experiment.algorithm.name.replace(':', '.')}-seed{experiment.seed}"


def present(experiment: "Experiment", rows: "Sequence[Row]", summary: Mapping[str, Any], root: Path) -> None:
    """Draw the figures of a run that has ended, print its summary, and say where everything is."""
    from offbeat.running.figures import draw_figures

    real = draw_figures(experiment, rows, root)
    table = Table("", "", title=f"{experiment.algorithm.name}, seed {experiment.seed}", show_header=False)
    for key, value in summary.items():
        if isinstance(value, dict):
            value = ", ".join(f"{target}: {time:.4g} s" for target, time in value.items() if time is not None)
        table.add_row(key, f"{value:.6g}" if isinstance(value, float) else str(value))
    console.print(table)
    also = ", devices.csv, devices.png, record.jsonl" if real else ""
    console.print(
        f"Results in {root}: summary.json, metrics.jsonl, metrics.png, timeline.json, model.safetensors{also}"
    )


def free_cores(experiment: "Experiment") -> int:
    """How many runs at a time keep the cores busy."""
    return max(1, (os.cpu_count() or 1) // experiment.execution.workers)
