"""Commands that look at runs and data: runs, report, serve, partition, replay."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Column, Table
from rich.text import Text

from offbeat.cli.base import (
    Changes,
    ExperimentFile,
    FigureOut,
    OverwriteFile,
    TableFormat,
    Target,
    Verbose,
    beside,
    check_format,
    check_new_file,
    console,
    load,
    print_table,
)
from offbeat.cli.live_view import live_server
from offbeat.cli.next_commands import experiment_words, next_step
from offbeat.cli.progress import bars, messages
from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from offbeat.results.index import Entry


def runs(
    directory: Annotated[
        Path | None, typer.Argument(help="Results directory (default: `runs`, or this directory if there is none).")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also list the runs of comparisons and searches.")] = False,
    form: TableFormat = None,
) -> None:
    """List the runs, comparisons and searches under a directory with their state.

    States: running (a process writes to it now), finished, interrupted (continue with `--resume`) and failed. A target
    is the best of `evaluation.targets` that the run has reached, with the time to it.
    """
    from offbeat.results.index import RunEntry, read_index

    check_format(form)
    root = directory or (Path("runs") if Path("runs").is_dir() else Path())
    if not root.is_dir():
        raise InvalidInput(f"{root} is not a directory")
    entries = read_index(root)
    if not entries:
        console.print(f"No runs in {root.resolve()}. Start one: offbeat run demo", soft_wrap=True, highlight=False)
        return
    table = Table(
        *(Column(name, overflow="fold") for name in ("directory", "state", "algorithm", "time", "metric", "target")),
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False,
    )  # fmt: skip
    for entry in entries:
        table.add_row(*(Text(cell) for cell in _entry_cells(entry, root)))
        for each in entry.runs if every and not isinstance(entry, RunEntry) else ():
            table.add_row(*(Text(cell) for cell in _entry_cells(each, root)))
    print_table(table, form=form)
    next_step("runs", form, root=entries[0].path)


def _entry_cells(entry: "Entry", root: Path) -> list[str]:
    """A line of the list of runs."""
    from offbeat.results.index import RunEntry
    from offbeat.results.metric import duration

    place = str(entry.path.relative_to(root)) if entry.path != root else "."
    if not isinstance(entry, RunEntry):
        done = sum(run.state == "finished" for run in entry.runs)
        told = ", ".join(entry.algorithms[:5]) + (
            f" and {len(entry.algorithms) - 5} more" if entry.algorithms[5:] else ""
        )
        what = f"{entry.kind} of {told}: {done} of {len(entry.runs)} runs finished"
        return [place, entry.state, what if entry.runs else f"{entry.kind}, no run yet", "", "", ""]
    state = (
        entry.state if entry.state == "finished" or entry.progress is None else f"{entry.state}, {entry.progress:.0%}"
    )
    if entry.stopped_by.startswith("diverged"):
        state += ", diverged"
    value = "" if entry.value is None else entry.metric.text(entry.value, 1)
    target = "-" if entry.target is None else f"{entry.metric.text(entry.target[0])}: {duration(entry.target[1])}"
    name = f"{entry.algorithm}, seed {entry.seed}" if entry.seed is not None else entry.algorithm
    clock = " (real)" if entry.real else ""
    return [place, state, name, duration(entry.time) + clock, value, target]


def report(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIRECTORY...", help="Directories of runs, finished or not, or of comparisons."),
    ],
    out: Annotated[Path, typer.Option(help="HTML page to write.")] = Path("report.html"),
    target: Target = None,
    overwrite: OverwriteFile = False,
    form: TableFormat = None,
    verbose: Verbose = False,
) -> None:
    """Write one self-contained HTML page to explore runs: curves, time to target, what every device did.

    The page needs no network. Curves have seed bands, six x axes, zoom and log scales; below them are the fleet strip,
    staleness, who is heard, where time went, faults, devices and data, and the settings to run it again. Simulated and
    real runs can be mixed. Runs of the same algorithm are labelled by the settings in which they differ.
    """
    from offbeat.comparison.gathered import check_page, comparison_of, gather, unlike
    from offbeat.results.files import replace_file
    from offbeat.results.report import report_html

    check_page(out)
    check_format(form)
    check_new_file(out, overwrite)
    problems: list[str] = []
    runs = gather(directories, problems)
    comparison = comparison_of(runs, target)
    problems += unlike(comparison)
    replace_file(out, report_html(comparison, [each.config for each in runs], out.stem, problems).encode())
    print_table(comparison.rich_table(verbose=verbose), form=form)
    for problem in problems:
        messages.print(f"offbeat: note: {problem}", soft_wrap=True, highlight=False, markup=False)
    beside(form).print(f"Report in {out}", soft_wrap=True, highlight=False)
    next_step("report", form, page=out)


def serve(
    directory: Annotated[
        Path | None, typer.Argument(help="Results directory (default: `runs`, or this directory if there is none).")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Any other than loopback gets a token, which the URL contains.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 chooses a free one.")] = 8765,
    no_open: Annotated[bool, typer.Option("--no-open", help="Open no browser.")] = False,
    fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Show all runs under a directory live in the browser: the page of `offbeat report`, updated while they run.

    Lists runs, comparisons and searches, running ones first. A run's page has its state, time left, target and resume
    command, alarms in words, and orders in flight. Reads files only, so it also shows real deployments and runs on a
    shared file system, and it can be stopped and started at any time. Needs `pip install 'offbeat[serve]'`.

    Example: `offbeat serve runs`
    """
    import socket

    root = directory or (Path("runs") if Path("runs").is_dir() else Path())
    if fd is None and not root.is_dir():
        raise InvalidInput(f"{root} is not a directory")
    live = live_server()
    where = socket.socket(fileno=fd) if fd is not None else live.listen(host, port)
    token = None if fd is not None else live.token_for(host)
    if fd is None:
        url = live.address(where, host, token)
        console.print(f"Live view of {root} at {url} (Ctrl-C ends it)", soft_wrap=True, highlight=False)
        if not no_open and console.is_terminal:
            import webbrowser

            webbrowser.open(url)
    live.serve(root, where, token, parent)


