"""The device's half of a deployment: an order worked on in legs, with what waits between them.

The logic is `device.run.LocalRun`, the numbers are the torch trainer's, both as in a simulation; the clock is real.
Nothing here knows of Flower: `apps` moves the talk and keeps the `Desk` between two messages.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import inf, isfinite
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from offbeat.algorithms import device_rule
from offbeat.core.coverage import coverage, submodel
from offbeat.core.errors import DeviceFault
from offbeat.core.messages import Order
from offbeat.core.parameters import Vector, frozen
from offbeat.core.policy import Ask, Fresh, Memory, Step, Train, copied
from offbeat.deployment.talk import Answer, Begin, CheckIn, Delivery, FromDevice, GoOn, Greeting, Hello, Question
from offbeat.device.run import LocalRun
from offbeat.device.trainer import TorchTrainer
from offbeat.device.work import Job, Work

Pace = Callable[[int, int, Order], Sequence[float]]
"""Seconds that each slice of an order shall take on a device: for trying out an uneven fleet on one machine."""
Reply = tuple[FromDevice, Vector | None]


class Held(Struct, kw_only=True):
    """An order that is being worked on, at rest between two legs."""

    device: int
    ticket: int
    base: int
    seed: int
    leg: int
    leg_seconds: float | None
    run: LocalRun
    work: Work
    anchor: Vector
    arrived: float
    """When the device got the order, by its own clock."""
    goal: int = 0
    """Where the stretch that it is in ends: only there the rule is asked again, as in a simulation."""
    checked: int = 0
    """Slices that it had when it last checked in: every leg has something to show for itself."""
    performed: int = 0
    """Stretches of training and merges that are behind it: they number the batches on which a merge looks."""
    memory: Memory
    """What it remembers, with what this run has added."""


class Desk(Struct, kw_only=True):
    """What a device keeps between two messages: the order at work, and what it remembers of earlier ones."""

    held: Held | None = None
    memory: Memory = {}
    settled: int = 0
    """The ticket that the memory is from."""
    latest: Memory = {}
    latest_ticket: int = 0
    """The memory after the last delivery, of which the server may not know yet."""


RECORDS: tuple[type[Struct], ...] = (Desk, Held, LocalRun, Work)


class Device:
    """Answers messages about one device's data."""

    def __init__(
        self,
        trainer: TorchTrainer,
        desk: Desk,
        *,
        number: int | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.trainer = trainer
        self.desk = desk
        self.number = number
        self.pace = pace
        self._clock = clock
        self._sleep = sleep

    # Messages -----------------------------------------------------------------------------------------------------

    def greet(self, hello: Hello, model: Vector | None) -> Reply:
        device, layers = self.number or 0, self.trainer.layout.trained_layers
        samples = len(self.trainer.batches.partition.samples(device))
        greeting = Greeting(device=self.number, samples=samples, elements=self.trainer.layout.size)
        if model is None:
            return greeting, None
        started = self._clock()
        for attempt in range(2):  # the first one warms up
            begun = self._clock()
            _, gradient = self.trainer.loss_and_gradient(model, device, 0, attempt, hello.batch_size)
        step, busy = max(self._clock() - begun, 1e-9), self._clock() - started
        batch = samples if hello.batch_size is None else min(samples, hello.batch_size)
        return (
            Greeting(
                device=self.number,
                samples=samples,
                elements=self.trainer.layout.size,
                speed=batch * layers / step,
                busy=busy,
            ),
            gradient,
        )

    def begin(self, order: Begin, model: Vector) -> Reply:
        """Take up an order. One that was at work before is given up: the server knows nothing of it."""
        desk = self.desk
        if desk.latest_ticket == order.settled:
            desk.memory, desk.settled = desk.latest, desk.latest_ticket
        elif desk.settled != order.settled:
            desk.memory, desk.settled = {}, 0
        desk.latest, desk.latest_ticket = desk.memory, desk.settled
        self.trainer.batches.seed = order.seed
        base = self._whole(order.order, model)
        desk.held = Held(
            device=order.device,
            ticket=order.ticket,
            base=order.base,
            seed=order.seed,
            leg=1,
            leg_seconds=order.leg_seconds,
            run=LocalRun(order=order.order),
            work=Work(parameters=base),
            anchor=base,
            arrived=self._clock(),
            memory=copied(desk.memory),
        )
        return self._leg(desk.held)

    def go_on(self, message: GoOn) -> Reply:
        held = self._at_work(message)
        if message.stop:
            held.run.stop_soon()
        return self._leg(held)

    def answered(self, message: Answer, model: Vector | None) -> Reply:
        """Take in the newer model, if there is one, and go on."""
        held = self._at_work(message)
        held.run.answered()
        if message.stop:
            held.run.stop_soon()
        if model is not None:
            self._merge(held, Fresh(version=message.version, parameters=frozen(model)))
        return self._leg(held)

    def _at_work(self, message: GoOn | Answer) -> Held:
        held = self.desk.held
        if held is None or (held.ticket, held.leg) != (message.ticket, message.leg):
            there = "nothing" if held is None else f"ticket {held.ticket}, leg {held.leg}"
            raise DeviceFault(f"out of step: asked for ticket {message.ticket}, leg {message.leg}, having {there}")
        held.leg += 1
        self.trainer.batches.seed = held.seed
        return held

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

    def _leg(self, held: Held) -> Reply:
        """Train until there is something to tell the server."""
        started = self._clock()
        while isinstance(step := self._next(held), Train):
            if held.run.progress.slices > held.checked and self._overdue(held, started):
                held.checked = held.run.progress.slices
                return CheckIn(**self._progress(held)), None
            self._train(held)
        return self._report(held, step)

    def _next(self, held: Held) -> Step:
        """What the run does now: go on with the stretch that it is in, unless it has to end."""
        run, remaining = held.run, held.goal - held.run.progress.slices
        if remaining > 0 and not run.stopping and not run.expired:
            return Train(remaining)
        step = run.next(device_rule(run.order.rule), self.desk.memory)
        held.goal = run.progress.slices + step.slices if isinstance(step, Train) else 0
        return step

    def _overdue(self, held: Held, started: float) -> bool:
        """Whether to look whether a notice has come."""
        if held.leg_seconds is None or held.run.order.unit == "layer":
            return False
        return self._clock() - started >= held.leg_seconds

    def _train(self, held: Held) -> None:
        """All layers of the stretch, or one epoch of it."""
        order, first, began = held.run.order, held.run.progress.slices, self._clock()
        last = held.goal if order.unit == "layer" else first + 1
        deadline = inf if order.budget is None else held.arrived + order.budget
        job = Job(
            device=held.device,
            ticket=held.ticket,
            order=order,
            first=first,
            last=last,
            work=held.work,
            anchor=held.anchor,
        )
        if self.pace is None:
            proceed = None if order.budget is None else lambda _: self._clock() < deadline
            work, done = self.trainer.train_while(job, proceed)
        else:
            work, done = self._train_paced(job, began, deadline)
        held.run.trained(done - first, work.steps - held.work.steps, self._clock() - began)
        held.work = work
        if done == held.goal:
            held.performed += 1
        if done < last:
            held.run.out_of_time()

    def _train_paced(self, job: Job, began: float, deadline: float) -> tuple[Work, int]:
        """Take the time that the fleet gives each slice; what it cannot do by the deadline is left undone."""
        assert self.pace is not None
        seconds = self.pace(job.device, job.ticket, job.order)[job.first : job.last]
        ends = list(accumulate(seconds, initial=began))[1:]
        done = job.first + bisect_right(ends, deadline)
        work = job.work
        if done > job.first:
            work = self.trainer.train(replace(job, last=done))
        self._sleep(max(0.0, min(ends[-1], deadline) - self._clock()))
        return work, done

    def _merge(self, held: Held, fresh: Fresh) -> None:
        order, work = held.run.order, held.work

        def probe(parameters: Vector) -> tuple[float, Vector]:
            return self.trainer.loss_and_gradient(
                parameters, held.device, held.ticket, held.performed, order.batch_size
            )

        merged = device_rule(order.rule).merge(work.parameters, fresh, held.base, order, held.memory, probe)
        held.work = Work(
            parameters=merged, momentum=work.momentum, steps=work.steps, loss_sum=work.loss_sum, seen=work.seen
        )
        held.performed += 1

    def _report(self, held: Held, step: Step) -> Reply:
        if isinstance(step, Ask):
            return Question(**self._progress(held)), None
        order, layout, desk = held.run.order, self.trainer.layout, self.desk
        rule, mask = device_rule(order.rule), coverage(order, held.run.progress.slices, layout)
        delivery = Delivery(
            **self._progress(held),
            samples=len(self.trainer.batches.partition.samples(held.device)),
            loss=held.work.loss if isfinite(held.work.loss) else None,
            extras=dict(rule.extras(order, desk.memory, held.memory)),
        )
        desk.held = None
        if rule.remembers:
            desk.latest, desk.latest_ticket = held.memory, held.ticket
        parameters = held.work.parameters
        return delivery, parameters if mask is None else parameters[mask.chosen]

    def _progress(self, held: Held) -> dict[str, Any]:
        progress = held.run.progress
        return {
            "ticket": held.ticket,
            "leg": held.leg,
            "slices": progress.slices,
            "steps": progress.steps,
            "seconds": progress.seconds,
            "remembered": self.desk.settled,
        }
