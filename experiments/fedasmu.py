"""FedASMU and FedSSMU, Table 4 and sections 6.2.2 to 6.2.6, in the regime of the paper.

Twelve methods with LeNet on Fashion-MNIST, with a decaying and a constant learning rate, and with the CNN on CIFAR-10;
five of them with more devices, on more uneven fleets and over slower links; ablations and fixed slots. All methods are
tuned with equally many settings. The variations keep the settings chosen with the constant rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from experiments.harness import Table
from experiments.harness.command_line import main
from experiments.harness.study import Case, Form, read_study
from offbeat import Experiment, InvalidInput

PERIODS, PERIOD = 200, 10.0
VARIED_PERIODS, CNN_PERIODS = 100, 50
"""Periods of the variations and ablations, and of the CNN, whose steps take several times as long."""
IMAGES, TEST_IMAGES = 6000, 2000
"""Training images, and test images of runs with fewer periods; the other runs have all 10,000."""
EPOCH_SECONDS = 1.0
"""Epoch of the fastest device in the fleet of ratio 5; in the other fleets the mean device is as fast as there."""
LENET, CONSTANT, CNN = "LeNet, Fashion-MNIST", "LeNet, constant rate", "CNN, CIFAR-10"
DECAY: Table = {"learning_rate_decay": 0.9886, "decay_every": PERIOD, "schedule_over": "time"}
"""The paper decays the rate without saying how: here every period, to a tenth in 200 periods."""


@dataclass(frozen=True)
class Regime:
    """A model and a data set that every method is tuned for."""

    model: str
    data: str
    folder: str
    """The directory of the data set below `--data`."""
    rates: Sequence[float]
    """The learning rates that every method is tuned with; the first does not exceed the paper's."""
    local: Table
    tuned_share: float
    """The first part of a run that candidates are compared by, as a share of its time."""


REGIMES = {
    LENET: Regime("lenet5", "fashion-mnist", "fashion-mnist", (0.005, 0.02, 0.08, 0.32), DECAY, 0.5),
    CONSTANT: Regime("lenet5", "fashion-mnist", "fashion-mnist", (0.005, 0.02, 0.05, 0.2), {}, 1.0),
    CNN: Regime("cnn", "cifar10", "cifar-10", (0.014, 0.028, 0.056, 0.112), DECAY, 0.5),
}
ALGORITHMS: dict[str, tuple[Table, str, tuple[float, float]]] = {
    "FedASMU": ({"name": "fedasmu", "cohort": 10, "period": PERIOD, "staleness_bound": 99}, "gamma_0", (4.0, 40.0)),
    "FedAsync": ({"name": "fedasync", "concurrency": 15}, "alpha", (0.3, 0.6)),
    "PORT": ({"name": "port", "concurrency": 15}, "staleness_weight", (1.0, 3.0)),
    "ASO-Fed": ({"name": "aso-fed", "concurrency": 15}, "mu", (0.001, 0.1)),
    "FedBuff": ({"name": "fedbuff", "concurrency": 15, "buffer": 10}, "server_learning_rate", (0.5, 1.0)),
    "FedSA": ({"name": "fedsa", "concurrency": 15}, "alpha", (0.3, 0.6)),
    "FedSSMU": ({"name": "fedssmu", "cohort": 10, "staleness_bound": 99}, "gamma_0", (4.0, 40.0)),
    "FedAvg": ({"name": "fedavg", "cohort": 10}, "server_learning_rate", (0.5, 1.0)),
    "FedProx": ({"name": "fedprox", "cohort": 10}, "mu", (0.001, 0.1)),
    "MOON": ({"name": "moon", "cohort": 10}, "mu", (1.0, 5.0)),
    "FedDyn": ({"name": "feddyn", "cohort": 10}, "alpha", (0.001, 0.01)),
    "FedLWS": ({"name": "fedlws", "cohort": 10}, "shrinking", (0.01, 0.03)),
}
"""The settings of each method, and the one that is tuned with the learning rate."""
VARIED = ("FedASMU", "FedAsync", "FedBuff", "FedSSMU", "FedAvg")
"""The methods of the variations."""


def ratio_fleet(ratio: float) -> Table:
    """A ratio fleet with the mean speed of the fleet of ratio 5."""
    return {"fleet": {"name": "ratio", "ratio": ratio, "epoch_seconds": EPOCH_SECONDS * (1 + 5) / (1 + ratio)}}


def links(slowness: float) -> Table:
    """Links with the default bandwidth divided by `slowness`."""
    return {"network": {"slow_share": 1.0, "slow_factor": slowness}}


