"""Commands that run experiments: demo, run, compare, sweep."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.base import (
    Address,
    Algorithms,
    Changes,
    ExperimentFile,
    Jobs,
    Out,
    Overwrite,
    Resume,
    Seeds,
    TableFormat,
    Target,
    Verbose,
    beside,
    check_format,
    console,
    joined,
    load,
    on_cluster,
    output,
    present,
    print_table,
    run_name,
    suffix,
    without_stop,
)
from offbeat.cli.live_view import Serve, live_view
from offbeat.cli.next_commands import experiment_words, next_step
from offbeat.cli.progress import messages, watched_bar, watched_bars
from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from offbeat.experiment.schema import Experiment
    from offbeat.results.comparison import Comparison


QUICK = {"model": {"name": "mlp"}, "stop": {"time": 200.0}, "execution": {"save_model": False}}
"""What makes the demo's first look quick: a small model and half of the time, on one seed."""


def demo(
    out: Annotated[Path | None, typer.Option(help="Output directory (default: a new `offbeat-demo`).")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only the first look, in the terminal; no files.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Skip the first look.")] = False,
    jobs: Jobs = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    serve: Serve = False,
) -> None:
    """Compare FedAvg, FedBuff, FedASMU, SEAFL² and ADEL-FL on an uneven fleet, with embedded data.

    100 simulated devices hold 5,000 MNIST digits; the slowest is 10 times slower than the fastest. The first look, with
    a small model, is drawn in the terminal after some seconds. LeNet-5 on two seeds then takes about a minute on two
    cores: it prints the time to a target accuracy, and writes a report and a figure.
    """
    from offbeat.comparison.planned import check_root
    from offbeat.experiment.shipped import load_experiment
    from offbeat.results.occupation import draw_overview

    if quick and full:
        raise InvalidInput("--quick and --full exclude each other")
    experiment = load_experiment("demo")
    default = (_latest if resume or overwrite else _unused)(Path("offbeat-demo"))
    root = output(out, default, resume=resume, overwrite=overwrite)
    check_root(root, experiment, overwrite=overwrite, resume=resume)
    if not (full or resume):
        first_look(experiment.changed(QUICK))
    if quick:
        next_step("demo --quick")
        return
    messages.print("Now the full demo: LeNet-5, two seeds, about a minute on two cores.", highlight=False)
    with live_view(serve, root):
        _compare(experiment, list(experiment.compared), [0, 1], root, jobs=jobs, overwrite=overwrite, resume=resume)
        draw_overview(root, list(experiment.compared), ("fedavg", "fedbuff"), 150.0, root / "demo.png")
        console.print(f"Open {root}/report.html and {root}/demo.png.", soft_wrap=True, markup=False)
        next_step("demo")


def first_look(experiment: "Experiment") -> None:
    """Run the algorithms that an experiment compares on one seed, in this process, and draw their accuracy as text."""
    from offbeat.comparison.fairness import fair_experiments
    from offbeat.results.comparison import Comparison
    from offbeat.results.explanation import why
    from offbeat.results.metric import duration
    from offbeat.results.text_plot import text_plot
    from offbeat.simulation.run import run as run_experiment

    experiments = fair_experiments(experiment, list(experiment.compared), [experiment.seed])
    with messages.status("a first look: some seconds"):
        comparison = Comparison([run_experiment(each) for each in experiments])
    metric = comparison.metric
    curves = {each.algorithm: [(row["time"], row[metric.name]) for row in each.rows] for each in comparison}
    console.print(
        f"{metric.title} over virtual time ({experiment.model.name}, one seed):", highlight=False, markup=False
    )
    console.print(text_plot(curves, across=duration, upward=lambda value: metric.text(round(value, 2))))
    console.print(why(comparison), highlight=False, markup=False)


def run(
    file: ExperimentFile,
    changes: Changes = None,
    address: Address = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    serve: Serve = False,
    form: TableFormat = None,
) -> None:
    """Run one experiment and write its metrics, timeline, final model and summary.

    Results go to `runs/NAME-ALGORITHM-seedN` unless `--out` is given. Ctrl-C, SIGTERM and SIGHUP leave a checkpoint;
    with `--resume` the run continues from it and ends with the same numbers as an uninterrupted run.

    Example: `offbeat run demo --set algorithm.name=fedbuff --set stop.time=60`
    """
    check_format(form)
    experiment = on_cluster(load(file, changes, alone=True), address)
    from offbeat.simulation.run import run as run_experiment  # imports torch: after the settings are checked

    shorter = Path("runs") / run_name(file, experiment, without_stop(changes))
    default = Path("runs") / run_name(file, experiment, changes)
    root = output(out, default, resume=resume, overwrite=overwrite, shorter=shorter)
    with live_view(serve, root):
        with watched_bar(experiment) as watch:
            result = run_experiment(experiment, root, overwrite=overwrite, resume=resume, watch=watch)
        present(experiment, result.rows, result.summary, root, form)
        own = experiment.algorithm.name
        names = f"fedavg,{own if own != 'fedavg' else 'fedbuff'}"
        others = [change for change in changes or () if not change.strip().startswith("algorithm.name")]
        next_step("run", form, file=experiment_words(file, others), names=names, root=root)


def compare(
    file: ExperimentFile,
    algorithms: Algorithms = None,
    seeds: Seeds = 3,
    target: Target = None,
    jobs: Jobs = None,
    changes: Changes = None,
    address: Address = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    serve: Serve = False,
    form: TableFormat = None,
    verbose: Verbose = False,
) -> None:
    """Run one experiment under several algorithms and seeds, and compare the time to a target accuracy.

    Prints a table and writes `comparison.csv`, `accuracy.png` and a self-contained `report.html`. Settings for a single
    algorithm go into the file as `[compare.NAME.TABLE]`, e.g. `[compare.fedbuff.algorithm]`;
    `--set algorithm.KEY=VALUE` applies to every algorithm that has this setting.

    All algorithms keep the same number of devices in training: `[compare] in_training = N`, by default the file's
    `[algorithm]` settings, else a tenth of the devices, at least 10. Buffers, cohorts, periods and staleness bounds
    that are not set follow in proportion, as in `offbeat run`. With `in_training = false` each algorithm has its
    defaults.
    """
    check_format(form)
    general, settings = _algorithm_changes(changes)
    experiment = on_cluster(load(file, general), address)  # before the imports: a wrong setting is reported at once
    from offbeat.comparison.fairness import known_by, spread_settings
    from offbeat.running.sizing import algorithm_settings

    names = list(experiment.compared) if algorithms is None else [each.strip() for each in algorithms.split(",")]
    for sentence in known_by(settings, {name: algorithm_settings(experiment, name)[0] for name in names}):
        beside(form).print(sentence, highlight=False)
    experiment = spread_settings(experiment, names, settings)
    chosen = list(range(experiment.seed, experiment.seed + seeds))
    name = f"{file.stem}-compare{joined([] if algorithms is None else names)}"
    default, shorter = (Path("runs") / (name + suffix(each)) for each in (changes, without_stop(changes)))
    root = output(out, default, resume=resume, overwrite=overwrite, shorter=shorter)
    with live_view(serve, root):
        _compare(
            experiment, names, chosen, root, jobs=jobs, target=target, overwrite=overwrite, resume=resume, form=form,
            verbose=verbose,
        )  # fmt: skip
        next_step("compare", form, file=experiment_words(file, changes), names=",".join(names))


def sweep(
    file: ExperimentFile,
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="Setting and values, e.g. `algorithm.buffer=1,10`; repeatable (default: the file's [sweep])."
        ),
    ] = None,
    seeds: Seeds = 3,
    target: Target = None,
    jobs: Jobs = None,
    changes: Changes = None,
    address: Address = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    serve: Serve = False,
    form: TableFormat = None,
    verbose: Verbose = False,
) -> None:
    """Run a grid of settings and plot the time to a target accuracy.

    In `sweep.png` the last setting is the horizontal axis, the one before it the lines, the one before that the panels.
    `comparison.csv` has the numbers.

    Example: `offbeat sweep experiment.toml --over algorithm.buffer=1,5,10 --over fleet.ratio=5,20,110`
    """
    from offbeat.experiment.tables import parse_values

    check_format(form)
    given = dict(parse_values(each) for each in over or ())
    general, settings = _algorithm_changes(changes) if "algorithm.name" in given else (changes, {})
    experiment = on_cluster(load(file, general), address)
    swept = given or experiment.sweep
    from offbeat.comparison.compare import sweep as sweep_settings
    from offbeat.comparison.fairness import known_by

    for sentence in known_by(settings, {str(name): str(name) for name in swept.get("algorithm.name", [])}):
        beside(form).print(sentence, highlight=False)
    chosen = list(range(experiment.seed, experiment.seed + seeds))
    name = f"{file.stem}-sweep{joined([path.rpartition('.')[2] for path in given])}"
    default, shorter = (Path("runs") / (name + suffix(each)) for each in (changes, without_stop(changes)))
    root = output(out, default, resume=resume, overwrite=overwrite, shorter=shorter)
    with live_view(serve, root):
        with watched_bars() as watch:
            comparison = sweep_settings(
                experiment,
                swept,
                chosen,
                root,
                target=target,
                settings=settings,
                jobs=jobs,
                overwrite=overwrite,
                resume=resume,
                watch=watch,
            )
        beside(form).print(f"Rows: {' / '.join(swept)}")
        where = f"Results in {root}: sweep.png, .pdf and .svg, comparison.csv, runs.csv and one directory per run"
        _show(comparison, where, form, verbose=verbose)
        next_step("sweep", form, file=experiment_words(file, changes), root=root)


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
    form: str | None = None,
    verbose: bool = False,
) -> None:
    from offbeat.comparison.compare import compare as compare_experiments

    with watched_bars() as watch:
        comparison = compare_experiments(
            experiment,
            names,
            seeds,
            root,
            jobs=jobs,
            target=target,
            overwrite=overwrite,
            resume=resume,
            watch=watch,
        )
    files = (
        "report.html (with all notes), accuracy.png, .pdf and .svg, comparison.csv, runs.csv and one directory per run"
    )
    _show(comparison, f"Results in {root}: {files}", form, verbose=verbose)


