"""What the shipped defaults give untuned: every algorithm on the leaderboard's fleets, with the learning rate off by 3.

Time to target with the default settings, over that of the settings that the leaderboard's search chose on the same
fleet.
"""

from collections.abc import Container, Mapping, Sequence
from math import inf, isfinite, isnan, nan
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness import Table
from experiments.harness.command_line import main
from experiments.harness.measurements import Measurement, by_seed, read_measurements
from experiments.harness.study import DIRECTORY, Case, Form, read_study
from experiments.harness.tables import markdown_table, marked
from experiments.leaderboard import ALGORITHMS, EVEN, PHONES, base, fleets_of
from experiments.leaderboard_ranking import equally_busy
from offbeat import fair_experiments
from offbeat.results.plots import legend_below, line_style, style_axes

TUNED = DIRECTORY.parent / "docs" / "results" / "leaderboard.csv"
"""The leaderboard's measurements, with tuned settings."""
SGD = {"a third of the rate": 1 / 3, "the rate": 1.0, "three times the rate": 3.0}
"""Multiples of the leaderboard's learning rate."""
POLYAK = {f"polyak from {rate}": factor for rate, factor in SGD.items()}
"""The same rates with the optimiser `polyak` on the devices, whose first step they bound."""
SHIPPED = "polyak from the rate"
"""What devices do by default: polyak from 0.1."""
RATES = SGD | POLYAK
NAMED = (
    "fedasmu",
    "fedssmu",
    "seafl",
    "seafl2",
    "audg",
    "psurdg",
    "adel",
    "fedbuff",
    "fedasync",
    "ca2fl",
    "fadas",
    "fadas-large-step",
)
"""The methods of the five papers and the buffered and asynchronous ones that most users start with."""
ABLATIONS = {
    "auto with a fixed step": {"name": "auto", "adapt": False},
    "auto with FedBuff's buffer": {"name": "auto", "buffer": 10},
}
"""`auto` without one of its parts."""
RIVALS = tuple(name for name in ALGORITHMS if name != "auto")
NEVER = 3.0
"""The position of "never", and of longer times, on the axis of the figure."""
FLEETS = ("ratio 5", "Pareto", "bimodal", "ratio 110", "10 % failures", PHONES)
PARTS = {
    f"{fleet}, {rate}": (*NAMED, "auto") if rate in POLYAK and rate != SHIPPED else (*ALGORITHMS, *ABLATIONS)
    for rate in RATES
    for fleet in FLEETS
}


def titled(rate: str) -> str:
    """
    >>> titled("the rate"), titled("polyak from the rate")
    ('SGD, the rate', 'polyak from the rate')
    """
    return f"SGD, {rate}" if rate in SGD else rate


def cases(form: Form) -> list[Case]:
    """Every algorithm with its default settings on every fleet with every rate; the quick form has one fleet."""
    fleets = fleets_of(form) if form.full else {"ratio 5": EVEN}
    made = []
    for fleet, changes in fleets.items():
        for rate, factor in RATES.items():
            shared = base(form).changed(changes)
            local: Table = {"learning_rate": round(factor * shared.local.learning_rate, 4)}
            shared = shared.changed({"local": local | ({"optimiser": "polyak"} if rate in POLYAK else {})})
            shared = shared.changed({"compare": {label: {"algorithm": given} for label, given in ABLATIONS.items()}})
            for name in PARTS[f"{fleet}, {rate}"]:
                (experiment,) = fair_experiments(shared, [name], [0])
                made.append(Case(part=f"{fleet}, {rate}", method=name, experiment=experiment))
    return made


def ratios(measurements: Sequence[Measurement], tuned: Sequence[Measurement], method: str) -> dict[str, float]:
    """Untuned over tuned median time to target on the same seeds, by part; infinite if only tuned runs reach it."""
    found = {}
    for part in PARTS:
        untuned = by_seed(measurements, part, method, "time_to_target")
        reference = times(tuned, part.rpartition(", ")[0], method, seeds=untuned)
        if isfinite(reference):
            found[part] = median(untuned.values()) / reference
    return found


