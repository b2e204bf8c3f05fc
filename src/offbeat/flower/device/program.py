"""The program of a device: it works on an order and returns the replies. It does not depend on Flower.

The logic of an order is `training.local_run.LocalRun` and its numbers are a `LocalTraining`, as in a simulation; the
clock is real. `app` passes messages in and keeps the `DeviceStore` between them.
"""

import time
from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from offbeat.algorithms import device_rule
from offbeat.core.coverage import coverage, submodel
from offbeat.core.errors import DeviceFault
from offbeat.core.messages import Assignment
from offbeat.core.orders import Order
from offbeat.core.parameters import Vector, frozen
from offbeat.core.policy import Ask, Fresh, Step, Train
from offbeat.flower.protocol.messages import (
    Begin,
    CheckIn,
    Continue,
    FreshRequest,
    FreshResponse,
    FromDevice,
    Greeting,
    Hello,
    Merge,
    UpdateReply,
)
from offbeat.training.local_run import DeviceMemory, LocalRun, LocalTraining, ends_of, first_state, slices_by
from offbeat.training.objective import Proceed
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

LISTEN_SECONDS = 0.02
"""Polling interval of a device that waits because it is paced, in seconds."""
Pace = Callable[[int, int, Order], Sequence[float]]
"""Seconds per slice of an order (device, ticket, order), to emulate an uneven fleet on one machine."""
Reply = tuple[FromDevice, Vector | None]
Listen = Callable[["PausedOrder", int | None], bool]
"""Called between two training steps with the number of steps done in the slice. It handles messages that have arrived,
may tell the local run to stop, and returns whether to train on: not if there is a newer model to merge."""


class PausedOrder(LocalTraining, kw_only=True, eq=False):
    """The order in progress, with everything that the next leg needs."""

    run: LocalRun
    seed: int
    leg: int
    leg_seconds: float | None
    arrived: float
    """When the device received the order, by its own clock."""
    checked: int = 0
    """Slices done at the last check-in: every leg must do at least one more."""
    begun: bool = False
    """Whether some, but not all, of the slices up to the goal are done."""
    merges: tuple[Merge, ...] = ()
    """Newer models that were merged without waiting for them."""


class DeviceStore(Struct, kw_only=True):
    """The state of a device between two messages: the order in progress, and its memory of earlier ones."""

    paused: PausedOrder | None = None
    memory: DeviceMemory = field(default_factory=DeviceMemory)


RECORDS: tuple[type[Struct], ...] = (
    DeviceStore,
    PausedOrder,
    Assignment,
    LocalRun,
    Merge,
    TrainingState,
    DeviceMemory,
)
"""The classes of which a `DeviceStore` consists."""


