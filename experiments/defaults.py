"""What the shipped defaults give untuned: every algorithm on the leaderboard's fleets, with the learning rate off by 3.

Time to target with the default settings, over that of the settings that the leaderboard's search chose on the same
fleet.
"""

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from statistics import median

from experiments.harness.command_line import main
from experiments.harness.measurements import Measurement, by_seed, read_measurements
from experiments.harness.study import DIRECTORY, Case, Form, read_study
from experiments.harness.tables import markdown_table, marked
from experiments.leaderboard import ALGORITHMS, EVEN, PHONES, base, fleets_of
from offbeat import fair_experiments

TUNED = DIRECTORY.parent / "docs" / "results" / "leaderboard.csv"
"""The leaderboard's measurements, with tuned settings."""
RATES = {"a third of the rate": 1 / 3, "the rate": 1.0, "three times the rate": 3.0}
"""Multiples of the leaderboard's learning rate."""
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
FLEETS = ("ratio 5", "Pareto", "bimodal", "ratio 110", "10 % failures", PHONES)
PARTS = {f"{fleet}, {rate}": ALGORITHMS for fleet in FLEETS for rate in RATES}


def cases(form: Form) -> list[Case]:
    """Every algorithm with its default settings on every fleet with every rate; the quick form has one fleet."""
    fleets = fleets_of(form) if form.full else {"ratio 5": EVEN}
    made = []
    for fleet, changes in fleets.items():
        for rate, factor in RATES.items():
            shared = base(form).changed(changes)
            shared = shared.changed({"local": {"learning_rate": round(factor * shared.local.learning_rate, 4)}})
            for name in ALGORITHMS:
                (experiment,) = fair_experiments(shared, [name], [0])
                made.append(Case(part=f"{fleet}, {rate}", method=name, experiment=experiment))
    return made


def ratios(measurements: Sequence[Measurement], tuned: Sequence[Measurement], method: str) -> dict[str, float]:
    """Untuned over tuned median time to target, by part; infinite where only the tuned settings reach the target."""
    found = {}
    for part in PARTS:
        untuned = by_seed(measurements, part, method, "time_to_target")
        best = by_seed(tuned, part.rpartition(", ")[0], method, "time_to_target")
        if untuned and best and isfinite(reference := median(best.values())):
            found[part] = median(untuned.values()) / reference
    return found


def findings(measurements: Sequence[Measurement]) -> str:
    """The spread of the ratios of the named methods, as a list of sentences."""
    tuned = read_measurements(TUNED)
    found = {method: ratios(measurements, tuned, method) for method in NAMED}
    found = {method: values for method, values in found.items() if values}
    if not found:
        return ""
    lines = []
    for rate in RATES:
        here = {name: _at(values, rate) for name, values in found.items() if _at(values, rate)}
        fine = [name for name, values in here.items() if median(values) <= 1.3 and max(values) <= 2.0]
        lines.append(
            f"With {rate}, {len(fine)} of {len(here)} named methods are within 1.3 of their tuned time in the median "
            f"and within 2 on every fleet{': ' if fine else ''}{', '.join(fine)}."
        )
    return "\n".join(f"- {line}" for line in lines)


def table(measurements: Sequence[Measurement]) -> str:
    """Median and largest ratio of each method over the fleets, for each rate."""
    tuned = read_measurements(TUNED)
    found = {method: ratios(measurements, tuned, method) for method in ALGORITHMS}
    heading = ["algorithm", *(f"{title}: median (largest)" for title in RATES)]
    lines = [
        [marked(method), *(_summary(_at(values, rate)) for rate in RATES)] for method, values in found.items() if values
    ]
    return markdown_table([heading, *lines]) if lines else ""


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
    return "{} ({})".format(*("never" if value == inf else f"{value:.2f}" for value in (median(values), max(values))))


STUDY = read_study("defaults", cases=cases, parts=PARTS, findings=findings, table=table)

if __name__ == "__main__":
    main(STUDY)
