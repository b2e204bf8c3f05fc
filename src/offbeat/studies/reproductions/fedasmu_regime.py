"""Where FedASMU wins: long local training, very uneven data and a strong merge, against baselines with as many devices.

And what two confounds do to a comparison like the published one: a constant weight for FedAsync, and unequal numbers of
devices in flight.
"""

from offbeat.core.errors import InvalidInput
from offbeat.settings.schema import Experiment
from offbeat.settings.tables import Table
from offbeat.studies.reproductions.claims import Claim
from offbeat.studies.reproductions.reproduction import Case, Form, Reproduction, fair_cases

SECONDS = {5: 500.0, 20: 1500.0}
"""Virtual seconds by local epochs; the fastest device takes a second for an epoch."""
RATES = tuple({"local": {"learning_rate": rate}} for rate in (0.03, 0.1))
BASELINES: dict[str, Table] = {
    "FedAsync, polynomial": {"name": "fedasync"},
    "FedAsync, constant 0.9": {"name": "fedasync", "staleness": "constant", "alpha": 0.9},
    "FedBuff, server rate 1": {"name": "fedbuff", "server_learning_rate": 1.0},
    "FedBuff, server rate 0.5": {"name": "fedbuff", "server_learning_rate": 0.5},
}
FULL, STRONG, FRESH, WEIGHTS, NEITHER = (
    "FedASMU",
    "FedASMU, gamma_0 40",
    "FedASMU-DA (fresh models), gamma_0 40",
    "FedASMU-FA (dynamic weights)",
    "FedASMU-0 (neither)",
)
OWN: dict[str, Table] = {
    FULL: {"name": "fedasmu"},
    STRONG: {"name": "fedasmu", "gamma_0": 40.0},
    FRESH: {"name": "fedasmu", "gamma_0": 40.0, "dynamic_weights": False},
    WEIGHTS: {"name": "fedasmu", "fresh_models": False},
    NEITHER: {"name": "fedasmu", "fresh_models": False, "dynamic_weights": False},
}
METHODS = BASELINES | OWN
REGIMES = [
    (epochs, alpha, flight) for flight in (15, 50) for epochs, alpha in ((20, 0.1), (5, 0.3), (20, 0.3), (5, 0.1))
]
"""Local epochs, Dirichlet's alpha and devices in flight; those that claims are about come first."""


def title(epochs: int, alpha: float, flight: int) -> str:
    """The name of a part."""
    return f"{epochs} epochs, Dirichlet({alpha:g}), {flight} in flight"


WINNING, MILD = title(20, 0.1, 15), title(5, 0.3, 15)


def cases(form: Form) -> list[Case]:
    """Every method in every regime. The quick form has the first regime, with an MLP on embedded data."""
    made = []
    for epochs, alpha, flight in REGIMES if form.full else REGIMES[:1]:
        base = Experiment(
            stop={"time": SECONDS[epochs] * form.length},
            data=data_of(form) | {"devices": 100},
            partition={"name": "dirichlet", "alpha": alpha},
            model="lenet5" if form.full else "mlp",
            local={"epochs": epochs, "batch_size": 20, "learning_rate": 0.1},
            fleet={"name": "ratio", "ratio": 5.0},
            evaluation={"every_seconds": SECONDS[epochs] * form.length / 25},
        )
        made += fair_cases(title(epochs, alpha, flight), base, METHODS, in_training=flight, candidates=RATES)
    return made


def data_of(form: Form) -> Table:
    """4,000 images of Fashion-MNIST, or in the quick form of MNIST."""
    if not form.full:
        return {"name": "mnist5k"}
    if form.data is None:
        raise InvalidInput("--data: give the directory that has Fashion-MNIST's files in fashion-mnist/")
    return {"name": "fashion-mnist", "dir": str(form.data / "fashion-mnist"), "limit": 4000}


def _claims() -> list[Claim]:
    better = (
        ("Table 4", "FedASMU is more accurate than FedAsync", FULL, "FedAsync, polynomial", 0.858 - 0.839),
        ("Table 4", "FedASMU is more accurate than FedBuff", FULL, "FedBuff, server rate 1", 0.858 - 0.827),
        ("Sec. 6.2.6", "Fresh models help (FedASMU-DA above FedASMU-0)", FRESH, NEITHER, 0.0104),
        ("Sec. 6.2.6", "Dynamic weights help (FedASMU-FA above FedASMU-0)", WEIGHTS, NEITHER, 0.0065),
    )
    claims = [
        Claim(where=where, says=f"{says}; {part}", part=part, kind="better", mine=mine, theirs=theirs, gap=gap)
        for part in (MILD, WINNING)
        for where, says, mine, theirs, gap in better
    ]
    claims += [
        Claim(
            where="ours, not the paper's",
            says=f"With a strong merge FedASMU is more accurate over the run than {theirs}; {WINNING}",
            part=WINNING,
            kind="better",
            mine=STRONG,
            theirs=theirs,
            measure="mean_accuracy",
        )
        for theirs in BASELINES
    ]
    claims.append(
        Claim(
            where="ours, not the paper's",
            says=f"A constant weight of 0.9 alone makes FedAsync look as bad as the paper has it; {MILD}",
            part=MILD,
            kind="better",
            mine="FedAsync, polynomial",
            theirs="FedAsync, constant 0.9",
            gap=0.858 - 0.839,
        )
    )
    return claims


FEDASMU_REGIME = Reproduction(
    name="fedasmu-regime",
    title="FedASMU: the regime in which it wins, and two confounds",
    paper="Liu et al., AAAI 2024; Jia et al., 2025 (Table 4 and sec. 6.2.6, LeNet on FMNIST)",
    about="""\
LeNet-5 on 4,000 images of Fashion-MNIST over 100 devices, ratio fleet 5, batches of 20; every method keeps the same
number of devices in flight. Each method's learning rate is the better of 0.03 and 0.1 on seed 100. The paper gives
neither the local epochs nor the number in flight: 5 and 20 epochs, 15 and 50 devices, Dirichlet 0.1 and 0.3 are run.
The published gaps of sec. 6.2.6 are relative, and the smallest of their range.""",
    cases=cases,
    parts=tuple(title(*regime) for regime in REGIMES),
    methods=lambda part: tuple(METHODS),
    claims=_claims(),
    shown={
        "final_accuracy": "final accuracy",
        "mean_accuracy": "mean accuracy",
        "time_to_target": "time to 70 %",
        "in_training": "in flight",
        "updates_used": "updates",
        "megabytes_down": "MB down",
    },
    target=0.70,
    needs=("fashion-mnist",),
)
