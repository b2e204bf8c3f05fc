"""Advice on delayed gradients for an experiment: AUDG or PSURDG?

Delays and constants are estimated from the experiment (`offbeat.estimates`), and from them the theory's Theta has a
sign. A short simulation over seeds says what really happens; where the two disagree, the advice says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf, sqrt
from statistics import fmean, stdev

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offbeat.algorithms import Audg
from offbeat.config import Experiment
from offbeat.estimates import Estimate, Watch, delays_of, estimate, median_order_seconds
from offbeat.experiment import run, simulation_of
from offbeat.fleet import BernoulliFleet
from offbeat.theory import Delays, audg_bound, psurdg_bound, sfl_bound, theta, turning_delay

SHOWN_CLIENTS = 12
REPLACED = ("stop", "algorithm", "evaluation", "compare", "sweep")
"""Tables of the experiment that a simulation for advice has its own of."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What a short simulation of both says."""

    iterations: int
    audg: list[float]
    psurdg: list[float]
    """Final training losses, seed by seed."""
    accuracies: dict[str, float]

    @property
    def difference(self) -> float:
        """PSURDG minus AUDG, as Theta is."""
        return fmean(self.psurdg) - fmean(self.audg)

    @property
    def error(self) -> float:
        """The standard error of the difference over seeds; both had the same delays."""
        differences = [one - other for one, other in zip(self.psurdg, self.audg, strict=True)]
        return stdev(differences) / sqrt(len(differences)) if len(differences) > 1 else float("inf")

    @property
    def is_clear(self) -> bool:
        return abs(self.difference) > 2 * self.error

    @property
    def prefers(self) -> str:
        return "psurdg" if self.difference < 0 else "audg"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What is known of the experiment, and what follows."""

    iteration_seconds: float
    rate: float
    iterations: int
    delays: Delays
    estimate: Estimate
    simulated: Simulated | None = None

    @property
    def theta(self) -> float:
        return theta(self.estimate.constants, self.delays, self.rate)

    @property
    def prefers(self) -> str | None:
        """Which of the two has the lower bound; None without delays, when both are SFL."""
        if self.delays.absent < 1e-9:
            return None
        return "psurdg" if self.theta < 0 else "audg"

    @property
    def is_stable(self) -> bool:
        """Whether eta L <= 1, which the theorems need to drop the last term of Lemma 1, (15)."""
        return self.rate * self.estimate.constants.smoothness <= 1

    @property
    def turning_delay(self) -> float:
        return turning_delay(self.estimate.constants, self.rate)

    @property
    def bounds(self) -> dict[str, float]:
        """(20), (21), (48)."""
        return {
            "sfl": sfl_bound(self.estimate.constants, self.rate, self.iterations),
            "audg": audg_bound(self.estimate.constants, self.delays, self.rate, self.iterations),
            "psurdg": psurdg_bound(self.estimate.constants, self.delays, self.rate, self.iterations),
        }

    @property
    def verdict(self) -> str:
        """The advice in a sentence or two."""
        if self.prefers is None:
            return "Nobody is late: AUDG, PSURDG and SFL are the same."
        theory = f"The theory prefers {self.prefers.upper()}"
        if self.simulated is None:
            doubt = "Its bounds are loose" if self.is_stable else "It does not cover so high a learning rate"
            return f"{theory}. {doubt}: check with --simulate."
        found = self.simulated
        if not found.is_clear:
            return f"{theory}; the simulation shows no clear difference. Take either, or simulate more seeds."
        if found.prefers == self.prefers:
            return f"{theory}, and so does the simulation."
        return (
            f"Theory and simulation DISAGREE: the theory prefers {self.prefers.upper()}, the simulation "
            f"{found.prefers.upper()}. Trust the simulation: the theory compares upper bounds."
        )


def advise(
    experiment: Experiment,
    *,
    iteration_seconds: float | None = None,
    iterations: int = 50,
    simulate: bool = False,
    seeds: Sequence[int] = (0, 1, 2),
    watch: Watch | None = None,
) -> Advice:
    """Estimate, compare, and simulate if asked to. `watch` is told how much is done (0 to 1)."""
    tell = watch or (lambda done: None)
    seconds = iteration_seconds or _iteration_of(experiment) or median_order_seconds(experiment)
    prepared = {name: _prepared(experiment, name, seconds, iterations) for name in ("audg", "psurdg")}
    part = 1 / (1 + 2 * len(seeds)) if simulate else 1.0
    with simulation_of(prepared["audg"]) as simulation:
        delays = delays_of(prepared["audg"], simulation)
        estimated = estimate(simulation, lambda done: tell(part * done))
    simulated = None
    if simulate:
        losses: dict[str, list[float]] = {"audg": [], "psurdg": []}
        accuracies: dict[str, list[float]] = {"audg": [], "psurdg": []}
        for number, seed in enumerate(seeds):
            for place, (name, each) in enumerate(prepared.items()):
                summary = run(each.changed({"seed": seed})).summary
                losses[name].append(summary["training_loss"])
                accuracies[name].append(summary["final_accuracy"])
                tell(part * (2 + 2 * number + place))
        means = {name: fmean(values) for name, values in accuracies.items()}
        simulated = Simulated(iterations=iterations, audg=losses["audg"], psurdg=losses["psurdg"], accuracies=means)
    return Advice(
        iteration_seconds=seconds,
        rate=experiment.local.learning_rate,
        iterations=iterations,
        delays=delays,
        estimate=estimated,
        simulated=simulated,
    )


def _iteration_of(experiment: Experiment) -> float | None:
    """The length of an iteration that the file gives, for its fleet or its algorithm."""
    for settings in (experiment.fleet.settings, experiment.algorithm.policy):
        if isinstance(settings, BernoulliFleet | Audg):
            return settings.iteration_seconds
    return None


def _prepared(experiment: Experiment, name: str, seconds: float, iterations: int) -> Experiment:
    """The experiment under AUDG or PSURDG, for so many iterations, and with the loss that the theory is about."""
    weights = getattr(experiment.algorithm.policy, "weights", None)
    algorithm = {"name": name, "iteration_seconds": seconds} | ({"weights": weights} if weights else {})
    stop = seconds * iterations
    table = {key: value for key, value in experiment.table().items() if key not in REPLACED}
    if isinstance(experiment.fleet.settings, BernoulliFleet):
        table["fleet"] = table["fleet"] | {"iteration_seconds": seconds}
    evaluation = {"every_seconds": stop, "training_loss": True}
    return Experiment.parse(table | {"stop": {"time": stop}, "algorithm": algorithm, "evaluation": evaluation})


def rendered(advice: Advice) -> RenderableType:
    """For a terminal: delays, constants, what follows from them, and what was simulated."""
    constants, delays = advice.estimate.constants, advice.delays
    facts = Table("", "", box=box.SIMPLE_HEAD, show_header=False, title="Estimated", title_justify="left")
    facts.add_row("iteration", f"{advice.iteration_seconds:.4g} s")
    shown = ", ".join(f"{mean:.2f}" for mean in delays.first[:SHOWN_CLIENTS])
    more = ", ..." if delays.clients > SHOWN_CLIENTS else ""
    facts.add_row("mean delay of each client", f"{shown}{more} iterations")
    facts.add_row("weighted mean delay", f"{delays.mean:.3g} iterations")
    facts.add_row("deliveries in an iteration", f"{delays.participants:.3g} of {delays.clients} clients")
    facts.add_row("L, smoothness", f"{constants.smoothness:.4g}")
    limits = "" if advice.is_stable else ": too much, the theory needs at most 1"
    facts.add_row("eta L", f"{advice.rate * constants.smoothness:.3g}{limits}")
    facts.add_row("mu, convexity", f"{constants.convexity:.4g}" if advice.estimate.convex else "0 (it is not convex)")
    facts.add_row("G, longest gradient", f"{constants.gradient:.4g}")
    facts.add_row("R, distance to the optimum", f"{constants.radius:.4g}")
    facts.add_row("phi, between the clients' optima", f"{constants.heterogeneity:.4g}")
    facts.add_row("Theta, PSURDG's bound - AUDG's", f"{advice.theta:+.4g}")
    facts.add_row("Theta changes its sign at", f"a weighted mean delay of {advice.turning_delay:.3g} iterations")
    found = advice.simulated
    compared = Table(
        "", "bound", box=box.SIMPLE_HEAD, title=f"After {advice.iterations} iterations", title_justify="left"
    )
    if found is not None:
        compared.add_column("simulated loss")
        compared.add_column("accuracy")
    for name, bound in advice.bounds.items():
        row = [name, "infinite" if isinf(bound) else f"{bound:.4g}"]
        if found is not None and name in found.accuracies:
            row += [_with_spread(getattr(found, name)), f"{100 * found.accuracies[name]:.1f} %"]
        compared.add_row(*row)
    if found is not None:
        sign = f"{advice.theta:+.4g}"
        compared.add_row("psurdg - audg", sign, f"{found.difference:+.4f} ± {found.error:.4f} (s.e.)")
    note = f"From gradients on {advice.estimate.clients} clients: extremes of what was seen, not bounds."
    return Group(facts, Text(note, style="dim"), compared, Text(advice.verdict, style="bold"))


def _with_spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")
