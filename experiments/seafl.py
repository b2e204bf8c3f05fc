"""SEAFL, Figures 2, 4, 5 and 6: buffers, staleness limits, weights, and the baselines as published and as in Plato.

Speeds and idle times are drawn once per device, and all devices hold equally many samples. The paper shows single runs
with unknown learning rates; here the rate of each method is the best of four on the tuning seed.
"""

from math import inf

from experiments.harness import Table
from experiments.harness.command_line import main
from experiments.harness.study import Case, Form, fair_cases, read_study
from offbeat import Experiment

FLEETS: dict[str, Table] = {
    "Pareto": {"name": "pareto", "shape": 1.5, "epoch_seconds": 2.0},
    "Zipf": {"name": "zipf", "exponent": 1.7, "max_seconds": 60, "draw": "device", "epoch_seconds": 1.0},
}
SECONDS = 1000.0
RATES = tuple({"local": {"learning_rate": rate}} for rate in (0.03, 0.1, 0.3, 0.9))


def seafl(limit: float, buffer: int = 10, name: str = "seafl", **more: float | str) -> Table:
    """SEAFL with a staleness limit and a buffer, otherwise as published."""
    return {"name": name, "staleness_limit": limit, "buffer": buffer} | more


METHODS: dict[str, Table] = {
    "FedAvg": {"name": "fedavg"},
    "FedAsync": {"name": "fedasync"},
    "FedAsync as in Plato": {"name": "fedasync", "compounding": True},
    "FedBuff": {"name": "fedbuff"},
    "FedBuff as in Plato": {"name": "fedbuff", "variant": "plato"},
    "PORT": {"name": "port"},
    "SEAFL 3": seafl(3.0),
    "SEAFL 10": seafl(10.0),
    "SEAFL without limit": seafl(inf),
    "SEAFL 10, K = 5": seafl(10.0, 5),
    "SEAFL² 3": seafl(3.0, name="seafl2"),
    "SEAFL² 10": seafl(10.0, name="seafl2"),
    "SEAFL² 12": seafl(12.0, name="seafl2"),
    "SEAFL² 3, last finished epoch": seafl(3.0, name="seafl2", on_notice="last-finished"),
    "SEAFL 10, deltas": seafl(10.0, aggregate="deltas"),
}
PRELIMINARY = "Preliminary study (Zipf, Dirichlet 0.3)"
PARTS: dict[str, dict[str, Table]] = {
    "Pareto": METHODS,
    "Zipf": METHODS,
    PRELIMINARY: {
        "K = 1": seafl(inf, 1),
        "K = 10": seafl(inf, 10),
        "K = 20, synchronous": seafl(inf, 20),
        "K = 10, limit 1": seafl(1.0, 10),
        "K = 10, limit 10": seafl(10.0, 10),
        "K = 10, without similarity": seafl(inf, 10, similarity_weight=0.0),
    },
    "Weights (Pareto)": {
        f"alpha {alpha:g}, mu {mu:g}": seafl(10.0, staleness_weight=alpha, similarity_weight=mu)
        for alpha, mu in ((3.0, 1.0), (0.0, 1.0), (3.0, 0.0), (1.0, 1.0), (10.0, 1.0), (3.0, 10.0))
    },
}


def cases(form: Form) -> list[Case]:
    """Every method on every fleet; the quick form has the Pareto fleet alone."""
    made = []
    for part, methods in PARTS.items():
        fleet = FLEETS["Zipf" if part in ("Zipf", PRELIMINARY) else "Pareto"]
        partition: Table = {"name": "dirichlet-equal", "alpha": 0.3 if part == PRELIMINARY else 5.0}
        base = Experiment(
            stop={"time": SECONDS * form.length},
            data={"name": "mnist5k", "devices": 100},
            partition=partition,
            model="mlp",
            local={"epochs": 5, "batch_size": 20, "learning_rate": 0.1},
            fleet=fleet,
            evaluation={"every_seconds": SECONDS / 40},
        )
        made += fair_cases(part, base, methods, in_training=20, candidates=RATES)
    return made if form.full else [case for case in made if case.part == "Pareto"]


STUDY = read_study("seafl", cases=cases, parts={part: tuple(methods) for part, methods in PARTS.items()})

if __name__ == "__main__":
    main(STUDY)
