"""Measure the reward of each slot in a simulated run: the history that FedASMU's meta model is pre-trained on.

A slot is the epoch before which a device asks for a fresh model.
"""

from dataclasses import dataclass

from offbeat.algorithms.fedasmu.server import TimelyPolicy
from offbeat.core.errors import Interrupted, InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.running.driver import OnProgress, progress_of
from offbeat.running.interruption import interruption
from offbeat.simulation.run import simulation_of


@dataclass(frozen=True, kw_only=True)
class SlotRecord:
    """How often devices merged a fresh model before this epoch, and the mean decrease of their loss."""

    slot: int
    merges: int
    reward: float
    """Mean decrease of the loss; 0 if no device merged there."""


def measure_slots(experiment: Experiment, watch: OnProgress | None = None) -> list[SlotRecord]:
    """Run the experiment with random slots (epsilon 1), and average the reward of each."""
    if not isinstance(experiment.algorithm.policy, TimelyPolicy):
        raise InvalidInput(f"algorithm.name = {experiment.algorithm.name!r}: only fedasmu and fedssmu have slots")
    random_slots = {"epsilon": 1.0, "slot": "learned", "fresh_models": True, "history": []}
    with simulation_of(experiment.changed({"algorithm": random_slots})) as simulation, interruption() as asked:
        for row in simulation:
            simulation.spans.clear()
            if watch is not None:
                watch(progress_of(simulation), row)
            if asked.is_set():
                raise Interrupted("interrupted; nothing was kept")
        rewards = simulation.session.state.rewards
    records = []
    for slot in range(1, experiment.local.slices + 1):
        merges, total = rewards.get(slot, (0, 0.0))
        records.append(SlotRecord(slot=slot, merges=merges, reward=total / merges if merges else 0.0))
    return records
