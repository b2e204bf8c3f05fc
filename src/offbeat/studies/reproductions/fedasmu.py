"""FedASMU and FedSSMU, Table 4 and sections 6.2.2 to 6.2.6, in the paper's regime.

Twelve methods with LeNet on Fashion-MNIST, with a decaying and with a constant learning rate, and with the CNN on
CIFAR-10; five of them with more devices, on less even fleets and over slower links; the ablations and the fixed slots.
Each method has the same small budget of settings to be tuned with, as the paper says that it tuned all; what varies the
regime keeps the settings that were chosen with the constant rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf as never
from math import isfinite, isnan, nan

from offbeat.core.errors import InvalidInput
from offbeat.settings.schema import Experiment
from offbeat.settings.tables import Table, merge, nested
from offbeat.studies.reproductions.claims import Claim, gap_text
from offbeat.studies.reproductions.measurements import Measurement
from offbeat.studies.reproductions.reproduction import Case, Form, Reproduction
from offbeat.studies.reproductions.tables import in_short

PERIODS, PERIOD = 200, 10.0
VARIED_PERIODS, CNN_PERIODS = 100, 50
"""Periods where LeNet's regime or FedASMU itself is varied, and of the CNN, whose steps take several times as long."""
IMAGES, TEST_IMAGES = 6000, 2000
"""Training images; and the test images of runs with fewer periods, the others having all 10,000."""
EPOCH_SECONDS = 1.0
"""The epoch of the fastest device in a fleet of ratio 5; mean devices of other fleets are as fast as that fleet's."""
LENET, CONSTANT, CNN = "LeNet, Fashion-MNIST", "LeNet, constant rate", "CNN, CIFAR-10"
DECAY: Table = {"learning_rate_decay": 0.9886, "decay_every": PERIOD, "schedule_over": "time"}
"""The paper decays the rate and does not say how: here every period, to a tenth in 200 of them."""


@dataclass(frozen=True)
class Regime:
    """One model on one data set in the paper's regime, in which every method is tuned."""

    model: str
    data: str
    folder: str
    """Where the files of the data lie, below `--data`."""
    rates: Sequence[float]
    """The learning rates that every method is tuned with; the first is not higher than the paper's."""
    local: Table
    tuned_share: float
    """How much of a run the candidates are compared by."""


