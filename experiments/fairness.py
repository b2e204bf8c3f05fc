"""Do slow devices have their share? Balanced against uniform selection, on fleets of uneven speed.

Also two weightings that were meant to help slow devices: FedStaleWeight, and a discount of repeated uploads.
"""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from experiments.harness import Table
from experiments.harness.command_line import main
from experiments.harness.measurements import Measurement, by_seed
from experiments.harness.study import Case, Form, fair_cases, read_study
from experiments.harness.tables import markdown_table
from offbeat import Experiment
from offbeat.results.statistics import Estimate, difference, median_of, speed_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECONDS = 400.0
DEVICES = 100
BUFFER = 10
RATIO = 20.0
SAMPLES = 30
"""Training samples of a device whose labels are given."""
IN_TRAINING = (20, 50)
ALGORITHMS: dict[str, Table] = {
    "FedBuff": {"name": "fedbuff", "buffer": BUFFER},
    "FedAsync": {"name": "fedasync"},
    "SEAFL²": {"name": "seafl2", "buffer": BUFFER},
}
WEIGHTINGS: dict[str, tuple[Table, Table]] = {
    "FedStaleWeight": ({"name": "fedstaleweight", "buffer": BUFFER}, {}),
    "FedBuff, repeats = 0.5": ({"name": "fedbuff", "buffer": BUFFER}, {"trust": {"repeats": 0.5}}),
}
METHODS: dict[str, tuple[Table, Table]] = (
    {name: (algorithm, {}) for name, algorithm in ALGORITHMS.items()}
    | {f"{name}, balanced": (table, {"selection": {"name": "balanced"}}) for name, table in ALGORITHMS.items()}
    | WEIGHTINGS
)
"""The algorithm of each method, and what else it changes."""
SKEWED: Table = {"partition": {"name": "dirichlet", "alpha": 0.2}}
FLEETS: dict[str, Table] = {
    "ratio 20": SKEWED | {"fleet": {"name": "ratio", "ratio": RATIO, "epoch_seconds": 0.5}},
    "bimodal": SKEWED | {"fleet": {"name": "bimodal", "slowness": RATIO, "epoch_seconds": 1.0}},
    "labels by speed": {
        "fleet": {"name": "ratio", "ratio": 1.0, "epoch_seconds": 0.5},
        "devices": {str(k): {"slowdown": 1 + (RATIO - 1) * k / (DEVICES - 1)} for k in range(DEVICES)},
        "partition": {
            "name": "labels",
            "labels": [[k // 10, (k // 10 + 1) % 10] for k in range(DEVICES)],
            "sizes": [SAMPLES] * DEVICES,
        },
    },
}


def title(fleet: str, in_training: int) -> str:
    """The name of a part."""
    return f"{fleet}, {in_training} in training"


PARTS = {title(fleet, number): list(METHODS) for fleet in FLEETS for number in IN_TRAINING}


def cases(form: Form) -> list[Case]:
    """Every method on every fleet. The quick form has the first fleet with 50 devices in training."""
    seconds, made = SECONDS * form.length, []
    for fleet, tables in FLEETS.items() if form.full else [next(iter(FLEETS.items()))]:
        shared = Experiment(
            stop={"time": seconds},
            data={"name": "mnist5k", "devices": DEVICES},
            model="mlp",
            local={
                "epochs": 2,
                "batch_size": 20,
                "learning_rate": 0.1,
                "schedule": "cosine",  # so that the final accuracy does not depend on the last few updates
                "schedule_over": "time",
                "decay_every": seconds,
                "learning_rate_decay": 0.05,
            },
            evaluation={"every_seconds": seconds / 30, "per_device": True},
            **tables,
        )
        algorithms = {label: algorithm for label, (algorithm, _) in METHODS.items()}
        for number in IN_TRAINING if form.full else IN_TRAINING[-1:]:
            for case in fair_cases(title(fleet, number), shared, algorithms, in_training=number):
                changes = METHODS[case.method][1]
                experiment = case.experiment.changed(changes) if changes else case.experiment
                made.append(Case(part=case.part, method=case.method, experiment=experiment))
    return made


def share(measurements: Sequence[Measurement], part: str, method: str) -> str:
    """The median share of the slowest fifth of the devices in the used samples, in percent."""
    values = by_seed(measurements, part, method, "slow_share").values()
    return f"{100 * median_of(values).median:.0f}" if values else "-"


def change(measurements: Sequence[Measurement], part: str, method: str, rival: str, name: str) -> Estimate | None:
    """How a method differs from its rival: accuracy in points, or times as fast to the target; None if not measured."""
    mine, theirs = (by_seed(measurements, part, each, name) for each in (method, rival))
    if not mine.keys() & theirs.keys():
        return None
    if name == "time_to_target":
        return speed_up(mine, theirs)
    points = [{seed: 100 * value for seed, value in each.items()} for each in (mine, theirs)]
    return difference(*points)


COLUMNS = {
    "slow_accuracy": "accuracy, slowest third (points)",
    "final_accuracy": "accuracy, all (points)",
    "time_to_target": "times as fast to the target",
}


def cell(measurements: Sequence[Measurement], part: str, mine: str, theirs: str) -> str:
    """The share of slow devices under both methods, and the median changes, in brackets where seeds do not decide."""
    words = [f"{share(measurements, part, theirs)} to {share(measurements, part, mine)} %"]
    for name in COLUMNS:
        found, is_time = change(measurements, part, mine, theirs, name), name == "time_to_target"
        if found is None:
            return "-"
        text = f"{found.median:.2f}" if is_time else f"{found.median:+.1f}"
        words.append(text if found.excludes(1.0 if is_time else 0.0) else f"[{text}]")
    return "; ".join(words)


def table(measurements: Sequence[Measurement]) -> str:
    """FedBuff with balanced selection beside FedBuff with a uniform draw."""
    lines = [["fleet", *(f"{number} in training" for number in IN_TRAINING)]]
    for fleet in FLEETS:
        parts = [title(fleet, number) for number in IN_TRAINING]
        lines.append([fleet, *(cell(measurements, part, "FedBuff, balanced", "FedBuff") for part in parts)])
    return (
        "FedBuff, uniform to balanced: share of the slowest fifth in the used samples; points of accuracy on the "
        "slowest third; on the test data; times as fast to 75 %. In brackets: undecided.\n\n" + markdown_table(lines)
    )


def figure(measurements: Sequence[Measurement]) -> "Figure | None":
    """What balanced selection changes under each algorithm on each fleet, with intervals."""
    from matplotlib.figure import Figure

    from offbeat.results.plots import COLOURS, FAINT, INK, style_axes

    if not measurements:
        return None
    rows = [(part, name) for part in PARTS for name in ALGORITHMS]
    drawn = Figure(figsize=(11.0, 0.24 * len(rows) + 1.0), layout="constrained")
    panels = drawn.subplots(1, len(COLUMNS), sharey=True)
    for panel, (measure, heading) in zip(panels, COLUMNS.items(), strict=True):
        style_axes(panel, heading)
        panel.axvline(1.0 if measure == "time_to_target" else 0.0, color=INK, linewidth=0.8)
        for row, (part, name) in enumerate(rows):
            panel.axhline(row, color=FAINT, linewidth=0.4, zorder=0)
            found = change(measurements, part, f"{name}, balanced", name, measure)
            if found is None or not (isfinite(found.low) and isfinite(found.high)):
                continue
            colour = COLOURS[list(ALGORITHMS).index(name)]
            panel.plot([found.low, found.high], [row, row], color=colour, linewidth=1.6)
            panel.plot(found.median, row, marker="o", markersize=4.5, color=colour)
    panels[0].set_yticks(range(len(rows)), [f"{part}: {name}" for part, name in rows], fontsize=8)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    return drawn


STUDY = read_study("fairness", cases=cases, parts=PARTS, table=table, figure=figure, slow=True)

if __name__ == "__main__":
    main(STUDY)
