"""Advise on AUDG or PSURDG for an experiment with delayed gradients.

Delays and constants are estimated from the experiment (`constants`); the sign of the theory's Theta says which
algorithm has the lower bound. The paper's bound on PSURDG uses another delay than that of the gradients that PSURDG
applies (see `bounds`): the advice uses their actual age, and mentions it where the printed bound prefers the other
algorithm. A short simulation over several seeds checks the theory, and the advice says where they disagree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, isinf, nan, sqrt
from statistics import fmean, stdev
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text
from scipy.stats import t as student

from offbeat.algorithms import Audg, Psurdg
from offbeat.comparison.delayed_gradients.bounds import (
    Delays,
    audg_bound,
    psurdg_bound,
    sfl_bound,
    theta,
    turning_delay,
)
from offbeat.comparison.delayed_gradients.constants import (
    SAMPLES,
    BoundEstimate,
    OnFraction,
    delays_of,
    estimate,
    median_order_seconds,
)
from offbeat.experiment.schema import Experiment
from offbeat.fleet import BernoulliFleet
from offbeat.simulation.run import run, simulation_of

SHOWN_CLIENTS = 12
REPLACED = ("stop", "algorithm", "evaluation", "compare", "sweep")
"""Tables of the experiment that the simulation replaces."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """The results of a short simulation of both algorithms."""

    iterations: int
    audg: list[float]
    psurdg: list[float]
    """Final training losses by seed; infinite where a run diverged."""
    accuracies: dict[str, float]

    @property
    def difference(self) -> float:
        """Mean final loss of PSURDG minus that of AUDG, with the sign convention of Theta."""
        return fmean(self.psurdg) - fmean(self.audg)

    @property
    def error(self) -> float:
        """Standard error of the difference, paired by seed; nan if a run diverged or there is one seed."""
        differences = [one - other for one, other in zip(self.psurdg, self.audg, strict=True)]
        return nan if self.diverged or len(differences) == 1 else stdev(differences) / sqrt(len(differences))

    @property
    def diverged(self) -> dict[str, int]:
        """Number of seeds with which each algorithm diverged, for those that did."""
        counts = {name: sum(not isfinite(loss) for loss in getattr(self, name)) for name in ("audg", "psurdg")}
        return {name: count for name, count in counts.items() if count}

    @property
    def prefers(self) -> str | None:
        """The algorithm that diverged less often, else the one with the lower loss (t-test, 95 %); None: undecided."""
        if self.diverged:
            often = {name: self.diverged.get(name, 0) for name in ("audg", "psurdg")}
            return None if often["audg"] == often["psurdg"] else min(often, key=lambda name: often[name])
        if len(self.audg) == 1 or abs(self.difference) <= student.ppf(0.975, len(self.audg) - 1) * self.error:
            return None
        return "psurdg" if self.difference < 0 else "audg"

    @property
    def finding(self) -> str:
        """The result as a clause that follows "the simulation"."""
        if self.diverged:
            runs = " and ".join(f"{name.upper()} in {count}" for name, count in self.diverged.items())
            return f"diverged with {runs} of {len(self.audg)} seeds"
        if len(self.audg) == 1:
            return "has a single seed, which shows no spread"
        return "shows no clear difference" if self.prefers is None else f"prefers {self.prefers.upper()}"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Estimates from the experiment, and the advice that follows."""

    iteration_seconds: float
    rate: float
    iterations: int
    delays: Delays
    ages: Delays
    """Ages of the gradients that PSURDG applies, new or reused."""
    estimate: BoundEstimate
    beyond: tuple[str, ...] = ()
    """Settings of the experiment that the theory does not cover."""
    simulated: Simulated | None = None

    @property
    def theta(self) -> float:
        """Theta with the actual ages of the gradients that PSURDG applies."""
        return theta(self.estimate.constants, self.delays, self.rate, self.ages)

    @property
    def printed_theta(self) -> float:
        """Theta with the delays of (1) for both algorithms, as in the paper."""
        return theta(self.estimate.constants, self.delays, self.rate)

    @property
    def prefers(self) -> str | None:
        """The algorithm with the lower bound; None without delays (both equal SFL) or without finite bounds."""
        if self.delays.absent < 1e-9 or not self.is_bounded:
            return None
        return "psurdg" if self.theta < 0 else "audg"

    @property
    def is_turned(self) -> bool:
        """Whether the printed bound prefers the other algorithm."""
        return (self.theta < 0) != (self.printed_theta < 0)

    @property
    def is_bounded(self) -> bool:
        """Whether a bound is finite: without strong convexity (mu = 0) both are infinite."""
        return any(isfinite(self.bounds[name]) for name in ("audg", "psurdg"))

    @property
    def is_stable(self) -> bool:
        """Whether eta L <= 1, which the theorems need to drop the last term of Lemma 1, (15)."""
        return self.rate * self.estimate.constants.smoothness <= 1

    @property
    def turning_delay(self) -> float:
        """The mean delay beyond which AUDG has the lower bound, by the estimated constants."""
        return turning_delay(self.estimate.constants, self.rate)

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds (20), (21), and (48) with the actual ages and as printed."""
        return {
            "sfl": sfl_bound(self.estimate.constants, self.rate, self.iterations),
            "audg": audg_bound(self.estimate.constants, self.delays, self.rate, self.iterations),
            "psurdg": psurdg_bound(self.estimate.constants, self.ages, self.rate, self.iterations),
            "psurdg as printed": psurdg_bound(self.estimate.constants, self.delays, self.rate, self.iterations),
        }

    @property
    def verdict(self) -> str:
        """The advice in a sentence or two."""
        if self.delays.absent < 1e-9:
            return "No gradient is delayed: AUDG, PSURDG and SFL are the same."
        if self.prefers is None:
            return self._without_theory
        theory = f"The theory prefers {self.prefers.upper()}{self._printed}"
        if self.simulated is None:
            doubt = "Its bounds are loose" if self.is_stable else "It does not cover learning rates this high"
            return f"{theory}. {doubt}: check it with a simulation."
        found = self.simulated
        if found.prefers is None:
            then = "Lower the learning rate" if found.diverged else "Use either, or simulate more seeds"
            return f"{theory}; the simulation {found.finding}. {then}."
        why = f" (it {found.finding})" if found.diverged else ""
        if found.prefers == self.prefers:
            return f"{theory}, and so does the simulation{why}."
        return (
            f"Theory and simulation DISAGREE: the theory prefers {self.prefers.upper()}{self._printed}, the simulation "
            f"{found.prefers.upper()}{why}. Trust the simulation: the theory compares upper bounds."
        )

    @property
    def _printed(self) -> str:
        """The verdict of the printed bound, if it differs."""
        other = "PSURDG" if self.prefers == "audg" else "AUDG"
        return (
            f" (the printed bound, with delays that are not those of the gradients, prefers {other})"
            if self.is_turned
            else ""
        )

    @property
    def _without_theory(self) -> str:
        """The advice where all bounds are infinite: the result of the simulation, if there is one."""
        theory = "The theory prefers neither: all its bounds are infinite, because the loss is not strongly convex"
        if self.simulated is None:
            return f"{theory}. Compare the two by simulation."
        return f"{theory}; the simulation {self.simulated.finding}."


def advise(
    experiment: Experiment,
    *,
    iteration_seconds: float | None = None,
    iterations: int = 50,
    simulate: bool = False,
    seeds: Sequence[int] = (0, 1, 2),
    watch: OnFraction | None = None,
) -> Advice:
    """Estimate delays and constants, compare the bounds, and simulate both algorithms if `simulate` is set.

    `watch` is given the fraction that is done (0 to 1).
    """
    tell = watch or (lambda done: None)
    seconds = iteration_seconds or _iteration_of(experiment) or median_order_seconds(experiment)
    prepared = {name: _prepared(experiment, name, seconds, iterations) for name in ("audg", "psurdg")}
    part = 1 / (1 + 2 * len(seeds)) if simulate else 1.0
    with simulation_of(prepared["audg"]) as simulation:
        delays = delays_of(prepared["audg"], simulation)
        ages = delays_of(prepared["audg"], simulation, reused=True)
    estimated = estimate(prepared["audg"], delays.weights, lambda done: tell(part * done))
    simulated = None
    if simulate:
        losses: dict[str, list[float]] = {"audg": [], "psurdg": []}
        accuracies: dict[str, list[float]] = {"audg": [], "psurdg": []}
        for number, seed in enumerate(seeds):
            for place, (name, each) in enumerate(prepared.items()):
                summary = run(each.changed({"seed": seed})).summary
                exploded = str(summary["stopped_by"]).startswith("diverged") or not isfinite(summary["training_loss"])
                losses[name].append(inf if exploded else summary["training_loss"])
                accuracies[name].append(summary["final_accuracy"])
                tell(part * (2 + 2 * number + place))
        means = {name: fmean(values) for name, values in accuracies.items()}
        simulated = Simulated(iterations=iterations, audg=losses["audg"], psurdg=losses["psurdg"], accuracies=means)
    return Advice(
        iteration_seconds=seconds,
        rate=experiment.local.learning_rate,
        iterations=iterations,
        delays=delays,
        ages=ages,
        estimate=estimated,
        beyond=beyond_the_theory(experiment),
        simulated=simulated,
    )


def beyond_the_theory(experiment: Experiment) -> tuple[str, ...]:
    """Settings outside the theory, which assumes one full-batch step at a constant rate and the weights of (13)."""
    local, policy = experiment.local, experiment.algorithm.policy
    leaving = {
        f"local.{local.unit}s = {local.slices}": local.slices != 1,
        f"local.batch_size = {local.batch_size}": local.batch_size != 0,
        f"local.optimiser = {local.optimiser!r}": local.optimiser != "sgd",
        f"local.momentum = {local.momentum:g}": local.momentum != 0,
        f"local.schedule = {local.schedule!r}": local.schedule not in ("exponential", "constant"),
        f"local.learning_rate_decay = {local.learning_rate_decay:g}": local.learning_rate_decay != 1,
        "algorithm.weights = 'renormalised'": isinstance(policy, Audg) and policy.weights == "renormalised",
    }
    return tuple(setting for setting, leaves in leaving.items() if leaves)


def _iteration_of(experiment: Experiment) -> float | None:
    """The length of an iteration in the settings of the fleet or the algorithm; None if neither has one."""
    for settings in (experiment.fleet.settings, experiment.algorithm.policy):
        if isinstance(settings, BernoulliFleet | Audg):
            return settings.iteration_seconds
    return None


def _prepared(experiment: Experiment, name: str, seconds: float, iterations: int) -> Experiment:
    """The experiment under AUDG or PSURDG for this number of iterations, measuring the loss that the theory bounds."""
    policy = experiment.algorithm.policy
    algorithm: dict[str, Any] = {"name": name, "iteration_seconds": seconds}
    if isinstance(policy, Audg) and policy.weights is not None:
        algorithm["weights"] = policy.weights
    if isinstance(policy, Psurdg) and name == "psurdg":
        algorithm["storage"] = policy.storage
    stop = seconds * iterations
    table = {key: value for key, value in experiment.table().items() if key not in REPLACED}
    if isinstance(experiment.fleet.settings, BernoulliFleet):
        table["fleet"] = table["fleet"] | {"iteration_seconds": seconds}
    evaluation = {"every_seconds": stop, "training_loss": True}
    return Experiment.parse(table | {"stop": {"time": stop}, "algorithm": algorithm, "evaluation": evaluation})


def tables(advice: Advice) -> tuple[Table, Table]:
    """The advice for a terminal: delays and constants with their limits; bounds and simulated results."""
    constants, delays = advice.estimate.constants, advice.delays
    facts = Table(
        "estimated", "value", box=box.SIMPLE_HEAD, title="Estimated", title_justify="left", show_header=False,
        caption=Text(_notes(advice), style="dim"), caption_justify="left",
    )  # fmt: skip
    facts.add_row("iteration", f"{advice.iteration_seconds:.4g} s")
    shown = ", ".join(f"{mean:.2f}" for mean in delays.first[:SHOWN_CLIENTS])
    more = ", ..." if delays.clients > SHOWN_CLIENTS else ""
    facts.add_row("mean delay per client, over iterations", f"{shown}{more}")
    facts.add_row("their weighted mean", f"{delays.mean:.3g} iterations")
    facts.add_row("mean age of gradients applied by PSURDG", f"{advice.ages.mean:.3g} iterations")
    facts.add_row("updates per iteration", f"{delays.participants:.3g} of {delays.clients} clients")
    facts.add_row("L, smoothness", f"{constants.smoothness:.4g}")
    limits = "" if advice.is_stable else ": too high, the theory needs at most 1"
    facts.add_row("eta L", f"{advice.rate * constants.smoothness:.3g}{limits}")
    facts.add_row("mu, convexity", f"{constants.convexity:.4g}" if advice.estimate.convex else "0 (not convex)")
    facts.add_row("G, largest gradient norm", f"{constants.gradient:.4g}")
    least = "" if advice.estimate.converged else "at least "
    facts.add_row("R, distance to the optimum", f"{least}{constants.radius:.4g}")
    facts.add_row("phi, distance to the clients' optima", f"{least}{constants.heterogeneity:.4g}")
    alone = f"{advice.estimate.remaining_alone:.2g} (of single clients)"
    facts.add_row("gradient norm, end / start of descent", f"{advice.estimate.remaining:.2g}, {alone}")
    facts.add_row("Theta, PSURDG's bound minus AUDG's, with these ages", f"{advice.theta:+.4g}")
    facts.add_row("Theta as printed, with these delays for both", f"{advice.printed_theta:+.4g}")
    facts.add_row("Theta changes sign at", f"a weighted mean delay of {advice.turning_delay:.3g} iterations")
    found = advice.simulated
    compared = Table(
        "algorithm",
        "bound, averaged model",
        box=box.SIMPLE_HEAD,
        title=f"After {advice.iterations} iterations",
        title_justify="left",
    )
    if found is not None:
        compared.add_column("simulated, final training loss")
        compared.add_column("accuracy")
    for name, bound in advice.bounds.items():
        row = [name, "infinite" if isinf(bound) else f"{bound:.4g}"]
        if found is not None and name in found.accuracies:
            row += [_with_spread(getattr(found, name)), f"{100 * found.accuracies[name]:.1f} %"]
        compared.add_row(*row)
    if found is not None:
        error = "(one seed: no spread)" if len(found.audg) == 1 else f"± {found.error:.4f} (s.e.)"
        text = "-" if found.diverged else f"{found.difference:+.4f} {error}"
        compared.add_row("psurdg - audg", f"{advice.theta:+.4g}", text)
    return facts, compared


def _notes(advice: Advice) -> str:
    """The limits of the estimates, in sentences."""
    notes = [
        f"Constants: observed extremes, not bounds, of gradient descent on {advice.estimate.clients} clients with up "
        f"to {SAMPLES} samples each.",
        "Delays: means over all iterations, as in the paper's (1), not over uploads as in the metric mean_delay; "
        "without availability and failures.",
    ]
    if advice.beyond:
        notes.append(
            f"The theory assumes one full-batch step at a constant rate; it does not cover {', '.join(advice.beyond)}."
        )
    if not advice.estimate.converged:
        notes.insert(1, "Gradient descent has NOT CONVERGED: R and phi are lower bounds, and Theta is unreliable.")
    return "\n".join(notes)


def _with_spread(values: Sequence[float]) -> str:
    finite = [value for value in values if isfinite(value)]
    if len(finite) < len(values):
        return f"diverged in {len(values) - len(finite)} of {len(values)}"
    return f"{fmean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")
