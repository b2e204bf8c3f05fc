"""Tune several algorithms with the same number of trials, and run the best settings on unseen seeds."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w
from rich.table import Table as RichTable

from offbeat.algorithms.sizes import RULE
from offbeat.comparison.fairness import FOLLOW, SEEDS, alike, check_seeds
from offbeat.comparison.planned import OnRunProgress, RunFailure, check_new_or_resumed, file_name
from offbeat.comparison.scheduler import RunScheduler, kept_in
from offbeat.comparison.tuning import OnTrial, Space, Trial, Tuned, search
from offbeat.comparison.tuning_figures import front_figure, search_figure
from offbeat.core.errors import Interrupted, InvalidInput, OffbeatError, WorkersLost
from offbeat.experiment.locations import modules_line
from offbeat.experiment.shipped import ExperimentSource, experiment_from
from offbeat.results.comparison import BASELINE
from offbeat.results.criterion import COSTS, Criterion
from offbeat.results.files import csv_of, replace_file
from offbeat.results.lock import DirectoryLock
from offbeat.results.metric import amount
from offbeat.results.plots import SUFFIXES, save
from offbeat.results.statistics import Estimate, median_of, speed_up, speed_up_text, words


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The best settings of each algorithm, and their measures on the reported seeds, by algorithm and seed."""

    criterion: Criterion
    seeds: Sequence[int]
    tuned: list[Tuned]
    reported: dict[str, dict[int, float]]
    failures: list[str] = field(default_factory=list)
    costs: Sequence[str] = ()
    """Further objectives of the search, names of `criterion.COSTS`."""

    @property
    def best(self) -> Tuned:
        """The algorithm that was the best with its best settings, on the reported seeds if it ran on them."""
        sign = 1.0 if self.criterion.lower_is_better else -1.0
        return min(
            self.tuned,
            key=lambda each: sign * median(self.reported.get(each.algorithm, each.measures).values()),
        )

    @property
    def front(self) -> list[tuple[str, Trial]]:
        """The finished trials that no other betters in one objective without being worse in another, by measure."""
        sign = 1.0 if self.criterion.lower_is_better else -1.0
        known = [(each.algorithm, trial) for each in self.tuned for trial in each.finished if isfinite(trial.measure)]
        points = [(sign * trial.measure, *(trial.costs[name] for name in self.costs)) for _, trial in known]
        return [known[number] for number in sorted(pareto(points), key=lambda number: points[number])]

    def front_table(self) -> RichTable:
        """The front for a terminal; settings as `--set` takes them, and the chosen ones marked."""
        table = RichTable(
            "algorithm", self.criterion.title, *(COSTS[name][0] for name in self.costs), "settings",
            title="Front: no finished trial is better in one of these without being worse in another",
            caption="Means over the tuning seeds. *: the best settings of an algorithm, in its TOML file.",
            caption_justify="left",
        )  # fmt: skip
        for record, (algorithm, trial) in zip(self.front_records(), self.front, strict=True):
            costs = (amount(trial.costs[name]) for name in self.costs)
            mark = " *" if record["chosen"] == "true" else ""
            table.add_row(algorithm + mark, self.criterion.text(trial.measure), *costs, record["settings"])
        return table

    def front_records(self) -> list[dict[str, Any]]:
        """The lines of front.csv, one per trial of the front."""
        best = {each.algorithm: each.settings for each in self.tuned}
        return [
            {
                "algorithm": algorithm,
                "trial": trial.number + 1,
                "chosen": str(trial.settings == best[algorithm]).lower(),
                "measure": trial.measure,
                **{name: trial.costs[name] for name in self.costs},
                "settings": _words(trial.settings),
            }
            for algorithm, trial in self.front
        ]

    def search_records(self) -> list[dict[str, Any]]:
        """The lines of search.csv, one per finished trial: its measure, costs and settings on the tuning seeds."""
        return [
            {
                "algorithm": tuned.algorithm,
                "trial": trial.number + 1,
                "best_so_far": str(trial.best).lower(),
                "measure": trial.measure,
                **trial.costs,
                "settings": _words(trial.settings),
            }
            for tuned in self.tuned
            for trial in tuned.finished
        ]

    def rich_table(self) -> RichTable:
        """The table of the best settings' measures, for a terminal."""
        table = RichTable(
            "algorithm", f"{self.criterion.title}, median ({words([len(self.seeds)])})",
            "on tuning seeds", "untuned, on tuning seeds",
            title=f"Best of {self.tuned[0].trials} trials each, on {len(self.seeds)} seeds not used for tuning",
            caption=f"Devices in training: by default {RULE}; {FOLLOW}.", caption_justify="left",
        )  # fmt: skip
        if BASELINE in self.reported and self.criterion.kind == "time":
            table.add_column(f"speed-up over {BASELINE}")
        for tuned in self.tuned:
            cells = [
                tuned.algorithm,
                self._text(self.reported.get(tuned.algorithm, {})),
                self._text(tuned.measures),
                self._text(tuned.own_measures),
            ]
            table.add_row(*cells, *([self._speed_up(tuned.algorithm)] if len(table.columns) > len(cells) else []))
        return table

    def settings_table(self) -> RichTable:
        """The best value and the importance of each setting, for a terminal."""
        title = "Best settings, and the share of the differences between trials that each setting explains"
        table = RichTable("algorithm", "setting", "best", "importance", title=title)
        for tuned in self.tuned:
            for number, path in enumerate(tuned.importance or tuned.settings):
                share = f"{100 * tuned.importance[path]:.0f} %" if tuned.importance else "too few trials"
                table.add_row("" if number else tuned.algorithm, path, str(tuned.settings[path]), share)
        return table

    def _text(self, measures: Mapping[int, float]) -> str:
        if not measures:
            return "-"
        known, write = self._estimate(measures), self.criterion.text
        same = len({write(known.low), write(known.median), write(known.high)}) == 1
        return write(known.median) if same else known.text(write, word=False)

    def _speed_up(self, algorithm: str) -> str:
        if algorithm == BASELINE or not self.reported.get(algorithm):
            return "-"
        return speed_up_text(speed_up(self.reported[algorithm], self.reported[BASELINE])).replace("inf", "∞")

    def records(self) -> list[dict[str, Any]]:
        """The lines of tuning.csv, one per algorithm; missing values are None."""
        return [
            {
                "algorithm": tuned.algorithm,
                "criterion": self.criterion.title,
                "trials": tuned.trials,
                "stopped_early": tuned.stopped_early,
                "failed": len(tuned.failures),
                "tuning_seeds": _joined(tuned.measures),
                **self._numbers("tuning", tuned.measures),
                **self._numbers("own", tuned.own_measures),
                "reported_seeds": _joined(self.reported.get(tuned.algorithm, {})),
                **self._numbers("reported", self.reported.get(tuned.algorithm, {})),
                "settings": _words(tuned.settings),
            }
            for tuned in self.tuned
        ]

    def importance_records(self) -> list[dict[str, Any]]:
        """The lines of importance.csv, one per algorithm and setting."""
        return [
            {"algorithm": each.algorithm, "setting": path, "best": each.settings[path], "importance": round(share, 4)}
            for each in self.tuned
            for path, share in each.importance.items()
        ]

    def _estimate(self, measures: Mapping[int, float]) -> Estimate:
        return median_of(measures.values(), log=self.criterion.kind == "time")

    def _numbers(self, name: str, measures: Mapping[int, float]) -> dict[str, float | None]:
        known = self._estimate(measures) if measures else None
        one = known is None or known.seeds == 1
        return {
            f"{name}_median": None if known is None else known.median,
            f"{name}_low": None if one or known is None else known.low,
            f"{name}_high": None if one or known is None else known.high,
        }


