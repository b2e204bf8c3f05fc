"""The leaderboard: every registered algorithm on several fleets, each tuned with the same budget, on the same seeds."""

from pathlib import Path

from experiments.reproduction import Case, Form, Reproduction
from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import about_of
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import Table

TRIALS = 8
"""Settings that the search tries for each algorithm on each fleet."""
IN_TRAINING = 20
SECONDS = 200.0
TARGET, LENET_TARGET = 0.85, 0.60
TEST_IMAGES = 2000
"""How many of the 10,000 test images LeNet is evaluated on."""
ITERATION_SECONDS = 5.0
"""Where the search begins for algorithms with iterations of fixed length."""
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
"""Epochs of the last but one are shortened, so that as much is done in the same time."""
PHONES = "phone trace"
PHONES_FILE = Path("device-traces") / "ai_benchmark_phones.csv"
FASHION = ("ratio 5", "Pareto")
LENET = {fleet: f"{fleet}, LeNet on Fashion-MNIST" for fleet in FASHION}
PARTS = (*FLEETS, PHONES, *LENET.values())
TIME = f"time to {100 * TARGET:g} % (LeNet: {100 * LENET_TARGET:g} %)"
ALGORITHMS = tuple(POLICIES)
FAMILIES = {name: about_of(policy).family or "" for name, policy in POLICIES.items()}


def cases(form: Form) -> list[Case]:
    """Every algorithm on every fleet whose files are there; the quick form has one algorithm of each family."""
    algorithms = ALGORITHMS if form.full else tuple(dict(zip(FAMILIES.values(), FAMILIES, strict=True)).values())
    fleets = dict(FLEETS)
    if form.data is not None and form.full:
        fleets[PHONES] = {
            "fleet": {
                "name": "trace",
                "path": str(form.data / PHONES_FILE),
                "columns": {"speed": "cpu_float_score"},
                "assign": "random",
            }
        }
    if not form.full:
        fleets = {"ratio 5": EVEN}
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


def base(form: Form) -> Experiment:
    """The experiment that all of them share."""
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


LEADERBOARD = Reproduction(
    name="leaderboard",
    title="The leaderboard",
    paper="Every registered algorithm",
    about=f"""\
4,000 embedded images of MNIST on an MLP over 100 devices, Dirichlet(0.3), 2 epochs, batches of 20, {SECONDS:g}
virtual seconds, {IN_TRAINING} devices in training (algorithms of the families *iterations* and *time budget*, and
SAFA, keep all of them in training: see their device seconds). Fleets: epoch times uniform from 1 s to 5 s (*ratio
5*); Pareto(1.5) from 1 s on; a fifth of the devices ten times as slow (*bimodal*); uniform from 0.1 s to 11 s (*ratio
110*); ratio 5 with every tenth order's device vanishing for 20 s (*10 % failures*); speeds of 333 measured phones
(*phone trace*: AI-Benchmark's `cpu_float_score`, the fastest taking 1 s). Then LeNet on 4,000 images of Fashion-MNIST
on two fleets, evaluated on {TEST_IMAGES:,} test images.

**Tuned alike.** For each algorithm on each fleet a search (`offbeat tune`) tried {TRIALS} settings of the learning
rate and of what the algorithm itself names, on seed 100, by the mean accuracy over the run. The first of them are the
defaults, which are run to the end; of the others only those go on that are among the best third at a ninth and again at
a third of the time. Settings that diverge are never chosen. Reported are seeds 0 to 4. Algorithms with a time budget
take one to five steps in each of {ROUNDS} rounds.""",
    cases=cases,
    parts=PARTS,
    methods=lambda part: ALGORITHMS,
    shown={
        "time_to_target": TIME,
        "final_accuracy": "accuracy at the end",
        "mean_accuracy": "mean accuracy",
        "megabytes_up": "MB up",
        "megabytes_down": "MB down",
        "device_seconds": "device seconds",
        "wasted_share": "of them wasted",
        "slow_share": "share of the slow fifth",
    },
    target=TARGET,
    targets=dict.fromkeys(LENET.values(), LENET_TARGET),
    slow=True,
    needs=("device-traces", "fashion-mnist"),
)
