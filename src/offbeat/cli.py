"""The command line. It parses, shows progress and prints; the work is done by `experiment` and `contest`."""

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from offbeat.core.errors import InvalidInput, OffbeatError, unknown
from offbeat.progress import bars as _bars
from offbeat.progress import messages, watched_bars
from offbeat.progress import note as _note

if TYPE_CHECKING:  # what needs torch is imported when a command runs, so that --help is quick
    from offbeat.config import Experiment
    from offbeat.contest import Contest

app = typer.Typer(
    help="Federated learning over uneven devices: asynchronous, semi-asynchronous and deadline-driven methods on one "
    "clock. Start with `offbeat demo`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
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


@app.command()
def demo(
    out: Annotated[Path | None, typer.Option(help="Directory for the results (default: a new offbeat-demo).")] = None,
    jobs: Jobs = None,
) -> None:
    """The main job on embedded data: FedAvg, FedAsync and FedBuff on one uneven fleet.

    Trains LeNet-5 on 5,000 MNIST digits over 100 simulated devices, the slowest many times slower than the fastest,
    and prints who is how accurate when. Takes about a minute on two cores.
    """
    from offbeat.config import Experiment

    experiment = Experiment.load(_shipped()["demo"])
    root = out or _unused(Path("offbeat-demo"))
    _compare(experiment, list(experiment.compare), [0, 1, 2], root, jobs=jobs)


@app.command()
def run(
    file: ExperimentFile,
    changes: Changes = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
) -> None:
    """Run one experiment and write its metrics, timeline, final model and summary.

    Results go to `runs/NAME-ALGORITHM-seedN` unless `--out` says otherwise. Ctrl-C leaves a checkpoint; `--resume`
    goes on from it as if nothing had happened.
    """
    from offbeat.experiment import run as run_experiment
    from offbeat.results.plots import run_figure, save

    experiment = _load(file, changes)
    name = experiment.algorithm.name
    root = out or Path("runs") / f"{file.stem}-{name.replace(':', '.')}-seed{experiment.seed}"
    with _bars() as bars:
        bar = bars.add_task(name, total=1.0, note="")

        def watch(fraction: float, row: dict[str, float] | None) -> None:
            bars.update(bar, completed=fraction, **({"note": _note(row)} if row is not None else {}))

        result = run_experiment(experiment, root, overwrite=overwrite, resume=resume, watch=watch)
    save(run_figure(result.rows, f"{name} on {experiment.data.name}"), root / "metrics.png")
    table = Table("", "", title=f"{name}, seed {experiment.seed}", show_header=False)
    for key, value in result.summary.items():
        if isinstance(value, dict):
            value = ", ".join(f"{target}: {time:.4g} s" for target, time in value.items() if time is not None)
        table.add_row(key, f"{value:.6g}" if isinstance(value, float) else str(value))
    console.print(table)
    console.print(f"Results in {root}: summary.json, metrics.jsonl, metrics.png, timeline.json, model.safetensors")


@app.command()
def compare(
    file: ExperimentFile,
    algorithms: Annotated[
        str | None,
        typer.Option(help="Names with commas between, like fedavg,fedbuff (default: those the file compares)."),
    ] = None,
    seeds: Seeds = 3,
    target: Target = None,
    jobs: Jobs = None,
    changes: Changes = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
) -> None:
    """Run the same experiment under several algorithms and seeds, and compare time to accuracy.

    Prints a table; writes it as `comparison.csv`, with `accuracy.png` and a self-contained `report.html`. Settings for
    one algorithm only stand in the file as `[compare.NAME.TABLE]`, for instance `[compare.fedbuff.algorithm]`.
    """
    experiment = _load(file, changes)
    names = list(experiment.compare) if algorithms is None else [each.strip() for each in algorithms.split(",")]
    chosen = list(range(experiment.seed, experiment.seed + seeds))
    root = out or Path("runs") / f"{file.stem}-compare"
    _compare(experiment, names, chosen, root, jobs=jobs, target=target, overwrite=overwrite, resume=resume)


@app.command()
def sweep(
    file: ExperimentFile,
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting and its values, like `algorithm.buffer=1,10` (default: those of the file's [sweep])."
        ),
    ] = None,
    seeds: Seeds = 3,
    target: Target = None,
    jobs: Jobs = None,
    changes: Changes = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
) -> None:
    """Run every combination of some settings' values, and plot the time to accuracy over them.

    The last setting becomes the horizontal axis, the one before it the lines, the one before that the panels of
    `sweep.png`; `comparison.csv` has the numbers.
    """
    from offbeat.contest import sweep as sweep_settings
    from offbeat.tables import parse_values

    experiment = _load(file, changes)
    settings = experiment.sweep if not over else dict(parse_values(each) for each in over)
    chosen = list(range(experiment.seed, experiment.seed + seeds))
    root = out or Path("runs") / f"{file.stem}-sweep"
    with watched_bars() as watch:
        how = {"jobs": jobs or _free_cores(experiment), "overwrite": overwrite, "resume": resume, "watch": watch}
        comparison = sweep_settings(experiment, settings, chosen, root, target=target, **how)
    console.print(f"Rows: {' / '.join(settings)}")
    console.print(comparison.rich_table())
    console.print(f"Results in {root}: sweep.png, comparison.csv and a directory for each run")


