"""A reproduction: the cases that it consists of, and what papers say of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from experiments.claims import Claim
from experiments.measurements import Measurement
from offbeat.comparison.fairness import fair_experiments
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import Table

TUNING_SEED = 100
"""Settings are chosen on this seed, and reported are others, from 0 on."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """How much of a reproduction is run."""

    seeds: int
    length: float = 1.0
    """Rounds and seconds, as a share of the full ones."""
    data: Path | None = None
    """The directory with data sets that are not embedded, as `mnist`, `fashion-mnist`, `cifar-10`, `device-traces`."""
    full: bool = True
    """Whether all parts are run, or the few that show the claim."""
    rate: float | None = None
    """The learning rate of all runs of `delays`, in place of the one that is chosen on the tuning seed."""

    def rounds(self, full: int) -> int:
        """How many of the full form's rounds this form has, and at least two."""
        return max(2, round(self.length * full))


QUICK = Form(seeds=2, length=0.4, full=False)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One method in one part of a reproduction: an experiment, to be run with several seeds."""

    part: str
    method: str
    experiment: Experiment
    """If its settings are searched for, the experiment of all methods of the part."""
    candidates: Sequence[Table] = ()
    """Changes to the experiment, of which the best on the tuning seed is taken; all methods of a part have equally
    many. None: the experiment is run as it is."""
    tuned_on: Experiment | None = None
    """The experiment that the candidates are tried with, if it is not this one."""
    tuned_share: float = 1.0
    """How much of a run the candidates are compared by, from its beginning on."""
    trials: int = 0
    """How many settings a search tries on the tuning seed; `method` is then the name of the algorithm."""

    @cached_property
    def base(self) -> Experiment:
        """What settings are changes to."""
        return (
            fair_experiments(self.experiment, [self.method], [self.experiment.seed])[0]
            if self.trials
            else self.experiment
        )

    @property
    def tried(self) -> list[Experiment]:
        """The candidates' runs."""
        return [seeded((self.tuned_on or self.experiment).changed(each), TUNING_SEED) for each in self.candidates]

    @property
    def tuned_until(self) -> float | None:
        """The virtual time up to which candidates are run and compared; None: to their end."""
        end = (self.tuned_on or self.experiment).stop.time
        return None if end is None or self.tuned_share == 1.0 else self.tuned_share * end


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A paper's claims and the runs that they are held against."""

    name: str
    title: str
    paper: str
    about: str
    """What is run, and in which ways it is not what the paper ran, as paragraphs of Markdown."""
    cases: Callable[[Form], list[Case]]
    parts: Sequence[str]
    """All parts of the full form in the order of the page."""
    methods: Callable[[str], Sequence[str]]
    """The methods of a part in the full form, which the page goes by: what is missing there is not yet run."""
    claims: Sequence[Claim] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    """The measures that tables show, and their headings."""
    published: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    """What the paper has in the place of a part and a method, by measure."""
    target: float | None = None
    targets: Mapping[str, float] = field(default_factory=dict)
    """The targets of parts that have another one."""
    in_short: Callable[[Sequence[Measurement]], list[list[str]]] = lambda _: []
    """A table of what all measurements come to, its heading first; nothing if too little is known."""
    remark: Callable[[Sequence[Measurement]], str] = lambda _: ""
    """What the page says about all measurements together."""
    seeds: int = 5
    slow: bool = False
    """Whether the share of slow devices in the model is wanted."""
    needs: Sequence[str] = ()
    """The directories below `--data` without which some parts cannot be run."""


def seeded(experiment: Experiment, seed: int) -> Experiment:
    """The experiment as it is run with a seed."""
    return experiment.changed({"seed": seed, "execution": {"save_model": False}})


def fair_cases(
    part: str,
    base: Experiment,
    methods: Mapping[str, Table],
    *,
    in_training: int | None,
    candidates: Sequence[Table] = (),
) -> list[Case]:
    """A case for each method (a label and its settings), all with that many devices in training; None: each its own."""
    compare: Table = {label: {"algorithm": algorithm} for label, algorithm in methods.items()}
    compare["in_training"] = False if in_training is None else in_training
    experiments = fair_experiments(base.changed({"compare": compare}), list(methods), [0])
    return [
        Case(part=part, method=label, experiment=experiment, candidates=candidates)
        for label, experiment in zip(methods, experiments, strict=True)
    ]
