"""The study of Hao et al. 2025, sec. VI: what delays do to SFL, AUDG and PSURDG, from IID to very uneven data.

Owns the plan (which of the shipped files with which model) and what is read off the runs. The quick form is the files
as they are; the full form gives them the paper's numbers of samples, on MNIST, and of Monte-Carlo runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.delayed_gradients import published as paper
from experiments.delayed_gradients.tables import Cell, PaperTable, csv_text, figure, markdown
from offbeat.comparison.compare import run_planned
from offbeat.comparison.planned import OnRunProgress
from offbeat.core.errors import OffbeatError
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import load_experiment
from offbeat.results.files import replace_file
from offbeat.results.plots import save
from offbeat.results.result import Result

FULL_SAMPLES = 25_000
FULL_RUNS = 10
SFL_EVERY_SECONDS = 5.0
"""Table II's loss is relative to the largest of the run, which must be seen to be known."""


class Group(NamedTuple):
    """A shipped file under one model, and the tables that it fills."""

    title: str
    file: str
    model: str
    sfl: str | None = None
    """The row in Table II."""
    losses: str | None = None
    """The table of losses; None: SFL alone."""
    accuracies: tuple[str, str] = ("", "")
    """The table of accuracy differences, and the row there."""


GROUPS = (
    Group("Over-CNN & IID", "delays-iid", "cnn-over", "Over-CNN & IID", "IV", ("III", "Over-CNN")),
    Group("CNN & IID", "delays-iid", "cnn-small", "CNN & IID", "V", ("III", "CNN")),
    Group("Small Non-IID", "delays-small", "cnn-over", "Over-CNN & Non-IID", "VII", ("X", "Small Non-IID")),
    Group("CNN & Small Non-IID", "delays-small", "cnn-small", "CNN & Non-IID"),
    Group("Medium Non-IID", "delays-medium", "cnn-over", None, "VIII", ("X", "Medium Non-IID")),
    Group("Large Non-IID", "delays-large", "cnn-over", None, "IX", ("X", "Large Non-IID")),
)

Ended = dict[tuple[str, str, float], list[Result]]
"""Finished runs by group, algorithm and mean delay of client 1, in the order of repetitions."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The tables, and how far they agree with the paper in a sentence."""

    tables: list[PaperTable]
    verdict: str
    notes: list[str]


def study(
    out: Path,
    *,
    mnist: Path | None = None,
    runs: int | None = None,
    begun: Callable[[int], None] | None = None,
    jobs: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    watch: OnRunProgress | None = None,
    address: str | None = None,
) -> Findings:
    """Run what is not there yet, `jobs` runs at a time, and write `tables.md`, `tables.csv` and `delays.png`.

    Without `mnist`, a directory with its files, it is the quick form. `begun` is told how many runs there are. With the
    `address` of a Ray cluster, its workers carry out the runs.
    """
    planned = plan(mnist, runs)
    if address is not None:
        planned = [(group, each.changed(each.execution.on_cluster(address))) for group, each in planned]
    if begun is not None:
        begun(len(planned))
    experiments = [experiment for _, experiment in planned]
    carried_out = run_planned(
        experiments[0], experiments, out, jobs=jobs, overwrite=overwrite, resume=resume, watch=watch
    )
    with carried_out as (entries, failed):
        if failed:
            raise OffbeatError("; ".join(str(each) for each in failed))
        found = findings(planned, entries)
        replace_file(out / "tables.md", markdown(found.tables, found.verdict, found.notes).encode())
        replace_file(out / "tables.csv", csv_text(found.tables).encode())
        save(figure(found.tables), out / "delays.png")
    return found


def plan(mnist: Path | None, runs: int | None = None) -> list[tuple[Group, Experiment]]:
    """Every run of the study."""
    planned = []
    for group in GROUPS:
        base = load_experiment(group.file).changed(
            {"model": {"name": group.model}} | (full(group, mnist) if mnist else {})
        )
        count = runs or (FULL_RUNS if mnist else len(base.sweep["fleet.repetition"]))
        synchronous = {
            "algorithm": {"name": "sfl"},
            "fleet": {"mean_delay": 0.0},
            "evaluation": {"every_seconds": SFL_EVERY_SECONDS},
        }
        (alone,) = base.changed(synchronous).swept({"fleet.repetition": [0]}, base.seed)
        over = base.sweep | {"fleet.repetition": list(range(count))}
        several = base.swept(over, base.seed) if group.losses else []
        for number, experiment in enumerate([alone, *several]):
            label = f"{group.title} {experiment.algorithm.name} {number}"
            planned.append((group, experiment.changed({"algorithm": {"label": label}})))
    return planned