def findings(measurements: Sequence[Measurement]) -> str:
    """The spread of the ratios of the named methods, as a list of sentences."""
    tuned = read_measurements(TUNED)
    found = {method: ratios(measurements, tuned, method) for method in NAMED}
    found = {method: values for method, values in found.items() if values}
    if not found:
        return ""
    fine = [f"{titled(rate)}: {_fine(found, rate)}" for rate in RATES]
    lines = [f"Within 1.3 of the tuned time in the median, and within 2 on every fleet: {'; '.join(fine)}."]
    every = {method: ratios(measurements, tuned, method) for method in ALGORITHMS}
    if any(_at(values, SHIPPED) for method, values in every.items() if method not in NAMED):
        lines.append(f"The same for all algorithms as shipped ({SHIPPED}): {_fine(every, SHIPPED)}.")
    return "\n".join(f"- {line}" for line in [*lines, *auto_findings(measurements, tuned)])


def _fine(found: Mapping[str, Mapping[str, float]], rate: str) -> str:
    here = {name: _at(values, rate) for name, values in found.items() if _at(values, rate)}
    fine = [name for name, values in here.items() if median(values) <= 1.3 and max(values) <= 2.0]
    named = fine if 2 * len(fine) <= len(here) else ["not " + name for name in here if name not in fine]
    return f"{len(fine)} of {len(here)}" + (f" ({', '.join(named)})" if named else "")


def auto_findings(measurements: Sequence[Measurement], tuned: Sequence[Measurement]) -> list[str]:
    """`auto` untuned beside the best other algorithm, tuned, with about as many devices in training; its ablations."""
    over = over_best_tuned(measurements, tuned)
    found = {rate: values for rate in RATES if (values := _at(over, rate))}
    lines = []
    if found:
        words = "; ".join(
            f"{titled(rate)}: {number(median(values))} ({_span(values)})" for rate, values in found.items()
        )
        lines.append(f"`auto` untuned over the best other algorithm, tuned, with as many devices in training: {words}.")
    if shipped := list(over_best_shipped(measurements).values()):
        words = f"{number(median(shipped))} ({_span(shipped)})"
        lines.append(f"`auto` over the best other algorithm, both as shipped: {words}.")
    for label in ABLATIONS:
        slower = {part: times(measurements, part, label) / times(measurements, part, "auto") for part in PARTS}
        by_rate = {rate: [value for value in _at(slower, rate) if not isnan(value)] for rate in SGD}
        if all(by_rate.values()):
            words = "; ".join(f"{titled(rate)}: {number(median(values))}" for rate, values in by_rate.items())
            lines.append(f"{label.replace('auto', '`auto`', 1)} over `auto`: {words}.")
    return lines


def over_best_tuned(measurements: Sequence[Measurement], tuned: Sequence[Measurement]) -> dict[str, float]:
    """The untuned time of `auto` over the shortest tuned one of an equally busy algorithm, by part."""
    return _over_best(measurements, tuned, {part: part.rpartition(", ")[0] for part in PARTS})


def over_best_shipped(measurements: Sequence[Measurement]) -> dict[str, float]:
    """The time of `auto` over the shortest one of an equally busy algorithm, both as shipped, by part."""
    return _over_best(measurements, measurements, {part: part for part in PARTS if part.endswith(f", {SHIPPED}")})


def _over_best(
    measurements: Sequence[Measurement], others: Sequence[Measurement], parts: Mapping[str, str]
) -> dict[str, float]:
    """The time of `auto` in each part over the shortest one of another algorithm in the part of `others` beside it."""
    rivals, found = [each for each in equally_busy(others) if each.method in RIVALS], dict[str, float]()
    for part, theirs in parts.items():
        mine = by_seed(measurements, part, "auto", "time_to_target")
        best = min((times(rivals, theirs, name, seeds=mine) for name in RIVALS), key=_or_never)
        if isfinite(best):
            found[part] = median(mine.values()) / best
    return found


