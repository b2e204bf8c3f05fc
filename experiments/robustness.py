"""Which defence when: accuracy under hostile devices, for each defence under FedAvg, FedBuff, SEAFL² and FedASMU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.harness import Table
from experiments.harness.command_line import main
from experiments.harness.measurements import Measurement, by_seed
from experiments.harness.study import Case, Form, fair_cases, read_study
from experiments.harness.tables import markdown_table
from offbeat import Experiment
from offbeat.algorithms import POLICIES
from offbeat.trust.settings import COMBINERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SECONDS = 100.0
DEVICES = 50
IN_TRAINING = 20
BUFFER = 10
ASSUMED = 0.3
"""Share of hostile updates that the rules are told to withstand, whatever the share is."""
ALGORITHMS: dict[str, Table] = {
    "FedBuff": {"name": "fedbuff", "buffer": BUFFER},
    "FedAvg": {"name": "fedavg"},
    "SEAFL²": {"name": "seafl2", "buffer": BUFFER},
    "FedASMU": {"name": "fedasmu"},
}
DEFENCES: dict[str, Table] = {
    "none": {},
    "clip": {"clip": "auto"},
    "median": {"combine": "median"},
    "trimmed mean": {"combine": "trimmed-mean", "attackers": ASSUMED},
    "centred clipping": {"combine": "centred-clipping"},
    "Krum": {"combine": "krum", "attackers": ASSUMED},
    "Multi-Krum": {"combine": "multi-krum", "attackers": ASSUMED},
    "bucketing": {"combine": "bucketing"},
    "AsyncFilter": {"combine": "asyncfilter"},
    "THROTTLE": {"combine": "throttle"},
    "AFLGuard": {"combine": "aflguard"},
    "Zeno++": {"combine": "zeno++"},
}
ATTACKS = ("sign-flip", "ipm", "alie", "label-flip")
DARK = 0.5
"""Accuracy below which a cell of the figure is dark."""
HARMFUL = ATTACKS[:2]
"""The attacks that end training without a defence."""
SHARES = (0.2, 0.1, 0.3)
HONEST = "no attack"
IMPOSSIBLE = "-"
"""The mark of a defence that an algorithm cannot have."""


def title(algorithm: str, attack: str, share: float = 0.0) -> str:
    """The name of a part."""
    return f"{algorithm}, {attack}" if attack == HONEST else f"{algorithm}, {attack}, {100 * share:.0f} %"


def defences(algorithm: str) -> list[str]:
    """The defences that an algorithm can have."""
    policy = POLICIES[ALGORITHMS[algorithm]["name"]]
    rules = {defence: table.get("combine") for defence, table in DEFENCES.items()}
    return [
        defence
        for defence, rule in rules.items()
        if rule is None or policy.combines or (policy.mixes and COMBINERS[rule].singly)
    ]


def threats() -> list[tuple[str, float, str]]:
    """Every attack with every share of attackers, and none, under every algorithm."""
    attacks = [(attack, share, algorithm) for share in SHARES for algorithm in ALGORITHMS for attack in ATTACKS]
    return [*((HONEST, 0.0, algorithm) for algorithm in ALGORITHMS), *attacks]


PARTS = {title(algorithm, attack, share): defences(algorithm) for attack, share, algorithm in threats()}


def base(form: Form) -> Experiment:
    """The experiment that all runs share, without attack and defence."""
    seconds = SECONDS * form.length
    return Experiment(
        stop={"time": seconds},
        data={"name": "mnist5k", "devices": DEVICES},
        partition={"name": "dirichlet", "alpha": 0.5},
        model="mlp",
        local={"epochs": 2, "batch_size": 20, "learning_rate": 0.1},
        fleet={"name": "ratio", "ratio": 5.0},
        evaluation={"every_seconds": seconds / 5, "samples": 1000},
    )


def cases(form: Form) -> list[Case]:
    """Every defence against every attack under every algorithm. The quick form has FedBuff and two attacks."""
    shared = base(form)
    fair = {case.method: case.experiment for case in fair_cases("", shared, ALGORITHMS, in_training=IN_TRAINING)}
    made = []
    for attack, share, algorithm in (
        threats() if form.full else [each for each in threats() if each[2] == "FedBuff"][:3]
    ):
        for defence in defences(algorithm):
            changes: Table = {"trust": DEFENCES[defence]}
            if attack != HONEST:
                changes["attack"] = {"name": attack, "share": share}
            experiment = fair[algorithm].changed({key: value for key, value in changes.items() if value})
            made.append(Case(part=title(algorithm, attack, share), method=defence, experiment=experiment))
    return made


def mean_of(measurements: Sequence[Measurement], part: str, method: str, name: str = "final_accuracy") -> float | None:
    """The mean over seeds of one measure; None if it is not measured."""
    values = list(by_seed(measurements, part, method, name).values())
    return sum(values) / len(values) if values else None


def accuracy_table(measurements: Sequence[Measurement]) -> str:
    """Final accuracy by defence and algorithm: without attack, and under 20 % attackers of the two harmful kinds."""
    shown = [(HONEST, 0.0), *((attack, SHARES[0]) for attack in HARMFUL)]
    lines = [["defence", *ALGORITHMS]]
    for defence in DEFENCES:
        cells = []
        for algorithm in ALGORITHMS:
            if defence not in defences(algorithm):
                cells.append(IMPOSSIBLE)
                continue
            values = [mean_of(measurements, title(algorithm, *each), defence) for each in shown]
            known = [f"{100 * value:.0f}" for value in values if value is not None]
            cells.append(", ".join(known) if len(known) == len(values) else "")
        lines.append([defence, *cells])
    return (
        f"Final accuracy in percent: without attack, then with {100 * SHARES[0]:.0f} % attackers by "
        f"{' and '.join(HARMFUL)}; mean of 3 seeds. {IMPOSSIBLE}: FedASMU uses one update at a time, and the rule "
        f"compares several.\n\n{markdown_table(lines)}"
    )


def figure(measurements: Sequence[Measurement]) -> "Figure | None":
    """Final accuracy of each defence under each attack and share of attackers, a panel for each algorithm."""
    import numpy as np
    from matplotlib.figure import Figure

    if not measurements:
        return None
    columns = [(HONEST, 0.0), *((attack, share) for attack in ATTACKS for share in sorted(SHARES))]
    drawn = Figure(figsize=(11.0, 8.4), layout="constrained")
    panels = drawn.subplots(2, 2, sharey=True)
    for panel, algorithm in zip(panels.flat, ALGORITHMS, strict=True):
        values = np.full((len(DEFENCES), len(columns)), np.nan)
        for row, defence in enumerate(DEFENCES):
            for column, (attack, share) in enumerate(columns):
                value = mean_of(measurements, title(algorithm, attack, share), defence)
                possible = defence in defences(algorithm)
                values[row, column] = np.nan if value is None else 100 * value
                text = IMPOSSIBLE if not possible else "" if value is None else f"{100 * value:.0f}"
                dark = value is not None and value < DARK
                panel.text(column, row, text, ha="center", va="center", size=8, color="white" if dark else "black")
        panel.imshow(values, cmap="viridis", vmin=0, vmax=100, aspect="auto")
        for edge in np.arange(0.5, len(columns) - 1, len(SHARES)):
            panel.axvline(edge, color="white", linewidth=2)
        panel.set_title(algorithm, pad=18)
        panel.set_xticks(range(len(columns)), ["0", *(f"{100 * share:.0f}" for _, share in columns[1:])])
        panel.set_yticks(range(len(DEFENCES)), list(DEFENCES))
        for number, attack in enumerate(ATTACKS):
            panel.text(2 + number * len(SHARES), -0.6, attack, ha="center", va="bottom", size=9)
        panel.set_xlabel("attackers (%)")
    drawn.suptitle("Final accuracy (%)")
    return drawn


STUDY = read_study("robustness", cases=cases, parts=PARTS, table=accuracy_table, figure=figure, slow=True)

if __name__ == "__main__":
    main(STUDY)
