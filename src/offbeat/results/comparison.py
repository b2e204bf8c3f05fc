"""Finished runs side by side: how each algorithm did over its seeds, as data, as a table and as CSV."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offbeat.core.errors import InvalidInput
from offbeat.results.metric import TargetMetric
from offbeat.results.result import Result, frame_of
from offbeat.results.summary import ACCURACY, time_to

if TYPE_CHECKING:  # imported when they are asked for
    import pandas
    from matplotlib.figure import Figure

BASELINE = "fedavg"
"""Speed-ups are over this algorithm."""


@dataclass(frozen=True)
class AlgorithmResults:
    """How one algorithm did over its seeds, in reaching the target (None: there is no target) and otherwise."""

    algorithm: str
    entries: list[Result]
    target: float | None

    @property
    def seeds(self) -> list[int]:
        return [entry.seed for entry in self.entries]

    @cached_property
    def times(self) -> list[float | None]:
        """When each seed reached the target."""
        if self.target is None:
            return [None] * len(self.entries)
        return [time_to(entry.rows, self.target, self.metric) for entry in self.entries]

    @property
    def metric(self) -> TargetMetric:
        """The metric that the runs are about."""
        return TargetMetric.of(self.entries[0].summary)

    @property
    def reached(self) -> list[float]:
        """The times of the seeds that reached the target."""
        return [time for time in self.times if time is not None]

    @property
    def reached_by_all(self) -> bool:
        return len(self.reached) == len(self.entries)

    @property
    def median_time(self) -> float | None:
        """Over the seeds that reached the target; so are the first and the last."""
        return median(self.reached) if self.reached else None

    @property
    def first_time(self) -> float | None:
        return min(self.reached, default=None)

    @property
    def last_time(self) -> float | None:
        return max(self.reached, default=None)

    @property
    def final_value(self) -> float:
        """The metric at the end, as a mean over seeds."""
        return self.mean(f"final_{self.metric.name}")

    @property
    def final_spread(self) -> float | None:
        """The standard deviation of the metric at the end over seeds, if there are several."""
        values = [entry.summary[f"final_{self.metric.name}"] for entry in self.entries]
        return stdev(values) if len(values) > 1 else None

    @property
    def unused_share(self) -> float:
        """The share of updates that were discarded or lost, of all that had an end."""
        unused = self.mean("updates_discarded") + self.mean("updates_lost")
        return _share(unused, unused + self.mean("updates_used"))

    @property
    def wasted_share(self) -> float:
        """The share of the devices' training time that went into updates that were not used."""
        return _share(self.mean("wasted_seconds"), self.mean("busy_seconds"))

    @property
    def in_training(self) -> float:
        """The mean number of devices in training."""
        return fmean(entry.in_training for entry in self.entries)

    @property
    def diverged(self) -> bool:
        return any(entry.diverged for entry in self.entries)

    def mean(self, key: str) -> float:
        """The mean over seeds of a number in the summaries."""
        return fmean(entry.summary[key] for entry in self.entries)


