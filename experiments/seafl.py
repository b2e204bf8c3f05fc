"""SEAFL's figures 2, 4, 5 and 6: buffers, limits, weights, and baselines as published and as its framework has them.

Fleets are drawn once per device: heavy-tailed speeds, or one idle time for each device. All devices hold equally many
samples. The paper's figures are of single runs with unknown learning rates; here each method's rate is the best of
three on the tuning seed.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf

from experiments.claims import Claim, Kind, gap_text
from experiments.measurements import Measurement
from experiments.reproduction import Case, Form, Reproduction, fair_cases
from experiments.tables import in_short
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import Table

FLEETS: dict[str, Table] = {
    "Pareto": {"name": "pareto", "shape": 1.5, "epoch_seconds": 2.0},
    "Zipf": {"name": "zipf", "exponent": 1.7, "max_seconds": 60, "draw": "device", "epoch_seconds": 1.0},
}
SECONDS = 1000.0
TARGET = 0.85
RATES = tuple({"local": {"learning_rate": rate}} for rate in (0.03, 0.1, 0.3))
FEDBUFF, PLATO_FEDBUFF = "FedBuff", "FedBuff as in Plato"
FEDASYNC, PLATO_FEDASYNC = "FedAsync", "FedAsync as in Plato"
BASELINES: dict[str, Table] = {
    "FedAvg": {"name": "fedavg"},
    FEDASYNC: {"name": "fedasync"},
    PLATO_FEDASYNC: {"name": "fedasync", "compounding": True},
    FEDBUFF: {"name": "fedbuff"},
    PLATO_FEDBUFF: {"name": "fedbuff", "variant": "plato"},
    "PORT": {"name": "port"},
}


def seafl(limit: float, buffer: int = 10, name: str = "seafl", **more: float) -> Table:
    """SEAFL with a staleness limit and a buffer, otherwise as published."""
    return {"name": name, "staleness_limit": limit, "buffer": buffer} | more


OWN: dict[str, Table] = {
    "SEAFL 3": seafl(3.0),
    "SEAFL 10": seafl(10.0),
    "SEAFL without limit": seafl(inf),
    "SEAFL 10, K = 5": seafl(10.0, 5),
    "SEAFL² 3": seafl(3.0, name="seafl2"),
    "SEAFL² 10": seafl(10.0, name="seafl2"),
    "SEAFL² 12": seafl(12.0, name="seafl2"),
    "SEAFL² 3, last finished epoch": seafl(3.0, name="seafl2") | {"on_notice": "last-finished"},
    "SEAFL 10, deltas": seafl(10.0) | {"aggregate": "deltas"},
}
PRELIMINARY = "Preliminary study (Zipf, Dirichlet 0.3)"
STUDIED: dict[str, Table] = {
    "K = 1": seafl(inf, 1),
    "K = 10": seafl(inf, 10),
    "K = 20, synchronous": seafl(inf, 20),
    "K = 10, limit 1": seafl(1.0, 10),
    "K = 10, limit 10": seafl(10.0, 10),
    "K = 10, without similarity": seafl(inf, 10, similarity_weight=0.0),
}
WEIGHTS = "Weights (Pareto)"
PAIRS = {
    f"alpha {alpha:g}, mu {mu:g}": seafl(10.0, staleness_weight=alpha, similarity_weight=mu)
    for alpha, mu in ((3.0, 1.0), (0.0, 1.0), (3.0, 0.0), (1.0, 1.0), (10.0, 1.0), (3.0, 10.0))
}
PARTS: dict[str, dict[str, Table]] = {
    "Pareto": BASELINES | OWN,
    "Zipf": BASELINES | OWN,
    PRELIMINARY: STUDIED,
    WEIGHTS: PAIRS,
}

AGAINST_FEDBUFF: tuple[tuple[str, str, str, Kind], ...] = (
    ("Fig. 6(b), a slight advantage", "SEAFL² with limit 12 is faster than", "SEAFL² 12", "better"),
    ("Fig. 5", "SEAFL with limit 10 is faster than", "SEAFL 10", "better"),
    ("Fig. 5", "SEAFL without limit is as fast as", "SEAFL without limit", "alike"),
)
AGAINST_OTHERS = (
    ("Fig. 5", "SEAFL 10", "FedAvg"),
    ("Fig. 6(a)", "SEAFL² 3", "FedAvg"),
    ("Fig. 6(a)", "SEAFL² 3", FEDASYNC),
    ("Fig. 6(b)", "SEAFL² 12", "FedAvg"),
    ("Fig. 6(b)", "SEAFL² 12", FEDASYNC),
)
PRELIMINARY_CLAIMS = (
    ("Fig. 2(a)", "A buffer of 10 is faster than a synchronous one of 20", "K = 10", "K = 20, synchronous", None),
    ("Fig. 2(b), 778 s / 357 s", "Limit 10 is faster than limit 1", "K = 10, limit 10", "K = 10, limit 1", 778 / 357),
    ("Fig. 2(c), 278 s / 210 s", "Similarity saves time", "K = 10", "K = 10, without similarity", 278 / 210),
)


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


def _claims() -> Iterator[Claim]:
    for part in FLEETS:
        for buff in (FEDBUFF, PLATO_FEDBUFF):
            yield _time(
                "Fig. 6(a), 905 s / 745 s and 1,341 s / 1,105 s",
                part,
                f"{part}: SEAFL² with limit 3 is faster than {buff}",
                "SEAFL² 3",
                buff,
                gap=1341 / 1105,
            )
            for where, says, mine, kind in AGAINST_FEDBUFF:
                yield _time(where, part, f"{part}: {says} {buff}", mine, buff, kind=kind)
        for each in (FEDASYNC, PLATO_FEDASYNC):
            yield Claim(where="Fig. 5", says=f"{part}: {each} fails to converge", part=part, kind="never", mine=each)
        for where, mine, theirs in AGAINST_OTHERS:
            yield _time(where, part, f"{part}: {mine} is faster than {theirs}", mine, theirs)
    yield Claim(where="Fig. 2(a)", says="A buffer of 1 fails to converge", part=PRELIMINARY, kind="never", mine="K = 1")
    for where, says, mine, theirs, gap in PRELIMINARY_CLAIMS:
        yield _time(where, PRELIMINARY, says, mine, theirs, gap=gap)
    first, *others = PAIRS
    for pair in others:
        yield _time("Fig. 4", WEIGHTS, f"{first} is faster than {pair}", first, pair)


def _time(
    where: str, part: str, says: str, mine: str, theirs: str, *, gap: float | None = None, kind: Kind = "better"
) -> Claim:
    """A claim about the times of two methods to the target."""
    return Claim(
        where=where, says=says, part=part, kind=kind, mine=mine, theirs=theirs, gap=gap, measure="time_to_target"
    )


def _in_short(found: Sequence[Measurement]) -> list[list[str]]:
    """What becomes of the comparison with FedBuff, and what it is made of."""
    pairs = {
        "SEAFL² 3 over the published FedBuff (times as fast)": ("SEAFL² 3", FEDBUFF),
        "SEAFL² 3 over Plato's FedBuff": ("SEAFL² 3", PLATO_FEDBUFF),
        "SEAFL² 3 over PORT": ("SEAFL² 3", "PORT"),
        "Plato's FedBuff over the published one": (PLATO_FEDBUFF, FEDBUFF),
        "SEAFL 10 with movements over SEAFL 10 with stale models": ("SEAFL 10, deltas", "SEAFL 10"),
        "SEAFL² 3, last finished epoch over finishing the one under way": ("SEAFL² 3, last finished epoch", "SEAFL² 3"),
    }
    return in_short(
        FLEETS,
        {title: partial(gap_text, found, *pair, measure="time_to_target") for title, pair in pairs.items()},
    )


SEAFL = Reproduction(
    name="seafl",
    title="SEAFL: Figures 2, 4, 5 and 6",
    paper="Islam et al., SEAFL, 2025",
    about=f"""\
