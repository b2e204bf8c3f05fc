"""What happens in each trace, and the command that writes the files from the rules in `exact.py`.

python -m experiments.conformance.scripts            writes src/offbeat/testing/traces/*.toml
python -m experiments.conformance.scripts --check    exits with 1 if a file differs
"""

import json
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from experiments.conformance.exact import RULES, Sent, Vector, add, vector
from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import about_of

FOLDER = Path(__file__).resolve().parents[2] / "src" / "offbeat" / "testing" / "traces"


@dataclass
class Event:
    """One step of a script."""

    kind: str
    device: int = 0
    base: int = 0
    move: tuple[Any, ...] = ()
    name: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def up(device: int, base: int, *move: Any, **more: Any) -> Event:
    """Device uploads its base plus this movement."""
    return Event("upload", device, base, move, more=more)


def fire(name: str, **more: Any) -> Event:
    """A timer fires."""
    return Event("timer", name=name, more=more)


def lose(device: int) -> Event:
    """A device is lost."""
    return Event("lost", device)


def ask(device: int) -> Event:
    """A device in training asks for the fresh model."""
    return Event("fresh", device)


@dataclass
class Script:
    """A trace without its numbers."""

    algorithm: str
    name: str
    settings: dict[str, Any]
    events: list[Event]
    samples: tuple[int, ...] = (10, 10)
    start: tuple[Any, ...] = (0, 0)
    orders: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)
    layers: tuple[tuple[int, ...], ...] = ()
    speeds: tuple[float, ...] | None = None
    horizon: float | None = None
    hidden: dict[str, Any] = field(default_factory=dict)
    """What the exact rule must know besides the settings."""


SOURCES = {
    "fedavg": "McMahan et al., AISTATS 2017, Algorithm 1; server optimisers: Reddi et al., ICLR 2021, Algorithm 2",
    "fedprox": "Li et al., MLSys 2020, Algorithm 2",
    "moon": "Li et al., CVPR 2021, Algorithm 1",
    "feddyn": "Acar et al., ICLR 2021, Algorithm 1",
    "fedlws": "Shi et al., ICLR 2025, code of the authors",
    "fedasync": "Xie et al., OPT 2020, Algorithm 1 and section 5.2; compounding: the framework Plato",
    "aso-fed": "Chen et al., IEEE Big Data 2020, as restated by others",
    "fedsa": "Chen et al., FGCS 2021, our reading",
    "fedbuff": "Nguyen et al., AISTATS 2022, Algorithm 1 and section 5; variant plato: the framework Plato",
    "fedasmu": "Liu et al., AAAI 2024, Eq. (1) to (5), signs corrected",
    "fedssmu": "Jia et al., 2025, section 5",
    "seafl": "Islam et al., SEAFL, 2025, Eq. (4) to (8)",
    "seafl2": "Islam et al., SEAFL, 2025, Algorithm 2",
    "port": "Su and Li, IWQoS 2022, as in the authors' framework Plato",
    "safa": "Wu et al., IEEE Trans. Computers 2021, Algorithms 1 and 2",
    "sfl": "Hao et al., 2025, Algorithm 1",
    "audg": "Hao et al., 2025, Algorithm 2, Eq. (13)",
    "psurdg": "Hao et al., 2025, Algorithm 3, Eq. (46)",
    "adel": "Goren et al., 2026, Eq. (5); variant code: code of the authors",
    "salf": "Lang et al., IEEE Trans. Communications 2025, as restated in Goren et al., 2026, Eq. (5)",
    "drop-stragglers": "Chen et al., 2016, as in Goren et al., 2026, Eq. (4)",
    "wait-stragglers": "McMahan et al., AISTATS 2017, as in Goren et al., 2026, Eq. (3)",
    "heterofl": "Diao et al., ICLR 2021",
    "ca2fl": "Wang et al., ICLR 2024, Algorithm 2, as two implementations by others agree",
    "fadas": "Wang et al., ICML 2024, Algorithm 1 and section 4, code of the authors",
    "fadas-large-step": "fadas with another default",
    "fedstaleweight": "Ma et al., 2024, as described by others",
    "area": "Iakovidou and Kim, 2024, as described by others",
    "ringmaster": "Maranjyan et al., ICML 2025",
    "ringmaster-stop": "Maranjyan et al., ICML 2025, code of the authors",
    "rennala": "Tyurin and Richtárik, NeurIPS 2023",
    "delay-adaptive": "Mishchenko et al., NeurIPS 2022; Koloskova et al., NeurIPS 2022, Eq. (11)",
    "ace": "Chang et al., 2025, as described by others",
    "aced": "Chang et al., 2025, as described by others",
    "ringleader": "Maranjyan and Richtárik, ICLR 2026, as described by others",
    "fedfa": "Xu et al., IJCAI 2024, as described by others",
    "delayed-nesterov": "Liu et al., 2024, Algorithm 3, as described by others",
    "fedstale": "Rodio and Neglia, ECAI 2024, code of the authors",
    "fedvarp": "Jhunjhunwala et al., UAI 2022",
    "fedcompass": "Li et al., ICLR 2024, Algorithms 1 to 3, code of the authors (APPFL)",
    "refl": "Abdelmoniem et al., EuroSys 2023, code of the authors",
    "auto": "the equations of offbeat.algorithms.auto",
}