def pareto(points: Sequence[Sequence[float]]) -> list[int]:
    """The indices of the points that no other point dominates: at most as high everywhere, and lower somewhere.

    >>> pareto([(1, 9), (2, 5), (3, 5), (4, 1), (4, 1)])
    [0, 1, 3, 4]
    """

    def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
        return tuple(one) != tuple(other) and all(a <= b for a, b in zip(one, other, strict=True))

    return [number for number, point in enumerate(points) if not any(dominates(other, point) for other in points)]


def _words(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{path}={value}" for path, value in settings.items())


def _joined(measures: Mapping[int, float]) -> str:
    return " ".join(map(str, measures))


def tune_all(
    experiment: ExperimentSource,
    algorithms: Sequence[str],
    trials: int = 24,
    *,
    out: str | os.PathLike[str],
    seeds: int = 3,
    tuning_seeds: Sequence[int] = SEEDS,
    criterion: Criterion | None = None,
    costs: Sequence[str] = (),
    space: Space | None = None,
    jobs: int = 1,
    resume: bool = False,
    watch: OnRunProgress | None = None,
    on_trial: OnTrial | None = None,
    address: str | None = None,
) -> Tuning:
    """Search for the best settings of each algorithm with the same number of trials, and run them on unseen seeds.

    The best settings are run with `seeds` seeds, from the experiment's on, which no search uses. Writes NAME.toml for
    each algorithm, `tuning.csv`, `importance.csv`, `search.csv` with the curves of the search as figures and, with
    `costs`, the front of results against costs. With the `address` of a Ray cluster, its workers carry out the runs.
    """
    given, root = experiment_from(experiment), Path(out)
    reported = range(given.seed, given.seed + seeds)
    check_seeds(given, tuning_seeds, reported)
    if not algorithms or len(set(algorithms)) < len(algorithms):
        raise InvalidInput("give at least one algorithm, and each only once")
    wanted = criterion or Criterion.of(given)
    base = alike(given, algorithms)
    check_new_or_resumed(root, given, resume=resume)
    scheduler = RunScheduler(root / "runs", jobs=jobs, watch=watch, address=address)
    with DirectoryLock(root), scheduler, kept_in(root):
        replace_file(root / "config.toml", tomli_w.dumps(given.given_table()).encode())
        tuned, failures = [], []
        for name in algorithms:
            try:
                found = search(
                    base,
                    name,
                    trials,
                    root=root,
                    scheduler=scheduler,
                    seeds=tuning_seeds,
                    criterion=wanted,
                    costs=costs,
                    space=space,
                    on_trial=on_trial,
                )
                tuned.append(found)
            except (Interrupted, WorkersLost):
                raise
            except OffbeatError as error:
                failures.append(f"{name}: {error}")
        if not tuned:
            raise OffbeatError("; ".join(failures))
        winners = [each.experiment.changed({"seed": seed}) for each in tuned for seed in reported]
        results = scheduler.run_cached(winners)
    measures: dict[str, dict[int, float]] = {}
    for winner, result in zip(winners, results, strict=True):
        if isinstance(result, RunFailure):
            failures.append(str(result))
        else:
            measures.setdefault(winner.algorithm.title, {})[winner.seed] = wanted.measure(result)
    tuning = Tuning(criterion=wanted, seeds=reported, tuned=tuned, reported=measures, failures=failures, costs=costs)
    for each in tuned:
        note = f"# Best of {each.trials} trials for {wanted.title}, on the seeds {_joined(each.measures)}.\n"
        text = note + modules_line(each.experiment.own.values()) + each.experiment.toml()
        replace_file(root / f"{file_name(each.algorithm)}.toml", text.encode())
    replace_file(root / "tuning.csv", csv_of(tuning.records()).encode())
    replace_file(root / "importance.csv", csv_of(tuning.importance_records()).encode())
    replace_file(root / "search.csv", csv_of(tuning.search_records()).encode())
    for kind in SUFFIXES:
        save(search_figure(tuning), root / f"search{kind}")
    if costs:
        replace_file(root / "front.csv", csv_of(tuning.front_records()).encode())
        for kind in SUFFIXES:
            save(front_figure(tuning), root / f"front{kind}")
    return tuning
