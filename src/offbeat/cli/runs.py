"""Commands that run experiments: demo, run, compare, sweep, report."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offbeat.cli.base import (
    Changes,
    ExperimentFile,
    Jobs,
    Out,
    Overwrite,
    Resume,
    Seeds,
    Target,
    console,
    free_cores,
    load,
    present,
    run_name,
)
from offbeat.cli.progress import bars, note, watched_bars
from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from offbeat.settings.schema import Experiment


def demo(
    out: Annotated[Path | None, typer.Option(help="Directory for the results (default: a new offbeat-demo).")] = None,
    jobs: Jobs = None,
) -> None:
    """The main job on embedded data: FedAvg, FedAsync and FedBuff on one uneven fleet.

    Trains LeNet-5 on 5,000 MNIST digits over 100 simulated devices, the slowest many times slower than the fastest,
    and prints who is how accurate when. Takes about a minute on two cores.
    """
    from offbeat.settings.shipped import load_experiment

    experiment = load_experiment("demo")
    root = out or _unused(Path("offbeat-demo"))
    _compare(experiment, list(experiment.compare), [0, 1, 2], root, jobs=jobs)


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
    from offbeat.simulation.run import run as run_experiment

    experiment = load(file, changes)
    root = out or Path("runs") / run_name(file, experiment)
    with bars() as shown:
        bar = shown.add_task(experiment.algorithm.name, total=1.0, note="")

        def watch(fraction: float, row: dict[str, float] | None) -> None:
            shown.update(bar, completed=fraction, **({"note": note(row)} if row is not None else {}))

        result = run_experiment(experiment, root, overwrite=overwrite, resume=resume, watch=watch)
    present(experiment, result.rows, result.summary, root)


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
    experiment = load(file, changes)
    names = list(experiment.compare) if algorithms is None else [each.strip() for each in algorithms.split(",")]
    chosen = list(range(experiment.seed, experiment.seed + seeds))
    root = out or Path("runs") / f"{file.stem}-compare"
    _compare(experiment, names, chosen, root, jobs=jobs, target=target, overwrite=overwrite, resume=resume)


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
    from offbeat.comparison.compare import sweep as sweep_settings
    from offbeat.settings.tables import parse_values

    experiment = load(file, changes)
    settings = experiment.sweep if not over else dict(parse_values(each) for each in over)
    chosen = list(range(experiment.seed, experiment.seed + seeds))
    root = out or Path("runs") / f"{file.stem}-sweep"
    with watched_bars() as watch:
        how = {"jobs": jobs or free_cores(experiment), "overwrite": overwrite, "resume": resume, "watch": watch}
        comparison = sweep_settings(experiment, settings, chosen, root, target=target, **how)
    console.print(f"Rows: {' / '.join(settings)}")
    console.print(comparison.rich_table())
    console.print(f"Results in {root}: sweep.png, comparison.csv and a directory for each run")


def report(
    directories: Annotated[list[Path], typer.Argument(help="Finished run directories, of any experiments.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    target: Annotated[float | None, typer.Option(min=0, max=1, help="Accuracy to reach.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page if it exists.")] = False,
) -> None:
    """Make one self-contained HTML page from finished runs."""
    from offbeat.results.comparison import Comparison
    from offbeat.results.files import replace_file
    from offbeat.results.report import report_html
    from offbeat.running.directory import read_finished

    if out.exists() and not overwrite:
        raise InvalidInput(f"{out} exists: use --overwrite to replace it, or choose another --out")
    runs = [read_finished(path) for path in directories]
    comparison = Comparison([each.entry for each in runs], target)
    replace_file(out, report_html(comparison, [each.config for each in runs], out.stem).encode())
    console.print(comparison.rich_table())
    console.print(f"Report in {out}")


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
    from offbeat.comparison.compare import compare as compare_experiments

    with watched_bars() as watch:
        comparison = compare_experiments(
            experiment,
            names,
            seeds,
            root,
            jobs=jobs or free_cores(experiment),
            target=target,
            overwrite=overwrite,
            resume=resume,
            watch=watch,
        )
    console.print(comparison.rich_table())
    console.print(f"Results in {root}: report.html, accuracy.png, comparison.csv and a directory for each run")


def _unused(path: Path) -> Path:
    """This path, or the first of path-2, path-3 ... that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
