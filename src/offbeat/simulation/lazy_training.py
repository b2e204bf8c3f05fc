"""Lazy training: the numbers of a local run are computed when somebody reads them, together with all that can be.

Timing decides what each run does (how many slices, which fresh models it merges); this is written down as a plan.
Only when an upload's numbers are read must the plan be carried out, and then other plans whose inputs are known are
carried out with it as one batch, as many as the executor likes at a time. A run that is discarded unread costs nothing,
and asynchronous algorithms keep all cores busy. A plan and its inputs determine the numbers, so that a checkpoint needs
no half-trained model.
"""

from collections.abc import Mapping
from heapq import heappop, heappush
from math import inf
from typing import Any

from msgspec import Struct

from offbeat.algorithms import device_rule
from offbeat.core.effects import Assignment
from offbeat.core.orders import Outcome
from offbeat.core.parameters import Vector
from offbeat.core.policy import DeviceRule, Fresh, ReadOnlyMemory, copied
from offbeat.device.training_state import TrainingJob, TrainingState
from offbeat.simulation.executors import Executor

NOTHING: ReadOnlyMemory = {}
BATCH_BYTES = 256 * 2**20
"""The results of a batch may take this much memory."""


class TrainingPlan(Struct, kw_only=True, eq=False, gc=False):
    """The plan of one run and how far its numbers have come. A plan item is a slice to train up to, or a merge."""

    assignment: Assignment
    rule: DeviceRule
    plan: tuple[int | Fresh, ...] = ()
    performed: int = 0
    trained: int = 0
    """Slices that the work has."""
    work: TrainingState
    due: float = 0.0
    remembered: ReadOnlyMemory
    """What the device remembered when the run began."""
    memory: ReadOnlyMemory
    """The same with what the run has added so far; a copy as soon as that is anything."""
    outcome: Outcome | None = None


class LazyOutcome(Struct, frozen=True, eq=False, gc=False):
    """The outcome of a delivered run: computed, with everything else that is due, when it is first called."""

    training: "LazyTraining"
    trajectory: TrainingPlan

    def __call__(self) -> Outcome:
        return self.trajectory.outcome or self.training.finish(self.trajectory)