REGIMES = {
    LENET: Regime("lenet5", "fashion-mnist", "fashion-mnist", (0.005, 0.02, 0.08), DECAY, 0.5),
    CONSTANT: Regime("lenet5", "fashion-mnist", "fashion-mnist", (0.005, 0.05), {}, 1.0),
    CNN: Regime("cnn", "cifar10", "cifar-10", (0.014, 0.028, 0.056), DECAY, 0.3),
}
ALGORITHMS: dict[str, tuple[Table, str, tuple[float, float]]] = {
    "FedASMU": ({"name": "fedasmu", "cohort": 10, "period": PERIOD}, "gamma_0", (4.0, 40.0)),
    "FedAsync": ({"name": "fedasync", "concurrency": 15}, "alpha", (0.3, 0.6)),
    "PORT": ({"name": "port", "concurrency": 15}, "staleness_weight", (1.0, 3.0)),
    "ASO-Fed": ({"name": "aso-fed", "concurrency": 15}, "mu", (0.001, 0.1)),
    "FedBuff": ({"name": "fedbuff", "concurrency": 15}, "server_learning_rate", (0.5, 1.0)),
    "FedSA": ({"name": "fedsa", "concurrency": 15}, "alpha", (0.3, 0.6)),
    "FedSSMU": ({"name": "fedssmu", "cohort": 10}, "gamma_0", (4.0, 40.0)),
    "FedAvg": ({"name": "fedavg", "cohort": 10}, "server_learning_rate", (0.5, 1.0)),
    "FedProx": ({"name": "fedprox", "cohort": 10}, "mu", (0.001, 0.1)),
    "MOON": ({"name": "moon", "cohort": 10}, "mu", (1.0, 5.0)),
    "FedDyn": ({"name": "feddyn", "cohort": 10}, "alpha", (0.001, 0.01)),
    "FedLWS": ({"name": "fedlws", "cohort": 10}, "shrinking", (0.01, 0.03)),
}
"""Each method's settings, and the one that is tuned beside the learning rate."""
TABLE_4: dict[str, dict[str, tuple[float, float]]] = {
    LENET: {
        "FedASMU": (0.858, 11603),
        "FedAsync": (0.839, 15941),
        "PORT": (0.799, 75323),
        "ASO-Fed": (0.833, 42472),
        "FedBuff": (0.827, 16953),
        "FedSA": (0.786, 14473),
        "FedSSMU": (0.858, 13753),
        "FedAvg": (0.780, 97692),
        "FedProx": (0.778, 97692),
        "MOON": (0.785, 97692),
        "FedDyn": (0.842, 51223),
        "FedLWS": (0.846, 20599),
    },
    CNN: {
        "FedASMU": (0.603, 10109),
        "FedAsync": (0.491, 24931),
        "PORT": (0.380, never),
        "ASO-Fed": (0.477, 92246),
        "FedBuff": (0.366, never),
        "FedSA": (0.509, 20415),
        "FedSSMU": (0.628, 44338),
        "FedAvg": (0.562, 117794),
        "FedProx": (0.360, never),
        "MOON": (0.478, 100302),
        "FedDyn": (nan, 43974),
        "FedLWS": (nan, nan),
    },
}
"""Accuracy and time to the target. `nan`: in the copy of the paper that was read, this number is not legible."""
TABLE_4[CONSTANT] = TABLE_4[LENET]
TARGETS = {LENET: 0.70, CNN: 0.40}
RIVALS = {
    "FedASMU": ("FedAsync", "PORT", "ASO-Fed", "FedBuff", "FedSA"),
    "FedSSMU": ("FedAvg", "FedProx", "MOON", "FedDyn", "FedLWS"),
}
VARIED = ("FedASMU", "FedAsync", "FedBuff", "FedSSMU", "FedAvg")
"""The methods that are run where the regime is varied."""
PAIRS = (("FedASMU", "FedAsync"), ("FedASMU", "FedBuff"), ("FedSSMU", "FedAvg"))
"""And which of them are compared there."""


@dataclass(frozen=True)
class Variation:
    """A change to LeNet's regime, and what the paper says of it: the smallest gain of each kind that it gives."""

    where: str
    changes: Table
    gains: dict[str, tuple[float, float]]
    """For FedASMU and FedSSMU: how much more accurate, and what share of the time to the target they save."""


def ratio_fleet(ratio: float) -> Table:
    """A ratio fleet whose mean device is as fast as that of ratio 5."""
    return {"fleet": {"name": "ratio", "ratio": ratio, "epoch_seconds": EPOCH_SECONDS * (1 + 5) / (1 + ratio)}}


def links(slowness: float) -> Table:
    """Links that have so many times less bandwidth than the default ones."""
    return {"network": {"slow_share": 1.0, "slow_factor": slowness}}


