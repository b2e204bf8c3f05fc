"""Lazy training: a local run is computed when its update is first read, in one batch with other runs.

The engine decides by time what each run does (how many slices, which fresh models it merges) and writes it into a plan.
Reading an update executes its plan, together with as many other plans as the executor takes at a time, in the order in
which they are due. So discarded updates cost nothing, and asynchronous algorithms fill batches like synchronous ones. A
plan and its inputs determine the result: a checkpoint holds plans, never half-trained models.
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
from offbeat.training.local_run import NOTHING, DeviceMemory, LocalTraining, first_state
from offbeat.training.training_state import TrainingJob, TrainingState
from offbeat.training.workers import JOBS_PER_WORKER

BATCH_BYTES = 2**30
"""Memory for the results of a batch; exceeded only if each worker could not have one job otherwise."""
NEW: tuple[ReadOnlyMemory, int] = (NOTHING, 0)
"""Memory of a device that has not trained yet, and the ticket that the memory comes from: none."""


def batch_size(capacity: int, vector_bytes: int) -> int:
    """Number of jobs in a batch: the executor's capacity, or fewer if memory is short, but one for each worker.

    >>> batch_size(12, 4 * 61_706), batch_size(12, 100 * 2**20), batch_size(6 * 64, 100 * 2**20)
    (12, 10, 64)
    """
    return max(1, capacity // JOBS_PER_WORKER, min(capacity, BATCH_BYTES // vector_bytes))


class MidSlice(Struct, frozen=True, gc=False):
    """A position within a slice, at which a fresh model is merged."""

    slices: int
    """Whole slices before it."""
    step: int
    """Steps of the slice before it; at least one."""


Item = int | MidSlice | Fresh


class TrainingPlan(LocalTraining, kw_only=True, eq=False, gc=False):
    """The plan of one run and its state of execution. An item is a position to train up to, or a merge there."""

    rule: DeviceRule
    remembers: bool
    """Whether this run changes the device's memory, on which its next run depends."""
    items: tuple[Item, ...] = ()
    trained: int = 0
    """Slices in `state`."""
    due: float = 0.0
    outcome: Outcome | None = None


class LazyOutcome(Struct, frozen=True, eq=False, gc=False):
    """The outcome of a run, computed when it is first called."""

    training: "LazyTraining"
    plan: TrainingPlan

    def __call__(self) -> Outcome:
        return self.plan.outcome or self.training.finish(self.plan)