VARIATIONS = {
    "LeNet, ratio 110": ratio_fleet(110.0),
    "LeNet, ratio 440": ratio_fleet(440.0),
    "LeNet, 200 devices": {"data": {"devices": 200}},
    "LeNet, 250 devices": {"data": {"devices": 250}},
    "LeNet, links at 1/50": links(50.0),
    "LeNet, links at 1/100": links(100.0),
}
"""Changes to the regime of LeNet."""
ABLATIONS = "LeNet, ablations and slots"
ABLATED: dict[str, Table] = {
    "FedASMU": {},
    "FedASMU-DA (fresh models)": {"dynamic_weights": False},
    "FedASMU-FA (dynamic weights)": {"fresh_models": False},
    "FedASMU-0 (neither)": {"dynamic_weights": False, "fresh_models": False},
    "H1, after the first epoch": {"slot": "first"},
    "H2, half way": {"slot": "middle"},
    "H3, in the penultimate epoch": {"slot": "penultimate"},
}
PARTS = {
    **dict.fromkeys(REGIMES, tuple(ALGORITHMS)),
    ABLATIONS: tuple(ABLATED),
    **dict.fromkeys(VARIATIONS, VARIED),
}
"""The methods of each part."""


def cases(form: Form) -> list[Case]:
    """Every method in every part; the quick form has the regime of LeNet with an MLP on embedded data."""
    if not form.full:
        return tuned_cases(LENET, form)
    constant = tuned_cases(CONSTANT, form)
    tuned = {case.method: case for case in constant}
    fewer = shorter(form.rounds(VARIED_PERIODS))
    ablations = [
        varied(tuned["FedASMU"], ABLATIONS, method, fewer | {"algorithm": settings})
        for method, settings in ABLATED.items()
    ]
    variations = [
        varied(tuned[method], part, method, fewer | changes)
        for part, changes in VARIATIONS.items()
        for method in VARIED
    ]
    return [*tuned_cases(LENET, form), *constant, *tuned_cases(CNN, form), *ablations, *variations]


def tuned_cases(part: str, form: Form) -> list[Case]:
    """All methods in one regime, each tuned there."""
    regime, seconds = REGIMES[part], form.rounds(PERIODS) * PERIOD
    rates = regime.rates if form.full else (0.02, 0.1)
    base = Experiment(
        stop={"time": seconds},
        data=data_of(regime, form) | {"devices": 100},
        partition={"name": "dirichlet", "alpha": 0.3},
        model=regime.model if form.full else "mlp",
        local={"epochs": 5, "batch_size": 20, "learning_rate": rates[0]} | regime.local,
        fleet={"name": "ratio", "ratio": 5.0, "epoch_seconds": EPOCH_SECONDS},
        evaluation={"every_seconds": seconds / 50},
    )
    if part == CNN:
        base = base.changed(shorter(form.rounds(CNN_PERIODS)) | {"execution": {"precision": "bfloat16"}})
    made = []
    for method in PARTS[part]:
        algorithm, setting, values = ALGORITHMS[method]
        candidates = [
            {"local": {"learning_rate": rate}, "algorithm": {setting: value}} for rate, value in product(rates, values)
        ]
        made.append(
            Case(
                part=part,
                method=method,
                experiment=base.changed({"algorithm": algorithm}),
                candidates=candidates,
                tuned_share=regime.tuned_share,
            )
        )
    return made


def shorter(periods: int) -> Table:
    """Changes that make a run shorter and evaluate it on fewer images."""
    seconds = periods * PERIOD
    return {
        "stop": {"time": seconds},
        "evaluation": {"every_seconds": seconds / 25, "samples": TEST_IMAGES},
    }


def varied(case: Case, part: str, method: str, changes: Table) -> Case:
    """A case with changes, and with the settings chosen for it without them."""
    changed = case.experiment.changed(changes)
    return replace(case, part=part, method=method, experiment=changed, tuned_on=case.experiment)


def data_of(regime: Regime, form: Form) -> Table:
    """The data set of a regime, or embedded images in the quick form."""
    if not form.full:
        return {"name": "mnist5k"}
    if form.data is None:
        raise InvalidInput(f"no data directory is given: {regime.data} is needed in its folder {regime.folder}/")
    return {"name": regime.data, "limit": IMAGES, "dir": str(form.data / regime.folder)}


STUDY = read_study("fedasmu", cases=cases, parts=PARTS)

if __name__ == "__main__":
    main(STUDY)
