"""Lazy training: the numbers of a local run are computed when somebody reads them, together with all that can be.

Timing decides what each run does (how many slices, which fresh models it merges); this is written down as a plan.
Only when an upload's numbers are read must the plan be carried out, and then other plans whose inputs are known are
carried out with it as one batch, as many as the executor likes at a time. A run that is discarded unread costs nothing,
and asynchronous algorithms keep all cores busy. A plan and its inputs determine the numbers, so that a checkpoint needs
no half-trained model.
"""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from math import inf
from typing import Any

import numpy as np
from msgspec import Struct

from offbeat.algorithms import device_rule
from offbeat.core.messages import Assignment
from offbeat.core.orders import Order, Outcome
from offbeat.core.parameters import Vector
from offbeat.core.policy import DeviceRule, Fresh, ReadOnlyMemory
from offbeat.training.executor import Executor
from offbeat.training.local_training import NOTHING, DeviceMemory, LocalTraining, first_state
from offbeat.training.training_state import TrainingJob, TrainingState
from offbeat.training.workers import JOBS_PER_WORKER

BATCH_BYTES = 2**30
"""The results of a batch may take this much memory, or more if it takes that to give every worker one job."""
NEW: tuple[ReadOnlyMemory, int] = (NOTHING, 0)
"""What a device remembers that has not trained before, and the ticket that it has this from."""