def times(measurements: Sequence[Measurement], part: str, method: str, seeds: Container[int] | None = None) -> float:
    """The median time to the target, of all runs or those with these seeds; nan if there is no run.

    Medians over different seeds would differ by chance.
    """
    found = by_seed(measurements, part, method, "time_to_target")
    chosen = [time for seed, time in found.items() if seeds is None or seed in seeds]
    return median(chosen) if chosen else nan


def _or_never(time: float) -> float:
    return inf if isnan(time) else time


def _span(values: Sequence[float]) -> str:
    """
    >>> _span([1.2, 0.8]), _span([1.0, inf])
    ('0.80 to 1.20', '1.00 to never')
    """
    return f"{number(min(values))} to {number(max(values))}"


def table(measurements: Sequence[Measurement]) -> str:
    """Median and largest ratio of the named methods and `auto` over the fleets, for each rate."""
    tuned = read_measurements(TUNED)
    found = {method: ratios(measurements, tuned, method) for method in (*NAMED, "auto")}
    heading = ["median (largest)", *map(titled, RATES)]
    lines = [
        [marked(method), *(_summary(_at(values, rate)) for rate in RATES)] for method, values in found.items() if values
    ]
    return markdown_table([heading, *lines]) if lines else ""


def figure(measurements: Sequence[Measurement]) -> Figure | None:
    """The ratio of the named methods and `auto` on each fleet, a panel per optimiser and a colour for each rate."""
    tuned = read_measurements(TUNED)
    found = {method: ratios(measurements, tuned, method) for method in (*NAMED, "auto")}
    found = {method: values for method, values in found.items() if values}
    if not found:
        return None
    drawn = Figure(figsize=(10.0, 6.5), layout="constrained")
    panels = drawn.subplots(2, sharex=True, sharey=True)
    titles = ("SGD: untuned over tuned time to target, a point for each fleet", "polyak: the same")
    for axes, title, rates in zip(panels, titles, (SGD, POLYAK), strict=True):
        style_ratios(axes, title)
        for number, (rate, shown) in enumerate(zip(rates, SGD, strict=True)):
            colour, _, marker = line_style(number)
            points = [(x + 0.2 * (number - 1), y) for x, values in enumerate(found.values()) for y in _at(values, rate)]
            xs, ys = [x for x, _ in points], [min(y, NEVER) for _, y in points]
            axes.plot(xs, ys, color=colour, marker=marker or "o", linestyle="none", alpha=0.7, label=shown)
    panels[-1].set_xticks(range(len(found)), list(found), rotation=30, ha="right")
    legend_below(drawn, *panels[0].get_legend_handles_labels())
    return drawn


def style_ratios(axes: Axes, title: str) -> None:
    """Style axes that show ratios of times up to NEVER."""
    style_axes(axes, title)
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    axes.set_yticks([0.5, 1.0, 1.5, 2.0, NEVER], ["0.5", "1", "1.5", "2", "3 or more,\nnever"])


def _at(values: Mapping[str, float], rate: str) -> list[float]:
    """The ratios with one rate."""
    return [value for part, value in values.items() if part.endswith(f", {rate}")]


def _summary(values: Sequence[float]) -> str:
    """
    >>> _summary([1.0, 1.25, 3.0]), _summary([1.0, inf]), _summary([])
    ('1.25 (3.00)', 'never (never)', '-')
    """
    if not values:
        return "-"
    return f"{number(median(values))} ({number(max(values))})"


def number(ratio: float) -> str:
    """Write a ratio of times; infinite is "never"."""
    return "never" if ratio == inf else f"{ratio:.2f}"


STUDY = read_study("defaults", cases=cases, parts=PARTS, findings=findings, table=table, figure=figure)

if __name__ == "__main__":
    main(STUDY)