class Comparison:
    """Runs of several algorithms, and the accuracy, or value of another metric, whose time they are compared by.

    Without a given target it is the best of the runs' targets that all algorithms reach in all seeds, or if there is
    none (and the metric is a share) the highest whole percent that they do; if one of them never learns anything, the
    best that another one reaches in all of its seeds. `notes` are sentences on what was not the same for all;
    `failures` are sentences on runs that are missing here.
    """

    def __init__(
        self,
        entries: Sequence[Result],
        target: float | None = None,
        *,
        notes: Sequence[str] = (),
        failures: Sequence[str] = (),
    ) -> None:
        _check(entries, target)
        self.entries = list(entries)
        self.metric = TargetMetric.of(self.entries[0].summary)
        self.notes = list(notes)
        self.failures = list(failures)
        self.target = self._automatic_target() if target is None else target
        self.standings = self._standings(self.target)

    def _automatic_target(self) -> float | None:
        metric = self.metric
        known = {float(target) for entry in self.entries for target in entry.summary[f"time_to_{metric.name}"]}
        percents: list[float] = []
        if metric.is_share:
            learned = max(entry.rows[0][metric.name] for entry in self.entries)  # above what a model knows untrained
            percents = [percent / 100 for percent in range(1, 101) if percent / 100 > learned]
        for enough in (all, any):
            for targets in (known, percents):
                for target in sorted(targets, reverse=metric.direction == "max"):
                    if enough(standing.reached_by_all for standing in self._standings(target)):
                        return target
        return None

    def _standings(self, target: float | None) -> list[AlgorithmResults]:
        groups: dict[str, list[Result]] = {}
        for entry in self.entries:
            groups.setdefault(entry.algorithm, []).append(entry)
        return [AlgorithmResults(algorithm, entries, target) for algorithm, entries in groups.items()]

    @property
    def baseline(self) -> AlgorithmResults | None:
        return next((standing for standing in self.standings if standing.algorithm == BASELINE), None)

    @property
    def finishers(self) -> list[AlgorithmResults]:
        """Who reached the target in all seeds, the fastest first."""
        finishers = [standing for standing in self.standings if standing.reached_by_all]
        return sorted(finishers, key=lambda standing: median(standing.reached))

    @property
    def fastest(self) -> list[AlgorithmResults]:
        """The finisher with the lowest median; several if they tie, which evaluations by the clock make likely."""
        finishers = self.finishers
        return [standing for standing in finishers if standing.median_time == finishers[0].median_time]

    def speed_up(self, standing: AlgorithmResults) -> float | None:
        """How many times as fast as the baseline, if both reached the target in all seeds."""
        baseline = self.baseline
        if baseline is None or not (baseline.reached_by_all and standing.reached_by_all):
            return None
        mine, theirs = median(standing.reached), median(baseline.reached)
        return theirs / mine if mine else None

    @property
    def race(self) -> str:
        """The heading of the times to the target."""
        assert self.target is not None
        return f"time to {self.metric.text(self.target)}" if self.metric.is_share else f"time to {self.goal}"

    @property
    def goal(self) -> str:
        """The target in words."""
        assert self.target is not None
        return self.metric.goal(self.target)

    # In a notebook -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Result]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, number: int) -> Result:
        return self.entries[number]

    def frame(self) -> "pandas.DataFrame":
        """The rows of metrics of all runs as one table of pandas, with columns for the algorithm and the seed."""
        return frame_of([{"algorithm": run.algorithm, "seed": run.seed} | row for run in self for row in run.rows])

    def plot(self) -> "Figure":
        """Accuracy over time, and the time to the target if there is one."""
        from offbeat.results.plots import accuracy_figure

        return accuracy_figure(self)

    def __repr__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=100, highlight=False).print(self.rich_table())
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        lines = [self.cells(standing) for standing in self.standings]
        head = "".join(f"<th>{escape(heading)}</th>" for heading in lines[0])
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line.values())}</tr>" for line in lines)
        return f"<table><caption>{escape(self.caption)}</caption><tr>{head}</tr>{body}</table>"

    # As text -------------------------------------------------------------------------------------------------------

    def cells(self, standing: AlgorithmResults) -> dict[str, str]:
        """What a table says of one algorithm, by heading."""
        cells = {"algorithm": standing.algorithm + (" †" if standing.diverged else "")}
        if self.target is not None:
            speed_up = self.speed_up(standing)
            cells[self.race] = time_text(standing) + (" *" if standing in self.fastest else "")
            if self.baseline is not None:
                cells["speed-up"] = "-" if speed_up is None else f"{speed_up:.2f}"
        return cells | {
            f"final {self.metric.title}": final_text(standing),
            "in training": amount(standing.in_training),
            "updates used": f"{standing.mean('updates_used'):,.0f}",
            "unused updates": percent(standing.unused_share, 1),
            "wasted time": percent(standing.wasted_share, 1),
            "mean staleness": f"{standing.mean('mean_staleness'):.1f}",
            "MB up": megabytes(standing.mean("bytes_up")),
            "MB down": megabytes(standing.mean("bytes_down")),
        }

    @property
    def caption(self) -> str:
        """What the target, the spreads and the marks in the table mean."""
        several = any(len(standing.entries) > 1 for standing in self.standings)
        seeds = seeds_text(self.standings)
        if self.target is None:
            parts = [f"No algorithm learned anything in all of its seeds ({seeds})."]
        else:
            median_of = f"median (min-max) of {seeds}" if several else seeds
            parts = [
                f"{self._clock} until {self.goal} on held-out data, on straight lines between evaluations: {median_of}."
            ]
            if self.baseline is not None:
                parts.append(f"Speed-up: over {BASELINE}.")
        parts.append("In training: mean over time.")
        if several:
            parts.append("±: standard deviation over seeds; other numbers: means.")
        if self.fastest:
            parts.append("*: fastest.")
        if any(standing.diverged for standing in self.standings):
            parts.append("†: a run diverged.")
        return " ".join([*parts, *self.notes])

    @property
    def _clock(self) -> str:
        real = {entry.real for entry in self.entries}
        return "Virtual time" if real == {False} else "Time" if real == {True} else "Time (virtual in simulations)"

    def rich_table(self) -> Table:
        """For a terminal of 80 columns, so without some of the columns, and with all traffic in one."""
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 0, 0, 1),
            pad_edge=False,
            show_edge=False,
            caption=self.caption,
            caption_justify="left",
        )
        for standing in self.standings:
            cells = self.cells(standing)
            for heading in ("mean staleness", "wasted time", "unused updates", "MB up", "MB down"):
                del cells[heading]
            cells["MB sent"] = megabytes(standing.mean("bytes_up") + standing.mean("bytes_down"))
            if not table.columns:
                for number, heading in enumerate(cells):
                    times = heading.startswith("time to")  # the longest cells: they may take two lines
                    lines = heading if times else heading.replace(" ", "\n").replace("-", "-\n")
                    side: Literal["left", "right"] = "right" if number else "left"
                    table.add_column(lines, justify=side, no_wrap=not times, vertical="bottom")
            style = "bold green" if standing in self.fastest else ""
            table.add_row(*(Text(cell) for cell in cells.values()), style=style)
        return table

    def csv_text(self) -> str:
        """Plain numbers, one line per algorithm; what does not exist is empty."""
        text = io.StringIO()
        lines = [self._csv_record(standing) for standing in self.standings]
        writer = csv.DictWriter(text, lines[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def _csv_record(self, standing: AlgorithmResults) -> dict[str, Any]:
        name = self.metric.name
        means = (f"best_{name}", "updates_used", "mean_staleness", "versions", "bytes_up", "bytes_down")
        return {
            "algorithm": standing.algorithm,
            "seeds": " ".join(str(seed) for seed in standing.seeds),
            "target": self.target,
            "seeds_reached": len(standing.reached),
            "time_to_target_median": standing.median_time,
            "time_to_target_min": standing.first_time,
            "time_to_target_max": standing.last_time,
            f"speed_up_over_{BASELINE}": self.speed_up(standing),
            f"final_{name}": standing.final_value,
            f"final_{name}_std": standing.final_spread,
            "in_training_mean": standing.in_training,
            **{key: standing.mean(key) for key in means},
            "unused_share": standing.unused_share,
            "wasted_share": standing.wasted_share,
            "diverged": str(standing.diverged).lower(),
        }


def _check(entries: Sequence[Result], target: float | None) -> None:
    if not entries:
        raise InvalidInput("there is no finished run to compare")
    metric = TargetMetric.of(entries[0].summary)
    check_target(target, metric)
    if any(TargetMetric.of(entry.summary) != metric for entry in entries):
        raise InvalidInput("the runs are judged by different metrics: compare those of one evaluation.target_metric")
    seen = set()
    for entry in entries:
        if (entry.algorithm, entry.seed) in seen:
            raise InvalidInput(
                f"two of the runs are of {entry.algorithm} with seed {entry.seed}: give each algorithm one run per seed"
            )
        seen.add((entry.algorithm, entry.seed))


def check_target(target: float | None, metric: TargetMetric = ACCURACY) -> None:
    """Raise InvalidInput if a metric from 0 to 1 cannot have this value."""
    if target is not None and metric.is_share and not 0 < target <= 1:
        raise InvalidInput(f"target = {target}: must be above 0 and at most 1")


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def percent(share: float, decimals: int | None = None) -> str:
    """
    >>> percent(0.925), percent(0.5, 1)
    ('92.5 %', '50.0 %')
    """
    return f"{100 * share:g} %" if decimals is None else f"{100 * share:.{decimals}f} %"


def amount(value: float) -> str:
    """Three digits, or all before the point of a larger number.

    >>> amount(0.12345), amount(14.0), amount(12345.6)
    ('0.123', '14.0', '12,346')
    """
    return f"{value:#.3g}" if abs(value) < 99.95 else f"{value:,.0f}"


def megabytes(size: float) -> str:
    return amount(size / 1e6)


def time_text(standing: AlgorithmResults) -> str:
    """The median time to the target and its range, or how many seeds reached it.

    A range without a width, or of a single seed, is not shown.
    """
    if not standing.reached:
        return "not reached"
    if not standing.reached_by_all:
        return f"{len(standing.reached)} of {len(standing.entries)} seeds"
    first, middle, last = amount(min(standing.reached)), median(standing.reached), amount(max(standing.reached))
    return f"{amount(middle)} s" + (f" ({first}-{last})" if first != last else "")


def final_text(standing: AlgorithmResults) -> str:
    """The metric at the end and its spread over seeds."""
    spread, metric = standing.final_spread, standing.metric
    if not metric.is_share:
        middle = metric.text(standing.final_value)
        return middle if spread is None else f"{middle} ± {spread:.2g}"
    middle = f"{100 * standing.final_value:.1f}"
    return f"{middle} %" if spread is None else f"{middle} ± {100 * spread:.1f} %"


def seeds_text(standings: Sequence[AlgorithmResults]) -> str:
    counts = [len(standing.entries) for standing in standings]
    if min(counts) != max(counts):
        return f"{min(counts)} to {max(counts)} seeds"
    return "one seed" if counts[0] == 1 else f"{counts[0]} seeds"
