"""`auto` on fleets and data that played no part in its design, beside the leaderboard's best algorithms, tuned."""

from collections.abc import Sequence
from math import inf, isfinite
from statistics import median

from matplotlib.figure import Figure

from experiments.defaults import NEVER, SGD, number, style_ratios
from experiments.harness import Table
from experiments.harness.command_line import main
from experiments.harness.measurements import Measurement, by_seed
from experiments.harness.study import Case, Form, read_study
from experiments.harness.tables import markdown_table
from experiments.leaderboard import TRIALS
from experiments.leaderboard_ranking import IN_TRAINING, SECONDS
from offbeat import Experiment, fair_experiments
from offbeat.results.plots import legend_below, line_style

RIVALS = (
    "delayed-nesterov",
    "fedsa",
    "ringmaster",
    "fedbuff",
    "port",
    "ca2fl",
    "refl",
    "fedasync",
    "feddyn",
    "fedavg",
)
"""The algorithms with limited devices in training that are fastest on the leaderboard, and two synchronous ones."""
UNTUNED: dict[str, Table] = {f"auto, {rate}": {"learning_rate": round(0.1 * factor, 4)} for rate, factor in SGD.items()}
UNTUNED["auto, polyak"] = {"optimiser": "polyak", "learning_rate": 0.1}
"""`auto` with its defaults, and what the devices do."""
DATA: dict[str, Table] = {
    "digits": {"data": {"name": "digits"}, "partition": {"name": "dirichlet", "alpha": 0.2}, "model": "mlp"},
    "synthetic": {"data": {"name": "synthetic"}, "model": "logistic"},
}
FLEETS: dict[str, Table] = {
    "Zipf": {"fleet": {"name": "zipf", "draw": "device"}},
    "exponential": {"fleet": {"name": "exponential"}},
    "on and off": {
        "fleet": {"name": "ratio", "ratio": 30.0, "epoch_seconds": 0.3},
        "availability": {"name": "on-off", "on_seconds": 60.0, "off_seconds": 30.0},
    },
}
PARTS = {f"{data}, {fleet}": (*RIVALS, *UNTUNED) for data in DATA for fleet in FLEETS}


def cases(form: Form) -> list[Case]:
    """The rivals, tuned on another seed, and `auto` as shipped; the quick form has one part."""
    made = []
    for part in PARTS if form.full else list(PARTS)[:1]:
        data, _, fleet = part.partition(", ")
        shared = base(form).changed(DATA[data]).changed(FLEETS[fleet]).changed({"data": {"devices": 60}})
        trials = TRIALS if form.full else 2
        made += [Case(part=part, method=name, experiment=shared, trials=trials) for name in RIVALS]
        for label, local in UNTUNED.items():
            (experiment,) = fair_experiments(shared.changed({"local": local}), ["auto"], [0])
            made.append(Case(part=part, method=label, experiment=experiment))
    return made


def base(form: Form) -> Experiment:
    """The experiment that all parts share."""
    seconds = SECONDS * form.length
    return Experiment(
        stop={"time": seconds},
        local={"epochs": 2, "batch_size": 20, "learning_rate": 0.1},
        evaluation={"every_seconds": seconds / 20},
        compare={"in_training": IN_TRAINING},
    )


def over_best(measurements: Sequence[Measurement], part: str, method: str) -> float | None:
    """The median time to the target over that of the fastest tuned rival; None if no rival gets there, or no run."""
    mine = by_seed(measurements, part, method, "time_to_target")
    best = best_rival(measurements, part)[1]
    return median(mine.values()) / best if mine and isfinite(best) else None


def best_rival(measurements: Sequence[Measurement], part: str) -> tuple[str, float]:
    """The tuned rival with the shortest median time to the target, and that time."""
    times = {name: by_seed(measurements, part, name, "time_to_target") for name in RIVALS}
    medians = {name: median(found.values()) for name, found in times.items() if found}
    return min(((name, time) for name, time in medians.items()), key=lambda each: each[1], default=("-", inf))


def findings(measurements: Sequence[Measurement]) -> str:
    """The ratios of `auto` to the best tuned rival, over all parts, as a list of sentences."""
    lines = []
    for label in UNTUNED:
        ratios = [ratio for part in PARTS if (ratio := over_best(measurements, part, label)) is not None]
        if ratios:
            spread = f"{number(median(ratios))} ({number(min(ratios))} to {number(max(ratios))})"
            lines.append(f"- {label.replace('auto', '`auto`')}: {spread} times the time of the best tuned rival.")
    return "\n".join(lines)


def table(measurements: Sequence[Measurement]) -> str:
    """The best tuned rival of each part, and how `auto` compares untuned."""
    lines = [["data and fleet", "best tuned rival", "time to target (s)", *UNTUNED]]
    for part in PARTS:
        name, time = best_rival(measurements, part)
        if name == "-":
            continue
        ratios = [over_best(measurements, part, label) for label in UNTUNED]
        cells = ["-" if ratio is None else number(ratio) for ratio in ratios]
        lines.append([part, *(("none", "never") if time == inf else (name, f"{time:.0f}")), *cells])
    return markdown_table(lines) if len(lines) > 1 else ""


def figure(measurements: Sequence[Measurement]) -> Figure | None:
    """The ratios of `auto` to the best tuned rival in each part, a colour for each of its learning rates."""
    found = {label: [over_best(measurements, part, label) for part in PARTS] for label in UNTUNED}
    parts = [x for x in range(len(PARTS)) if any(ratios[x] is not None for ratios in found.values())]
    if not parts:
        return None
    drawn = Figure(figsize=(8.0, 4.0), layout="constrained")
    axes = drawn.subplots()
    style_ratios(axes, "Time to target: auto untuned over the best tuned rival")
    for index, (label, ratios) in enumerate(found.items()):
        colour, _, marker = line_style(index)
        points = [(x + 0.15 * (index - 1.5), min(ratio, NEVER)) for x in parts if (ratio := ratios[x]) is not None]
        axes.plot(*zip(*points, strict=True), color=colour, marker=marker or "o", linestyle="none", label=label)
    axes.set_xticks(parts, [list(PARTS)[x] for x in parts])
    legend_below(drawn, *axes.get_legend_handles_labels())
    return drawn


STUDY = read_study("unseen", cases=cases, parts=PARTS, findings=findings, table=table, figure=figure)

if __name__ == "__main__":
    main(STUDY)
