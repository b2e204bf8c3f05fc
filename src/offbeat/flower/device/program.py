"""The device's half of a deployment: an order worked on in legs, with what waits between them.

The logic is `training.local_run.LocalRun` and the numbers are `training.local_training`, both as in a simulation;
the clock is real. Nothing here knows of Flower: `app` moves the messages and keeps the `DeviceStore` between messages.
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
    Answer,
    Begin,
    CheckIn,
    Continue,
    Delivery,
    FromDevice,
    Greeting,
    Hello,
    Merge,
    Question,
)
from offbeat.training.layered import Proceed
from offbeat.training.local_run import LocalRun, ends_of, slices_by
from offbeat.training.local_training import DeviceMemory, LocalTraining, first_state
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

LISTEN_SECONDS = 0.02
"""How often a device that only waits, because it is paced, looks whether anything has come."""
Pace = Callable[[int, int, Order], Sequence[float]]
"""Seconds that each slice of an order shall take on a device: for trying out an uneven fleet on one machine."""
Reply = tuple[FromDevice, Vector | None]
Listen = Callable[["PausedOrder", int | None], bool]
"""Called between two steps of training with the steps of the slice that are done: takes in what has come meanwhile,
may tell the order's local run to stop, and returns whether to go on: not if there is a newer model to merge."""


class PausedOrder(LocalTraining, kw_only=True, eq=False):
    """An order in flight, at rest between two legs."""

    run: LocalRun
    seed: int
    leg: int
    leg_seconds: float | None
    arrived: float
    """When the device got the order, by its own clock."""
    checked: int = 0
    """Slices that it had when it last checked in: every leg has something to show for itself."""
    begun: bool = False
    """Whether it is in the midst of a stretch."""
    merges: tuple[Merge, ...] = ()
    """Newer models for which it did not wait."""


class DeviceStore(Struct, kw_only=True):
    """What a device keeps between two messages: the order in flight, and what it remembers of earlier ones."""

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
"""What a `DeviceStore` is made of."""


