"""ADEL-FL's Figure 2 and the mechanism of its Table II: what deadlines, batches and the rule of averaging each do.

Both rules for a layer that a device did not deliver are run, the printed one (5) and that of the authors' public code,
on the paper's two networks for MNIST with layers counted as in the code (tensors). Speeds are equal and there is no
network time, as in the trial by hand that this repeats; every device's batch is its speed times m.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from experiments.claims import Claim, gap_text
from experiments.measurements import Measurement
from experiments.reproduction import Case, Form, Reproduction
from experiments.tables import in_short
from offbeat.comparison.deadline_plan import plan_of
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import Table

SPEED = 64.0
"""Samples per second through a layer, of every device; also the batch of SALF (m = 1) and of those that wait."""
ROUND_SECONDS = (4.0, 4.4, 5.8, 7.3, 8.7)
"""Mean lengths of a round of the CNN: at 4 s a device comes half way on average, at 7.3 s through 85 % of 8 layers."""
MLP = "MLP, rounds of 3 s"
CNN = {seconds: f"CNN, rounds of {seconds:g} s" for seconds in ROUND_SECONDS}
VGG_SECONDS = {1200: 8.5, 2400: 15.5}
"""Mean lengths of a round of VGG-11, 17 layers deep, at which devices come half way and through 85 % of the layers, by
the published budgets that they stand for."""
VGG = {seconds: f"VGG-11 on CIFAR-10, rounds of {seconds:g} s" for seconds in VGG_SECONDS.values()}
VGG_WIDTH, VGG_IMAGES, VGG_TEST_IMAGES = 0.125, 5000, 2000
VGG_MOMENTUM: Table = {"momentum": 0.9, "keep_optimiser_state": True}
"""As in the authors' code: momentum goes on from round to round."""
VGG_RATES = tuple({"local": {"learning_rate": rate}} for rate in (0.1, 0.3))
PARTS = (MLP, *CNN.values(), *VGG.values())
RULES = {"paper": ("paper", "mean"), "code": ("code", "keep")}
"""For each rule the variants of ADEL-FL and SALF, and of Drop-Stragglers."""
BATCHES = "SALF with ADEL-FL's batch"
METHODS = (
    *(f"{method} ({rule})" for rule in RULES for method in ("ADEL-FL", "SALF", BATCHES, "Drop-Stragglers")),
    "Wait-Stragglers",
)
TABLE_II = {
    1200: (0.61, 0.36, 0.14, 0.30),
    1600: (0.66, 0.50, 0.16, 0.46),
    2000: (0.68, 0.61, 0.17, 0.57),
    2400: (0.69, 0.66, 0.20, 0.63),
}
"""Final accuracy of ADEL-FL, SALF, Drop-Stragglers and FedAvg (VGG11, CIFAR-10, IID) by seconds."""


STAND_FOR = (
    (1200, CNN[4.0]),
    (2400, CNN[7.3]),
    *((budget, VGG[seconds]) for budget, seconds in VGG_SECONDS.items()),
)
"""The parts that stand for a budget of Table II."""


def cases(form: Form) -> list[Case]:
    """Every method at every budget; the quick form has the MLP and the tightest budget of the CNN."""
    mnist: Table = {"name": "mnist5k"}
    made = _of(MLP, mnist, {"name": "mlp", "layers": "tensors"}, 30, form.rounds(60), 3.0)
    for seconds, part in CNN.items() if form.full else [*CNN.items()][:1]:
        made += _of(part, mnist, {"name": "cnn-small", "layers": "tensors"}, 20, form.rounds(50), seconds)
    if form.full and form.data is not None:
        cifar: Table = {"name": "cifar10", "dir": str(form.data / "cifar-10"), "limit": VGG_IMAGES}
        vgg: Table = {"name": "vgg11", "width": VGG_WIDTH}
        own: Table = {"local": VGG_MOMENTUM, "evaluation": {"samples": VGG_TEST_IMAGES}}
        for seconds, part in VGG.items():
            deep = _of(part, cifar, vgg, 20, form.rounds(60), seconds, VGG_RATES)
            made += [replace(case, experiment=case.experiment.changed(own), tuned_share=0.5) for case in deep]
    return made


def _of(
    part: str, data: Table, model: Table, devices: int, rounds: int, seconds: float, candidates: Sequence[Table] = ()
) -> list[Case]:
    base = Experiment(
        stop={"time": rounds * seconds},
        data=data | {"devices": devices},
        model=model,
        local={"batch_size": int(SPEED), "learning_rate": 1.0, "schedule": "inverse"},
        fleet={"name": "exponential", "slowest": SPEED, "fastest": SPEED},
        algorithm={"name": "adel", "rounds": rounds},
        evaluation={"every_seconds": rounds * seconds / 10},
    )
    scale = plan_of(base).scale
    made = []
    for rule, (layers, whole) in RULES.items():
        by_speed = {"rounds": rounds, "batch": "speed"}
        algorithms = {
            "ADEL-FL": {"name": "adel", "rounds": rounds, "variant": layers},
            "SALF": {"name": "salf", "variant": layers} | by_speed,
            BATCHES: {"name": "salf", "variant": layers, "batch_scale": scale} | by_speed,
            "Drop-Stragglers": {"name": "drop-stragglers", "variant": whole} | by_speed,
        }
        made += [
            Case(
                part=part,
                method=f"{method} ({rule})",
                experiment=base.changed({"algorithm": algorithm}),
                candidates=candidates,
            )
            for method, algorithm in algorithms.items()
        ]
    waiting = base.changed({"algorithm": {"name": "wait-stragglers"}})
    return [*made, Case(part=part, method="Wait-Stragglers", experiment=waiting, candidates=candidates)]