@app.command()
def pretrain(file: ExperimentFile, changes: Changes = None) -> None:
    """Measure what FedASMU's slots are worth, as a history to pre-train its meta model on.

    Runs the experiment with devices that ask at random times and prints the line to add to its `[algorithm]` table. Use
    another seed than the one you want to report, for instance `--set seed=100`.
    """
    from offbeat.pretrain import measure_slots

    experiment = _load(file, changes)
    with _bars() as bars:
        bar = bars.add_task("random slots", total=1.0, note="")
        records = measure_slots(experiment, lambda fraction, _: bars.update(bar, completed=fraction))
    table = Table("ask before epoch", "merges", "mean reward (fall of the loss)")
    for record in records:
        table.add_row(str(record.slot), str(record.merges), f"{record.reward:.4g}")
    console.print(table)
    console.print(f"history = [{', '.join(f'{record.reward:.4g}' for record in records)}]", highlight=False)


@app.command()
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
    from offbeat.advise import advise as advise_on
    from offbeat.advise import rendered

    experiment = _load(file, changes)
    chosen = list(range(experiment.seed, experiment.seed + seeds))
    with _bars() as bars:
        bar = bars.add_task("advise", total=1.0, note="")
        advice = advise_on(
            experiment,
            iteration_seconds=iteration,
            iterations=iterations,
            simulate=simulate,
            seeds=chosen,
            watch=lambda done: bars.update(bar, completed=done),
        )
    console.print(rendered(advice))


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="delays: SFL, AUDG and PSURDG from IID to very uneven data.")],
    quick: Annotated[bool, typer.Option("--quick", help="Embedded data, few samples and runs.")] = False,
    mnist: Annotated[
        Path | None, typer.Option("--dir", help="Directory with MNIST's files, for the full form.")
    ] = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Monte-Carlo runs (default: 10, quick 3).")] = None,
    jobs: Jobs = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
) -> None:
    """Repeat a paper's study, and print its tables beside the paper's numbers.

    The quick form takes minutes on two cores. The full form takes days; Ctrl-C stops it, `--resume` goes on.
    """
    from offbeat.studies.delays import study as study_delays

    if name != "delays":
        raise unknown("study", name, ["delays"])
    if quick == (mnist is not None):
        raise InvalidInput("give either --quick, or --dir with the directory that holds MNIST's files")
    root = out or Path("runs") / f"study-{name}{'-quick' if quick else ''}"
    with _bars() as bars:
        bar, done = bars.add_task("runs", total=None, note=""), dict[str, float]()

        def watch(contest: "Contest", fraction: float, row: dict[str, float] | None) -> None:
            done[contest.label] = fraction
            bars.update(bar, completed=sum(done.values()), note=contest.experiment.algorithm.title)

        how = {"jobs": jobs or os.cpu_count() or 1, "overwrite": overwrite, "resume": resume, "watch": watch}
        found = study_delays(root, mnist=mnist, runs=runs, begun=lambda n: bars.update(bar, total=n), **how)
    for table in found.tables:
        console.print(table.rich_table())
    for line in (found.verdict, *found.notes):
        console.print(line)
    console.print(f"Results in {root}: tables.md, tables.csv, delays.png and a directory for each run")