class DeviceProgram:
    """Answers messages about one device's data."""

    def __init__(
        self,
        trainer: TorchTrainer,
        store: DeviceStore,
        *,
        number: int | None = None,
        pace: Pace | None = None,
        listen: Listen | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.trainer = trainer
        self.store = store
        self.number = number
        self.pace = pace
        self.listen = listen
        self._clock = clock
        self._sleep = sleep

    # Messages -----------------------------------------------------------------------------------------------------

    def greet(self, hello: Hello, model: Vector | None) -> Reply:
        """Say who this device is and, if there is a model to try, how fast it trains."""
        device, layers = self.number or 0, self.trainer.layout.trained_layers
        samples = len(self.trainer.batches.partition.samples(device))
        greeting = Greeting(
            device=self.number,
            samples=samples,
            elements=self.trainer.layout.size,
            interruptible=self.listen is not None,
        )
        if model is None:
            return greeting, None
        started = self._clock()
        for attempt in range(2):  # the first one warms up
            begun = self._clock()
            _, gradient = self.trainer.loss_and_gradient(model, device, 0, attempt, hello.batch_size)
        step, busy = max(self._clock() - begun, 1e-9), self._clock() - started
        batch = samples if hello.batch_size is None else min(samples, hello.batch_size)
        return replace(greeting, speed=batch * layers / step, busy=busy), gradient

    def begin(self, order: Begin, model: Vector) -> Reply:
        """Take up an order. One that was in flight before is given up: the server knows nothing of it."""
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
        """Go on with the paused order, for one leg."""
        paused = self._resumed_order(message)
        if message.stop:
            paused.run.stop_soon()
        return self._leg(paused)

    def train_on(self, answered: Callable[[], bool]) -> None:
        """Train until the question is answered, or there is nothing left to train, if the rule does not wait."""
        assert self.store.paused is not None
        paused, run = self.store.paused, self.store.paused.run
        rule = device_rule(run.order.rule)
        while run.asking and not answered() and isinstance(run.next(rule, paused.remembered), Train):
            self._train(paused)

    def answered(self, message: Answer, model: Vector | None) -> Reply:
        """Take in the newer model, if there is one, and go on."""
        paused = self._resumed_order(message)
        run, work, trained_on = paused.run, paused.state, paused.run.asking
        run.answered()
        if message.stop:
            run.stop_soon()
        if model is not None:
            if trained_on:
                merge = Merge(version=message.version, slices=run.progress.slices, step=work.steps_into_slice)
                paused.merges += (merge,)
            if paused.begun:  # the stretch is cut in two here
                paused.performed, paused.begun = paused.performed + 1, False
            fresh = Fresh(version=message.version, parameters=frozen(model))
            paused.merge(device_rule(run.order.rule), fresh, self.trainer)
        return self._leg(paused)

    def _resumed_order(self, message: Continue | Answer) -> PausedOrder:
        paused = self.store.paused
        if paused is None or (paused.assignment.ticket, paused.leg) != (message.ticket, message.leg):
            there = "nothing" if paused is None else f"ticket {paused.assignment.ticket}, leg {paused.leg}"
            raise DeviceFault(f"out of step: asked for ticket {message.ticket}, leg {message.leg}, having {there}")
        paused.leg += 1
        self.trainer.batches.seed = paused.seed
        return paused

    def elements(self, order: Order) -> int:
        """How many elements of the model come with an order."""
        layout = self.trainer.layout
        return layout.size if order.width == 1.0 else submodel(layout, order.width).count

    def _whole(self, order: Order, model: Vector) -> Vector:
        """The model that came with an order; of a narrow one only its elements came, and only they matter."""
        if order.width == 1.0:
            return frozen(model)
        base = np.zeros(self.trainer.layout.size, dtype=np.float32)
        base[submodel(self.trainer.layout, order.width).chosen] = model
        return frozen(base)

    # A leg --------------------------------------------------------------------------------------------------------

    def _leg(self, paused: PausedOrder) -> Reply:
        """Train until there is something to tell the server."""
        started, run = self._clock(), paused.run
        rule = device_rule(run.order.rule)
        while isinstance(step := run.next(rule, paused.remembered), Train):
            if run.progress.slices > paused.checked and self._overdue(paused, started):
                paused.checked = run.progress.slices
                return CheckIn(**self._progress(paused)), None
            self._train(paused)
        return self._report(paused, step)

    def _overdue(self, paused: PausedOrder, started: float) -> bool:
        """Whether to look whether a notice has come."""
        if paused.leg_seconds is None or paused.run.order.unit == "layer":
            return False
        return self._clock() - started >= paused.leg_seconds

    def _train(self, paused: PausedOrder) -> None:
        """All layers of the stretch, or one epoch of it; up to the step where the answer to a question comes."""
        run, began = paused.run, self._clock()
        order, first = run.order, run.progress.slices
        job = paused.job(first, run.goal if order.unit == "layer" else first + 1)
        deadline = inf if order.budget is None else paused.arrived + order.budget
        if self.pace is None:
            work, done = self.trainer.train_while(job, self._watch(paused, deadline), keep=run.asking)
        else:
            work, done = self._train_paced(paused, job, began, deadline)
        steps = work.steps - paused.state.steps
        run.trained(done - first, steps, self._clock() - began)
        paused.state = work
        paused.begun = done < run.goal and (paused.begun or steps > 0)
        if done == run.goal:
            paused.performed += 1
        if done < job.last and not run.drops_slice and not run.asking:
            run.out_of_time()

    def _watch(self, paused: PausedOrder, deadline: float) -> Proceed | None:
        """What is asked between two steps of training, or between two layers: whether there is time, and any news."""
        if self.listen is None and deadline == inf:
            return None
        step = paused.state.steps_into_slice

        def proceed(done: int) -> bool:
            nonlocal step
            go_on = self.listen is None or self.listen(paused, step)
            step += 1
            return go_on and self._clock() < deadline and not paused.run.drops_slice

        return proceed

    def _train_paced(
        self, paused: PausedOrder, job: TrainingJob, began: float, deadline: float
    ) -> tuple[TrainingState, int]:
        """Take the time that the fleet gives each slice; what it cannot do by the deadline is left undone."""
        assert self.pace is not None
        seconds = list(self.pace(job.device, job.ticket, job.order)[job.first : job.last])
        if job.state.steps_into_slice:
            seconds[0] *= 1.0 - job.state.steps_into_slice / self.trainer.batches.steps(
                job.device, job.order.batch_size
            )
        ends = ends_of(seconds, began)
        done = job.first + slices_by(ends, deadline)
        work = job.state
        if done > job.first:
            work = self.trainer.train(replace(job, last=done))
        end, step = min(ends[-1], deadline), work.steps - job.state.steps
        while self.listen is not None and end - self._clock() > LISTEN_SECONDS:
            self._sleep(LISTEN_SECONDS)
            if not self.listen(paused, step):
                share = (self._clock() - began) / (end - began)
                return (work, done) if share >= 1.0 else self._cut(job, share)
            if paused.run.drops_slice:
                return job.state, job.first
        self._sleep(max(0.0, end - self._clock()))
        return work, done

    def _cut(self, job: TrainingJob, share: float) -> tuple[TrainingState, int]:
        """So much of the epoch that a job is for, or of what is left of it."""
        begun = job.state.steps_into_slice
        left = self.trainer.batches.steps(job.device, job.order.batch_size) - begun
        steps = min(int(share * left), left - 1)
        cut = replace(job, last=job.first, extra_steps=begun + steps)
        return (self.trainer.train(cut) if steps > 0 else job.state), job.first

    def _report(self, paused: PausedOrder, step: Step) -> Reply:
        """The end of a leg: a question, or the delivery with the parameters that count."""
        if isinstance(step, Ask):
            paused.run.ask(step)
            return Question(**self._progress(paused)), None
        given, rule = paused.assignment, device_rule(paused.run.order.rule)
        outcome = paused.report(rule)
        mask = coverage(given.order, paused.run.progress.slices, self.trainer.layout)
        delivery = Delivery(
            **self._progress(paused),
            samples=len(self.trainer.batches.partition.samples(given.device)),
            loss=outcome.loss if isfinite(outcome.loss) else None,
            extras=dict(outcome.extras),
            merges=list(paused.merges),
        )
        self.store.paused = None
        if rule.remembers or given.order.remembers:
            self.store.memory.learned(given.ticket, paused.memory)
        return delivery, outcome.parameters if mask is None else outcome.parameters[mask.chosen]

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
