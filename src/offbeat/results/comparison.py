"""A comparison of runs of several algorithms: as data, as a table and as CSV."""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from offbeat.core.errors import InvalidInput, checks_keywords
from offbeat.metrics import METRICS, check_target
from offbeat.results.algorithm_results import AlgorithmResults, final_text, seeds_text, time_text
from offbeat.results.criterion import TARGET_RULE, default_target, near_start, untrained
from offbeat.results.metric import TargetMetric, amount, megabytes, percent
from offbeat.results.result import Result, frame_of
from offbeat.results.result import read_run as read_result
from offbeat.results.statistics import FEWEST, Estimate, speed_up, words

if TYPE_CHECKING:  # imported when they are asked for
    import pandas
    from matplotlib.figure import Figure

BASELINE = "fedavg"
"""The algorithm that speed-ups are relative to."""
BRIEF = 390
"""Characters below a table in a terminal: five lines of 80."""
SIZES = ("Devices in training:", "Each algorithm has its own number of devices in training")
"""How the note on sizes begins, which is below every table."""
COSTS = {"energy_wh": "energy Wh", "traffic_cost": "traffic cost"}
"""Headings of the columns that `fleet.watts` and `network.price_per_gb` add."""


class Comparison:
    """Runs of several algorithms, compared by the time to a target value of their target metric.

    The default target is that of `criterion.default_target`. `notes` are sentences on what differs between the
    algorithms; `failures` are sentences on runs that failed.
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
        listed = {float(each) for entry in self.entries for each in entry.summary[f"time_to_{self.metric.name}"]}
        self.target = default_target(self._by_algorithm(None), listed) if target is None else target
        self.chose_target = target is None
        self.by_algorithm = self._by_algorithm(self.target)

    def _by_algorithm(self, target: float | None) -> list[AlgorithmResults]:
        groups: dict[str, list[Result]] = {}
        for entry in self.entries:
            groups.setdefault(entry.algorithm, []).append(entry)
        return [AlgorithmResults(algorithm, entries, target) for algorithm, entries in groups.items()]

    @property
    def baseline(self) -> AlgorithmResults | None:
        """The results of the baseline algorithm; None if it was not run."""
        return next((results for results in self.by_algorithm if results.algorithm == BASELINE), None)

    @property
    def finishers(self) -> list[AlgorithmResults]:
        """The algorithms that reached the target in all seeds, the fastest first."""
        finishers = [results for results in self.by_algorithm if results.reached_by_all]
        return sorted(finishers, key=lambda results: median(results.reached))

    @property
    def fastest(self) -> list[AlgorithmResults]:
        """The finishers with the lowest median time; several if they tie, as evaluations at fixed times make likely."""
        finishers = self.finishers
        return [results for results in finishers if results.median_time == finishers[0].median_time]

    def speed_up(self, results: AlgorithmResults, over: AlgorithmResults | None = None) -> Estimate | None:
        """The speed-up over the baseline, or over `over`, paired by seed.

        None if either did not reach the target in all of its seeds, or if they share no seed.
        """
        other = over or self.baseline
        if other is None or not (other.reached_by_all and results.reached_by_all):
            return None
        return speed_up(results.by_seed, other.by_seed) if results.by_seed.keys() & other.by_seed.keys() else None

    @property
    def time_heading(self) -> str:
        """The heading of the column with times to target."""
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

    def frame(self, per: Literal["evaluation", "run"] = "evaluation") -> "pandas.DataFrame":
        """All runs as one pandas DataFrame: a row per evaluation, or a row per run with its summary."""
        if per not in ("evaluation", "run"):
            raise InvalidInput(f"per = {per!r}: must be 'evaluation' or 'run'")
        if per == "run":
            return frame_of(self.run_records())
        return frame_of([{"algorithm": run.algorithm, "seed": run.seed} | row for run in self for row in run.rows])

    def run_records(self) -> list[dict[str, Any]]:
        """The lines of runs.csv, one per run: algorithm, seed, time to target and the plain values of the summary."""
        records = []
        for results in self.by_algorithm:
            for run, time in zip(results.entries, results.times, strict=True):
                plain = {key: value for key, value in run.summary.items() if not isinstance(value, dict | list)}
                first = {"algorithm": run.algorithm, "seed": run.seed, "target": self.target, "time_to_target": time}
                records.append(first | {key: value for key, value in plain.items() if key not in ("label", *first)})
        names = dict.fromkeys(name for record in records for name in record)
        return [{name: record.get(name) for name in names} for record in records]

    def plot(self) -> "Figure":
        """The target metric over time and, if there is a target, the time to target."""
        from offbeat.results.plots import accuracy_figure

        return accuracy_figure(self)

    def __repr__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=100, highlight=False, markup=False).print(self.rich_table())
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        lines = [self.cells(results) for results in self.by_algorithm]
        head = "".join(f"<th>{escape(heading)}</th>" for heading in lines[0])
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line.values())}</tr>" for line in lines)
        return f"<table><caption>{escape(self.brief_caption)}</caption><tr>{head}</tr>{body}</table>"

    # As text -------------------------------------------------------------------------------------------------------

    def cells(self, results: AlgorithmResults) -> dict[str, str]:
        """The cells of one algorithm in a table, by heading."""
        cells = {"algorithm": results.algorithm + (" †" if results.problems else "")}
        if self.target is not None:
            cells[self.time_heading] = time_text(results) + (" *" if results in self.fastest else "")
            if self.baseline is not None:
                cells["speed-up"] = self._speed_up_text(results) + (" ~" if self._undecided(results) else "")
        return cells | {
            f"final {self.metric.title}": final_text(results),
            "in training": amount(results.in_training),
            "buffer": results.size_text("buffer"),
            "staleness bound": results.size_text("staleness_bound"),
            "updates used": f"{results.mean('updates_used'):,.0f}",
            "unused updates": percent(results.unused_share, 1),
            "wasted time": percent(results.wasted_share, 1),
            "mean staleness": f"{results.mean('mean_staleness'):.1f}",
            "MB up": megabytes(results.mean("bytes_up")),
            "MB down": megabytes(results.mean("bytes_down")),
            **{COSTS[key]: amount(results.mean(key)) for key in self._costs},
        }

    @property
    def _costs(self) -> list[str]:
        """The columns of energy and price that all runs have."""
        return [key for key in COSTS if all(key in entry.summary for entry in self.entries)]

    @property
    def caption(self) -> str:
        """The whole caption of the table: target, intervals, marks, columns and notes."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """The sentences of the whole caption."""
        marks, rest = self._sentences()
        return [*marks, *rest, *self.notes]

    @property
    def brief_caption(self) -> str:
        """The caption below a table in a terminal: its sizes and marks, and the notes that fit into `BRIEF`."""
        told, *others = self._sentences()[0]
        told = " ".join([told, *(note for note in self.notes if note.startswith(SIZES))])
        notes = [note for note in self.notes if not note.startswith(SIZES)]
        notes.sort(key=lambda note: not note.startswith("Not the same for all"))
        for number, sentence in enumerate(others):
            if len(told) + len(sentence) >= BRIEF:
                told += f" {len(others) - number} more notes."
                break
            told += f" {sentence}"
        for note in notes:
            told += f" {note}" if len(told) + len(note) < BRIEF else ""
        return told

    def _sentences(self) -> tuple[list[str], list[str]]:
        """What the numbers and marks in the table mean; and the rest: rule of the target, columns, spread."""
        several = any(len(results.entries) > 1 for results in self.by_algorithm)
        seeds = seeds_text(self.by_algorithm)
        rest: list[str] = []
        if self.target is None:
            marks = [
                f"No target: no algorithm came a tenth of the way from its first evaluation to a perfect "
                f"{self.metric.title} ({seeds})."
            ]
        else:
            over = f"median ({self.spread}) of {seeds}" if several else seeds
            marks = [
                f"{self._clock} to {self.goal} on held-out data, linearly interpolated between evaluations: {over}."
            ]
            start = untrained(self.by_algorithm)
            if near_start(self.target, start, self.metric):
                what = f"the untrained model's {self.metric.text(start, 1)}"
                marks.append(f"The target is too near {what} to compare times: choose a better one.")
            if self.fastest:
                marks.append("*: fastest.")
            if any(self._undecided(results) for results in self.by_algorithm):
                marks.append(f"~: includes 1: not distinguishable from {BASELINE} with these seeds.")
            if self.chose_target:
                rest.append(f"Target: {TARGET_RULE}.")
            if self.baseline is not None:
                rest.append(f"Speed-up: over {BASELINE}{', paired by seed' if several else ''}.")
            if "range" in self.spread:
                rest.append(f"A range is not a confidence interval: one takes {FEWEST} seeds.")
        marks += [
            f"† {results.algorithm}, seed {seed}: {problem}."
            for results in self.by_algorithm
            for seed, problem in results.problems.items()
        ]
        rest.append(
            "In training: mean number of devices over time, measured. Bound: largest staleness of a used update."
        )
        if several:
            rest.append("±: standard deviation over seeds; other numbers: means.")
        return marks, rest

    @property
    def spread(self) -> str:
        """What is given besides medians: "range" or "95 % interval", in tables and plots."""
        return words(len(results.entries) for results in self.by_algorithm)

    def _speed_up_text(self, results: AlgorithmResults) -> str:
        known = self.speed_up(results)
        if known is None:
            return "-"
        if results is self.baseline or known.seeds == 1:
            return f"{known.median:.2f}"
        return known.text("{:.2f}".format, word=False)

    def _undecided(self, results: AlgorithmResults) -> bool:
        known = None if results is self.baseline else self.speed_up(results)
        return known is not None and known.seeds > 1 and known.includes(1.0)

    @property
    def _clock(self) -> str:
        real = {entry.real for entry in self.entries}
        return "Virtual time" if real == {False} else "Time" if real == {True} else "Time (virtual in simulations)"

    def rich_table(self, *, verbose: bool = False) -> Table:
        """The table for a terminal of 80 characters: fewer columns, all traffic in one; with all notes if verbose."""
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 0, 0, 1),
            pad_edge=False,
            show_edge=False,
            caption=Text(self.caption if verbose else self.brief_caption, style="table.caption"),
            caption_justify="left",
        )
        shown = [self._short_cells(results) for results in self.by_algorithm]
        for results, cells in zip(self.by_algorithm, shown, strict=True):
            if not table.columns:
                for number, heading in enumerate(cells):
                    long = heading.startswith(("time to", "speed-up"))  # cells that may wrap
                    lines = heading if long else heading.replace(" ", "\n")
                    side: Literal["left", "right"] = "right" if number else "left"
                    least = max(
                        len(each) for each in [*lines.split("\n"), *(() if long else (row[heading] for row in shown))]
                    )
                    table.add_column(  # long labels are folded, and no number is ever cut
                        lines, justify=side, vertical="bottom", overflow="fold", min_width=least if number else None
                    )
            style = "bold green" if results in self.fastest else ""
            table.add_row(*(Text(cell) for cell in cells.values()), style=style)
        return table

    def _short_cells(self, results: AlgorithmResults) -> dict[str, str]:
        cells = self.cells(results)
        for heading in ("mean staleness", "updates used", "wasted time", "unused updates", "MB up", "MB down"):
            del cells[heading]
        bound = cells.pop("staleness bound")
        cells["buffer /bound"] = f"{cells.pop('buffer')} / {bound}"
        return cells | {"MB sent": megabytes(results.mean("bytes_up") + results.mean("bytes_down"))}

    def csv_text(self) -> str:
        """The comparison as CSV, one line per algorithm; missing values are empty."""
        text = io.StringIO()
        lines = [self._csv_record(results) for results in self.by_algorithm]
        writer = csv.DictWriter(text, lines[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def _csv_record(self, results: AlgorithmResults) -> dict[str, Any]:
        name = self.metric.name
        means = (f"best_{name}", "updates_used", "mean_staleness", "versions", "bytes_up", "bytes_down")
        known = self.speed_up(results)
        spread = known if known is not None and known.seeds > 1 else None
        return {
            "algorithm": results.algorithm,
            "seeds": " ".join(str(seed) for seed in results.seeds),
            "target": self.target,
            "seeds_reached": len(results.reached),
            "time_to_target_median": results.median_time,
            "time_to_target_min": results.first_time,
            "time_to_target_max": results.last_time,
            f"speed_up_over_{BASELINE}": None if known is None else known.median,
            f"speed_up_over_{BASELINE}_low": None if spread is None else spread.low,
            f"speed_up_over_{BASELINE}_high": None if spread is None else spread.high,
            "spread": None if spread is None else spread.word,
            f"final_{name}": results.final_value,
            f"final_{name}_std": results.final_spread,
            "in_training_mean": results.in_training,
            "buffer": results.size_text("buffer"),
            "staleness_bound": results.size_text("staleness_bound"),
            **{key: results.mean(key) for key in means},
            **{key: results.mean(key) for key in self._costs},
            "unused_share": results.unused_share,
            "wasted_share": results.wasted_share,
            "diverged": str(results.diverged).lower(),
            "problem": "; ".join(f"seed {seed}: {problem}" for seed, problem in results.problems.items()),
        }


def _check(entries: Sequence[Result], target: float | None) -> None:
    if not entries:
        raise InvalidInput("no finished run to compare")
    metric = TargetMetric.of(entries[0].summary)
    check_target(target, METRICS.get(metric.name))
    if any(TargetMetric.of(entry.summary) != metric for entry in entries):
        raise InvalidInput("the runs have different target metrics: compare runs of one evaluation.target_metric")
    for entry in entries:
        if any(metric.name not in row for row in entry.rows):
            place = entry.directory or entry.algorithm
            raise InvalidInput(f"the run {place} cannot be compared: not every row has {metric.name}")
    seen = set()
    for entry in entries:
        if (entry.algorithm, entry.seed) in seen:
            raise InvalidInput(
                f"two runs are of {entry.algorithm} with seed {entry.seed}: give each algorithm one run per seed"
            )
        seen.add((entry.algorithm, entry.seed))


@checks_keywords
def read_run(directory: str | os.PathLike[str]) -> Any:
    """The run in a directory, finished or not, as a `Result`; the runs of a comparison or sweep, as a `Comparison`."""
    path = Path(directory)
    runs = sorted(each.parent for each in path.glob("*/metrics.jsonl"))
    if (path / "metrics.jsonl").is_file() or not runs:
        return read_result(path)
    return Comparison([read_result(each) for each in runs])