def batch_size(capacity: int, vector_bytes: int) -> int:
    """How many jobs make a batch: as many as the executor likes, or as its memory takes if that leaves nobody idle.

    >>> batch_size(12, 4 * 61_706), batch_size(12, 100 * 2**20), batch_size(6 * 64, 100 * 2**20)
    (12, 10, 64)
    """
    return max(1, capacity // JOBS_PER_WORKER, min(capacity, BATCH_BYTES // vector_bytes))


class MidSlice(Struct, frozen=True, gc=False):
    """A place in the midst of a slice to train up to."""

    slices: int
    """Slices before it."""
    step: int
    """Steps of the slice that are done there; at least one."""


Item = int | MidSlice | Fresh


class TrainingPlan(LocalTraining, kw_only=True, eq=False, gc=False):
    """The plan of one run and how far its numbers have come. An item is a place to train up to, or a merge there."""

    rule: DeviceRule
    remembers: bool
    """Whether the device's next run depends on this one beyond the model."""
    items: tuple[Item, ...] = ()
    trained: int = 0
    """Slices that the work has."""
    due: float = 0.0
    outcome: Outcome | None = None


class LazyOutcome(Struct, frozen=True, eq=False, gc=False):
    """The outcome of a delivered run: computed, with everything else that is due, when it is first called."""

    training: "LazyTraining"
    plan: TrainingPlan

    def __call__(self) -> Outcome:
        return self.plan.outcome or self.training.finish(self.plan)


class LazyTraining:
    """All plans whose numbers may still be needed."""

    def __init__(self, executor: Executor, vector_bytes: int) -> None:
        self.executor = executor
        self._memories: dict[int, DeviceMemory] = {}
        self.plans: dict[int, TrainingPlan] = {}
        self._unperformed: dict[int, TrainingPlan] = {}
        self._by_due: list[tuple[float, int]] = []
        """A heap of those, by when they are due; may hold entries that no longer count."""
        self._remembering: dict[int, TrainingPlan] = {}
        """Delivered runs that nobody has read yet, of devices that remember."""
        self._start = TrainingState(parameters=np.empty(0, dtype=np.float32))
        """The work that the last run began with, which the next shares if it begins from the same version."""
        self._order = Order()
        """The last order, and below what follows from it: most policies give one order to many devices."""
        self._rule, self._carried_over = device_rule(self._order.rule), self._order.remembers
        self._remembers = self._carried_over or self._rule.remembers
        self._batch_size = batch_size(executor.batch_capacity, vector_bytes)

    @property
    def memories(self) -> dict[int, ReadOnlyMemory]:
        """What each device remembers after the last of its runs that was carried out."""
        return {device: memory.latest for device, memory in self._memories.items()}

    def begin(self, assignment: Assignment, received: int | None = None) -> int:
        """Open the plan of an order. A device that remembers must have finished what it did before.

        It begins with the memory of the ticket `received`, if that is given, and else with what it learned last.
        Returns the ticket whose memory it has; 0: none.
        """
        order, parameters = assignment.order, assignment.parameters
        if order is not self._order:
            self._order, self._rule, self._carried_over = order, device_rule(order.rule), order.remembers
            self._remembers = self._carried_over or self._rule.remembers
        remembered, ticket = self._recall(assignment.device, received) if self._memories or self._remembering else NEW
        if self._carried_over:
            work = first_state(order, parameters, remembered)
        elif self._start.parameters is parameters:
            work = self._start
        else:
            self._start = work = TrainingState(parameters=parameters)
        self.plans[assignment.ticket] = TrainingPlan(
            assignment=assignment,
            rule=self._rule,
            remembers=self._remembers,
            state=work,
            remembered=remembered,
            memory=remembered,
        )
        return ticket

    def _recall(self, device: int, received: int | None) -> tuple[ReadOnlyMemory, int]:
        """What a device remembers, after what it did before is finished, and the ticket that it has this from."""
        for earlier in [each for each in self._remembering.values() if each.assignment.device == device]:
            self.finish(earlier)
        memory = self._memories.get(device)
        if memory is None:
            return NEW
        return memory.recall(memory.latest_ticket if received is None else received), memory.ticket

    def train(self, ticket: int, until: int | MidSlice, due: float) -> None:
        """The run trains up to this slice, or into its midst, which it will have done at `due`."""
        plan = self.plans[ticket]
        plan.items += (until,)
        plan.due = due  # what follows is `_await`: this is called for every order
        self._unperformed[ticket] = plan
        if self._batch_size > 1:
            heappush(self._by_due, (due, ticket))

    def merge(self, ticket: int, fresh: Fresh) -> None:
        """The run takes in a newer model."""
        plan = self.plans[ticket]
        plan.items += (fresh,)
        self._await(ticket, plan, plan.due)

    def _await(self, ticket: int, plan: TrainingPlan, due: float) -> None:
        plan.due = due
        self._unperformed[ticket] = plan
        if self._batch_size > 1:
            heappush(self._by_due, (due, ticket))

    def shorten(self, ticket: int, until: int, due: float) -> None:
        """The training ends at this slice after all. What was computed beyond it is computed again without."""
        plan = self.plans[ticket]
        items = _cut(plan.items, until)
        if plan.items[: plan.performed] != items[: plan.performed]:
            plan.performed = plan.trained = 0
            given = plan.assignment
            plan.state, plan.memory = first_state(given.order, given.parameters, plan.remembered), plan.remembered
        plan.items = items
        if plan.performed == len(items):
            self._unperformed.pop(ticket, None)
        else:
            self._await(ticket, plan, due)

    def hold(self, ticket: int) -> None:
        """Nobody is expected to read this run, because its device vanishes: do not compute it ahead."""
        self.plans[ticket].due = inf
        self._unperformed.pop(ticket, None)

    def drop(self, ticket: int) -> None:
        """The device vanished with this run."""
        del self.plans[ticket]
        self._unperformed.pop(ticket, None)

    def keep(self, ticket: int) -> None:
        """The upload was lost, but its device is well and remembers what it did."""
        self.deliver(ticket)
        self.resolved((ticket,))

    def deliver(self, ticket: int) -> LazyOutcome:
        """The run is over; whoever reads the outcome makes it."""
        plan = self.plans.pop(ticket)
        if plan.remembers:
            self._remembering[ticket] = plan
        return LazyOutcome(self, plan)

    def resolved(self, tickets: Iterable[int]) -> None:
        """The policy is done with these runs: those that were never read need not be computed ahead.

        A device that remembers did train, whatever the server made of it: its run is carried out before its next.
        """
        for ticket in tickets:
            self._unperformed.pop(ticket, None)

    def finish(self, plan: TrainingPlan) -> Outcome:
        """Carry out this plan, and others with it."""
        while plan.performed < len(plan.items):
            self._perform(self._batch(plan))
        plan.outcome = outcome = plan.report(plan.rule)
        given = plan.assignment
        if self._remembering and self._remembering.pop(given.ticket, None) is not None:
            self._memories.setdefault(given.device, DeviceMemory()).learned(given.ticket, plan.memory)
        return outcome

    def _batch(self, wanted: TrainingPlan) -> dict[int, TrainingPlan]:
        """What to compute next: the wanted one, and as many others as the executor likes, those due first."""
        batch = {wanted.assignment.ticket: wanted}
        while len(batch) < self._batch_size and self._by_due:
            due, ticket = heappop(self._by_due)
            plan = self._unperformed.get(ticket)
            if plan is not None and plan.due == due:  # else it was done, or is due at another time by now
                batch[ticket] = plan
        return batch

    def _perform(self, batch: dict[int, TrainingPlan]) -> None:
        """One stretch of each plan: the merges before it here, the training together in the executor."""
        jobs: list[TrainingJob] = []
        for ticket, plan in batch.items():
            self._unperformed.pop(ticket, None)
            for item in plan.items[plan.performed :]:
                if isinstance(item, int):
                    jobs.append(plan.job(plan.trained, item))
                    break
                if isinstance(item, MidSlice):
                    jobs.append(plan.job(plan.trained, item.slices, item.step))
                    break
                plan.merge(plan.rule, item, self.executor)
        for job, work in zip(jobs, self.executor.train(jobs), strict=True):
            plan = batch[job.ticket]
            plan.state = work
            plan.trained = job.last
            plan.performed += 1
            if plan.performed < len(plan.items):
                self._await(job.ticket, plan, plan.due)

    # Snapshots: the plans of what is in flight; their numbers are made again from the versions that the session keeps

    def snapshot(self) -> dict[str, Any]:
        """The plans of what is in flight, and what the devices remember, which takes the numbers of their last runs."""
        for plan in list(self._remembering.values()):
            self.finish(plan)
        plans = {ticket: [_saved(item) for item in plan.items] for ticket, plan in self.plans.items()}
        due = {ticket: plan.due for ticket, plan in self.plans.items()}
        return {"plans": plans, "due": due, "memories": self._memories}

    def restore(
        self, saved: Mapping[str, Any], assignments: Mapping[int, Assignment], models: Mapping[int, Vector]
    ) -> None:
        """Open the saved plans again. `models` are the versions in use."""
        self._memories = saved["memories"]
        for ticket, items in saved["plans"].items():
            self.begin(assignments[ticket])
            plan, due = self.plans[ticket], saved["due"][ticket]
            plan.items = tuple(_restored(item, models) for item in items)
            if items:
                self._await(ticket, plan, due)
            if due == inf:
                self.hold(ticket)


def _cut(items: tuple[Item, ...], until: int) -> tuple[Item, ...]:
    """The items of a run that ends at this slice: what it would have merged later it merges there."""
    kept: list[Item] = []
    done = 0
    for item in items:
        if isinstance(item, Fresh):
            kept.append(item)
        elif isinstance(item, MidSlice) and item.slices < until:
            kept.append(item)
            done = item.slices
        else:
            upto = min(item.slices if isinstance(item, MidSlice) else item, until)
            if upto > done:
                kept.append(upto)
                done = upto
    return tuple(kept)


def _saved(item: Item) -> int | tuple[str, int] | tuple[str, int, int]:
    """An item as a snapshot has it: of a merge the version, which the session keeps."""
    if isinstance(item, Fresh):
        return "merge", item.version
    return ("midst", item.slices, item.step) if isinstance(item, MidSlice) else item


def _restored(saved: Any, models: Mapping[int, Vector]) -> Item:
    match saved:
        case ["merge", version]:
            return Fresh(version=version, parameters=models[version])
        case ["midst", slices, step]:
            return MidSlice(slices, step)
    return int(saved)
