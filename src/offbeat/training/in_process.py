"""Training in this process: clients one by one, or stacked where the model allows and it pays."""

from collections.abc import Sequence
from typing import Literal

from offbeat.training.stacked import StackedTrainer, can_stack, is_plain
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

STACK_FROM = 5
"""Stacking pays from about this many clients on (measured, see benchmarks)."""

STACK = 32
"""A stack of this many clients is about as fast per client as a larger one."""

Arithmetic = Literal["auto", "sequential", "stacked"]


class InProcessTrainer:
    """Trains a batch of jobs in this process: one by one, or stacked where the model allows and it pays."""

    def __init__(self, trainer: TorchTrainer, arithmetic: Arithmetic) -> None:
        self._trainer = trainer
        self._stacked = StackedTrainer(trainer) if arithmetic != "sequential" and can_stack(trainer) else None
        self._stack_from = 1 if arithmetic == "stacked" else STACK_FROM

    @property
    def stacks(self) -> bool:
        """Whether it trains many devices in one batched matrix product."""
        return self._stacked is not None

    @property
    def batch_capacity(self) -> int:
        """How many jobs at a time keep it busy."""
        return STACK if self.stacks else 1

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Carry out the jobs, plain ones stacked where that pays, and return their states in the same order."""
        plain = [position for position, job in enumerate(jobs) if is_plain(job.order) and job.whole]
        if self._stacked is None or len(plain) < self._stack_from:
            return [self._trainer.train(job) for job in jobs]
        states = dict(zip(plain, self._stacked.train_many([jobs[position] for position in plain]), strict=True))
        return [
            states[position] if position in states else self._trainer.train(job) for position, job in enumerate(jobs)
        ]

    def close(self) -> None:
        """Do nothing, since nothing is held open."""
