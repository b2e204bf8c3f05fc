"""Delays, Tables III to V and VII to X: which of PSURDG and AUDG has the lower loss, over delay and heterogeneity.

The paper gives no learning rate, and the sign depends on it. Here it is chosen by SFL alone, which has no delays, on
the tuning seed, so that neither of the two is favoured.
"""

from collections.abc import Sequence
from statistics import fmean

from experiments.claims import Claim
from experiments.delayed_gradients.published import ACCURACY_DIFFERENCES, DELAYS, LOSSES
from experiments.delayed_gradients.study import GROUPS, Group
from experiments.measurements import Measurement, by_seed
from experiments.reproduction import Case, Form, Reproduction
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import load_experiment
from offbeat.experiment.tables import Table

TIMES = 4
"""How many times the samples of the shipped files are used: 480 in all."""
RATES = tuple({"local": {"learning_rate": rate}} for rate in (0.01, 0.02, 0.05, 0.1, 0.2))
COMPARED = tuple(group for group in GROUPS if group.losses is not None)
METHODS = tuple(f"{name}, delay {delay}" for delay in DELAYS for name in ("AUDG", "PSURDG"))


def cases(form: Form) -> list[Case]:
    """Both rules at every delay for every kind of data; the quick form has IID data and the first and last delay."""
    delays = DELAYS if form.full else (DELAYS[0], DELAYS[-1])
    made = []
    for group in COMPARED if form.full else COMPARED[1:2]:
        base = experiment_of(group, form)
        if form.rate is not None:
            base = base.changed({"local": {"learning_rate": form.rate}})
        synchronous = base.changed({"algorithm": {"name": "sfl"}, "fleet": {"mean_delay": 0.0}})
        made += [
            Case(
                part=group.title,
                method=f"{name}, delay {delay}",
                experiment=base.changed(
                    {"algorithm": {"name": name.lower()}, "fleet": {"mean_delay": [float(delay), 1.0, 1.0, 1.0]}}
                ),
                candidates=RATES if form.rate is None else (),
                tuned_on=synchronous,
            )
            for delay in delays
            for name in ("AUDG", "PSURDG")
        ]
    return made


def experiment_of(group: Group, form: Form) -> Experiment:
    """A shipped file under the group's model, with more of its samples in the full form."""
    base = load_experiment(group.file)
    scheme, times = base.partition.resolved(), TIMES if form.full else 1
    partition: Table = (
        {"sizes": [times * size for size in scheme["sizes"]]}
        if "sizes" in scheme
        else {"samples": times * scheme["samples"]}
    )
    seconds = float(form.rounds(50))
    return base.changed(
        {
            "model": {"name": group.model},
            "partition": partition,
            "stop": {"time": seconds},
            "evaluation": {"every_seconds": seconds / 5},
        }
    )


def _claims() -> list[Claim]:
    claims = []
    for group in COMPARED:
        assert group.losses is not None
        table, row = group.accuracies
        published = (
            (group.losses, "training_loss", LOSSES[group.losses]["Difference"]),
            (table, "final_accuracy", ACCURACY_DIFFERENCES[table][row]),
        )
        for where, measure, differences in published:
            for delay, gap in zip(DELAYS, differences, strict=True):
                pair = ("PSURDG", "AUDG") if gap > 0 else ("AUDG", "PSURDG")
                claims.append(_claim(group, f"Table {where}", delay, pair, measure, abs(gap)))
    return claims


def _claim(group: Group, where: str, delay: int, pair: tuple[str, str], measure: str, gap: float) -> Claim:
    """That the first of the two ends with the higher loss or accuracy."""
    higher, lower = (f"{name}, delay {delay}" for name in pair)
    what = "loss" if measure == "training_loss" else "accuracy"
    return Claim(
        where=where,
        says=f"{group.title}, client 1 delayed by {delay}: {pair[0]} ends with the higher {what}",
        part=group.title,
        kind="better",
        mine=higher,
        theirs=lower,
        gap=gap,
        measure=measure,
        one_of="comparisons of Tables III to V and VII to X",
    )


def agreement(measurements: Sequence[Measurement]) -> str:
    """How many cells agree on which rule has the lower mean loss, in a sentence, beside "always AUDG" and chance."""
    here, paper = [], []
    for group in COMPARED:
        assert group.losses is not None
        for delay, gap in zip(DELAYS, LOSSES[group.losses]["Difference"], strict=True):
            losses = [
                by_seed(measurements, group.title, f"{n}, delay {delay}", "training_loss") for n in ("PSURDG", "AUDG")
            ]
            if all(losses):
                here.append(fmean(losses[0].values()) > fmean(losses[1].values()))
                paper.append(gap > 0)
    if not here:
        return ""
    same = sum(one == other for one, other in zip(here, paper, strict=True))
    return (
        f"**Agreement.** The one of the two with the lower mean loss is the paper's in {same} of {len(here)} cells; a "
        f"rule that always says AUDG is right in {sum(paper)}. Cohen's kappa, which takes out what the two frequencies "
        f"alone would give: {kappa(here, paper):+.2f}."
    )


def kappa(here: Sequence[bool], paper: Sequence[bool]) -> float:
    """Cohen's kappa of two judges; 0 if one of them always says the same.

    >>> round(kappa([True, True, False, False], [True, False, False, False]), 3)  # 3/4 the same, 1/2 by chance
    0.5
    """
    same = fmean(one == other for one, other in zip(here, paper, strict=True))
    ours, theirs = fmean(here), fmean(paper)
    chance = ours * theirs + (1 - ours) * (1 - theirs)
    return 0.0 if chance == 1.0 else (same - chance) / (1 - chance)


DELAYS_STUDY = Reproduction(
    name="delays",
    title="AUDG and PSURDG under delays: Tables III to V and VII to X",
    paper="Hao et al., 2025 (arXiv 2503.04052), sec. VI",
    about=f"""\
Four clients, full-batch gradient descent, 50 iterations; client 1 has a mean delay of 1 to 9 iterations, the others
of 1. The learning rate is that of 0.01, 0.02, 0.05, 0.1 and 0.2 with which SFL, which has no delays, ends with the
lowest training loss on seed 100; `--rate` shows what another one does. {120 * TIMES} embedded images of MNIST in place
of 25,000; ten seeds, each with its own data, first model and delays, in place of ten runs. The label sets that go with
Table VI's sizes are ours. `offbeat study delays` prints the paper's tables as they stand, also with 25,000 images.""",
    cases=cases,
    parts=tuple(group.title for group in COMPARED),
    methods=lambda part: METHODS,
    claims=_claims(),
    shown={"training_loss": "final training loss", "final_accuracy": "final accuracy"},
    published={
        (group.title, f"{name}, delay {delay}"): {"training_loss": LOSSES[group.losses][name][place]}
        for group in COMPARED
        if group.losses is not None
        for place, delay in enumerate(DELAYS)
        for name in ("AUDG", "PSURDG")
    },
    remark=agreement,
    seeds=10,
)