MORE = {"FedASMU": (0.0049, 0.1983), "FedSSMU": (0.001, 0.545)}
UNEVEN = {"FedASMU": (0.0465, 0.0712), "FedSSMU": (0.0628, 0.6837)}
VARIATIONS = {
    "LeNet, ratio 110": Variation("Sec. 6.2.3, Fig. 7", ratio_fleet(110.0), UNEVEN),
    "LeNet, ratio 440": Variation("Sec. 6.2.3, Fig. 7", ratio_fleet(440.0), UNEVEN),
    "LeNet, 200 devices": Variation("Sec. 6.2.2, Fig. 6", {"data": {"devices": 200}}, MORE),
    "LeNet, 250 devices": Variation("Sec. 6.2.2, Fig. 6", {"data": {"devices": 250}}, MORE),
    "LeNet, links at 1/50": Variation(
        "Sec. 6.2.4, Fig. 8", links(50.0), {"FedASMU": (0.033, 0.431), "FedSSMU": (0.0115, 0.422)}
    ),
    "LeNet, links at 1/100": Variation(
        "Sec. 6.2.5", links(100.0), {"FedASMU": (0.0297, 0.3128), "FedSSMU": (0.0288, 0.1659)}
    ),
}
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
ABLATION_CLAIMS = (
    ("Dynamic weights help (above FedASMU-DA)", "FedASMU", "FedASMU-DA (fresh models)", 0.0138),
    ("Fresh models help (above FedASMU-FA)", "FedASMU", "FedASMU-FA (dynamic weights)", 0.0175),
    ("Fresh models alone help (FedASMU-DA above -0)", "FedASMU-DA (fresh models)", "FedASMU-0 (neither)", 0.0104),
    ("Dynamic weights alone help (FedASMU-FA above -0)", "FedASMU-FA (dynamic weights)", "FedASMU-0 (neither)", 0.0065),
    ("Learned slots are better than H1", "FedASMU", "H1, after the first epoch", 0.024),
    ("Learned slots are better than H2", "FedASMU", "H2, half way", 0.022),
    ("Learned slots are better than H3", "FedASMU", "H3, in the penultimate epoch", 0.028),
)
PARTS = {
    **dict.fromkeys(REGIMES, tuple(ALGORITHMS)),
    ABLATIONS: tuple(ABLATED),
    **dict.fromkeys(VARIATIONS, VARIED),
}
"""The methods of each part."""
ONE_OF = "comparisons where the regime is varied (sections 6.2.2 to 6.2.5, and a constant rate)"


def cases(form: Form) -> list[Case]:
    """Every method in every part; the quick form has LeNet's regime with an MLP on embedded data."""
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
        varied(tuned[method], part, method, fewer | variation.changes)
        for part, variation in VARIATIONS.items()
        for method in VARIED
    ]
    return [*tuned_cases(LENET, form), *constant, *tuned_cases(CNN, form), *ablations, *variations]


def tuned_cases(part: str, form: Form) -> list[Case]:
    """All methods in the paper's regime, each to be tuned there."""
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
            merge({"local": {"learning_rate": rate}}, nested(f"algorithm.{setting}", value))
            for rate, value in product(rates, values)
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
    """Changes to the regime that make a run shorter, and evaluate it less."""
    seconds = periods * PERIOD
    return {
        "stop": {"time": seconds},
        "evaluation": {"every_seconds": seconds / 25, "samples": TEST_IMAGES},
    }


def varied(case: Case, part: str, method: str, changes: Table) -> Case:
    """A case with changes and with the settings that were chosen for it without them."""
    changed = case.experiment.changed(changes)
    return replace(case, part=part, method=method, experiment=changed, tuned_on=case.experiment)


def data_of(regime: Regime, form: Form) -> Table:
    """The regime's data set, or in the quick form embedded images."""
    if not form.full:
        return {"name": "mnist5k"}
    if form.data is None:
        raise InvalidInput(f"--data: give the directory that has {regime.data}'s files in {regime.folder}/")
    return {"name": regime.data, "limit": IMAGES, "dir": str(form.data / regime.folder)}


