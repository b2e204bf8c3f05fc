"""Delays, Tables III to V and VII to X: which of PSURDG and AUDG has the lower loss, over delay and heterogeneity.

The paper gives no learning rate, and the sign of the difference depends on it. Here SFL, which has no delays, chooses
it on the tuning seed, so that neither rule is favoured.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.harness import Table
from experiments.harness.claims import Claim
from experiments.harness.command_line import main
from experiments.harness.measurements import Measurement, by_seed
from experiments.harness.study import Case, Form, read_data, read_study
from offbeat import Experiment, load_experiment
from offbeat.results.plots import COLOURS, legend_below, style_axes
from offbeat.results.statistics import median_of

DELAYS: Sequence[int] = read_data("delays")["data"]["delays"]
"""Mean delays of client 1, in iterations."""
TABLES: dict[str, dict[str, list[float]]] = read_data("delays")["data"]["tables"]
"""Published values by table (the loss tables have one row per rule, the accuracy tables one per group) and delay."""
RULES = ("AUDG", "PSURDG")
TIMES = 4
"""The samples of the shipped experiments are multiplied by this: 480 in all."""
RATES = tuple({"local": {"learning_rate": rate}} for rate in (0.01, 0.02, 0.05, 0.1, 0.2))
TOP = (("Over-CNN & IID", "loss", 9), ("Large Non-IID", "loss", 1))
"""The paper's two findings: reuse costs loss with long delays, and pays with heterogeneous data and short ones."""
METHODS = tuple(f"{name}, delay {delay}" for delay in DELAYS for name in RULES)
HIGHEST_LOSS = 4.0
"""The upper edge of the figure; losses of runs that diverged are above it."""


class Group(NamedTuple):
    """A shipped experiment with one model, and the published tables about it."""

    title: str
    file: str
    model: str
    losses: str
    """The table of losses."""
    accuracies: tuple[str, str]
    """The table of accuracy differences, and its row."""


GROUPS = (
    Group("Over-CNN & IID", "delays-iid", "cnn-over", "IV", ("III", "Over-CNN")),
    Group("CNN & IID", "delays-iid", "cnn-small", "V", ("III", "CNN")),
    Group("Small Non-IID", "delays-small", "cnn-over", "VII", ("X", "Small Non-IID")),
    Group("Medium Non-IID", "delays-medium", "cnn-over", "VIII", ("X", "Medium Non-IID")),
    Group("Large Non-IID", "delays-large", "cnn-over", "IX", ("X", "Large Non-IID")),
)


def cases(form: Form) -> list[Case]:
    """Both rules with every delay for every group; the quick form has IID data and the first and last delay."""
    delays = DELAYS if form.full else (DELAYS[0], DELAYS[-1])
    made = []
    for group in GROUPS if form.full else GROUPS[1:2]:
        base = experiment_of(group, form)
        if form.rate is not None:
            base = base.changed({"local": {"learning_rate": form.rate}})
        synchronous = base.changed({"algorithm": {"name": "sfl"}, "fleet": {"mean_delay": 0.0}})
        made += [
            Case(
                part=group.title,
                method=f"{name}, delay {delay}",
                experiment=base.changed(
                    {
                        "algorithm": {"name": name.lower(), "iteration_seconds": 1.0},
                        "fleet": {"mean_delay": [float(delay), 1.0, 1.0, 1.0]},
                    }
                ),
                candidates=RATES if form.rate is None else (),
                tuned_on=synchronous,
            )
            for delay in delays
            for name in RULES
        ]
    return made


def experiment_of(group: Group, form: Form) -> Experiment:
    """The shipped experiment of a group with its model, and with more samples in the full form."""
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


def claims() -> Iterator[Claim]:
    """For each group and delay: which rule ends with the higher loss, and which with the higher accuracy."""
    for group in GROUPS:
        table, row = group.accuracies
        published = (
            (group.losses, "training_loss", TABLES[group.losses]["Difference"]),
            (table, "final_accuracy", TABLES[table][row]),
        )
        for where, measure, differences in published:
            what = "loss" if measure == "training_loss" else "accuracy"
            for delay, gap in zip(DELAYS, differences, strict=True):
                top = (group.title, what, delay) in TOP
                higher, lower = ("PSURDG", "AUDG") if gap > 0 else ("AUDG", "PSURDG")
                yield Claim(
                    where=f"Table {where}",
                    says=f"{group.title}, mean delay {delay}: {higher} ends with the higher {what}",
                    part=group.title,
                    mine=f"{higher}, delay {delay}",
                    theirs=f"{lower}, delay {delay}",
                    gap=abs(gap),
                    measure=measure,
                    headline=top,
                    top=top,
                )