TWO_ROUNDS = [up(0, 0, 4, 0), up(1, 0, 0, 4), up(0, 1, 2, -2), up(1, 1, 2, 0)]
THREE_THEN_STALE = [up(0, 0, 2, 0), up(0, 1, 0, 2), up(0, 2, 2, 0), up(1, 0, 8, 8)]
"""Device 0 reports three times before device 1, whose staleness is then 3."""
BUFFERS = [up(0, 0, 4, 0), up(1, 0, 0, 4), up(2, 0, 6, 2), up(1, 1, 0, 2), up(0, 0, 4, 4), up(1, 2, 2, 0)]
"""Three devices, two uploads a version; the second version has a staleness of 1 and 0, the third of 2 and 0."""
WAITING = [up(0, 0, 4, 0), up(1, 0, 0, 4), up(2, 0, 6, 2), up(0, 1, 0, 2)]
"""The same for rules under which a device waits in the buffer until the version is made."""

GOES_ON_AND_BACK = [
    up(0, 0, 4, 0), up(1, 0, 4, 2), up(1, 1, 2, 0), up(1, 1, 2, 2), up(1, 2, -2, 1), up(1, 2, -4, -1),
]  # fmt: skip
"""The updates after the first version go on along its step, those after the second go back."""
AUTO = {"buffer": 2, "concurrency": 3, "adapt": True}


def optimiser(kind: str) -> dict[str, Any]:
    """FedAvg's settings with a server optimiser."""
    rate, momentum = 1.0 if kind == "momentum" else 0.5, 0.0 if kind == "adagrad" else 0.9
    numbers = {"server_learning_rate": rate, "server_momentum": momentum, "server_decay": 0.99, "server_epsilon": 0.1}
    return {"cohort": 2, "server_optimiser": kind, **numbers}


ASYNC = {"concurrency": 2, "alpha": 0.5, "prox": 0.0}
TIMELY = {
    "cohort": 2,
    "staleness_bound": 99,
    "dynamic_weights": False,
    "fresh_models": False,
    "mu_alpha": 1.0,
    "lambda_0": 1.0,
    "sigma_0": 1.0,
    "iota_0": 0.0,
}
ADAPTS = {**TIMELY, "dynamic_weights": True, "eta_lambda": 0.1, "eta_sigma": 0.1, "eta_iota": 0.05}
PERIOD = {"period": 10.0, "max_in_flight": 2}
SEAFL = {
    "buffer": 2,
    "concurrency": 3,
    "staleness_limit": 4.0,
    "staleness_weight": 2.0,
    "similarity_weight": 1.0,
    "mixing": 0.5,
}
FADAS = {
    "buffer": 1,
    "concurrency": 2,
    "server_learning_rate": 0.5,
    "beta_1": 0.9,
    "beta_2": 0.99,
    "epsilon": 0.5,
    "delay_step": "code",
    "delay_threshold": 1,
}
LAYERS: dict[str, Any] = {"layers": ((1,), (1,)), "speeds": (8.0, 8.0), "horizon": 10.0, "local": {"batch_size": 8}}
PARTIAL = [
    up(0, 0, 0, 4, slices=1),
    up(1, 0, 4, 2),
    fire("deadline"),
    up(0, 1, 0, 2, slices=1),
    up(1, 1, 0, -2, slices=1),
    fire("deadline"),
]
"""Device 0 completes only the last layer, then both do."""