def _claims() -> list[Claim]:
    claims = []
    for part, (champion, rivals) in product(REGIMES, RIVALS.items()):
        table, target = TABLE_4[part], TARGETS[CNN if part == CNN else LENET]
        accuracy, time = table[champion]
        for other in rivals:
            model = part if part == CONSTANT else part.split(",")[0]
            for measure, how, gap in (
                ("final_accuracy", "ends above", accuracy - table[other][0]),
                ("time_to_target", f"is sooner at {100 * target:g} % than", table[other][1] / time),
            ):
                if measure == "time_to_target" and not gap > 1:  # the paper has the other as soon, or we cannot read it
                    continue
                claims.append(
                    Claim(
                        where=f"Table 4, {LENET if part == CONSTANT else part}",
                        says=f"{model}: {champion} {how} {other}",
                        part=part,
                        kind="better",
                        mine=champion,
                        theirs=other,
                        gap=gap if isfinite(gap) else None,
                        measure=measure,
                        one_of=ONE_OF if part == CONSTANT else "",
                    )
                )
    claims += [
        Claim(where="Sec. 6.2.6", says=says, part=ABLATIONS, kind="better", mine=mine, theirs=theirs, gap=gap)
        for says, mine, theirs, gap in ABLATION_CLAIMS
    ]
    for (part, variation), (method, other) in product(VARIATIONS.items(), PAIRS):
        accuracy, saved = variation.gains[method]
        for says, gap, measure in (
            (f"{part}: {method} ends above {other}", accuracy, "final_accuracy"),
            (f"{part}: {method} is sooner at 70 % than {other}", 1 / (1 - saved), "time_to_target"),
        ):
            claims.append(
                Claim(
                    where=variation.where,
                    says=says,
                    part=part,
                    kind="better",
                    mine=method,
                    theirs=other,
                    gap=gap,
                    measure=measure,
                    one_of=ONE_OF,
                )
            )
    return claims


def _in_short(found: Sequence[Measurement]) -> str:
    """Who ends ahead of whom in which part."""
    columns = {f"{pair[0]} above {pair[1]} at the end (points)": partial(gap_text, found, *pair) for pair in PAIRS}
    return in_short((*REGIMES, *VARIATIONS), columns)


FEDASMU = Reproduction(
    name="fedasmu",
    title="FedASMU and FedSSMU: Table 4 and sections 6.2.2 to 6.2.6",
    paper="Jia et al., Timely update dissemination (FedASMU, FedSSMU), 2025",
    about=f"""\
The paper's regime: 100 devices, ratio 5, cohorts of 10, a period of {PERIOD:g} s, staleness bound 99, the paper's
learning rate for the model among those that are tried; Dirichlet(0.3) and 5 epochs, which the paper does not give. It
decays the rate, and does not say how: here every period, to a tenth in {PERIODS} of them, by time, so that it is the
same for methods that make a version per upload, per buffer and per round. Smaller than the paper: {IMAGES:,} images in
place of 60,000, and {PERIODS} periods in place of 500; the CNN has {CNN_PERIODS}, and products in bfloat16.
Each method is tuned with six settings, three learning rates and two values of its own most important setting, on seed
100, by the mean accuracy over the first half of a run (the CNN: over the first
{100 * REGIMES[CNN].tuned_share:g} %). Published times are the authors' clock; only their ratios are compared. Of the
CNN's row the copy of the paper that was read has no legible accuracy of FedDyn and nothing of FedLWS.

*{CONSTANT}* is the same without the decay, tuned with two learning rates over whole runs. The variations and ablations
have its settings and its constant rate, {VARIED_PERIODS} periods, and the variations five of the twelve methods. These
and the CNN are evaluated on {TEST_IMAGES:,} of the 10,000 test images. On fleets of ratio 110 and 440 the mean device
is as fast as on that of ratio 5. The paper gives ranges of gains over its models and data, relative ones for
accuracies; the smallest of each range stands here as published. Its ablations and slots are with CIFAR-10.""",
    cases=cases,
    parts=tuple(PARTS),
    methods=lambda part: PARTS[part],
    claims=_claims(),
    remark=_in_short,
    shown={
        "final_accuracy": "final accuracy",
        "time_to_target": "time to 70 % (CNN: 40 %)",
        "in_training": "in flight",
    },
    published={
        (part, method): {
            measure: value
            for measure, value in zip(("final_accuracy", "time_to_target"), row, strict=True)
            if not isnan(value)
        }
        for part, rows in TABLE_4.items()
        for method, row in rows.items()
    },
    target=TARGETS[LENET],
    targets=TARGETS,
    seeds=3,
    needs=("fashion-mnist", "cifar-10"),
)
