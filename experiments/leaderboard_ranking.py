"""Who is the fastest on which fleet of the leaderboard, and in words when which family wins."""

from collections import Counter
from collections.abc import Sequence
from math import inf, isfinite
from statistics import median

from experiments.leaderboard import FAMILIES, IN_TRAINING
from experiments.measurements import Measurement, by_seed
from offbeat.results.statistics import speed_up


def equally_busy(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The runs of methods with no more devices in training, in the median, than all were given, but for a fifth."""
    counts: dict[tuple[str, str], list[float]] = {}
    for each in measurements:
        counts.setdefault((each.part, each.method), []).append(each.values.get("in_training", 0.0))
    return [each for each in measurements if median(counts[each.part, each.method]) <= 1.2 * IN_TRAINING]


def rank(measurements: Sequence[Measurement], part: str, method: str) -> tuple[float, float]:
    """Sooner at the target first; among those that never get there, the more accurate first."""
    times = by_seed(measurements, part, method, "time_to_target")
    accuracies = by_seed(measurements, part, method, "final_accuracy")
    if not times:
        return inf, inf
    return median(times.values()), -median(accuracies.values())


def best_of_families(measurements: Sequence[Measurement], part: str) -> dict[str, str]:
    """The best algorithm of each family on a fleet, the best family first."""
    known = {each.method for each in measurements if each.part == part}
    best: dict[str, str] = {}
    for method in sorted(known, key=lambda method: (rank(measurements, part, method), method)):
        best.setdefault(FAMILIES[method], method)
    return best


def in_words(measurements: Sequence[Measurement], parts: Sequence[str]) -> str:
    """When which family wins, counted over the fleets, as a list of sentences."""
    fair = equally_busy(measurements)
    best = {part: found for part in parts if (found := best_of_families(fair, part))}
    ahead = [part for part, found in best.items() if len(found) > 1 and _sooner(fair, part, *list(found.values())[:2])]
    fastest = Counter(next(iter(found)) for found in best.values())
    arrives = Counter(family for part, found in best.items() for family in found if _arrives(fair, part, found[family]))
    lines = [
        f"With about {IN_TRAINING} devices in training the fastest algorithm is of the family {_counted(fastest)} of "
        f"{len(best)} fleets; it is ahead of the next family beyond the spread {_listed(ahead)}.",
        f"The best of a family gets to the target, in the median over seeds: {_counted(arrives)} of {len(best)}.",
    ]
    busy = {part: _sooner_with_all(measurements, part, next(iter(found.values()))) for part, found in best.items()}
    costs = {part: cost for part, cost in busy.items() if cost is not None}
    if costs:
        low, high = min(costs.values()), max(costs.values())
        lines.append(
            f"Keeping every device in training is sooner than that, beyond the spread, {_listed(list(costs))}, for "
            f"{low:.1f} to {high:.1f} times the device seconds."
        )
    return "**In short**\n\n" + "\n".join(f"- {line}" for line in lines)


def _sooner(measurements: Sequence[Measurement], part: str, mine: str, theirs: str) -> bool:
    """Whether a method is sooner at the target than another, beyond the spread over seeds."""
    sooner, later = (by_seed(measurements, part, method, "time_to_target") for method in (mine, theirs))
    ratio = speed_up(sooner, later)
    return ratio is not None and ratio.low > 1.0


def _sooner_with_all(measurements: Sequence[Measurement], part: str, fair: str) -> float | None:
    """How many times the device seconds the fastest of all takes, if it is sooner than the fastest of the equally busy
    beyond the spread."""
    leader = next(iter(best_of_families(measurements, part).values()))
    if leader == fair or not _sooner(measurements, part, leader, fair):
        return None
    mine, theirs = (median(by_seed(measurements, part, name, "device_seconds").values()) for name in (leader, fair))
    return mine / theirs


def _arrives(measurements: Sequence[Measurement], part: str, method: str) -> bool:
    return isfinite(median(by_seed(measurements, part, method, "time_to_target").values()))


def _counted(families: Counter[str]) -> str:
    """
    >>> _counted(Counter({"buffered": 5, "asynchronous": 3}))
    '*buffered* on 5, *asynchronous* on 3'
    """
    return ", ".join(f"*{family}* on {count}" for family, count in families.most_common())


def _listed(parts: Sequence[str]) -> str:
    """
    >>> _listed([]), _listed(["ratio 5", "Pareto"])
    ('on none', 'on 2 (ratio 5; Pareto)')
    """
    return f"on {len(parts)} ({'; '.join(parts)})" if parts else "on none"