def partition(
    file: ExperimentFile,
    changes: Changes = None,
    out: FigureOut = Path("partition.png"),
    overwrite: OverwriteFile = False,
    form: TableFormat = None,
) -> None:
    """Show how the data are split over the devices: label counts, sizes and how non-IID they are.

    Prints the sizes, the mean total-variation distance between a device's label distribution and the global one (0 is
    IID) and the mean effective number of classes (exponential of the entropy). Draws a figure. Nothing is trained.
    """
    from offbeat.data.heterogeneity import NUMBERS, ROWS, TOKENS, label_counts
    from offbeat.results.partition_figure import partition_figure
    from offbeat.results.plots import check_figure_path, save

    check_figure_path(out)
    check_format(form)
    check_new_file(out, overwrite)
    experiment = load(file, changes)
    with messages.status("loading the data"):
        dataset, divided = experiment.load_data()
        counted = label_counts(dataset, divided)
    division = "as the data come" if dataset.devices is not None else experiment.partition.resolved()["name"]
    title = f"{experiment.data.name}, {division}, {divided.devices:,} devices, seed {experiment.seed}"
    what = "token" if counted.remark == TOKENS else "decile" if counted.remark in (NUMBERS, ROWS) else "label"
    save(partition_figure(counted.counts, counted.sizes, counted.names, title, what), out)
    table = Table("of the data", "value", title=title, show_header=False)
    for key, value in counted.summary().items():
        table.add_row(key, f"{value:,}" if isinstance(value, int) else f"{value:,.4g}")
    print_table(table, form=form)
    if counted.remark:
        beside(form).print(counted.remark, highlight=False)
    beside(form).print(f"Figure in {out}", soft_wrap=True, highlight=False)
    next_step("partition", form, file=experiment_words(file, changes))


def replay(directory: Annotated[Path, typer.Argument(help="Directory of a real run, with its record.jsonl.")]) -> None:
    """Replay a real run in the simulator from its record, and check every order and version bit for bit.

    Exit code 1 and the first difference if there is one. The data must be on this machine, so a run on devices' private
    data cannot be replayed. Bit-exact results need the same library versions and the same kind of processor.
    """
    from offbeat.simulation.replay import replay as replay_run

    with bars() as shown:
        bar = shown.add_task("replay", total=1.0, note="")
        said = replay_run(directory, lambda fraction: shown.update(bar, completed=fraction)).summary
    console.print(
        f"{said['replayed_orders']} orders and {said['replayed_versions']} versions match the record bit for bit."
    )
    if said["replayed_model"]:
        console.print("The final parameters match model.safetensors.")
    else:
        console.print("Final parameters not compared: the run has no model.safetensors.")
    next_step("replay", root=directory)
