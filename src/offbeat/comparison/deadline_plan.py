"""The plan of a deadline algorithm before any training: deadlines, batch sizes and expected depth of each round."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rich.table import Table

from offbeat.algorithms.deadlines.adel import GradientEstimate, estimate
from offbeat.algorithms.deadlines.planner import expected_depth, fixed_depth
from offbeat.algorithms.deadlines.planner.depth import Floats, Integers
from offbeat.algorithms.deadlines.rounds import DeadlineRounds
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.results.plots import COLOURS, FAINT, legend_above, style_axes
from offbeat.simulation.run import simulation_of

MOST_ROWS = 12
ESTIMATION_BATCH = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class DeadlinePlan:
    """A plan: one entry per round, and in `batches` and `depth` one column per device."""

    title: str
    deadlines: Floats
    batches: Integers
    depth: Floats
    """Mean number of layers that a device completes, out of `layers` (over all local steps)."""
    layers: int
    scale: float | None
    """The factor m of the batch sizes, if the algorithm has one."""
    remarks: list[str]
    """Sentences on the limits of this plan."""

    def table(self) -> Table:
        """The plan as a table with at most `MOST_ROWS` evenly spaced rounds."""
        table = Table(title=self.title)
        for column in ("round", "begins (s)", "deadline (s)", "batch min", "median", "max", "mean depth"):
            table.add_column(column, justify="right")
        rounds = len(self.deadlines)
        begins = np.concatenate([[0.0], np.cumsum(self.deadlines)])
        for t in np.unique(np.linspace(0, rounds - 1, min(MOST_ROWS, rounds)).round().astype(int)).tolist():
            batch = self.batches[t]
            sizes = (batch.min(), np.median(batch), batch.max())
            share = self.depth[t].mean() / self.layers
            table.add_row(
                str(t + 1),
                f"{begins[t]:.4g}",
                f"{self.deadlines[t]:.4g}",
                *(f"{size:.0f}" for size in sizes),
                f"{share:.0%}",
            )
        return table

    def figure(self) -> Figure:
        """Deadline, batch size (median and range over devices) and expected depth of each round."""
        figure = Figure(figsize=(8.0, 7.2), layout="constrained")
        upper, middle, lower = figure.subplots(3, 1, sharex=True)
        rounds = np.arange(1, len(self.deadlines) + 1)
        style_axes(upper, self.title)
        upper.step(rounds, self.deadlines, where="mid", color=COLOURS[0], linewidth=2.0, label="planned")
        mean = float(self.deadlines.mean())
        upper.axhline(mean, color=COLOURS[1], linestyle="--", linewidth=1.4, label="equal rounds")
        upper.set_ylabel("deadline (s)")
        upper.set_ylim(bottom=0.0)
        legend_above(upper)
        style_axes(middle, "")
        low, high = self.batches.min(axis=1), self.batches.max(axis=1)
        middle.fill_between(rounds, low, high, color=FAINT, label="all devices")
        middle.plot(rounds, np.median(self.batches, axis=1), color=COLOURS[2], linewidth=2.0, label="median device")
        middle.set_ylabel("batch size")
        middle.set_ylim(bottom=0.0)
        legend_above(middle)
        style_axes(lower, "")
        share = self.depth / self.layers
        lower.fill_between(rounds, share.min(axis=1), share.max(axis=1), color=FAINT)
        lower.plot(rounds, share.mean(axis=1), color=COLOURS[3], linewidth=2.0)
        lower.set_ylabel("expected depth")
        lower.set_ylim(0.0, 1.0)
        lower.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        lower.set_xlabel("round")
        return figure


def plan_of(experiment: Experiment) -> DeadlinePlan:
    """The plan of the experiment's algorithm; InvalidInput if it has no deadlines, or too little time."""
    policy = experiment.algorithm.policy
    if not isinstance(policy, DeadlineRounds):
        raise InvalidInput(
            f"algorithm.name = {experiment.algorithm.name!r}: it plans no deadlines; use adel, salf, drop-stragglers "
            "or heterofl"
        )
    with simulation_of(experiment) as simulation:
        view = simulation.session
        state = view.state
        layers = policy.local_steps * view.layout.trained_layers
        batches = [policy.batches(deadline, state, view) for deadline in state.deadlines]
        rates = [policy.rates(deadline, state, view) for deadline in state.deadlines]
        remarks = []
        if getattr(policy, "warmup_rounds", 0):
            remarks.append("After the warm-up rounds the plan is made again from measured times and gradients.")
        fixed = view.forecast is not None and not view.forecast.random_layers
        if fixed:
            remarks.append(
                "Depths follow from this fleet's fixed times: a device that is too slow for a layer never reaches it. "
                "Deadlines and batch sizes follow from the algorithm's theory, which assumes exponential times "
                "(fleet.name = 'exponential')."
            )
        depth_of = fixed_depth if fixed else expected_depth
    seconds = sum(state.deadlines)
    return DeadlinePlan(
        title=f"{experiment.algorithm.title}: {len(state.deadlines)} rounds in {seconds:.6g} s",
        deadlines=np.array(state.deadlines),
        batches=np.array(batches),
        depth=np.array([depth_of(each, layers) for each in rates]),
        layers=layers,
        scale=getattr(state, "scale", None),
        remarks=remarks,
    )


def gradient_constants(experiment: Experiment, gradients: int) -> GradientEstimate | None:
    """Estimate sigma^2 and G^2 at the initial model from a number of batch gradients per device."""
    with simulation_of(experiment) as simulation:
        session = simulation.session
        sizes = {
            device: min(ESTIMATION_BATCH, session.samples(device))
            for device in range(session.devices)
            if session.samples(device)
        }
        found = {
            device: [
                simulation.executor.loss_and_gradient(session.parameters, device, number, 0, size)[1]
                for number in range(gradients)
            ]
            for device, size in sizes.items()
        }
    return estimate(found, sizes)
