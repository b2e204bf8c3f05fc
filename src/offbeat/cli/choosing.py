"""Commands that choose an algorithm and its settings: recommend, tune, plan."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperGroup

from offbeat.cli.base import (
    Address,
    Algorithms,
    Changes,
    ExperimentFile,
    FigureOut,
    Jobs,
    Out,
    OverwriteFile,
    Resume,
    Seeds,
    TableFormat,
    Verbose,
    beside,
    check_format,
    check_new_file,
    joined,
    load,
    output,
    print_table,
    suffix,
)
from offbeat.cli.live_view import Serve, live_view
from offbeat.cli.next_commands import experiment_words, next_step
from offbeat.cli.progress import bars, cluster_line, messages, note
from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from click import Context

    from offbeat.comparison.planned import PlannedRun
    from offbeat.comparison.tuning_table import Tuning
    from offbeat.experiment.schema import Experiment

Kind = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="`time` (to --target), `value` (of the main metric at the end) or `area` (under its curve). Default: "
        "`time` with a --target, else `area`.",
    ),
]
Target = Annotated[float | None, typer.Option(help="Value of the main metric to reach, e.g. 0.9 for 90 % accuracy.")]
KINDS = ("time", "value", "area")


Objectives = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="`time` (to --target), `value` (of the main metric at the end) or `area` (under its curve; default if no "
        "--target). After a comma `device_seconds`, `megabytes` or both: the search then seeks a Pareto front, e.g. "
        "`time,device_seconds`.",
    ),
]


def recommend(
    file: ExperimentFile,
    algorithms: Annotated[
        str | None, typer.Option(help="Comma-separated names (default: all algorithms that fit the experiment).")
    ] = None,
    kind: Kind = None,
    target: Target = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to compare the finalists on.")] = 3,
    jobs: Jobs = None,
    changes: Changes = None,
    address: Address = None,
    out: Out = None,
    resume: Resume = False,
    serve: Serve = False,
    form: TableFormat = None,
    verbose: Verbose = False,
) -> None:
    """Recommend an algorithm for this fleet, data and model.

    Races all algorithms that fit the experiment with the same number of devices in training and, where some train all
    devices by definition, once more with all devices: two answers. A race begins with one learning rate and a ninth of
    the time; the best third tries other rates and continues. The best two and FedAvg then run on fresh seeds. Prints
    the leader so far; then what to use, by how much it is better, its cost and what would change the answer. Writes
    the answer, a figure and `recommended.toml`, ready for `offbeat deploy`.

    The fleet may be a trace (`[fleet] name = "trace"`) or come from a real run (`name = "record"`).
    """
    check_format(form)
    experiment = load(file, changes)
    from offbeat.comparison.recommendation import FILES
    from offbeat.comparison.recommendation import recommend as recommend_for
    from offbeat.comparison.scheduler import runs_that_fill_cores
    from offbeat.results.criterion import Criterion

    criterion = Criterion.of(experiment, target=target, kind=_kind(kind))
    names = None if algorithms is None else _names(experiment, algorithms)
    root = output(out, Path("runs") / f"{file.stem}-recommend{joined(names or [])}{suffix(changes)}", resume=resume)
    with live_view(serve, root):
        with bars() as shown, cluster_line(shown):
            stages = StageBars(shown)
            found = recommend_for(
                experiment,
                names,
                out=root,
                seeds=seeds,
                criterion=criterion,
                jobs=jobs or runs_that_fill_cores([experiment]),
                address=address,
                resume=resume,
                watch=stages.watch,
                on_stage=stages.begin,
                on_answer=lambda sentence: messages.print(sentence, highlight=False, markup=False),
            )
        print_table(found.comparison.rich_table(verbose=verbose), form=form)
        told = [*found.sentences, *(f"{name} was skipped: {why}" for name, why in found.unsuited.items())]
        for sentence in [*told, *(f"Failed: {each}" for each in found.failures)]:
            beside(form).print(sentence, highlight=False, markup=False)
        beside(form).print(f"Results in {root}: {FILES}", soft_wrap=True, highlight=False, markup=False)
        next_step("recommend", form, file=root / "recommended.toml")


def tune(
    file: ExperimentFile,
    algorithms: Algorithms = None,
    trials: Annotated[int, typer.Option(min=1, help="Settings to try per algorithm.")] = 24,
    objective: Objectives = None,
    target: Target = None,
    at: Annotated[
        float | None, typer.Option(help="Virtual time, in seconds, at which runs are scored (default: the end).")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to report the winners on.")] = 3,
    tuning_seeds: Annotated[
        str, typer.Option(help="Comma-separated seeds for the search; never reported.")
    ] = "1000,1001",
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="KEY=LOW:HIGH",
            help="Your own range of a setting, e.g. `local.learning_rate=0.01:0.5:log` or `algorithm.buffer=2:20`, "
            "or among values, `local.batch_size=16,32`. Repeatable.",
        ),
    ] = None,
    jobs: Jobs = None,
    changes: Changes = None,
    address: Address = None,
    out: Out = None,
    resume: Resume = False,
    serve: Serve = False,
    form: TableFormat = None,
) -> None:
    """Search for the best settings of each algorithm, with the same number of trials for all.

    Varies the learning rate and each algorithm's own search space (`offbeat describe NAME`). The first trial is the
    experiment unchanged; poor trials are stopped early. Reports the winners on seeds that the search has not seen,
    which settings mattered and how the search went. Writes `NAME.toml` for each winner, tables (`tuning.csv`,
    `importance.csv`, `search.csv`) and figures. With costs in `--objective` no trial is stopped early, and the front of
    results against costs is reported too.

    Example: `offbeat tune experiment.toml --algorithms fedavg,fedbuff --trials 24`
    """
    check_optuna()
    check_format(form)
    kind, *costs = (each.strip() for each in (objective or "").split(","))
    _check_costs(costs)
    experiment = load(file, changes)
    from offbeat.comparison.fairness import known_by
    from offbeat.comparison.planned import file_name
    from offbeat.comparison.scheduler import runs_that_fill_cores
    from offbeat.comparison.tuning import parse_range
    from offbeat.comparison.tuning_table import tune_all
    from offbeat.results.criterion import Criterion
    from offbeat.running.sizing import algorithm_settings

    names = _names(experiment, algorithms)
    space = dict(parse_range(each) for each in ranges or ())
    of_algorithms = {path[10:]: str(each) for path, each in space.items() if path.startswith("algorithm.")}
    known_by(of_algorithms, {name: algorithm_settings(experiment, name)[0] for name in names})
    criterion = Criterion.of(experiment, target=target, kind=_kind(kind or None), at=at)
    name = f"{file.stem}-tune{joined([] if algorithms is None else names)}{suffix(changes)}"
    root = output(out, Path("runs") / name, resume=resume)
    with live_view(serve, root):
        with bars() as shown, cluster_line(shown):
            bar = shown.add_task("trials", total=float(len(names) * trials), note="")
            done: dict[str, int] = {}

            def on_trial(algorithm: str, number: int) -> None:
                done[algorithm] = number
                shown.update(bar, completed=float(sum(done.values())), note=algorithm)

            def watch(planned: "PlannedRun", _: float, row: dict[str, float] | None) -> None:
                if row is not None:
                    shown.update(bar, note=f"{planned.label}: {note(row, experiment.target_metric)}")

            found = tune_all(
                experiment,
                names,
                trials,
                out=root,
                seeds=seeds,
                tuning_seeds=_numbers(tuning_seeds),
                criterion=criterion,
                costs=costs,
                space=space,
                jobs=jobs or runs_that_fill_cores([experiment]),
                address=address,
                resume=resume,
                watch=watch,
                on_trial=on_trial,
            )
        front = [found.front_table()] if costs else []
        print_table(found.rich_table(), found.settings_table(), *front, form=form)
        _show_search(found, form)
        for sentence in found.failures:
            beside(form).print(f"Failed: {sentence}", highlight=False, markup=False)
        files = f"search{', front' if costs else ''} (.csv, .png, .pdf, .svg), tuning.csv, importance.csv, studies.db"
        beside(form).print(f"Results in {root}: a TOML file per winner, {files} and the runs", soft_wrap=True)
        winner = root / f"{file_name(found.best.algorithm)}.toml"
        next_step("tune", form, winner=winner, file=experiment_words(file, changes))


def _show_search(tuning: "Tuning", form: str | None) -> None:
    """Draw the best result over trials as text."""
    from offbeat.comparison.tuning_figures import best_so_far
    from offbeat.results.text_plot import text_plot

    beside(form).print(f"Best {tuning.criterion.title} over trials:", highlight=False)
    curves = {each.algorithm: best_so_far(each) for each in tuning.tuned}
    beside(form).print(text_plot(curves, across="trial {:.0f}".format, upward=tuning.criterion.text, height=8))


class PlanCommands(TyperGroup):
    """The subcommands of plan; `plan FILE`, the form of version 0.1, raises InvalidInput."""

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Parse the arguments of `offbeat plan`."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            raise InvalidInput("`offbeat plan FILE` is now `offbeat plan deadlines FILE`")
        return super().parse_args(ctx, args)


plan = typer.Typer(
    cls=PlanCommands,
    name="plan",
    no_args_is_help=True,
    help="Analyse an experiment before running it: round deadlines, gradient delays, request slots.",
)


@plan.command()
def deadlines(
    file: ExperimentFile,
    algorithm: Annotated[
        str | None,
        typer.Option(help="Algorithm to plan for, one of those the file compares (default: its [algorithm])."),
    ] = None,
    estimate: Annotated[
        int | None,
        typer.Option(
            min=2, metavar="GRADIENTS", help="Measure sigma² and G² of ADEL-FL from this many gradients per device."
        ),
    ] = None,
    changes: Changes = None,
    out: FigureOut = Path("plan.png"),
    overwrite: OverwriteFile = False,
    form: TableFormat = None,
) -> None:
    """Show the round deadlines, batch sizes and expected depth that a deadline algorithm plans.

    For `adel`, `salf`, `drop-stragglers` and `heterofl`. Nothing is trained. If the time budget is too small for the
    rounds, prints the minimum feasible budget.
    """
    from offbeat.comparison.deadline_plan import gradient_constants, plan_of
    from offbeat.results.plots import check_figure_path, save

    check_figure_path(out)
    check_format(form)
    check_new_file(out, overwrite)
    experiment = load(file, changes)
    if algorithm is not None:
        experiment = experiment.for_algorithm(algorithm, experiment.seed)
    if estimate is not None:
        with messages.status("measuring gradients"):
            measured = gradient_constants(experiment, estimate)
        if measured is None or experiment.algorithm.name != "adel":
            raise InvalidInput("--estimate needs algorithm adel and devices with at least two samples each")
        constants = {"gradient_variance": measured.gradient_variance, "gradient_bound": measured.gradient_bound}
        experiment = experiment.changed({"algorithm": {"name": experiment.algorithm.name} | constants})
        beside(form).print("Measured: " + ", ".join(f"{key} = {value:.4g}" for key, value in constants.items()))
    with messages.status("planning"):
        planned = plan_of(experiment)
    save(planned.figure(), out)
    print_table(planned.table(), form=form)
    scale = [] if planned.scale is None else [f"Batch scale m = {planned.scale:.5g}"]
    for sentence in [*scale, *planned.remarks, f"Figure in {out}"]:
        beside(form).print(sentence, highlight=False)
    next_step("plan deadlines", form, file=experiment_words(file, changes))


@plan.command()
def delays(
    file: ExperimentFile,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also run both algorithms and compare them with the theory.")
    ] = False,
    seeds: Seeds = 3,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations for the bounds and the simulation.")] = 50,
    iteration: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Seconds per iteration (default: the file's, else the median duration of an order)."
        ),
    ] = None,
    changes: Changes = None,
    form: TableFormat = None,
) -> None:
    """Choose between AUDG and PSURDG by the theory of delayed gradients.

    Estimates the delays and constants of the experiment's fleet, model and data and prints the sign of Theta. With
    `--simulate`, a short simulation checks the answer.
    """
    from offbeat.comparison.delayed_gradients.advice import advise as advise_on
    from offbeat.comparison.delayed_gradients.advice import tables

    check_format(form)
    experiment = load(file, changes)
    chosen = list(range(experiment.seed, experiment.seed + seeds))
    with bars() as shown:
        bar = shown.add_task("estimating delays", total=1.0, note="")
        advice = advise_on(
            experiment,
            iteration_seconds=iteration,
            iterations=iterations,
            simulate=simulate,
            seeds=chosen,
            watch=lambda done: shown.update(bar, completed=done),
        )
    print_table(*tables(advice), form=form)
    beside(form).print(advice.verdict, style="bold", highlight=False)
    next_step("plan delays", form, file=experiment_words(file, changes))


@plan.command()
def slots(file: ExperimentFile, changes: Changes = None, form: TableFormat = None) -> None:
    """Measure the reward of each of FedASMU's request slots, to pre-train its meta model.

    Runs the experiment with devices that request the fresh model at random epochs, and prints the `history` line to add
    to its `[algorithm]` table. Use a seed that you do not report, e.g. `--set seed=100`.
    """
    from offbeat.comparison.slots import measure_slots

    check_format(form)
    experiment = load(file, changes)
    with bars() as shown:
        bar = shown.add_task("random slots", total=1.0, note="")
        records = measure_slots(experiment, lambda fraction, _: shown.update(bar, completed=fraction))
    table = Table("request before epoch", "merges", "mean reward (decrease of the loss)")
    for record in records:
        table.add_row(str(record.slot), str(record.merges), f"{record.reward:.4g}")
    print_table(table, form=form)
    beside(form).print(f"history = [{', '.join(f'{record.reward:.4g}' for record in records)}]", highlight=False)
    next_step("plan slots", form, file=experiment_words(file, changes))


class StageBars:
    """One progress bar per stage of a recommendation."""

    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._bar: Any = None
        self._runs, self._share = 0, 1.0
        self._done: dict[str, float] = {}

    def begin(self, title: str, runs: int, share: float) -> None:
        """Complete the previous bar and start that of a stage: `runs` runs, each up to a `share` of its full length."""
        if self._bar is not None:
            self._shown.update(self._bar, completed=float(self._runs), note="")
        self._runs, self._share, self._done = runs, share, {}
        self._bar = self._shown.add_task(f"{title}, {runs} runs", total=float(runs), note="")

    def watch(self, planned: "PlannedRun", fraction: float, row: dict[str, float] | None) -> None:
        """Show the progress of a run as a fraction of its full length."""
        each = planned.experiment
        name = f"{each.algorithm.title}, rate {each.local.learning_rate:g}, seed {each.seed}"
        self._done[name] = min(1.0, fraction / self._share)
        fresh = {"note": f"{name}: {note(row, each.target_metric)}"} if row is not None else {}
        self._shown.update(self._bar, completed=sum(self._done.values()), **fresh)


def check_optuna() -> None:
    """Raise InvalidInput if Optuna is not installed."""
    if find_spec("optuna") is None:
        raise InvalidInput("Optuna is not installed: pip install 'offbeat[tune]'")


def _names(experiment: "Experiment", given: str | None) -> list[str]:
    names = list(experiment.compared) if given is None else [each.strip() for each in given.split(",")]
    return names or [experiment.algorithm.name]


def _check_costs(given: list[str]) -> None:
    from offbeat.results.criterion import COSTS

    for each in given:
        if each not in COSTS:
            raise InvalidInput(f"--objective {each}: after the first must come one of {', '.join(COSTS)}")
    if len(set(given)) < len(given):
        raise InvalidInput(f"--objective {','.join(given)}: each only once")


def _kind(given: str | None) -> Any:
    if given is not None and given not in KINDS:
        raise InvalidInput(f"--objective {given}: must be one of {', '.join(KINDS)}")
    return given


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise InvalidInput(f"--tuning-seeds {text}: must be comma-separated whole numbers") from None