4,000 embedded images of MNIST on an MLP, 100 devices with 40 samples each, 20 in training, 5 epochs, K = 10,
{SECONDS:,.0f} virtual seconds; time to {100 * TARGET:g} % accuracy. Dirichlet(5) as in section VI, Dirichlet(0.3) in
the preliminary study. Speeds (Pareto) and idle times (Zipf) are drawn once per device. Each method's learning rate is
the best of 0.03, 0.1 and 0.3 on seed 100; most chose the highest of them, so that a higher one might do better for
these. The paper has LeNet-5, ResNet-18 and VGG-16 on EMNIST, CIFAR-10 and
CINIC-10, in single runs.

The framework that the paper was made with, Plato, ships other rules under the names FedBuff and FedAsync than the
published ones: its FedBuff replaces the model by the mean of the buffered models, whatever their staleness, and the
weight of its FedAsync compounds towards 0. Both stand here as *as in Plato*, beside the published rules.""",
    cases=cases,
    parts=tuple(PARTS),
    methods=lambda part: tuple(PARTS[part]),
    claims=list(_claims()),
    in_short=_in_short,
    shown={
        "time_to_target": f"time to {100 * TARGET:g} %",
        "final_accuracy": "final accuracy",
        "mean_accuracy": "mean accuracy",
        "updates_used": "updates",
        "megabytes_up": "MB up",
    },
    target=TARGET,
)
