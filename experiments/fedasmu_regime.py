"""The regime in which FedASMU wins: long local training, very uneven data and a strong merge, with equal concurrency.

Also the effect of two confounds on such a comparison: a constant weight for FedAsync, and unequal numbers of devices in
flight.
"""

from dataclasses import replace

from experiments.harness import Table
from experiments.harness.command_line import main
from experiments.harness.study import Case, Form, fair_cases, read_study
from offbeat import Experiment, InvalidInput

SECONDS = {(5, 15): 500.0, (20, 15): 1500.0, (5, 50): 300.0, (20, 50): 240.0}
"""Virtual seconds by local epochs and devices in flight; the fastest device takes a second for an epoch."""
TEST_IMAGES = 2000
"""Test images in all regimes but WINNING and MILD, which have all 10,000."""
RATES = tuple({"local": {"learning_rate": rate}} for rate in (0.03, 0.1))
BASELINES: dict[str, Table] = {
    "FedAsync, polynomial": {"name": "fedasync"},
    "FedAsync, constant 0.9": {"name": "fedasync", "staleness": "constant", "alpha": 0.9},
    "FedBuff, server rate 1": {"name": "fedbuff", "buffer": 10, "server_learning_rate": 1.0},
    "FedBuff, server rate 0.5": {"name": "fedbuff", "buffer": 10, "server_learning_rate": 0.5},
}
STRONG = "FedASMU, gamma_0 40"
OWN: dict[str, Table] = {
    "FedASMU": {"name": "fedasmu", "staleness_bound": 99},
    STRONG: {"name": "fedasmu", "staleness_bound": 99, "gamma_0": 40.0},
    "FedASMU-DA (fresh models), gamma_0 40": {
        "name": "fedasmu",
        "staleness_bound": 99,
        "gamma_0": 40.0,
        "dynamic_weights": False,
    },
    "FedASMU-FA (dynamic weights)": {"name": "fedasmu", "staleness_bound": 99, "fresh_models": False},
    "FedASMU-0 (neither)": {"name": "fedasmu", "staleness_bound": 99, "fresh_models": False, "dynamic_weights": False},
}
METHODS = BASELINES | OWN
REGIMES = [
    (epochs, alpha, flight) for flight in (15, 50) for epochs, alpha in ((20, 0.1), (5, 0.3), (20, 0.3), (5, 0.1))
]
"""Local epochs, Dirichlet's alpha and devices in flight. Most claims are about the first two, where the learning
rates are chosen; the other regimes use the rates chosen with the same number of epochs."""


def title(epochs: int, alpha: float, flight: int) -> str:
    """The name of a part."""
    return f"{epochs} epochs, Dirichlet({alpha:g}), {flight} in flight"


WINNING, MILD, CROWDED = title(20, 0.1, 15), title(5, 0.3, 15), title(5, 0.3, 50)
ELSEWHERE = (*BASELINES, STRONG)
"""The methods of the regimes without claims."""


def methods(part: str) -> dict[str, Table]:
    """The methods of a regime and their settings."""
    return METHODS if part in (WINNING, MILD, CROWDED) else {name: METHODS[name] for name in ELSEWHERE}


def cases(form: Form) -> list[Case]:
    """Every method in every regime. The quick form has the first regime, with an MLP on embedded data."""
    made, tuned = [], dict[int, dict[str, Experiment]]()
    for epochs, alpha, flight in REGIMES if form.full else REGIMES[:1]:
        seconds = SECONDS[epochs, flight] * form.length
        base = Experiment(
            stop={"time": seconds},
            data=data_of(form) | {"devices": 100},
            partition={"name": "dirichlet", "alpha": alpha},
            model="lenet5" if form.full else "mlp",
            local={"epochs": epochs, "batch_size": 20, "learning_rate": 0.1},
            fleet={"name": "ratio", "ratio": 5.0},
            evaluation={"every_seconds": seconds / 25},
        )
        part = title(epochs, alpha, flight)
        if part not in (WINNING, MILD):
            base = base.changed({"evaluation": {"samples": TEST_IMAGES}})
        these = fair_cases(part, base, methods(part), in_training=flight, candidates=RATES)
        if part in (WINNING, MILD):
            tuned[epochs] = {case.method: case.experiment for case in these}
        else:
            these = [replace(case, tuned_on=tuned[epochs][case.method]) for case in these]
        made += these
    return made


def data_of(form: Form) -> Table:
    """4,000 images of Fashion-MNIST, or in the quick form of MNIST."""
    if not form.full:
        return {"name": "mnist5k"}
    if form.data is None:
        raise InvalidInput("no data directory is given: Fashion-MNIST is needed in its folder fashion-mnist/")
    return {"name": "fashion-mnist", "dir": str(form.data / "fashion-mnist"), "limit": 4000}


PARTS = {title(*regime): tuple(methods(title(*regime))) for regime in REGIMES}
STUDY = read_study("fedasmu_regime", cases=cases, parts=PARTS)

if __name__ == "__main__":
    main(STUDY)