SCRIPTS = [
    Script("fedavg", "weighted-by-samples", {"cohort": 2}, TWO_ROUNDS, samples=(10, 30)),
    Script("fedavg", "a-device-is-lost", {"cohort": 2}, [up(0, 0, 4, 0), lose(1)], samples=(10, 30)),
    *(
        Script("fedavg", f"server-{kind}", optimiser(kind), TWO_ROUNDS)
        for kind in ("momentum", "adagrad", "adam", "yogi")
    ),
    Script(
        "fedprox",
        "nothing-finished",
        {"cohort": 2, "mu": 0.3, "round_seconds": 7.0},
        [up(0, 0, 4, 0, slices=1), up(1, 0, 0, 0, slices=0)],
        local={"epochs": 2},
        orders={"prox": 0.3, "budget": 7.0},
    ),
    Script(
        "fedprox",
        "partial-work-counts",
        {"cohort": 2, "mu": 0.3, "round_seconds": 7.0},
        [up(0, 0, 4, 0, slices=1), up(1, 0, 0, 4)],
        samples=(10, 30),
        local={"epochs": 2},
    ),
    Script(
        "moon",
        "server-half",
        {"cohort": 2, "mu": 5.0, "temperature": 0.5},
        TWO_ROUNDS,
        samples=(10, 30),
        orders={"terms": ["Contrastive(mu=5.0, temperature=0.5)"]},
    ),
    Script(
        "feddyn",
        "two-of-three-devices",
        {"cohort": 2, "alpha": 0.01},
        [up(0, 0, 4, 0), up(1, 0, 0, 4), up(2, 1, 2, 0), up(0, 1, 0, 2)],
        samples=(10, 20, 30),
        orders={"terms": ["LinearQuadratic(alpha=0.01)"]},
    ),
    Script(
        "fedlws",
        "agreement",
        {"cohort": 2, "shrinking": 0.03, "least": 0.01, "most": 0.2},
        [up(0, 0, 3, 4), up(1, 0, 3, 4)],
        start=(3, 4),
    ),
    Script(
        "fedlws",
        "disagreement",
        {"cohort": 2, "shrinking": 0.03, "least": 0.01, "most": 0.2},
        [up(0, 0, 6, 8), up(1, 0, 0, 0)],
        start=(3, 4),
    ),
    Script("fedasync", "constant-fresh", {**ASYNC, "staleness": "constant"}, [up(0, 0, 4, 0), up(0, 1, 0, 4)]),
    Script("fedasync", "constant-stale", {**ASYNC, "staleness": "constant"}, THREE_THEN_STALE),
    Script("fedasync", "polynomial-half", {**ASYNC, "staleness": "polynomial", "exponent": 0.5}, THREE_THEN_STALE),
    Script(
        "fedasync",
        "polynomial-one",
        {**ASYNC, "staleness": "polynomial", "exponent": 1.0},
        [*THREE_THEN_STALE, up(0, 3, 2, 0)],
    ),
    Script("fedasync", "hinge-within", {**ASYNC, "staleness": "hinge", "slope": 2.0, "grace": 3}, THREE_THEN_STALE),
    Script("fedasync", "hinge-beyond", {**ASYNC, "staleness": "hinge", "slope": 2.0, "grace": 1}, THREE_THEN_STALE),
    Script(
        "fedasync",
        "compounding",
        {**ASYNC, "staleness": "polynomial", "exponent": 1.0, "compounding": True},
        [up(0, 0, 4, 0), up(1, 0, 0, 8), up(0, 1, 4, 0)],
    ),
    Script(
        "aso-fed",
        "copies",
        {"concurrency": 2, "dynamic_rate": False, "attention": False},
        [up(0, 0, 4, 8), up(1, 0, 4, 0), up(0, 1, 2, 2)],
        samples=(10, 30),
    ),
    Script(
        "fedsa",
        "fewer-epochs-when-stale",
        {"concurrency": 2, "alpha": 0.5, "exponent": 1.0, "epochs_exponent": 0.5},
        [*THREE_THEN_STALE[:3], up(1, 0, 8, 8, orders={"slices": 2})],
        local={"epochs": 4},
        orders={"slices": 4},
    ),
    Script("fedbuff", "fresh", {"buffer": 2, "concurrency": 2}, [up(0, 0, 4, 0), up(1, 0, 0, 4)]),
    Script("fedbuff", "staleness-3", {"buffer": 1, "concurrency": 2}, THREE_THEN_STALE),
    Script("fedbuff", "buffers-of-two", {"buffer": 2, "concurrency": 3}, BUFFERS, samples=(10, 20, 30)),
    Script(
        "fedbuff",
        "divided-by-weights",
        {"buffer": 2, "concurrency": 3, "normaliser": "weights"},
        BUFFERS,
        samples=(10, 10, 10),
    ),
    Script(
        "fedbuff",
        "server-learning-rate",
        {"buffer": 2, "concurrency": 2, "server_learning_rate": 0.5},
        [up(0, 0, 4, 0), up(1, 0, 0, 4)],
    ),
    Script(
        "fedbuff", "plato-fresh", {"buffer": 2, "concurrency": 3, "variant": "plato"}, WAITING[:2], samples=(10, 10, 10)
    ),
    Script(
        "fedbuff", "plato-stale", {"buffer": 2, "concurrency": 3, "variant": "plato"}, WAITING, samples=(10, 10, 10)
    ),
    Script(
        "fedasmu", "weights", {**TIMELY, **PERIOD}, [up(0, 0, 4, 0), up(1, 0, 2, 6), fire("period"), up(0, 2, 2, 2)]
    ),
    Script(
        "fedasmu",
        "control-parameters-adapt",
        {**ADAPTS, **PERIOD},
        [up(0, 0, 2, 0), fire("period"), up(0, 1, 1, 0), up(1, 0, 0, 4), fire("period"), up(1, 3, 2, 2)],
        local={"learning_rate": 0.5},
    ),
    Script(
        "fedasmu",
        "fresh-model",
        {**TIMELY, **PERIOD, "fresh_models": True, "slot": "first"},
        [up(0, 0, 4, 0), ask(1), up(1, 0, 6, 0)],
        local={"epochs": 2},
        orders={"rule": "fedasmu"},
    ),
    Script("fedasmu", "too-stale", {**TIMELY, **PERIOD, "staleness_bound": 1}, [up(0, 0, 4, 0), up(1, 0, 2, 6)]),
    Script("fedssmu", "two-rounds", TIMELY, [up(0, 0, 4, 0), up(1, 0, 2, 6), up(0, 2, 2, 2), up(1, 2, 0, 2)]),
    Script(
        "fedssmu",
        "control-parameters-adapt",
        ADAPTS,
        [up(0, 0, 2, 0), up(1, 0, 0, 4), up(0, 2, 1, 1), up(1, 2, 2, 0)],
        local={"learning_rate": 0.5},
    ),
    Script("seafl", "uneven-samples", {**SEAFL, "concurrency": 2}, [up(0, 0, 4, 0), up(1, 0, 0, 4)], samples=(10, 30)),
    Script(
        "seafl",
        "staleness-and-similarity",
        SEAFL,
        [up(0, 0, 3, 4), up(1, 0, 3, 4), up(2, 0, 4, 3), up(0, 1, -3, -4)],
        samples=(10, 10, 10),
        start=(3, 4),
    ),
    Script(
        "seafl",
        "waits-at-the-limit",
        {**SEAFL, "buffer": 1, "concurrency": 2, "staleness_limit": 1.0},
        [up(0, 0, 3, 4), up(0, 1, 4, 3), up(1, 0, 4, 3)],
        start=(3, 4),
    ),
    Script(
        "seafl2",
        "stop-notice",
        {**SEAFL, "buffer": 1, "concurrency": 2, "staleness_limit": 1.0},
        [up(0, 0, 3, 4), up(0, 1, 4, 3), up(1, 0, 4, 3)],
        start=(3, 4),
    ),
    Script(
        "seafl2",
        "partial-upload",
        {**SEAFL, "buffer": 1, "concurrency": 2, "staleness_limit": 2.0},
        [up(0, 0, 3, 4), up(0, 1, 3, 4), up(1, 0, 4, 3, slices=1)],
        start=(3, 4),
        local={"epochs": 4},
    ),
    Script(
        "port", "own-bases", {**SEAFL, "buffer": 1, "concurrency": 2, "mixing": 1.0}, [up(0, 0, 2, 0), up(1, 0, 0, 2)]
    ),
    Script(
        "port",
        "similarity-with-the-last-step",
        {**SEAFL, "mixing": 1.0},
        [up(0, 0, 3, 4), up(1, 0, 3, 4), up(0, 1, 3, 4), up(1, 1, 3, 4), up(2, 0, 4, 3), up(0, 2, 5, 0)],
        samples=(10, 20, 30),
    ),
    Script(
        "safa",
        "cache-and-undrafted-upload",
        {"share": 0.5, "lag_tolerance": 5},
        [up(0, 0, 4, 8), up(0, 1, 3, 0), up(1, 0, 4, 0), up(0, 2, 0, 2)],
        samples=(10, 30),
    ),
    Script(
        "safa",
        "deprecated-device",
        {"share": 0.3, "lag_tolerance": 1},
        [up(0, 0, 6, 0), up(1, 0, 0, 6), up(2, 0, 9, 9), up(0, 1, 3, 0)],
        samples=(10, 10, 10),
    ),
    Script(
        "sfl",
        "waits-for-all",
        {"iteration_seconds": 1.0},
        [up(0, 0, 4, 0), fire("iteration"), up(1, 0, 0, 4), fire("iteration")],
        samples=(10, 30),
    ),
    Script(
        "sfl",
        "two-iterations",
        {"iteration_seconds": 1.0},
        [up(0, 0, 4, 0), up(1, 0, 0, 4), fire("iteration"), up(0, 1, 4, 4), up(1, 1, 0, 0), fire("iteration")],
    ),
    Script(
        "audg",
        "each-gradient-once",
        {"iteration_seconds": 1.0},
        [up(0, 0, 4, 0), fire("iteration"), up(1, 0, 0, 4), up(0, 1, 4, 0), fire("iteration"), fire("iteration")],
        samples=(10, 30),
    ),
    Script(
        "audg",
        "falling-learning-rate",
        {"iteration_seconds": 1.0},
        [up(0, 0, 4, 0), fire("iteration"), up(1, 0, 0, 4), fire("iteration")],
        samples=(10, 30),
        local={"learning_rate": 1.0, "schedule": "inverse"},
    ),
    Script(
        "psurdg",
        "latest-gradient-again",
        {"iteration_seconds": 1.0},
        [up(0, 0, 4, 0), fire("iteration"), fire("iteration"), up(1, 0, 0, 4), fire("iteration")],
        samples=(10, 30),
    ),
    Script(
        "psurdg",
        "replaced-gradient",
        {"iteration_seconds": 1.0},
        [up(0, 0, 4, 0), up(1, 0, 0, 4), fire("iteration"), up(0, 1, -4, 0), fire("iteration")],
        samples=(10, 30),
    ),
    Script("adel", "code", {"variant": "code", "rounds": 5}, PARTIAL, **LAYERS),
    Script(
        "adel",
        "unbiased-layers",
        {"variant": "paper", "rounds": 5, "probabilities": "exact"},
        PARTIAL,
        samples=(1, 1),
        **(LAYERS | {"speeds": (1.0, 1.0)}),
    ),
    Script("salf", "code", {"variant": "code", "rounds": 5}, PARTIAL, **LAYERS),
    Script(
        "salf", "unbiased-layers", {"variant": "paper", "rounds": 5}, PARTIAL, **LAYERS, hidden={"algorithm": "salf"}
    ),
    Script(
        "drop-stragglers", "mean", {"variant": "mean", "rounds": 5}, PARTIAL[:3], **LAYERS, hidden={"algorithm": "drop"}
    ),
    Script(
        "drop-stragglers", "keep", {"variant": "keep", "rounds": 5}, PARTIAL[:3], **LAYERS, hidden={"algorithm": "drop"}
    ),
    Script("wait-stragglers", "equal-weights", {}, TWO_ROUNDS, samples=(10, 30), horizon=10.0, hidden={"cohort": 2}),
    Script(
        "heterofl",
        "half-width",
        {"rounds": 5, "confidence": 0.5, "masked_loss": False},
        [up(0, 0, 2, 2, 2, 2), up(1, 0, 4, 0, 4, 0), fire("deadline")],
        start=(0, 0, 0, 0),
        layers=((2, 1), (1, 2)),
        speeds=(100.0, 8.0),
        horizon=10.0,
        hidden={"holds": {0: [0, 1, 2, 3], 1: [0, 2]}},
    ),
    Script(
        "ca2fl",
        "two-devices",
        {"buffer": 2, "concurrency": 2, "server_learning_rate": 0.5},
        [up(0, 0, 4, 0), up(1, 0, 0, 8), up(0, 0, 2, 0), up(1, 1, 0, 2)],
    ),
    Script(
        "ca2fl",
        "calibration",
        {"buffer": 1, "concurrency": 2, "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(0, 1, 0, 2), up(1, 0, 6, 6)],
    ),
    Script("fadas", "two-steps", FADAS, [up(0, 0, 4, 0), up(0, 1, 1, 2), up(0, 2, 0, 0)]),
    Script("fadas-large-step", "two-steps", FADAS, [up(0, 0, 4, 0), up(0, 1, 1, 2)]),
    Script("fadas", "delay-step-code", FADAS, THREE_THEN_STALE),
    Script("fadas", "delay-step-paper", {**FADAS, "delay_step": "paper"}, THREE_THEN_STALE),
    Script("auto", "the-step-grows-and-shrinks", AUTO, GOES_ON_AND_BACK, samples=(10, 10, 10)),
    Script("auto", "steps-of-their-own-bases", AUTO, BUFFERS, samples=(10, 10, 10)),
    Script(
        "fedstaleweight",
        "fresh",
        {"buffer": 2, "concurrency": 3, "server_learning_rate": 1.0},
        BUFFERS[:2],
        samples=(10, 10, 10),
    ),
    Script(
        "fedstaleweight",
        "stale-counts-more",
        {"buffer": 2, "concurrency": 3, "server_learning_rate": 1.0},
        BUFFERS,
        samples=(10, 10, 10),
    ),
    Script(
        "area",
        "divided-by-all-devices",
        {"buffer": 2, "concurrency": 3, "server_learning_rate": 1.0},
        BUFFERS,
        samples=(10, 10, 10),
    ),
    Script(
        "area",
        "change-since-the-last-upload",
        {"buffer": 1, "concurrency": 2, "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(0, 1, 2, 8), up(1, 0, 2, 2)],
    ),
    Script(
        "ringmaster",
        "threshold-2",
        {"concurrency": 2, "threshold": 2, "server_learning_rate": 0.5},
        [up(0, 0, 4, 0), up(1, 0, 0, 4), up(0, 1, 2, 0), up(0, 3, 0, 2), up(1, 2, 8, 8)],
    ),
    Script(
        "ringmaster",
        "without-a-parameter",
        {"concurrency": 2, "threshold": "sqrt", "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(1, 0, 8, 8), up(0, 1, 0, 4)],
    ),
    Script(
        "ringmaster-stop",
        "threshold-2",
        {"concurrency": 2, "threshold": 2, "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(0, 1, 0, 4), up(1, 0, 8, 8), up(1, 2, 2, 0)],
    ),
    Script(
        "rennala",
        "current-version-only",
        {"buffer": 2, "concurrency": 3, "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(1, 0, 0, 4), up(2, 0, 8, 8), up(1, 1, 2, 0), up(2, 1, 0, 2)],
        samples=(10, 10, 10),
    ),
    Script(
        "delay-adaptive",
        "shrinking-steps",
        {"concurrency": 2, "server_learning_rate": 0.5},
        [*THREE_THEN_STALE, up(0, 3, 2, 0)],
    ),
    Script(
        "delay-adaptive", "dropped", {"concurrency": 2, "server_learning_rate": 1.0, "beyond": "drop"}, THREE_THEN_STALE
    ),
    Script(
        "ace", "one-device-reports", {"concurrency": 2, "server_learning_rate": 1.0}, [up(0, 0, 4, 0), up(0, 1, 0, 4)]
    ),
    Script(
        "ace",
        "mean-of-the-latest",
        {"concurrency": 2, "server_learning_rate": 0.5},
        [up(0, 0, 4, 0), up(1, 0, 0, 8), up(0, 1, -4, 0)],
    ),
    Script(
        "aced",
        "mean-of-those-that-count",
        {"concurrency": 2, "max_age": 9, "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(1, 0, 0, 8), up(0, 1, 0, 2)],
    ),
    Script(
        "aced",
        "too-old",
        {"concurrency": 2, "max_age": 1, "server_learning_rate": 1.0},
        [up(1, 0, 4, 0), up(0, 0, 0, 8), up(0, 2, 2, 0), up(0, 3, 2, 2)],
    ),
    Script(
        "ringleader",
        "a-round",
        {"server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(0, 0, 2, 0), up(1, 0, 0, 4), up(1, 1, 6, 0), up(0, 0, 0, 6), up(0, 2, 4, 4)],
    ),
    Script(
        "ringleader", "smaller-steps", {"server_learning_rate": 0.5}, [up(0, 0, 4, 0), up(1, 0, 0, 4), up(0, 0, 2, 2)]
    ),
    Script("fedfa", "queue-of-two", {"queue": 2, "concurrency": 2}, [up(0, 0, 4, 0), up(1, 0, 0, 4), up(0, 1, 2, 2)]),
    Script("fedfa", "queue-of-three", {"queue": 3, "concurrency": 2}, THREE_THEN_STALE),
    Script(
        "delayed-nesterov",
        "momentum-every-second",
        {"buffer": 2, "concurrency": 2, "momentum": 0.5, "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(0, 1, 0, 8), up(1, 0, 4, 4), up(0, 2, 0, 4)],
    ),
    Script(
        "delayed-nesterov",
        "outer-learning-rate",
        {"buffer": 2, "concurrency": 2, "momentum": 0.9, "server_learning_rate": 0.5},
        [up(0, 0, 4, 0), up(1, 0, 0, 8)],
    ),
    Script(
        "fedstale",
        "estimated-participation",
        {"cohort": 2, "beta": 0.5, "participation": "estimated", "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(1, 0, 0, 4), up(2, 1, 6, 0), up(0, 1, 0, 2)],
        samples=(10, 10, 20),
    ),
    Script(
        "fedstale",
        "uniform-participation",
        {"cohort": 1, "beta": 0.5, "participation": "uniform", "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(1, 1, 0, 4), up(0, 2, 0, 4)],
    ),
    Script(
        "fedvarp",
        "absent-devices",
        {"cohort": 1, "beta": 1.0, "participation": "uniform", "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(1, 1, 0, 4), up(0, 2, 0, 4)],
    ),
    Script(
        "refl",
        "stragglers-count-later",
        {"cohort": 3, "target": 0.6, "beta": 0.35, "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(1, 0, 0, 4), up(2, 0, 6, 2), up(0, 1, 2, -2), up(1, 1, 2, 0)],
        samples=(10, 10, 10),
    ),
    Script(
        "refl",
        "distance-from-the-fresh-mean",
        {"cohort": 4, "target": 0.5, "beta": 0.35, "server_learning_rate": 1.0},
        [up(0, 0, 4, 0), up(1, 0, 0, 4), up(2, 0, 6, 2), up(3, 0, -2, -2), up(0, 1, 2, 2)],
        samples=(10, 10, 10, 10),
    ),
    Script(
        "fedcompass",
        "first-uploads",
        {"alpha": 0.5, "exponent": 1.0, "max_steps": 10},
        [up(0, 0, 8, 0), up(1, 0, 0, 8)],
    ),
    Script(
        "fedcompass",
        "a-group",
        {"alpha": 0.5, "exponent": 1.0, "max_steps": 10},
        [up(0, 0, 8, 0), up(1, 0, 0, 8), up(0, 1, 4, 0), up(1, 2, 0, 4)],
    ),
]


def steps_of(script: Script) -> list[dict[str, Any]]:
    """The steps of a script with their numbers and reasons."""
    rule = RULES[script.algorithm](
        settings={**script.settings, **script.hidden},
        w=vector(*script.start),
        samples=list(script.samples),
        local=script.local,
        speeds=list(script.speeds or ()),
        horizon=script.horizon or 0.0,
    )
    steps = []
    for event in script.events:
        rule.discarded, rule.stopped, step = False, [], dict[str, Any]()
        match event.kind:
            case "upload":
                origin = rule.versions[event.base]
                model = add((1, origin), (1, vector(*event.move)))
                step |= {"device": event.device, "base": event.base, "upload": model}
                if "slices" in event.more:
                    step["slices"] = event.more["slices"]
                rule.upload(
                    Sent(
                        event.device,
                        event.base,
                        model,
                        origin,
                        rule.version - event.base,
                        script.samples[event.device],
                        event.more.get("slices"),
                    )
                )
            case "timer":
                step["timer"] = event.name
                rule.timer()
            case "lost":
                step["lost"] = event.device
                rule.lost(event.device)
            case "fresh":
                step["fresh"] = event.device
                rule.fresh(event.device)
        step |= {"model": rule.w, "version": rule.version}
        if rule.discarded:
            step["discarded"] = True
        if rule.stopped:
            step["stopped"] = rule.stopped
        if "orders" in event.more:
            step["orders"] = event.more["orders"]
        steps.append(step | {"why": rule.why})
    return steps


def toml(value: Any) -> str:
    """A value in TOML, on one line; a fraction whose decimals do not end is a string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return str(value.numerator)
        exact = round(float(value), 6)
        if Fraction(str(exact)) == value:
            return repr(exact)
        return f'"{value}"' if value.denominator <= 100_000 else f"{float(value):.10g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def text_of(algorithm: str) -> str:
    """The file of an algorithm."""
    lines = [
        "# Made by `python -m experiments.conformance.scripts`, in exact arithmetic without code of the algorithms.",
        f"algorithm = {toml(algorithm)}",
        f"source = {toml(SOURCES[algorithm])}",
        f"provenance = {toml(about_of(POLICIES[algorithm]).provenance)}",
    ]
    for script in SCRIPTS:
        if script.algorithm != algorithm:
            continue
        start: Vector = vector(*script.start)
        lines += ["", "[[trace]]", f"name = {toml(script.name)}", f"settings = {toml(script.settings)}"]
        lines += [f"samples = {toml(script.samples)}", f"start = {toml(start)}"]
        for key in ("orders", "local", "layers", "speeds", "horizon"):
            if getattr(script, key):
                lines.append(f"{key} = {toml(getattr(script, key))}")
        lines += ["steps = [", *(f"    {toml(step)}," for step in steps_of(script)), "]"]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the files, or check that they are as they would be written."""
    FOLDER.mkdir(exist_ok=True)
    differ = []
    for algorithm in dict.fromkeys(script.algorithm for script in SCRIPTS):
        path, text = FOLDER / f"{algorithm}.toml", text_of(algorithm)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            differ.append(path.name)
    if differ:
        print(f"not as written by this command: {', '.join(differ)}")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