class DeviceProgram:
    """Works on the orders of one device, with its trainer."""

    __slots__ = ("_clock", "_sleep", "listen", "name", "number", "pace", "store", "trainer")

    def __init__(
        self,
        trainer: TorchTrainer,
        store: DeviceStore,
        *,
        number: int | None = None,
        name: str | None = None,
        pace: Pace | None = None,
        listen: Listen | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.trainer = trainer
        self.store = store
        self.number = number
        self.name = name
        self.pace = pace
        self.listen = listen
        self._clock = clock
        self._sleep = sleep

    # Messages -----------------------------------------------------------------------------------------------------

    def greet(self, hello: Hello, model: Vector | None) -> Reply:
        """Greet the server and, if it has sent a model, measure the speed of training."""
        device, layers = self.number or 0, self.trainer.layout.trained_layers
        samples = len(self.trainer.batches.partition.samples(device))
        greeting = Greeting(
            device=self.number,
            samples=samples,
            elements=self.trainer.layout.size,
            interruptible=self.listen is not None,
            name=self.name,
        )
        if model is None:
            return greeting, None
        started = self._clock()
        for attempt in range(2):  # the first one is a warm-up
            begun = self._clock()
            _, gradient = self.trainer.loss_and_gradient(model, device, 0, attempt, hello.batch_size)
        step, busy = max(self._clock() - begun, 1e-9), self._clock() - started
        batch = samples if hello.batch_size is None else min(samples, hello.batch_size)
        return replace(greeting, speed=batch * layers / step, busy=busy), gradient

    def begin(self, order: Begin, model: Vector) -> Reply:
        """Begin an order. One still in progress is dropped: the server has given it up."""
        remembered = self.store.memory.recall(order.received)
        self.trainer.batches.seed = order.seed
        base = self._whole(order.order, model)
        self.store.paused = PausedOrder(
            assignment=Assignment(
                device=order.device, ticket=order.ticket, order=order.order, base=order.base, parameters=base
            ),
            state=first_state(order.order, base, remembered),
            remembered=remembered,
            memory=remembered,
            run=LocalRun(order=order.order),
            seed=order.seed,
            leg=1,
            leg_seconds=order.leg_seconds,
            arrived=self._clock(),
        )
        return self._leg(self.store.paused)

    def go_on(self, message: Continue) -> Reply:
        """Work on the order for another leg."""
        paused = self._resumed_order(message)
        if message.stop:
            paused.run.stop_soon()
        return self._leg(paused)

    def train_on(self, answered: Callable[[], bool]) -> None:
        """If the rule does not wait for a response, train until it comes or all slices are done."""
        assert self.store.paused is not None
        paused, run = self.store.paused, self.store.paused.run
        rule = device_rule(run.order.rule)
        while run.asking and not answered() and isinstance(run.next(rule, paused.remembered), Train):
            self._train(paused, self._clock())

    def answered(self, message: FreshResponse, model: Vector | None) -> Reply:
        """Merge the newer model, if there is one, and work on the order for another leg."""
        paused = self._resumed_order(message)
        run, state, trained_on = paused.run, paused.state, paused.run.asking
        run.answered()
        if message.stop:
            run.stop_soon()
        if model is not None:
            if trained_on:
                merge = Merge(version=message.version, slices=run.progress.slices, step=state.steps_into_slice)
                paused.merges += (merge,)
            if paused.begun:  # the merge ends the run of slices up to the goal
                paused.performed, paused.begun = paused.performed + 1, False
            fresh = Fresh(version=message.version, parameters=frozen(model))
            paused.merge(device_rule(run.order.rule), fresh, self.trainer)
        return self._leg(paused)

    def _resumed_order(self, message: Continue | FreshResponse) -> PausedOrder:
        paused = self.store.paused
        if paused is None or (paused.assignment.ticket, paused.leg) != (message.ticket, message.leg):
            got = f"{type(message).__name__} for ticket {message.ticket}, leg {message.leg}"
            there = "no order" if paused is None else f"ticket {paused.assignment.ticket}, leg {paused.leg}"
            raise DeviceFault(f"unexpected {got}: {there} in progress")
        paused.leg += 1
        self.trainer.batches.seed = paused.seed
        return paused

    def elements(self, order: Order) -> int:
        """The number of elements of the model that comes with an order."""
        layout = self.trainer.layout
        return layout.size if order.width == 1.0 else submodel(layout, order.width).count

    def _whole(self, order: Order, model: Vector) -> Vector:
        """The model that came with an order, with zeros for elements outside the order's width."""
        if order.width == 1.0:
            return frozen(model)
        base = np.zeros(self.trainer.layout.size, dtype=np.float32)
        base[submodel(self.trainer.layout, order.width).chosen] = model
        return frozen(base)

    # A leg --------------------------------------------------------------------------------------------------------

    def _leg(self, paused: PausedOrder) -> Reply:
        """Train until there is something to reply."""
        started, run = self._clock(), paused.run
        rule = device_rule(run.order.rule)
        while isinstance(step := run.next(rule, paused.remembered), Train):
            if run.progress.slices > paused.checked and self._overdue(paused, started):
                paused.checked = run.progress.slices
                return CheckIn(**self._progress(paused)), None
            self._train(paused, started)
        return self._report(paused, step)

    def _overdue(self, paused: PausedOrder, started: float) -> bool:
        """Whether to check in, in a leg that began at `started`."""
        if paused.leg_seconds is None or paused.run.order.unit == "layer":
            return False
        return self._clock() - started >= paused.leg_seconds

    def _train(self, paused: PausedOrder, started: float) -> None:
        """Train the next epoch, or all layers or steps up to the goal; stop when a fresh model arrives.

        Steps also end when the leg, which began at `started`, is over.
        """
        run, began, before = paused.run, self._clock(), paused.run.progress
        order, first = run.order, before.slices
        by_step = order.unit == "step" and self.pace is None
        job = paused.job(first, run.goal if by_step or order.unit == "layer" else first + 1)
        deadline = inf if order.budget is None else paused.arrived + order.budget
        if self.pace is None:
            proceed = self._watch_steps(paused, deadline, started) if by_step else self._watch(paused, deadline)
            state, done = self.trainer.train_while(job, proceed, keep=run.asking)
        else:
            state, done = self._train_paced(paused, job, began, deadline)
        steps = state.steps - paused.state.steps
        run.progress = before
        run.trained(done - first, steps, self._clock() - began)
        paused.state = state
        paused.begun = done < run.goal and (paused.begun or steps > 0)
        if done == run.goal:
            paused.performed += 1
        if done < job.last and not run.asking and (self._clock() >= deadline if by_step else not run.drops_slice):
            run.out_of_time()

    def _watch(self, paused: PausedOrder, deadline: float) -> Proceed | None:
        """The function called between two steps or layers: whether there is time and no model to merge."""
        if self.listen is None and deadline == inf:
            return None
        step = paused.state.steps_into_slice

        def proceed(done: int) -> bool:
            nonlocal step
            go_on = self.listen is None or self.listen(paused, step)
            step += 1
            return go_on and self._clock() < deadline and not paused.run.drops_slice

        return proceed

    def _watch_steps(self, paused: PausedOrder, deadline: float, started: float) -> Proceed | None:
        """The function called in each step before it is taken: whether it counts. It keeps the progress up to date."""
        run, began, before = paused.run, self._clock(), paused.run.progress
        if self.listen is None and deadline == inf and paused.leg_seconds is None:
            return None

        def proceed(done: int) -> bool:
            run.progress = before
            run.trained(done - before.slices, done - before.slices, self._clock() - began)
            told = run.stopping and done > 0  # in an earlier step: the last one was the one in progress
            go_on = self.listen is None or self.listen(paused, 0)
            due = done > paused.checked and self._overdue(paused, started)
            return go_on and self._clock() < deadline and not (told or due or run.drops_slice)

        return proceed

    def _train_paced(
        self, paused: PausedOrder, job: TrainingJob, began: float, deadline: float
    ) -> tuple[TrainingState, int]:
        """Train for the time that the fleet gives each slice; leave out slices that end after the deadline."""
        assert self.pace is not None
        seconds = list(self.pace(job.device, job.ticket, job.order)[job.first : job.last])
        if job.state.steps_into_slice:
            seconds[0] *= 1.0 - job.state.steps_into_slice / self.trainer.batches.steps(
                job.device, job.order.batch_size
            )
        ends = ends_of(seconds, began)
        done = job.first + slices_by(ends, deadline)
        state = job.state
        if done > job.first:
            state = self.trainer.train(replace(job, last=done))
        end, step = min(ends[-1], deadline), state.steps - job.state.steps
        while self.listen is not None and end - self._clock() > LISTEN_SECONDS:
            self._sleep(LISTEN_SECONDS)
            if not self.listen(paused, step):
                share = (self._clock() - began) / (end - began)
                return (state, done) if share >= 1.0 else self._cut(job, share)
            if paused.run.drops_slice:
                return job.state, job.first
        self._sleep(max(0.0, end - self._clock()))
        return state, done

    def _cut(self, job: TrainingJob, share: float) -> tuple[TrainingState, int]:
        """Train this share of the steps that the epoch of a job has left."""
        begun = job.state.steps_into_slice
        if job.order.unit == "step":
            return job.state, job.first
        left = self.trainer.batches.steps(job.device, job.order.batch_size) - begun
        steps = min(int(share * left), left - 1)
        cut = replace(job, last=job.first, extra_steps=begun + steps)
        return (self.trainer.train(cut) if steps > 0 else job.state), job.first

    def _report(self, paused: PausedOrder, step: Step) -> Reply:
        """End a leg with a request for a fresh model, or with the update."""
        if isinstance(step, Ask):
            paused.run.ask(step)
            return FreshRequest(**self._progress(paused)), None
        given, rule = paused.assignment, device_rule(paused.run.order.rule)
        outcome = paused.report(rule)
        mask = coverage(given.order, paused.run.progress.slices, self.trainer.layout)
        update = UpdateReply(
            **self._progress(paused),
            samples=len(self.trainer.batches.partition.samples(given.device)),
            loss=outcome.loss if isfinite(outcome.loss) else None,
            squared_loss=outcome.squared_loss if isfinite(outcome.squared_loss) else None,
            extras=dict(outcome.extras),
            merges=list(paused.merges),
        )
        self.store.paused = None
        if rule.remembers or given.order.remembers:
            self.store.memory.learned(given.ticket, paused.memory)
        return update, outcome.parameters if mask is None else outcome.parameters[mask.chosen]

    def _progress(self, paused: PausedOrder) -> dict[str, Any]:
        progress = paused.run.progress
        return {
            "ticket": paused.assignment.ticket,
            "leg": paused.leg,
            "slices": progress.slices,
            "steps": progress.steps,
            "seconds": progress.seconds,
            "remembered": self.store.memory.ticket,
        }