def agreement(measurements: Sequence[Measurement]) -> str:
    """How often the rule with the lower mean loss is the published one, beside "always AUDG" and chance."""
    here, paper = [], []
    for group in GROUPS:
        for delay, gap in zip(DELAYS, TABLES[group.losses]["Difference"], strict=True):
            reusing, using = (losses(measurements, group, name, delay) for name in ("PSURDG", "AUDG"))
            if reusing and using:
                here.append(fmean(reusing) > fmean(using))
                paper.append(gap > 0)
    if not here:
        return ""
    same = sum(one == other for one, other in zip(here, paper, strict=True))
    return (
        f'The rule with the lower mean loss is the published one in {same} of {len(here)} cells; "always AUDG" would '
        f"be right in {sum(paper)}. Cohen's kappa, the agreement beyond chance, is {kappa(here, paper):+.2f}."
    )


def losses(measurements: Sequence[Measurement], group: Group, name: str, delay: int) -> list[float]:
    """The final training losses of a rule."""
    return list(by_seed(measurements, group.title, f"{name}, delay {delay}", "training_loss").values())


def kappa(here: Sequence[bool], paper: Sequence[bool]) -> float:
    """Cohen's kappa of two judges; 0 if both always say the same.

    >>> round(kappa([True, True, False, False], [True, False, False, False]), 3)  # 3/4 the same, 1/2 by chance
    0.5
    """
    same = fmean(one == other for one, other in zip(here, paper, strict=True))
    ours, theirs = fmean(here), fmean(paper)
    chance = ours * theirs + (1 - ours) * (1 - theirs)
    return 0.0 if chance == 1.0 else (same - chance) / (1 - chance)


def figure(measurements: Sequence[Measurement]) -> Figure | None:
    """The final training loss over the mean delay of client 1, with a panel for each group.

    Measured losses are medians over seeds with their 95 % intervals.
    """
    shown = [group for group in GROUPS if any(each.part == group.title for each in measurements)]
    if not shown:
        return None
    drawn = Figure(figsize=(2.4 * len(shown) + 0.6, 3.4), layout="constrained")
    panels = drawn.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    for axes, group in zip(panels, shown, strict=True):
        style_axes(axes, group.title)
        for name, colour in zip(RULES, COLOURS, strict=False):
            found = {delay: losses(measurements, group, name, delay) for delay in DELAYS}
            medians = {delay: median_of(each) for delay, each in found.items() if len(each) > 1}
            middle, low, high = (
                np.minimum([getattr(each, end) for each in medians.values()], 2 * HIGHEST_LOSS)
                for end in ("median", "low", "high")
            )
            spread = [middle - low, high - middle]
            axes.errorbar(list(medians), middle, yerr=spread, color=colour, marker="o", capsize=3, label=name)
            axes.plot(DELAYS, TABLES[group.losses][name], color=colour, linestyle="--", label=f"{name}, published")
        axes.set_xlabel("mean delay of client 1")
        axes.set_xticks(DELAYS)
    panels[0].set_ylim(0.0, min(panels[0].get_ylim()[1], HIGHEST_LOSS))
    panels[0].set_ylabel("final training loss")
    legend_below(drawn, *panels[0].get_legend_handles_labels())
    return drawn


STUDY = read_study(
    "delays",
    cases=cases,
    parts={group.title: METHODS for group in GROUPS},
    claims=list(claims()),
    published={
        group.title: {
            f"{name}, delay {delay}": {"training_loss": TABLES[group.losses][name][position]}
            for position, delay in enumerate(DELAYS)
            for name in RULES
        }
        for group in GROUPS
    },
    findings=agreement,
    figure=figure,
)

if __name__ == "__main__":
    main(STUDY)
