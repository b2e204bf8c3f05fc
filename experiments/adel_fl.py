"""ADEL-FL, Figure 2 and the mechanism of Table II: the effects of deadlines, batches and the averaging rule.

Both rules for layers that a device did not deliver are run: equation (5) of the paper, and that of the authors' public
code. Layers are counted as in the code (tensors). All devices have the same speed and no network time; the batch of a
device is its speed times m.
"""

from collections.abc import Sequence
from dataclasses import replace

from experiments.harness import Table
from experiments.harness.command_line import main
from experiments.harness.study import Case, Form, read_study
from offbeat import Experiment
from offbeat.comparison.deadline_plan import plan_of  # the batch scale that ADEL-FL plans, for SALF

SPEED = 64.0
"""Samples per second through a layer, of every device; also the batch of SALF (m = 1) and Wait-Stragglers."""
MLP = "MLP, rounds of 3 s"
CNN = {seconds: f"CNN, rounds of {seconds:g} s" for seconds in (4.0, 4.4, 5.8, 7.3, 8.7)}
"""Parts by the mean length of a round: in 4 s a device completes half of the 8 layers on average, in 7.3 s 85 %."""
VGG = {seconds: f"VGG-11 on CIFAR-10, rounds of {seconds:g} s" for seconds in (8.5, 15.5)}
"""Likewise for 17 layers: a device completes half of them, or 85 %."""
VGG_WIDTH, VGG_IMAGES, VGG_TEST_IMAGES = 0.125, 5000, 2000
VGG_MOMENTUM: Table = {"momentum": 0.9, "keep_optimiser_state": True}
"""Momentum is kept from round to round, as in the authors' code."""
VGG_RATES = tuple({"local": {"learning_rate": rate}} for rate in (0.1, 0.3))
RULES = {"paper": ("paper", "mean"), "code": ("code", "keep")}
"""For each rule the variants of ADEL-FL and SALF, and of Drop-Stragglers."""
BATCHES = "SALF with ADEL-FL's batch"
METHODS = (
    *(f"{method} ({rule})" for rule in RULES for method in ("ADEL-FL", "SALF", BATCHES, "Drop-Stragglers")),
    "Wait-Stragglers",
)
PARTS = dict.fromkeys((MLP, *CNN.values(), *VGG.values()), METHODS)


def cases(form: Form) -> list[Case]:
    """Every method with every length of a round; the quick form has the MLP and the shortest rounds of the CNN."""
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
    plan = plan_of(base.changed({"evaluation": {"samples": 1}}))  # planning evaluates the first model
    assert plan.scale is not None
    scale = round(plan.scale, 4)  # further digits depend on the processor
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


STUDY = read_study("adel_fl", cases=cases, parts=PARTS)

if __name__ == "__main__":
    main(STUDY)
