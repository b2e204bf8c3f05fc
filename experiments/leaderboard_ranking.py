"""The ranking on the leaderboard: the fastest algorithm and family on each fleet, as text, table and figure."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import inf, isfinite
from statistics import median
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness.measurements import Measurement, by_seed
from experiments.harness.tables import markdown_table, marked, summary
from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import about_of
from offbeat.results.plots import legend_below, line_style, style_axes
from offbeat.results.statistics import median_of, speed_up, speed_up_text

FAMILIES = {name: about_of(policy).family or "" for name, policy in POLICIES.items()}
IN_TRAINING = 20
"""Devices in training under every algorithm that can limit their number."""
SECONDS = 200.0
"""Virtual time of a run."""
NEVER = 1.1 * SECONDS
"""The position of "never" on the time axis of the figure."""


def equally_busy(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The runs of methods whose median number of devices in training is at most 1.2 times IN_TRAINING."""
    counts: dict[tuple[str, str], list[float]] = {}
    for each in measurements:
        counts.setdefault((each.part, each.method), []).append(each.values.get("in_training", 0.0))
    return [each for each in measurements if median(counts[each.part, each.method]) <= 1.2 * IN_TRAINING]


def rank(measurements: Sequence[Measurement], part: str, method: str) -> tuple[float, float]:
    """Sort key of a method: its time to the target, then its final accuracy."""
    times = by_seed(measurements, part, method, "time_to_target")
    accuracies = by_seed(measurements, part, method, "final_accuracy")
    if not times:
        return inf, inf
    return median(times.values()), -median(accuracies.values())


def best_of_families(measurements: Sequence[Measurement], part: str) -> dict[str, str]:
    """The fastest algorithm of each family on a fleet, the fastest family first."""
    known = {each.method for each in measurements if each.part == part}
    best: dict[str, str] = {}
    for method in sorted(known, key=lambda method: (rank(measurements, part, method), method)):
        best.setdefault(FAMILIES[method], method)
    return best


def findings(measurements: Sequence[Measurement]) -> str:
    """Which families win, counted over the fleets, as a list of sentences."""
    fair = equally_busy(measurements)
    parts = dict.fromkeys(each.part for each in measurements)
    best = {part: found for part in parts if (found := best_of_families(fair, part))}
    if not best:
        return ""
    ahead = [part for part, found in best.items() if len(found) > 1 and _faster(fair, part, *list(found.values())[:2])]
    fastest = Counter(next(iter(found)) for found in best.values())
    reached = Counter(family for part, found in best.items() for family in found if _reaches(fair, part, found[family]))
    lines = [
        f"With about {IN_TRAINING} devices in training, the fastest family is {_counted(fastest)} of {len(best)} "
        f"fleets. Its lead over the next family exceeds the spread over seeds {_listed(ahead)}.",
        f"The fastest algorithm of a family reaches the target: {_counted(reached)} of {len(best)}.",
    ]
    busy = {part: _cost_of_all(measurements, part, next(iter(found.values()))) for part, found in best.items()}
    costs = {part: cost for part, cost in busy.items() if cost is not None}
    if costs:
        low, high = (f"{cost:.1f}" for cost in (min(costs.values()), max(costs.values())))
        times = low if low == high else f"{low} to {high}"
        lines.append(
            f"Algorithms that keep every device in training are faster still {_listed(list(costs))}, for {times} times "
            "the device seconds."
        )
    return "\n".join(f"- {line}" for line in lines)


def _faster(measurements: Sequence[Measurement], part: str, mine: str, theirs: str) -> bool:
    """Whether a method reaches the target before another, beyond the spread over seeds."""
    faster, slower = (by_seed(measurements, part, method, "time_to_target") for method in (mine, theirs))
    ratio = speed_up(faster, slower)
    return ratio is not None and ratio.excludes(1.0) and ratio.low > 1.0


def _cost_of_all(measurements: Sequence[Measurement], part: str, fair: str) -> float | None:
    """Device seconds of the fastest of all over those of the fastest of the equally busy; None if it is not faster,
    beyond the spread over seeds."""
    leader = next(iter(best_of_families(measurements, part).values()))
    if leader == fair or not _faster(measurements, part, leader, fair):
        return None
    mine, theirs = (median(by_seed(measurements, part, name, "device_seconds").values()) for name in (leader, fair))
    return mine / theirs