def _show(comparison: "Comparison", where: str, form: str | None = None, *, verbose: bool = False) -> None:
    """Print the table and where the results are. Runs that crashed or have a problem end it with exit code 1."""
    from offbeat.results.explanation import why

    print_table(comparison.rich_table(verbose=verbose), form=form)
    shown = beside(form)
    if comparison.entries[0].experiment is not None and (paragraph := why(comparison)):
        shown.print(paragraph, highlight=False)
    shown.print(where, soft_wrap=True, highlight=False)
    for failure in comparison.failures:
        messages.print(f"offbeat: {failure}", style="red", soft_wrap=True, highlight=False, markup=False)
    problems = sum(len(results.problems) for results in comparison.by_algorithm)
    if problems:
        text = f"offbeat: {problems} of {len(comparison)} runs made no version, diverged or stood still: see †"
        messages.print(text, style="red", soft_wrap=True, highlight=False, markup=False)
    if problems or comparison.failures:
        raise typer.Exit(1)


def _algorithm_changes(changes: Sequence[str] | None) -> tuple[list[str], dict[str, Any]]:
    """Split overrides into general ones and settings of algorithms; the latter by key."""
    from offbeat.experiment.tables import parse_changes

    def is_setting(change: str) -> bool:
        path = change.partition("=")[0].strip()
        return path.startswith("algorithm.") and path not in ("algorithm.name", "algorithm.label")

    theirs = parse_changes(change for change in changes or () if is_setting(change))
    return [change for change in changes or () if not is_setting(change)], theirs.get("algorithm", {})


def _unused(path: Path) -> Path:
    """Return this path, or the first of path-2, path-3, ... that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _latest(path: Path) -> Path:
    """Return the last of path, path-2, path-3, ... that exists."""
    number, latest = 1, path
    while path.with_name(f"{path.name}-{number + 1}").exists():
        number += 1
        latest = path.with_name(f"{path.name}-{number}")
    return latest
