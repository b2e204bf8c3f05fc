"""The leaderboard: every registered algorithm on several fleets, each tuned with equally many settings."""

from pathlib import Path

from experiments.harness import Table
from experiments.harness.command_line import main
from experiments.harness.study import Case, Form, read_study
from experiments.leaderboard_ranking import FAMILIES, IN_TRAINING, SECONDS, figure, findings, winners
from offbeat import Experiment

TRIALS = 8
"""Settings that the search tries for each algorithm on each fleet."""
TEST_IMAGES = 2000
"""Test images that LeNet is evaluated on."""
ITERATION_SECONDS = 5.0
"""First value in the search for algorithms with iterations of fixed length."""
ROUNDS = 50
"""Rounds of the algorithms with a time budget."""
EVEN: Table = {"fleet": {"name": "ratio", "ratio": 5.0}}
FLEETS: dict[str, Table] = {
    "ratio 5": EVEN,
    "Pareto": {"fleet": {"name": "pareto", "shape": 1.5}},
    "bimodal": {"fleet": {"name": "bimodal", "slow_share": 0.2, "slowness": 10.0}},
    "ratio 110": {"fleet": {"name": "ratio", "ratio": 110.0, "epoch_seconds": 0.1}},
    "10 % failures": EVEN | {"failures": {"vanish": 0.1, "rejoin_seconds": 20.0}},
}
"""The epochs of ratio 110 are shorter, so that the devices do about as much in the same time."""
PHONES = "phone trace"
PHONES_FILE = Path("device-traces") / "ai_benchmark_phones.csv"
FASHION = ("ratio 5", "Pareto")
LENET = {fleet: f"{fleet}, LeNet on Fashion-MNIST" for fleet in FASHION}
ALGORITHMS = tuple(FAMILIES)
PARTS = dict.fromkeys((*FLEETS, PHONES, *LENET.values()), ALGORITHMS)


def cases(form: Form) -> list[Case]:
    """Every algorithm on every fleet; the quick form has one fleet and one algorithm of each family."""
    algorithms = ALGORITHMS if form.full else tuple(dict(zip(FAMILIES.values(), FAMILIES, strict=True)).values())
    fleets = fleets_of(form) if form.full else {"ratio 5": EVEN}
    made = [
        case for part, changes in fleets.items() for case in _of(part, base(form).changed(changes), algorithms, form)
    ]
    if form.data is not None and form.full:
        for fleet, part in LENET.items():
            lenet = base(form).changed(
                FLEETS[fleet]
                | {
                    "model": {"name": "lenet5"},
                    "data": {"name": "fashion-mnist", "dir": str(form.data / "fashion-mnist"), "limit": 4000},
                    "evaluation": {"samples": TEST_IMAGES},
                }
            )
            made += _of(part, lenet, algorithms, form)
    return made


def fleets_of(form: Form) -> dict[str, Table]:
    """The fleets, with the phone trace if its file is given."""
    if form.data is None:
        return FLEETS
    trace = {"name": "trace", "path": str(form.data / PHONES_FILE), "columns": {"speed": "cpu_float_score"}}
    return FLEETS | {PHONES: {"fleet": trace | {"assign": "random"}}}


def base(form: Form) -> Experiment:
    """The experiment that all algorithms share."""
    seconds = SECONDS * form.length
    return Experiment(
        stop={"time": seconds},
        data={"name": "mnist5k", "devices": 100},
        partition={"name": "dirichlet", "alpha": 0.3},
        model="mlp",
        local={"epochs": 2, "batch_size": 20, "learning_rate": 0.1},
        evaluation={"every_seconds": seconds / 20},
        compare={"in_training": IN_TRAINING},
    )


def _of(part: str, experiment: Experiment, algorithms: tuple[str, ...], form: Form) -> list[Case]:
    own: Table = {"in_training": IN_TRAINING}
    for name in algorithms:
        if FAMILIES[name] == "iterations":
            own[name] = {"algorithm": {"iteration_seconds": ITERATION_SECONDS}}
        elif name in ("adel", "salf", "drop-stragglers", "heterofl"):
            own[name] = {"algorithm": {"rounds": form.rounds(ROUNDS)}, "local": {"learning_rate": 0.3}}
    shared = experiment.changed({"compare": own})
    trials = TRIALS if form.full else 2
    return [Case(part=part, method=name, experiment=shared, trials=trials) for name in algorithms]


STUDY = read_study("leaderboard", cases=cases, parts=PARTS, findings=findings, table=winners, figure=figure, slow=True)

if __name__ == "__main__":
    main(STUDY)