def _reaches(measurements: Sequence[Measurement], part: str, method: str) -> bool:
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


# Table and figure ----------------------------------------------------------------------------------------------------


def winners(measurements: Sequence[Measurement]) -> str:
    """A table with the fastest algorithm on each fleet, among the equally busy ones and among all.

    The speed-up is over the best algorithm of the next family, and paired by seed.
    """
    title = f"fastest with {IN_TRAINING} in training"
    lines = [["fleet", title, "time to target (s)", "over the next family", "fastest of all", "time to target (s)"]]
    fair = equally_busy(measurements)
    for part in dict.fromkeys(each.part for each in measurements):
        best, best_of_all = (list(best_of_families(these, part).values()) for these in (fair, measurements))
        if not best:
            continue
        first, leader, ratio = best[0], best_of_all[0], "-"
        if len(best) > 1:
            mine, theirs = (by_seed(fair, part, name, "time_to_target") for name in best[:2])
            ratio = f"{speed_up_text(speed_up(mine, theirs)).replace('inf', '∞')}, {marked(best[1])}"
        times = [summary(measurements, part, name, "time_to_target") for name in (first, leader)]
        lines.append([part, marked(first), times[0], ratio, marked(leader), times[1]])
    return markdown_table(lines) if len(lines) > 1 else ""


def figure(measurements: Sequence[Measurement]) -> Figure | None:
    """Time to target and final accuracy of the best algorithm of each family on each fleet.

    On the left are algorithms with about the same number of devices in training, on the right all algorithms.
    """
    parts = list(dict.fromkeys(each.part for each in measurements))
    if not parts:
        return None
    families = list(dict.fromkeys(FAMILIES.values()))
    drawn = Figure(figsize=(12.0, 8.0), layout="constrained")
    rows = {"time_to_target": "Time to target (virtual s)", "final_accuracy": "Final accuracy (%)"}
    columns = {f"about {IN_TRAINING} devices in training": equally_busy(measurements), "all algorithms": measurements}
    panels = drawn.subplots(2, 2, sharey="row")
    for (axes, (name, title)), (column, (who, these)) in product(
        zip(panels, rows.items(), strict=True), enumerate(columns.items())
    ):
        style_axes(axes[column], f"{title}: {who}")
        for position, family in enumerate(families):
            _draw_family(axes[column], these, parts, family, name, position)
        axes[column].set_xticks(range(len(parts)), [fill(part, 11) for part in parts], fontsize="small")
        axes[column].set_xlim(-0.5, len(parts) - 0.3)
    ticks = np.linspace(0.0, SECONDS, 5)
    panels[0, 0].set_yticks([*ticks, NEVER], [*(f"{tick:g}" for tick in ticks), "never"])
    panels[0, 0].set_ylim(0.0, 1.05 * NEVER)
    legend_below(drawn, *panels[0, 1].get_legend_handles_labels())
    return drawn


def _draw_family(
    axes: Axes, measurements: Sequence[Measurement], parts: Sequence[str], family: str, name: str, position: int
) -> None:
    """Draw medians with intervals; a target that is not reached is drawn at "never"."""
    colour, _, marker = line_style(position)
    methods = {x: best_of_families(measurements, part).get(family) for x, part in enumerate(parts)}
    found = {
        x: median_of(by_seed(measurements, parts[x], method, name).values(), log=name == "time_to_target")
        for x, method in methods.items()
        if method is not None
    }
    if not found:
        return
    scale = 100.0 if name == "final_accuracy" else 1.0
    middle, low, high = (
        np.minimum([scale * getattr(each, end) for each in found.values()], NEVER) for end in ("median", "low", "high")
    )
    axes.errorbar(
        [x + 0.07 * position for x in found],
        middle,
        yerr=[middle - low, high - middle],
        color=colour,
        marker=marker or "o",
        linestyle="none",
        capsize=3,
        label=family,
    )
