"""A study: the experiments to run, the claims about them, and the words of its page."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.harness import Table
from experiments.harness.claims import Claim, Published, read_claims
from experiments.harness.measurements import Measurement
from offbeat import Experiment, fair_experiments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIRECTORY = Path(__file__).resolve().parents[1]
TUNING_SEED = 100
"""The seed that settings are chosen on; results are reported for seeds 0, 1, ..."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """How much of a study is run."""

    seeds: int
    length: float = 1.0
    """Share of the full number of rounds and seconds."""
    data: Path | None = None
    """Directory with the data sets that are not embedded: `fashion-mnist`, `cifar-10`, `device-traces`."""
    full: bool = True
    """Whether all parts are run, or one or two of them."""
    rate: float | None = None
    """A learning rate for all runs, replacing the one chosen on the tuning seed."""

    def rounds(self, full: int) -> int:
        """Scale a number of rounds to this form; the result is at least two."""
        return max(2, round(self.length * full))


QUICK = Form(seeds=2, length=0.4, full=False)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One method in one part of a study: an experiment to be run with several seeds."""

    part: str
    method: str
    experiment: Experiment
    """With `trials`, the experiment that all methods of the part share."""
    candidates: Sequence[Table] = ()
    """Changes to the experiment; the best of them on the tuning seed is used. All methods of a part have equally many.
    Empty: the experiment is run as it is."""
    tuned_on: Experiment | None = None
    """The experiment that the candidates are tried with, if it is another one."""
    tuned_share: float = 1.0
    """The first part of a run that candidates are compared by, as a share of its time."""
    trials: int = 0
    """How many settings a search tries on the tuning seed; `method` is then the name of the algorithm."""

    @cached_property
    def base(self) -> Experiment:
        """The experiment that chosen settings change."""
        if not self.trials:
            return self.experiment
        return fair_experiments(self.experiment, [self.method], [self.experiment.seed])[0]

    @property
    def tried(self) -> list[Experiment]:
        """The runs that candidates are compared by."""
        return [seeded((self.tuned_on or self.experiment).changed(each), TUNING_SEED) for each in self.candidates]

    @property
    def tried_settings(self) -> int:
        """The number of settings that are compared on the tuning seed."""
        return self.trials or len(self.candidates)

    @property
    def tuned_until(self) -> float | None:
        """The virtual time up to which candidates are run and compared; None: to their end."""
        end = (self.tuned_on or self.experiment).stop.time
        return None if end is None or self.tuned_share == 1.0 else self.tuned_share * end


@dataclass(frozen=True, kw_only=True)
class Study:
    """The claims of a paper and the runs that they are compared with."""

    name: str
    title: str
    paper: str
    question: str
    answer: str
    """What the measurements say, in a few sentences. It is written by hand: check it after new measurements."""
    setup: str
    """What is run, and how it differs from the paper."""
    cases: Callable[[Form], list[Case]]
    parts: Mapping[str, Sequence[str]]
    """The methods of each part of the full form."""
    claims: Sequence[Claim] = ()
    shown: Mapping[str, str] = field(default_factory=dict)
    """The measures that tables show, and their headings."""
    published: Published = field(default_factory=dict)
    target: float | None = None
    targets: Mapping[str, float] = field(default_factory=dict)
    """Targets of parts that have their own."""
    findings: Callable[[Sequence[Measurement]], str] = lambda _: ""
    """What all measurements say together, as Markdown after the answer."""
    table: Callable[[Sequence[Measurement]], str] | None = None
    """The Markdown table of the page; None: that of the headline claims."""
    figure: "Callable[[Sequence[Measurement]], Figure | None] | None" = None
    """The figure of the page; None: that of the headline claims."""
    page: str = ""
    """The page of another study that this one is a section of; empty: it has its own."""
    seeds: int = 5
    slow: bool = False
    """Whether to measure the share of the slowest devices in the model."""
    needs: Sequence[str] = ()
    """Directories below `--data` that some parts need."""
    pending: str = ""
    """What has not been run yet, as sentences."""
    outdated: Mapping[str, str] = field(default_factory=dict)
    """Methods whose stored runs follow an earlier definition, and how it differs."""
    takes_rate: bool = False
    """Whether `--rate` replaces the chosen learning rate."""

    @property
    def headline_methods(self) -> set[tuple[str, str]]:
        """The parts and methods of the claims that the overview lists."""
        top = [claim for claim in self.claims if claim.top]
        return {pair for it in top for pair in ((it.part, it.mine), (it.their_part or it.part, it.theirs))}

    @property
    def module(self) -> str:
        """The Python module that runs the study."""
        return f"experiments.{self.name.replace('-', '_')}"


def read_study(
    module: str,
    *,
    cases: Callable[[Form], list[Case]],
    parts: Mapping[str, Sequence[str]],
    **others: Any,
) -> Study:
    """Make a study from the TOML file beside its module, and from what the module defines."""
    data = read_data(module)
    data.pop("data", None)  # the module's own
    published = data.pop("published", {})
    for part, methods in published.items():
        if "same_as" in methods:
            published[part] = published[methods["same_as"]]
    claims = list(read_claims(data.pop("claims", ()), published))
    given = data | {"published": published, "claims": claims} | others
    return Study(name=module.replace("_", "-"), cases=cases, parts=parts, **given)


def read_data(module: str) -> dict[str, Any]:
    """Read the TOML file beside a module."""
    return tomllib.loads((DIRECTORY / f"{module}.toml").read_text(encoding="utf-8"))


def seeded(experiment: Experiment, seed: int) -> Experiment:
    """Set the seed of an experiment, and do not save its model."""
    return experiment.changed({"seed": seed, "execution": {"save_model": False}})


def fair_cases(
    part: str, base: Experiment, methods: Mapping[str, Table], *, in_training: int, candidates: Sequence[Table] = ()
) -> list[Case]:
    """Make a case for each method (its label and its settings), all with the same number of devices in training."""
    compare: Table = {label: {"algorithm": algorithm} for label, algorithm in methods.items()}
    compare["in_training"] = in_training
    experiments = fair_experiments(base.changed({"compare": compare}), list(methods), [0])
    return [
        Case(part=part, method=label, experiment=experiment, candidates=candidates)
        for label, experiment in zip(methods, experiments, strict=True)
    ]