def _claims() -> Sequence[Claim]:
    claims = []
    for rule in RULES:
        adel, salf, drop = (f"{method} ({rule})" for method in ("ADEL-FL", "SALF", "Drop-Stragglers"))
        claims.append(
            Claim(
                where="Sec. IV-A, Fig. 2(b)",
                says=f"On the MLP at 180 s ADEL-FL is over 20 points ahead of SALF (rule of the {rule})",
                part=MLP,
                kind="better",
                mine=adel,
                theirs=salf,
                gap=0.20,
            )
        )
        for budget, part in STAND_FOR:
            model = "VGG-11" if part in VGG.values() else "the CNN"
            at = f"with {'the tightest' if budget == 1200 else 'an ample'} budget on {model}"
            for other, theirs, place in (("SALF", salf, 1), ("Drop-Stragglers", drop, 2)):
                claims.append(
                    Claim(
                        where=f"Table II, {budget:,} s",
                        says=f"ADEL-FL ends above {other} {at} (rule of the {rule})",
                        part=part,
                        kind="better",
                        mine=adel,
                        theirs=theirs,
                        gap=TABLE_II[budget][0] - TABLE_II[budget][place],
                    )
                )
        claims.append(
            Claim(
                where="ours, not the paper's",
                says=f"It is the planned deadlines, and not only the smaller batch, that help (rule of the {rule})",
                part=CNN[ROUND_SECONDS[0]],
                kind="better",
                mine=adel,
                theirs=f"{BATCHES} ({rule})",
            )
        )
    return claims


def _in_short(found: Sequence[Measurement]) -> list[list[str]]:
    """What the deadlines, the batches and the rule each do."""
    pairs = {
        "ADEL-FL above SALF, code's rule (points)": ("ADEL-FL (code)", "SALF (code)"),
        "of that by the batch alone": (f"{BATCHES} (code)", "SALF (code)"),
        "ADEL-FL above SALF, paper's rule": ("ADEL-FL (paper)", "SALF (paper)"),
        "paper's rule above the code's, ADEL-FL": ("ADEL-FL (paper)", "ADEL-FL (code)"),
        "the same, SALF": ("SALF (paper)", "SALF (code)"),
    }
    return in_short(PARTS, {title: partial(gap_text, found, *pair) for title, pair in pairs.items()})


ADEL_FL = Reproduction(
    name="adel-fl",
    title="ADEL-FL: Figure 2 and the mechanism of Table II",
    paper="Goren et al., Adaptive Deadline and Batch Layered Synchronized Federated Learning, 2026",
    about=f"""\
The paper prints a rule for layers that a device did not deliver, (5), and its authors' public code has another, in
which they count as copies of the old layer. Both are run: *(paper)* and *(code)*. *SALF with ADEL-FL's batch* has
SALF's equal rounds and the batch scale m that ADEL-FL planned, so that what is left between the two are the
deadlines.

4,000 embedded images of MNIST; the MLP has 6 layers, 30 devices and 60 rounds of 3 s on average, the CNN 8 layers, 20
devices and 50 rounds of 4 to 8.7 s; eta_0 = 1 with inverse decay. Speeds are equal and communication takes no time.
Table II is about VGG11 on CIFAR-10 in 1,200 to 2,400 s, where devices come about half way to nearly through; the CNN
with rounds of 4 s and of 7.3 s stands in for the first and the last of these budgets, and so does a VGG-11 with an
eighth of the published channels (batch normalisation, so 17 layers; {VGG_IMAGES:,} images, 20 devices, 60 rounds,
{VGG_TEST_IMAGES:,} test images). Its devices have momentum 0.9 from round to round, as in the authors' code, and each
method's learning rate is that of 0.1 and 0.3 with the higher mean accuracy over the first half of a run on seed 100.
The published numbers are the table's.""",
    cases=cases,
    parts=PARTS,
    methods=lambda part: METHODS,
    claims=_claims(),
    in_short=_in_short,
    seeds=3,
    needs=("cifar-10",),
    shown={"final_accuracy": "final accuracy", "mean_accuracy": "mean accuracy over the run"},
    published={
        (part, method): {"final_accuracy": TABLE_II[budget][number]}
        for budget, part in STAND_FOR
        for number, method in enumerate(("ADEL-FL (code)", "SALF (code)", "Drop-Stragglers (code)", "Wait-Stragglers"))
    },
)
