"""What the paper of FedASMU and FedSSMU says in Table 4 and sections 6.2.2 to 6.2.6, held against runs."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import inf as never
from math import isfinite, isnan, nan

from experiments.claims import Claim, gap_text
from experiments.fedasmu_cases import (
    ABLATIONS,
    CNN,
    CNN_PERIODS,
    CONSTANT,
    IMAGES,
    LENET,
    PARTS,
    PERIOD,
    PERIODS,
    REGIMES,
    TEST_IMAGES,
    VARIATIONS,
    VARIED_PERIODS,
    cases,
)
from experiments.measurements import Measurement
from experiments.reproduction import Reproduction
from experiments.tables import in_short

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
MORE = {"FedASMU": (0.0049, 0.1983), "FedSSMU": (0.001, 0.545)}
UNEVEN = {"FedASMU": (0.0465, 0.0712), "FedSSMU": (0.0628, 0.6837)}
GAINS: dict[str, tuple[str, dict[str, tuple[float, float]]]] = {
    "LeNet, ratio 110": ("Sec. 6.2.3, Fig. 7", UNEVEN),
    "LeNet, ratio 440": ("Sec. 6.2.3, Fig. 7", UNEVEN),
    "LeNet, 200 devices": ("Sec. 6.2.2, Fig. 6", MORE),
    "LeNet, 250 devices": ("Sec. 6.2.2, Fig. 6", MORE),
    "LeNet, links at 1/50": ("Sec. 6.2.4, Fig. 8", {"FedASMU": (0.033, 0.431), "FedSSMU": (0.0115, 0.422)}),
    "LeNet, links at 1/100": ("Sec. 6.2.5", {"FedASMU": (0.0297, 0.3128), "FedSSMU": (0.0288, 0.1659)}),
}
"""Where the paper speaks of each variation, and what it says: how much more accurate FedASMU and FedSSMU are than
others, and what share of the time to the target they save; of each the smallest gain that it gives."""
PAIRS = (("FedASMU", "FedAsync"), ("FedASMU", "FedBuff"), ("FedSSMU", "FedAvg"))
"""The methods that are compared in variations."""
ABLATION_CLAIMS = (
    ("Dynamic weights help (above FedASMU-DA)", "FedASMU", "FedASMU-DA (fresh models)", 0.0138),
    ("Fresh models help (above FedASMU-FA)", "FedASMU", "FedASMU-FA (dynamic weights)", 0.0175),
    ("Fresh models alone help (FedASMU-DA above -0)", "FedASMU-DA (fresh models)", "FedASMU-0 (neither)", 0.0104),
    ("Dynamic weights alone help (FedASMU-FA above -0)", "FedASMU-FA (dynamic weights)", "FedASMU-0 (neither)", 0.0065),
    ("Learned slots are better than H1", "FedASMU", "H1, after the first epoch", 0.024),
    ("Learned slots are better than H2", "FedASMU", "H2, half way", 0.022),
    ("Learned slots are better than H3", "FedASMU", "H3, in the penultimate epoch", 0.028),
)
ONE_OF = "comparisons where the regime is varied (sections 6.2.2 to 6.2.5, and a constant rate)"


def _claims() -> Iterator[Claim]:
    for part, (champion, rivals) in product(REGIMES, RIVALS.items()):
        table, where = TABLE_4[part], f"Table 4, {LENET if part == CONSTANT else part}"
        accuracy, time = table[champion]
        for other in rivals:
            gaps = accuracy - table[other][0], table[other][1] / time
            yield from _ahead(part, champion, other, *gaps, where=where, one_of=ONE_OF if part == CONSTANT else "")
    for says, mine, theirs, gap in ABLATION_CLAIMS:
        yield Claim(where="Sec. 6.2.6", says=says, part=ABLATIONS, kind="better", mine=mine, theirs=theirs, gap=gap)
    for (part, (where, gains)), (champion, other) in product(GAINS.items(), PAIRS):
        accuracy, saved = gains[champion]
        yield from _ahead(part, champion, other, accuracy, 1 / (1 - saved), where=where, one_of=ONE_OF)


def _ahead(
    part: str, mine: str, theirs: str, accuracy: float, speed: float, *, where: str, one_of: str
) -> Iterator[Claim]:
    """That a method ends above another, and that it is sooner at the target, with the published gaps.

    A gap that is not finite is one that the paper does not give as a number. Where the paper does not have the method
    as the sooner one, that is not claimed.
    """
    short = part.split(",")[0] if part in (LENET, CNN) else part
    target = TARGETS.get(part, TARGETS[LENET])
    how = {"final_accuracy": "ends above", "time_to_target": f"is sooner at {100 * target:g} % than"}
    gaps = {"final_accuracy": accuracy} | ({"time_to_target": speed} if speed > 1 else {})
    for measure, gap in gaps.items():
        yield Claim(
            where=where,
            says=f"{short}: {mine} {how[measure]} {theirs}",
            part=part,
            kind="better",
            mine=mine,
            theirs=theirs,
            gap=gap if isfinite(gap) else None,
            measure=measure,
            one_of=one_of,
        )


def _in_short(found: Sequence[Measurement]) -> list[list[str]]:
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
100, by the mean accuracy over the first half of a run (the CNN has four: the paper's rate, half of it, and the two
values). Published times are the authors' clock; only their ratios are compared. Of the CNN's row the copy of the paper
that was read has no legible accuracy of FedDyn and nothing of FedLWS.

*{CONSTANT}* is the same without the decay, tuned with two learning rates over whole runs. The variations and ablations
have its settings and its constant rate, {VARIED_PERIODS} periods, and the variations five of the twelve methods. These
and the CNN are evaluated on {TEST_IMAGES:,} of the 10,000 test images. On fleets of ratio 110 and 440 the mean device
is as fast as on that of ratio 5. Over slow links FedASMU, which orders ten devices in every period whatever is under
way, has up to 40 of them in flight, where the other asynchronous methods keep their 15 (column *in flight*): what it
gains there is not its rule's doing alone. With LeNet nearly all methods chose the highest rate that was tried, so that
a still higher one might do better. The paper gives ranges of gains over its models and data; the
smallest of each range stands here as published. Its gains of accuracy are relative, and stand here as points, which is
a little more than they are. Its ablations and slots are with CIFAR-10.""",
    cases=cases,
    parts=tuple(PARTS),
    methods=lambda part: PARTS[part],
    claims=list(_claims()),
    in_short=_in_short,
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
