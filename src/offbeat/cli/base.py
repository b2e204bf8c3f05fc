"""What the commands share: options, the console, loading an experiment."""

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # what needs torch is imported when a command runs, so that --help is quick
    from offbeat.experiment.schema import Experiment
    from offbeat.results.rows import Row

console = Console()
LONGEST = 80
"""Signs of what was set in the name of a directory."""

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
    float | None,
    typer.Option(
        help="Accuracy, or value of the target metric, whose time is compared, on straight lines between evaluations "
        "(default: the best of `evaluation.targets` that all runs reach, or the highest whole percent, or of a metric "
        "that is no share the best number of two digits).",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Compute on a Ray cluster: `auto` for the one that this machine is part of, HOST:PORT, ray://HOST:PORT, "
        "or `local` for one of this machine's cores (sets `execution.executor` and `execution.address`).",
    ),
]
Jobs = Annotated[
    int | None, typer.Option(min=1, help="Runs at a time (default: as many as fill the cores with their workers).")
]


def load(file: Path, changes: Iterable[str] | None) -> "Experiment":
    """The experiment of a file with its changes. Python files beside it can be imported; notes go to standard error."""
    from offbeat.experiment.shipped import experiment_from

    sys.path.insert(1, str(file.resolve().parent))
    experiment = experiment_from(file, changes or ())
    for note in experiment.notes:
        print(f"offbeat: note: {note}", file=sys.stderr)
    return experiment


def on_cluster(experiment: "Experiment", address: str | None) -> "Experiment":
    """The experiment, computed on the Ray cluster at this address if one is given."""
    return experiment if address is None else experiment.changed(experiment.execution.on_cluster(address))


def run_name(file: Path, experiment: "Experiment", changes: Iterable[str] | None = None) -> str:
    """What the directory of a run is called, unless the user says otherwise."""
    name = f"{file.stem}-{experiment.algorithm.name.replace(':', '.')}-seed{experiment.seed}"
    return name + suffix(changes, but=("algorithm.name", "seed"))


def suffix(changes: Iterable[str] | None, but: Iterable[str] = ()) -> str:
    """What was set on the command line, as the end of a directory's name; who computes makes no difference.

    >>> suffix(["fleet.ratio=110", "execution.workers=2", "algorithm.name=fedavg"], but=["algorithm.name"])
    '-ratio110'
    """
    parts = []
    for change in sorted(changes or ()):
        path, _, value = (part.strip() for part in change.partition("="))
        if path not in but and not path.startswith("execution."):
            parts.append(path.rpartition(".")[2] + value)
    return joined(parts)


def joined(parts: Sequence[str]) -> str:
    """Parts of a directory's name, in signs that every file system takes; many of them are cut short.

    >>> joined(["fedavg", "fed buff"])
    '-fedavg-fed_buff'
    """
    text = "".join("-" + re.sub(r"[^\w.,²-]+", "_", part) for part in parts)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def present(experiment: "Experiment", rows: "Sequence[Row]", summary: Mapping[str, Any], root: Path) -> None:
    """Draw the figures of a run that has ended, print its summary, and say where everything is."""
    from offbeat.results.figures import draw_figures

    real = draw_figures(experiment, rows, root)
    print_summary(f"{experiment.algorithm.name}, seed {experiment.seed}", summary)
    names = ["summary.json", "metrics.jsonl", "metrics.png", "timeline.json", "model.safetensors"]
    names += ["devices.csv", "devices.png"] if (root / "devices.csv").is_file() else []
    names += ["record.jsonl"] if real else []
    console.print(f"Results in {root}: {', '.join(names)}")


def print_summary(title: str, summary: Mapping[str, Any]) -> None:
    """Print what a run comes down to."""
    table = Table("", "", title=title, show_header=False)
    for key, value in summary.items():
        if isinstance(value, dict):
            value = ", ".join(f"{target}: {time:.4g} s" for target, time in value.items() if time is not None)
        table.add_row(key, f"{value:.6g}" if isinstance(value, float) else str(value))
    console.print(table)