class LazyTraining:
    """Keeps the plans whose results may still be needed, and executes them in batches."""

    def __init__(self, executor: Executor, vector_bytes: int) -> None:
        self.executor = executor
        self._memories: dict[int, DeviceMemory] = {}
        self.plans: dict[int, TrainingPlan] = {}
        self._unperformed: dict[int, TrainingPlan] = {}
        self._by_due: list[tuple[float, int]] = []
        """Heap of unperformed plans by due time; entries of plans that changed since are skipped."""
        self._remembering: dict[int, TrainingPlan] = {}
        """Plans of uploads that have not been read yet, of devices with a memory."""
        self._start = TrainingState(parameters=np.empty(0, dtype=np.float32))
        """The state that the last run began with; the next run shares it if it begins from the same version."""
        self._order = Order()
        """The last order, cached with what follows from it: most policies give one order to many devices."""
        self._rule, self._carried_over = device_rule(self._order.rule), self._order.remembers
        self._remembers = self._carried_over or self._rule.remembers
        self._batch_size = batch_size(executor.batch_capacity, vector_bytes)

    @property
    def memories(self) -> dict[int, ReadOnlyMemory]:
        """The memory of each device after the last of its runs that was executed."""
        return {device: memory.latest for device, memory in self._memories.items()}

    def begin(self, assignment: Assignment, received: int | None = None) -> int:
        """Create the plan of an order, after executing earlier plans that the device's memory depends on.

        The device begins with its memory after the ticket `received`, or after its last one if that is None.
        Returns the ticket that the memory comes from; 0: none.
        """
        order, parameters = assignment.order, assignment.parameters
        if order is not self._order:
            if order.rule != self._order.rule:
                self._rule = device_rule(order.rule)
            self._order, self._carried_over = order, order.remembers
            self._remembers = self._carried_over or self._rule.remembers
        remembered, ticket = self._recall(assignment.device, received) if self._memories or self._remembering else NEW
        if self._carried_over:
            state = first_state(order, parameters, remembered)
        elif self._start.parameters is parameters:
            state = self._start
        else:
            self._start = state = TrainingState(parameters=parameters)
        self.plans[assignment.ticket] = TrainingPlan(
            assignment=assignment,
            rule=self._rule,
            remembers=self._remembers,
            state=state,
            remembered=remembered,
            memory=remembered,
        )
        return ticket

    def _recall(self, device: int, received: int | None) -> tuple[ReadOnlyMemory, int]:
        """The memory of a device after its earlier plans are executed, and the ticket that it comes from."""
        for earlier in [each for each in self._remembering.values() if each.assignment.device == device]:
            self.finish(earlier)
        memory = self._memories.get(device)
        if memory is None:
            return NEW
        return memory.recall(memory.latest_ticket if received is None else received), memory.ticket

    def train(self, ticket: int, until: int | MidSlice, due: float) -> None:
        """Add training up to a slice, or up to a position within one, that ends at the time `due`."""
        plan = self.plans[ticket]
        plan.items += (until,)
        plan.due = due  # the rest is `_await`, inlined because this is called for every order
        self._unperformed[ticket] = plan
        if self._batch_size > 1:
            heappush(self._by_due, (due, ticket))

    def merge(self, ticket: int, fresh: Fresh) -> None:
        """Add the merge of a fresh model."""
        plan = self.plans[ticket]
        plan.items += (fresh,)
        self._await(ticket, plan, plan.due)

    def _await(self, ticket: int, plan: TrainingPlan, due: float) -> None:
        plan.due = due
        self._unperformed[ticket] = plan
        if self._batch_size > 1:
            heappush(self._by_due, (due, ticket))

    def shorten(self, ticket: int, until: int, due: float) -> None:
        """Cut the plan at a slice. A run that was computed beyond it is computed again from its start."""
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
        """Exclude a run from batches because its device will vanish and its update will not be read."""
        self.plans[ticket].due = inf
        self._unperformed.pop(ticket, None)

    def drop(self, ticket: int) -> None:
        """Delete the plan of a run whose device has vanished."""
        del self.plans[ticket]
        self._unperformed.pop(ticket, None)

    def keep(self, ticket: int) -> None:
        """Keep what the device learned in a run whose upload was lost."""
        self.deliver(ticket)
        self.resolved((ticket,))

    def deliver(self, ticket: int) -> LazyOutcome:
        """End the run; its outcome is computed when it is first read."""
        plan = self.plans.pop(ticket)
        if plan.remembers:
            self._remembering[ticket] = plan
        return LazyOutcome(self, plan)

    def resolved(self, tickets: Iterable[int]) -> None:
        """Exclude runs from batches whose updates are used or discarded.

        A device with a memory did train, even if its update was never read: such a run is executed before its next.
        """
        for ticket in tickets:
            self._unperformed.pop(ticket, None)

    def finish(self, plan: TrainingPlan) -> Outcome:
        """Execute this plan, and others in the same batches."""
        while plan.performed < len(plan.items):
            self._perform(self._batch(plan))
        plan.outcome = outcome = plan.report(plan.rule)
        given = plan.assignment
        if self._remembering and self._remembering.pop(given.ticket, None) is not None:
            self._memories.setdefault(given.device, DeviceMemory()).learned(given.ticket, plan.memory)
        return outcome

    def _batch(self, wanted: TrainingPlan) -> dict[int, TrainingPlan]:
        """The plans to execute next: the wanted one and, up to the batch size, those due first."""
        batch = {wanted.assignment.ticket: wanted}
        while len(batch) < self._batch_size and self._by_due:
            due, ticket = heappop(self._by_due)
            plan = self._unperformed.get(ticket)
            if plan is not None and plan.due == due:  # else it was executed, or its due time has changed
                batch[ticket] = plan
        return batch

    def _perform(self, batch: dict[int, TrainingPlan]) -> None:
        """Execute the merges that come next in each plan, and then the next training of all plans as one batch."""
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
        for job, state in zip(jobs, self.executor.train(jobs), strict=True):
            plan = batch[job.ticket]
            plan.state = state
            plan.trained = job.last
            plan.performed += 1
            if plan.performed < len(plan.items):
                self._await(job.ticket, plan, plan.due)

    # Snapshots: plans of orders in flight; their results are computed again from the versions that the session keeps

    def snapshot(self) -> dict[str, Any]:
        """Save the plans of orders in flight and the devices' memories, for which some plans are executed first."""
        for plan in list(self._remembering.values()):
            self.finish(plan)
        plans = {ticket: [_saved(item) for item in plan.items] for ticket, plan in self.plans.items()}
        due = {ticket: plan.due for ticket, plan in self.plans.items()}
        return {"plans": plans, "due": due, "memories": self._memories}

    def restore(
        self, saved: Mapping[str, Any], assignments: Mapping[int, Assignment], models: Mapping[int, Vector]
    ) -> None:
        """Create the saved plans again. `models` are the versions in use."""
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
    """The items of a run that ends at this slice; later merges move to its end."""
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
    """An item as a snapshot holds it: a merge is its version, whose parameters the session keeps."""
    if isinstance(item, Fresh):
        return "merge", item.version
    return ("within", item.slices, item.step) if isinstance(item, MidSlice) else item


def _restored(saved: Any, models: Mapping[int, Vector]) -> Item:
    match saved:
        case ["merge", version]:
            return Fresh(version=version, parameters=models[version])
        case ["within", slices, step]:
            return MidSlice(slices, step)
    return int(saved)
