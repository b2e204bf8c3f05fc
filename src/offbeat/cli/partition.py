"""The command that shows who holds what: partition."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from offbeat.cli.base import Changes, ExperimentFile, console, load
from offbeat.cli.progress import messages
from offbeat.core.errors import InvalidInput


def partition(
    file: ExperimentFile,
    changes: Changes = None,
    out: Annotated[Path, typer.Option(help="The figure to write: PNG, SVG or PDF, by its suffix.")] = Path(
        "partition.png"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the figure if it exists.")] = False,
) -> None:
    """Show which device holds what before anything is trained: label counts, sizes, how different the devices are.

    Prints sizes, the mean total-variation distance of a device's labels to those of all devices (0: the same labels
    everywhere) and the mean effective number of classes (exp of the entropy), and draws a figure.
    """
    from offbeat.data.heterogeneity import TOKENS, label_counts
    from offbeat.results.partition_figure import partition_figure
    from offbeat.results.plots import check_figure_path, save

    check_figure_path(out)
    if out.exists() and not overwrite:
        raise InvalidInput(f"{out} exists: use --overwrite to replace it, or choose another --out")
    experiment = load(file, changes)
    with messages.status("loading the data"):
        dataset, divided = experiment.load_data()
        counted = label_counts(dataset, divided)
    division = "as the data come" if dataset.devices is not None else experiment.partition.resolved()["name"]
    title = f"{experiment.data.name}, {division}, {divided.devices:,} devices, seed {experiment.seed}"
    what = "token" if counted.remark == TOKENS else "tenth of the targets" if "tenths" in counted.remark else "label"
    save(partition_figure(counted.counts, counted.sizes, counted.names, title, what), out)
    table = Table("", "", title=title, show_header=False)
    for key, value in counted.summary().items():
        table.add_row(key, f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")
    console.print(table)
    if counted.remark:
        console.print(counted.remark)
    console.print(f"Figure in {out}")