def full(group: Group, mnist: Path) -> dict[str, Any]:
    """The changes that make a file the paper's: its data set, and as many times the samples."""
    scheme = load_experiment(group.file).partition.resolved()
    data: dict[str, Any] = {"name": "mnist", "dir": str(mnist)}
    if "sizes" in scheme:
        sizes = [size * FULL_SAMPLES // sum(scheme["sizes"]) for size in scheme["sizes"]]
        return {"data": data, "partition": {"sizes": sizes}}
    return {"data": data, "partition": {"samples": FULL_SAMPLES}}


def findings(planned: Sequence[tuple[Group, Experiment]], entries: Sequence[Result]) -> Findings:
    """The paper's tables from finished runs."""
    ended: Ended = {}
    for (group, experiment), entry in zip(planned, entries, strict=True):
        key = (group.title, experiment.algorithm.name, delay_of(experiment))
        ended.setdefault(key, []).append(entry)
    tables = [_sfl_table(ended)]
    for number, title in (("III", "Accuracy, PSURDG minus AUDG, IID"), ("X", "Accuracy, PSURDG minus AUDG, Non-IID")):
        groups = [group for group in GROUPS if group.accuracies[0] == number]
        rows = {
            group.accuracies[1]: _cells(
                _differences(ended, group, accuracy_of), paper.ACCURACY_DIFFERENCES[number][group.accuracies[1]]
            )
            for group in groups
        }
        tables.append(PaperTable(number=number, title=title, percent=True, columns=_headings(), rows=rows))
    tables += [_loss_table(ended, group, group.losses) for group in GROUPS if group.losses is not None]
    diverged = [f"{e.algorithm} diverged: its last finite model counts." for e in entries if e.diverged]
    order = {number: place for place, number in enumerate(("II", "III", "IV", "V", "VII", "VIII", "IX", "X"))}
    tables.sort(key=lambda table: order[table.number])
    return Findings(tables=tables, verdict=verdict(tables), notes=diverged)


def delay_of(experiment: Experiment) -> float:
    """The mean delay of client 1."""
    delays = experiment.fleet.settings.model_dump()["mean_delay"]
    return float(delays[0] if isinstance(delays, list) else delays)


def accuracy_of(entry: Result) -> float:
    """The accuracy at the end of a run."""
    return float(entry.summary["final_accuracy"])


def loss_of(entry: Result) -> float:
    """The training loss at the end of a run."""
    return float(entry.summary["training_loss"])


def _headings() -> list[str]:
    return [str(delay) for delay in paper.DELAYS]


def _sfl_table(ended: Ended) -> PaperTable:
    rows = {}
    for group in GROUPS:
        if group.sfl is not None:
            (entry,) = ended[group.title, "sfl", 0.0]
            largest = max(row["training_loss"] for row in entry.rows)
            printed = paper.SFL[group.sfl]
            here = (accuracy_of(entry), loss_of(entry) / largest)
            rows[group.sfl] = [Cell(value, nan, known) for value, known in zip(here, printed, strict=True)]
    columns = ["accuracy", "normalised loss"]
    return PaperTable(number="II", title="SFL after 50 iterations", percent=False, columns=columns, rows=rows)


def _loss_table(ended: Ended, group: Group, number: str) -> PaperTable:
    printed = paper.LOSSES[number]
    values = {
        name: [np.array([loss_of(e) for e in ended[group.title, name.lower(), delay]]) for delay in paper.DELAYS]
        for name in ("PSURDG", "AUDG")
    } | {"Difference": _differences(ended, group, loss_of)}
    rows = {name: _cells(each, printed[name]) for name, each in values.items()}
    return PaperTable(
        number=number, title=f"Final training loss, {group.title}", percent=False, columns=_headings(), rows=rows
    )


def _differences(ended: Ended, group: Group, what: Callable[[Result], float]) -> list[Any]:
    """PSURDG minus AUDG, run by run: both had the same delays."""
    differences = []
    for delay in paper.DELAYS:
        reusing, using = (ended[group.title, name, delay] for name in ("psurdg", "audg"))
        differences.append(np.array([what(one) - what(other) for one, other in zip(reusing, using, strict=True)]))
    return differences


def _cells(samples: Sequence[Any], printed: Sequence[float]) -> list[Cell]:
    """Mean and standard deviation over runs, beside the paper's number."""
    return [
        Cell(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else nan, known)
        for values, known in zip(samples, printed, strict=True)
    ]


def verdict(tables: Sequence[PaperTable]) -> str:
    """How often the same of the two had the lower loss as in the paper."""
    cells = [cell for table in tables for cell in table.rows.get("Difference", [])]
    same = sum((cell.here > 0) == (cell.paper > 0) for cell in cells)
    clear = [cell for cell in cells if abs(cell.here) > cell.spread]
    clearly = sum((cell.here > 0) == (cell.paper > 0) for cell in clear)
    return (
        f"The one of PSURDG and AUDG with the lower training loss is the paper's in {same} of {len(cells)} settings; "
        f"where the difference exceeds its standard deviation over runs, in {clearly} of {len(clear)}."
    )