class LazyTraining:
    """All trajectories whose numbers may still be needed."""

    def __init__(self, executor: Executor, vector_bytes: int) -> None:
        self.executor = executor
        self.memories: dict[int, ReadOnlyMemory] = {}
        self.trajectories: dict[int, TrainingPlan] = {}
        self._unperformed: dict[int, TrainingPlan] = {}
        self._by_due: list[tuple[float, int]] = []
        """A heap of those, by when they are due; may hold entries that no longer count."""
        self._remembering: dict[int, TrainingPlan] = {}
        """Delivered runs that nobody has read yet, of devices that remember."""
        self._start: TrainingState | None = None
        """The work that the last run began with, which the next shares if it begins from the same version."""
        self._batch_size = max(1, min(executor.batch_capacity, BATCH_BYTES // vector_bytes))

    def begin(self, assignment: Assignment) -> None:
        """Open the trajectory of an order. A device that remembers must have finished what it did before."""
        if self._remembering:
            for earlier in [each for each in self._remembering.values() if each.assignment.device == assignment.device]:
                self.finish(earlier)
        remembered = self.memories.get(assignment.device, NOTHING)
        if self._start is None or self._start.parameters is not assignment.parameters:
            self._start = TrainingState(parameters=assignment.parameters)
        self.trajectories[assignment.ticket] = TrainingPlan(
            assignment=assignment,
            rule=device_rule(assignment.order.rule),
            work=self._start,
            remembered=remembered,
            memory=remembered,
        )

    def train(self, ticket: int, until: int, due: float) -> None:
        """The run trains up to this slice, which it will have done at `due`."""
        trajectory = self.trajectories[ticket]
        trajectory.plan += (until,)
        self._await(ticket, trajectory, due)

    def merge(self, ticket: int, fresh: Fresh) -> None:
        """The run takes in a newer model."""
        trajectory = self.trajectories[ticket]
        trajectory.plan += (fresh,)
        self._await(ticket, trajectory, trajectory.due)

    def _await(self, ticket: int, trajectory: TrainingPlan, due: float) -> None:
        trajectory.due = due
        self._unperformed[ticket] = trajectory
        if self._batch_size > 1:
            heappush(self._by_due, (due, ticket))

    def shorten(self, ticket: int, until: int, due: float) -> None:
        """The training ends at this slice after all. What was computed beyond it is computed again without."""
        trajectory = self.trajectories[ticket]
        plan, cut = trajectory.plan, False
        while plan and not isinstance(last := plan[-1], Fresh) and last > until:
            plan, cut = plan[:-1], True
        if trajectory.performed > len(plan):
            trajectory.performed = trajectory.trained = 0
            trajectory.work, trajectory.memory = (
                TrainingState(parameters=trajectory.assignment.parameters),
                trajectory.remembered,
            )
        if cut and until > max((item for item in plan if isinstance(item, int)), default=0):
            plan += (until,)
        trajectory.plan = plan
        if trajectory.performed == len(plan):
            self._unperformed.pop(ticket, None)
        else:
            self._await(ticket, trajectory, due)

    def hold(self, ticket: int) -> None:
        """Nobody is expected to read this run, because its device vanishes: do not compute it ahead."""
        self.trajectories[ticket].due = inf
        self._unperformed.pop(ticket, None)

    def drop(self, ticket: int) -> None:
        """The device vanished with this run."""
        del self.trajectories[ticket]
        self._unperformed.pop(ticket, None)

    def keep(self, ticket: int) -> None:
        """The upload was lost, but its device is well and remembers what it did."""
        self.deliver(ticket)
        self.settle(ticket)

    def deliver(self, ticket: int) -> LazyOutcome:
        """The run is over; whoever reads the outcome makes it."""
        trajectory = self.trajectories.pop(ticket)
        if trajectory.rule.remembers:
            self._remembering[ticket] = trajectory
        return LazyOutcome(self, trajectory)

    def settle(self, ticket: int) -> None:
        """The policy is done with this run: if it was never read, it need not be computed ahead.

        A device that remembers did train, whatever the server made of it: its run is carried out before its next.
        """
        self._unperformed.pop(ticket, None)

    def finish(self, trajectory: TrainingPlan) -> Outcome:
        """Carry out this plan, and others with it."""
        while trajectory.performed < len(trajectory.plan):
            self._perform(self._batch(trajectory))
        given, rule, work = trajectory.assignment, trajectory.rule, trajectory.work
        extras = rule.extras(given.order, trajectory.remembered, trajectory.memory)
        trajectory.outcome = outcome = Outcome(parameters=work.parameters, loss=work.loss, extras=extras)
        if rule.remembers and self._remembering.pop(given.ticket, None) is not None:
            self.memories[given.device] = trajectory.memory
        return outcome

    def _batch(self, wanted: TrainingPlan) -> dict[int, TrainingPlan]:
        """What to compute next: the wanted one, and as many others as the executor likes, those due first."""
        batch = {wanted.assignment.ticket: wanted}
        while len(batch) < self._batch_size and self._by_due:
            due, ticket = heappop(self._by_due)
            trajectory = self._unperformed.get(ticket)
            if trajectory is not None and trajectory.due == due:  # else it was done, or is due at another time by now
                batch[ticket] = trajectory
        return batch

    def _perform(self, batch: dict[int, TrainingPlan]) -> None:
        """One stretch of each trajectory: the merges before it here, the training together in the executor."""
        jobs: list[TrainingJob] = []
        for ticket, trajectory in batch.items():
            self._unperformed.pop(ticket, None)
            for item in trajectory.plan[trajectory.performed :]:
                if isinstance(item, Fresh):
                    self._merge(trajectory, item)
                    continue
                given = trajectory.assignment
                jobs.append(
                    TrainingJob(
                        device=given.device,
                        ticket=ticket,
                        order=given.order,
                        first=trajectory.trained,
                        last=item,
                        work=trajectory.work,
                        anchor=given.parameters,
                    )
                )
                break
        for job, work in zip(jobs, self.executor.train(jobs), strict=True):
            trajectory = batch[job.ticket]
            trajectory.work = work
            trajectory.trained = job.last
            trajectory.performed += 1
            if trajectory.performed < len(trajectory.plan):
                self._await(job.ticket, trajectory, trajectory.due)

    def _merge(self, trajectory: TrainingPlan, fresh: Fresh) -> None:
        given, work, memory = trajectory.assignment, trajectory.work, copied(trajectory.memory)

        def probe(parameters: Vector) -> tuple[float, Vector]:
            return self.executor.loss_and_gradient(
                parameters, given.device, given.ticket, trajectory.performed, given.order.batch_size
            )

        merged = trajectory.rule.merge(work.parameters, fresh, given.base, given.order, memory, probe)
        trajectory.memory = memory
        trajectory.work = TrainingState(
            parameters=merged, momentum=work.momentum, steps=work.steps, loss_sum=work.loss_sum, seen=work.seen
        )
        trajectory.performed += 1

    # Snapshots: the plans of what is in flight; their numbers are made again from the versions that the session keeps

    def snapshot(self) -> dict[str, Any]:
        """The plans of what is in flight, and what the devices remember, which takes the numbers of their last runs."""
        for trajectory in list(self._remembering.values()):
            self.finish(trajectory)
        plans = {
            ticket: [item if isinstance(item, int) else ("merge", item.version) for item in trajectory.plan]
            for ticket, trajectory in self.trajectories.items()
        }
        due = {ticket: trajectory.due for ticket, trajectory in self.trajectories.items()}
        return {"plans": plans, "due": due, "memories": self.memories}

    def restore(
        self, saved: Mapping[str, Any], assignments: Mapping[int, Assignment], models: Mapping[int, Vector]
    ) -> None:
        """Open the saved plans again. `models` are the versions in use."""
        self.memories = saved["memories"]
        for ticket, plan in saved["plans"].items():
            self.begin(assignments[ticket])
            trajectory, due = self.trajectories[ticket], saved["due"][ticket]
            trajectory.plan = tuple(
                item if isinstance(item, int) else Fresh(version=item[1], parameters=models[item[1]]) for item in plan
            )
            if plan:
                self._await(ticket, trajectory, due)
            if due == inf:
                self.hold(ticket)
