"""Commands that choose: tune, recommend."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.base import Address, Changes, ExperimentFile, Jobs, Out, Resume, console, joined, load, suffix
from offbeat.cli.progress import bars, cluster_line, note
from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from offbeat.comparison.planned import PlannedRun
    from offbeat.experiment.schema import Experiment

Kind = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="What is wanted: `time` to --target, the `value` of the target metric at the end, or the `area` under its "
        "curve (default: `time` with a --target, else `area`).",
    ),
]
Target = Annotated[
    float | None, typer.Option(help="Accuracy, or value of the target metric, that is to be reached soon.")
]
KINDS = ("time", "value", "area")


def tune(
    file: ExperimentFile,
    algorithms: Annotated[
        str | None,
        typer.Option(help="Names with commas between, like fedavg,fedbuff (default: those the file compares)."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Settings that are tried, for each algorithm.")] = 24,
    kind: Kind = None,
    target: Target = None,
    at: Annotated[
        float | None, typer.Option(help="Virtual seconds at which models are judged (default: the end).")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from the experiment's on, that the winners run with.")] = 3,
    tuning_seeds: Annotated[
        str, typer.Option(help="Seeds that settings are tried with, commas between; none that is reported.")
    ] = "1000,1001",
    jobs: Jobs = None,
    changes: Changes = None,
    address: Address = None,
    out: Out = None,
    resume: Resume = False,
) -> None:
    """Search for the best settings of each algorithm, with the same number of trials for each.

    Varies the learning rate and what each algorithm names as worth a search (`offbeat describe NAME`). The first trial
    is the experiment as it is; bad ones are stopped early. Prints the winners as they do on seeds that no search has
    seen, and which settings mattered; writes `NAME.toml` for each winner, `tuning.csv` and `importance.csv`.
    """
    check_optuna()
    experiment = load(file, changes)
    from offbeat.comparison.scheduler import runs_that_fill_cores
    from offbeat.comparison.tuning_table import tune_all
    from offbeat.results.criterion import Criterion

    names = _names(experiment, algorithms)
    criterion = Criterion.of(experiment, target=target, kind=_kind(kind), at=at)
    root = out or Path("runs") / f"{file.stem}-tune{joined([] if algorithms is None else names)}{suffix(changes)}"
    with bars() as shown, cluster_line(shown):
        bar = shown.add_task("trials", total=float(len(names) * trials), note="")
        done: dict[str, int] = {}

        def on_trial(algorithm: str, number: int) -> None:
            done[algorithm] = number
            shown.update(bar, completed=float(sum(done.values())), note=algorithm)

        def watch(planned: "PlannedRun", _: float, row: dict[str, float] | None) -> None:
            if row is not None:
                shown.update(bar, note=f"{planned.label}: {note(row)}")

        found = tune_all(
            experiment,
            names,
            trials,
            out=root,
            seeds=seeds,
            tuning_seeds=_numbers(tuning_seeds),
            criterion=criterion,
            jobs=jobs or runs_that_fill_cores([experiment]),
            address=address,
            resume=resume,
            watch=watch,
            on_trial=on_trial,
        )
    console.print(found.rich_table())
    console.print(found.settings_table())
    for sentence in found.failures:
        console.print(f"Failed: {sentence}", highlight=False, markup=False)
    console.print(
        f"Results in {root}: a TOML file for each winner, tuning.csv, importance.csv, studies.db and the runs"
    )


def recommend(
    file: ExperimentFile,
    algorithms: Annotated[
        str | None, typer.Option(help="Names with commas between (default: every algorithm that suits the experiment).")
    ] = None,
    kind: Kind = None,
    target: Target = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds, from the experiment's on, that the finalists run with.")
    ] = 3,
    jobs: Jobs = None,
    changes: Changes = None,
    address: Address = None,
    out: Out = None,
    resume: Resume = False,
) -> None:
    """Which algorithm should run on this fleet, with these data and this model?

    Races all algorithms that suit the experiment, with three learning rates each: at a ninth and at a third of the time
    the best third goes on. The best three, the best that does not keep all devices in training, and FedAvg are then run
    on fresh seeds. Says what to run, by how much it is better, what it costs and what would change the answer; writes
    that, a picture, and `recommended.toml` to `deploy`.

    A fleet may be a trace (`[fleet] name = "trace"`), or that of a real run (`name = "record"`, its path).
    """
    experiment = load(file, changes)
    from offbeat.comparison.recommendation import FILES
    from offbeat.comparison.recommendation import recommend as recommend_for
    from offbeat.comparison.scheduler import runs_that_fill_cores
    from offbeat.results.criterion import Criterion

    criterion = Criterion.of(experiment, target=target, kind=_kind(kind))
    names = None if algorithms is None else _names(experiment, algorithms)
    root = out or Path("runs") / f"{file.stem}-recommend{joined(names or [])}{suffix(changes)}"
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
        )
    console.print(found.comparison.rich_table())
    for sentence in found.sentences:
        console.print(sentence, highlight=False, markup=False)
    for name, why in found.unsuited.items():
        console.print(f"{name} was left out: {why}", highlight=False, markup=False)
    for sentence in found.failures:
        console.print(f"Failed: {sentence}", highlight=False, markup=False)
    console.print(f"Results in {root}: {FILES}")


class StageBars:
    """A bar for each stage of a recommendation, which fills as the runs of the stage come to their share."""

    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._bar: Any = None
        self._runs, self._share = 0, 1.0
        self._done: dict[str, float] = {}

    def begin(self, title: str, runs: int, share: float) -> None:
        """Begin the bar of a stage with so many runs, each up to a share of its whole; the one before is full."""
        if self._bar is not None:
            self._shown.update(self._bar, completed=float(self._runs), note="")
        self._runs, self._share, self._done = runs, share, {}
        self._bar = self._shown.add_task(f"{title}, {runs} runs", total=float(runs), note="")

    def watch(self, planned: "PlannedRun", fraction: float, row: dict[str, float] | None) -> None:
        """Show that a run has come to a fraction of its whole."""
        each = planned.experiment
        name = f"{each.algorithm.title}, rate {each.local.learning_rate:g}, seed {each.seed}"
        self._done[name] = min(1.0, fraction / self._share)
        fresh = {"note": f"{name}: {note(row)}"} if row is not None else {}
        self._shown.update(self._bar, completed=sum(self._done.values()), **fresh)


def check_optuna() -> None:
    """Raise InvalidInput if the library that searches is not installed."""
    if find_spec("optuna") is None:
        raise InvalidInput("this needs Optuna, which is not installed: pip install 'offbeat[tune]'")


def _names(experiment: "Experiment", given: str | None) -> list[str]:
    names = list(experiment.compared) if given is None else [each.strip() for each in given.split(",")]
    return names or [experiment.algorithm.name]


def _kind(given: str | None) -> Any:
    if given is not None and given not in KINDS:
        raise InvalidInput(f"--objective {given}: must be one of {', '.join(KINDS)}")
    return given


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise InvalidInput(f"--tuning-seeds {text}: must be whole numbers with commas between") from None
