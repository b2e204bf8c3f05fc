"""Which defence when: accuracy under hostile devices, for each defence under FedAvg, FedBuff, SEAFL² and FedASMU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.harness import Table
from experiments.harness.command_line import main
from experiments.harness.measurements import Measurement, by_seed
from experiments.harness.study import Case, Form, fair_cases, read_study
from experiments.harness.tables import markdown_table
from offbeat import Experiment

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
    "Multi-Krum": {"combine": "multi-krum", "attackers": ASSUMED},
    "bucketing": {"combine": "bucketing"},
    "AsyncFilter": {"combine": "asyncfilter"},
}
WITHOUT_COMBINATION = ("none", "clip")
"""The defences of FedASMU, which uses one update at a time."""
ATTACKS = ("sign-flip", "ipm", "alie", "label-flip")
HARMFUL = ATTACKS[:2]
"""The attacks that end training without a defence."""
SHARES = (0.2, 0.1, 0.3)
HONEST = "no attack"


def title(algorithm: str, attack: str, share: float = 0.0) -> str:
    """The name of a part."""
    return f"{algorithm}, {attack}" if attack == HONEST else f"{algorithm}, {attack}, {100 * share:.0f} %"


def defences(algorithm: str) -> list[str]:
    """The defences that an algorithm can have."""
    return list(WITHOUT_COMBINATION) if algorithm == "FedASMU" else list(DEFENCES)


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
            values = [mean_of(measurements, title(algorithm, *each), defence) for each in shown]
            cells.append(", ".join("-" if value is None else f"{100 * value:.0f}" for value in values))
        lines.append([defence, *("" if set(cell) == set("-, ") else cell for cell in cells)])
    return (
        f"Final accuracy in percent: without attack, then with {100 * SHARES[0]:.0f} % attackers by "
        f"{' and '.join(HARMFUL)}; mean of 3 seeds.\n\n{markdown_table(lines)}"
    )


def figure(measurements: Sequence[Measurement]) -> "Figure | None":
    """Final accuracy over the share of attackers, a panel for each attack under FedBuff."""
    from matplotlib.figure import Figure

    if not measurements:
        return None
    drawn = Figure(figsize=(3.2 * len(ATTACKS), 3.2), layout="constrained")
    panels = drawn.subplots(1, len(ATTACKS), sharey=True)
    for panel, attack in zip(panels, ATTACKS, strict=True):
        for defence in DEFENCES:
            shares = [0.0, *sorted(SHARES)]
            parts = [title("FedBuff", HONEST), *(title("FedBuff", attack, share) for share in sorted(SHARES))]
            values = [mean_of(measurements, part, defence) for part in parts]
            known = [
                (100 * share, 100 * value) for share, value in zip(shares, values, strict=True) if value is not None
            ]
            if known:
                panel.plot(*zip(*known, strict=True), marker="o", markersize=3, label=defence)
        panel.set_title(attack)
        panel.set_xlabel("attackers (%)")
    panels[0].set_ylabel("final accuracy (%)")
    panels[-1].legend(fontsize="x-small")
    return drawn


STUDY = read_study("robustness", cases=cases, parts=PARTS, table=accuracy_table, figure=figure, slow=True)

if __name__ == "__main__":
    main(STUDY)