@app.command()
def plan(
    file: ExperimentFile,
    algorithm: Annotated[
        str | None, typer.Option(help="One of those that the file compares (default: its [algorithm]).")
    ] = None,
    estimate: Annotated[
        int | None, typer.Option(min=2, help="Measure sigma² and G² from so many gradients of each device (adel).")
    ] = None,
    changes: Changes = None,
    out: Annotated[Path, typer.Option(help="The figure to write.")] = Path("plan.png"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the figure if it exists.")] = False,
) -> None:
    """Show what a deadline algorithm plans before anything is trained: deadlines, batch sizes, expected depth.

    For `adel`, `salf`, `drop-stragglers` and `heterofl`. Prints a table and draws a figure. Too little time for the
    rounds is answered with the least that would do.
    """
    from offbeat.plan import gradient_constants, plan_of
    from offbeat.results.plots import save

    if out.exists() and not overwrite:
        raise InvalidInput(f"{out} exists: use --overwrite to replace it, or choose another --out")
    experiment = _load(file, changes)
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
    console.print(f"Figure in {out}")


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(help="Finished run directories, of any experiments.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    target: Annotated[float | None, typer.Option(min=0, max=1, help="Accuracy to reach.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page if it exists.")] = False,
) -> None:
    """Make one self-contained HTML page from finished runs."""
    from offbeat.results.comparison import Comparison
    from offbeat.results.directory import read_finished
    from offbeat.results.files import replace_file
    from offbeat.results.report import report_html

    if out.exists() and not overwrite:
        raise InvalidInput(f"{out} exists: use --overwrite to replace it, or choose another --out")
    runs = [read_finished(path) for path in directories]
    comparison = Comparison([each.entry for each in runs], target)
    replace_file(out, report_html(comparison, [each.config for each in runs], out.stem).encode())
    console.print(comparison.rich_table())
    console.print(f"Report in {out}")


@app.command(name="list")
def list_(
    what: Annotated[str, typer.Argument(help="algorithms, fleets, datasets, partitions, models or experiments.")],
) -> None:
    """List what there is, with a line of help each."""
    registries = _registries()
    if what not in registries:
        raise unknown("list", what, registries)
    table = Table("name", "what it is", title=what)
    for name, thing in registries[what].items():
        table.add_row(name, _first_line(thing))
    console.print(table)


@app.command()
def describe(
    name: Annotated[str, typer.Argument(help="A name from `offbeat list`, or a table of the file such as stop.")],
) -> None:
    """Show the settings of a thing, with ranges and defaults, and where it comes from."""
    from offbeat.config import Experiment
    from offbeat.core.settings import Settings
    from offbeat.results.describe import description

    things = {key: thing for registry in _registries().values() for key, thing in registry.items()}
    tables: dict[str, Any] = {key: field.annotation for key, field in Experiment.model_fields.items()}
    tables = {key: kind for key, kind in tables.items() if isinstance(kind, type) and issubclass(kind, Settings)}
    known = tables | things
    if name not in known:
        raise unknown("name", name, known)
    console.print(description(name, known[name]))


def main() -> None:
    """Run the command line; every error that we raise on purpose is one sentence and no traceback."""
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules, "module:function"
    try:
        app()
    except OffbeatError as error:
        messages.print(f"[bold red]offbeat:[/] {_escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(_exit_code(error))
    except OSError as error:  # a directory that cannot be written, a full disk
        messages.print(f"[bold red]offbeat:[/] {_escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


def _exit_code(error: OffbeatError) -> int:
    from offbeat.experiment import Interrupted

    if isinstance(error, Interrupted):
        return 130
    return 2 if isinstance(error, InvalidInput) else 1


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def _load(file: Path, changes: Iterable[str] | None) -> "Experiment":
    from offbeat.config import Experiment

    sys.path.insert(1, str(file.resolve().parent))
    shipped = _shipped()
    if not file.exists() and file.stem in shipped:
        file = shipped[file.stem]
    return Experiment.load(file, changes or ())


def _shipped() -> dict[str, Path]:
    """The experiment files that come with the package, by name."""
    folder = Path(str(resources.files("offbeat"))) / "experiments"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _compare(
    experiment: "Experiment",
    names: Sequence[str],
    seeds: Sequence[int],
    root: Path,
    *,
    jobs: int | None,
    target: float | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> None:
    from offbeat.contest import compare as compare_experiments

    with watched_bars() as watch:
        comparison = compare_experiments(
            experiment,
            names,
            seeds,
            root,
            jobs=jobs or _free_cores(experiment),
            target=target,
            overwrite=overwrite,
            resume=resume,
            watch=watch,
        )
    console.print(comparison.rich_table())
    console.print(f"Results in {root}: report.html, accuracy.png, comparison.csv and a directory for each run")


def _free_cores(experiment: "Experiment") -> int:
    """How many runs at a time keep the cores busy."""
    return max(1, (os.cpu_count() or 1) // experiment.execution.workers)


def _unused(path: Path) -> Path:
    """This path, or the first of path-2, path-3 ... that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _registries() -> dict[str, dict[str, Any]]:
    from offbeat.algorithms import POLICIES
    from offbeat.data import DATASETS, PARTITIONS
    from offbeat.fleet import FLEETS
    from offbeat.models import MODELS

    return {
        "algorithms": dict(POLICIES),
        "fleets": dict(FLEETS),
        "datasets": dict(DATASETS),
        "partitions": dict(PARTITIONS),
        "models": dict(MODELS),
        "experiments": _shipped(),
    }


def _first_line(thing: Any) -> str:
    if isinstance(thing, Path):  # an experiment file opens with a comment that says what it is
        return thing.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
    return (thing.__doc__ or "").strip().partition("\n")[0]
