"""Shared by all commands: options, the console, loading an experiment, naming and printing results."""

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:  # modules that need torch are imported when a command runs, to keep --help fast
    from offbeat.experiment.schema import Experiment
    from offbeat.results.rows import Row

console = Console(markup=False, emoji=False, highlight=False)
"""Standard output; a name such as `[bold]` or `mod:Zero:` is printed as it is."""
if not console.is_terminal:
    console.width = max(console.width, 240)  # a pipe or a file has no width: nothing is cut
LONGEST = 80
"""Longest part of a directory's name that is made from overrides, in characters."""

ExperimentFile = Annotated[
    Path,
    typer.Argument(
        help="An experiment file (TOML), or the name of a shipped experiment (`offbeat list experiments`).",
        metavar="EXPERIMENT.toml",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. `--set fleet.ratio=110`. Repeatable."),
]
Algorithms = Annotated[
    str | None,
    typer.Option(help="Comma-separated names, e.g. fedavg,fedbuff (default: those the file compares)."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Output directory (default: in `runs`, named after the experiment and its overrides)."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in the output directory.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in the output directory.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds, counting up from the experiment's `seed`.")]
Target = Annotated[
    float | None,
    typer.Option(
        help="Compare the time to this value of the main metric, e.g. 0.9 for 90 % accuracy, linearly interpolated "
        "between evaluations. Default: the best value that as many algorithms as possible reach in all seeds, at least "
        "half-way from the untrained model to the best result.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Compute on a Ray cluster: `auto` (the cluster this machine belongs to), HOST:PORT, ray://HOST:PORT, or "
        "`local` (this machine's cores). Sets `execution.executor` and `execution.address`.",
    ),
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs in parallel (default: as many as keep all cores busy).")]
FigureOut = Annotated[Path, typer.Option(help="Figure to write: .png, .svg or .pdf.")]
OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")]


TableFormat = Annotated[
    str | None,
    typer.Option("--format", metavar="FORMAT", help="Print the table as `markdown`, `latex` or `csv`, for papers."),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print all notes below the table; reports always have them.")]


def print_table(*tables: Table, form: str | None = None) -> None:
    """Print tables for the terminal, or in a format for papers, with an empty line between two of them."""
    if form is None:
        for table in tables:
            console.print(table)
        return
    from offbeat.results.tables import table_text

    print("\n".join(table_text(table, form) for table in tables), end="")


def beside(form: str | None) -> Console:
    """Where text beside a table goes: standard error if the table is for a paper, which then is all of the output."""
    from offbeat.cli.progress import messages

    return console if form is None else messages


def check_format(form: str | None) -> None:
    """Raise InvalidInput before anything is computed if a table cannot be printed in this format."""
    if form not in (None, "markdown", "latex", "csv"):
        raise InvalidInput(f"--format {form}: must be markdown, latex or csv")


def load(file: Path, changes: Iterable[str] | None, *, alone: bool = False) -> "Experiment":
    """Load an experiment file with overrides, make modules beside it importable and print its notes to stderr.

    `alone`: overrides need not suit the algorithms in `[compare]`.
    """
    from offbeat.experiment.shipped import experiment_from

    sys.path.append(str(file.resolve().parent))
    experiment = experiment_from(file, changes or (), alone=alone)
    for note in experiment.notes:
        print(f"offbeat: note: {note}", file=sys.stderr)
    return experiment


def on_cluster(experiment: "Experiment", address: str | None) -> "Experiment":
    """Return the experiment, set to run on the Ray cluster at this address if one is given."""
    return experiment if address is None else experiment.changed(experiment.execution.on_cluster(address))


def run_name(file: Path, experiment: "Experiment", changes: Iterable[str] | None = None) -> str:
    """Return the default name of a run's directory."""
    name = f"{file.stem}-{experiment.algorithm.name.replace(':', '.')}-seed{experiment.seed}"
    return name + suffix(changes, but=("algorithm.name", "seed"))


def output(
    out: Path | None, default: Path, *, resume: bool, overwrite: bool = False, shorter: Path | None = None
) -> Path:
    """Return the output directory, which must exist if a run is resumed.

    `shorter` is the default without overrides of `[stop]`, the name of a run whose end is now raised.
    """
    if resume and overwrite:
        raise InvalidInput("--resume and --overwrite exclude each other: continue the run, or replace it")
    root = out or default
    if resume and out is None and shorter is not None and not root.exists():
        root = shorter
    if resume and not root.exists():
        raise InvalidInput(f"--resume: {root} does not exist, nothing to continue (`offbeat runs` lists what there is)")
    return root


def without_stop(changes: Iterable[str] | None) -> list[str]:
    """The overrides without those of `[stop]`, which name a longer run of the same experiment."""
    return [change for change in changes or () if not change.strip().startswith("stop.")]


def suffix(changes: Iterable[str] | None, but: Iterable[str] = ()) -> str:
    """Turn overrides into the end of a directory's name. `execution` settings are left out: they change no result.

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
    """Join parts of a directory's name with characters that every file system accepts; shorten long names by a hash.

    >>> joined(["fedavg", "fed buff"])
    '-fedavg-fed_buff'
    """
    text = "".join("-" + re.sub(r"[^\w.,²-]+", "_", part) for part in parts)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def present(
    experiment: "Experiment",
    rows: "Sequence[Row]",
    summary: Mapping[str, Any],
    root: Path,
    form: str | None = None,
) -> None:
    """Draw the figures of a finished run, print its summary and list the files.

    A run with a problem, such as one without any version, ends the command with exit code 1.
    """
    from offbeat.cli.progress import messages
    from offbeat.results.plots import draw_figures
    from offbeat.results.result import Result

    result = Result(rows=list(rows), summary=dict(summary), experiment=experiment, directory=root)
    draw_figures(result)
    print_summary(f"{experiment.algorithm.name}, seed {experiment.seed}", summary, form)
    names = ["summary.json", "metrics.jsonl", "metrics.png", "timeline.json", "model.safetensors"]
    names += ["devices.csv", "devices.png"] if (root / "devices.csv").is_file() else []
    names += ["record.jsonl"] if (root / "record.jsonl").is_file() else []
    beside(form).print(f"Results in {root}: {', '.join(names)}", soft_wrap=True, highlight=False)
    if "problem" in summary:
        messages.print(f"offbeat: {summary['problem']}", style="red", soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(1)


def print_summary(title: str, summary: Mapping[str, Any], form: str | None = None) -> None:
    """Print the summary of a run as a table."""
    from offbeat.results.metric import duration

    table = Table(Column("of the run", overflow="fold"), Column("value", overflow="fold"), title=Text(title))
    flat = {key: value for key, value in summary.items() if key not in ("per_device", "per_group", "privacy")}
    flat |= {f"{key} (device)": value for key, value in summary.get("per_device", {}).items()}
    flat |= {f"{key} (privacy)": value for key, value in summary.get("privacy", {}).items() if key != "epsilon"}
    for group, values in summary.get("per_group", {}).items():
        flat |= {f"{key} ({group})": value for key, value in values.items()}
    for key, value in flat.items():
        if isinstance(value, dict):
            write = duration if key.startswith("time_to_") else str
            value = ", ".join(f"{name}: {write(each)}" for name, each in value.items() if each is not None)
        table.add_row(key, f"{value:.6g}" if isinstance(value, float) else str(value))
    print_table(table, form=form)


def check_new_file(path: Path, overwrite: bool) -> None:
    """Raise InvalidInput if a file exists that may not be replaced."""
    if path.exists() and not overwrite:
        raise InvalidInput(f"{path} exists: use --overwrite to replace it, or choose another --out")
