"""The simulator: a discrete-event engine that feeds a session on a virtual clock.

Iterating over a `Simulation` runs it: one turn per event, yielding a row of metrics when an evaluation is due and None
otherwise. A snapshot can be taken between any two turns. Durations never depend on trained numbers, so the engine only
plans the training; `lazy_training` computes it when a policy reads an update.
"""

from collections.abc import Callable, Iterator, Mapping
from heapq import heappop
from math import ceil, inf
from typing import Any

from offbeat.core.coverage import bytes_down, coverage
from offbeat.core.messages import (
    Assignment,
    Event,
    FreshModel,
    FreshRequested,
    Left,
    Lost,
    Ready,
    Resolved,
    Started,
    StopNotice,
    TimerFired,
    TimerSet,
    Uploaded,
)
from offbeat.core.orders import Outcome, Progress
from offbeat.core.parameters import Vector
from offbeat.core.policy import Ask, Fresh, Train
from offbeat.core.session import Session
from offbeat.core.state import OrderInFlight, moment
from offbeat.experiment.run_settings import EvaluationTable, Stop
from offbeat.fleet import Fleet
from offbeat.results.metric import TargetMetric
from offbeat.results.rows import Row, Span
from offbeat.running.accounts import Accounts
from offbeat.running.driver import Milestones
from offbeat.running.problems import NOTHING_LEFT
from offbeat.simulation.attacks import Attackers, Knowledge
from offbeat.simulation.lazy_training import LazyTraining, MidSlice
from offbeat.simulation.lifecycle import UNDISTURBED, DeviceLifecycle, EventQueue, Fate, TimedRun
from offbeat.training.executor import Executor
from offbeat.training.local_run import DeviceMemory, ends_of, slices_by
from offbeat.training.training_state import Evaluation

TIMERS_LAST = 1
"""Priority of timers: at equal times they come after devices, so that an upload at the deadline is in time."""


class Simulation:
    """Simulates one session. It owns the clock, the event queue and the local runs; the session owns the rest."""

    unsaved = False

    def __init__(
        self,
        session: Session,
        fleet: Fleet,
        executor: Executor,
        *,
        stop: Stop,
        schedule: EvaluationTable | None = None,
        metric: TargetMetric | None = None,
        attackers: Attackers | None = None,
        evaluate: Callable[[Vector], Evaluation] | None = None,
    ) -> None:
        self.session = session
        self.fleet = fleet
        self.executor = executor
        self.stop = stop
        self.schedule = schedule or EvaluationTable()
        self.training = LazyTraining(executor, session.layout.bytes)
        self.queue = EventQueue()
        self.lifecycle = DeviceLifecycle(fleet, self.queue)
        self.runs: dict[int, TimedRun] = {}
        self.now = 0.0
        self.reason: str | None = None
        self.attackers = attackers
        marks = {} if attackers is None else {"attacker": attackers.marks(session.devices)}
        self.accounts = Accounts(session.devices, fleet.names, marks)
        self.spans = self.accounts.spans
        """Orders that ended since the run loop last took them from the accounts."""
        self._model_bytes = session.layout.bytes
        self._layers = session.layout.trained_layers
        self._ticks = 0
        self._next_tick = 0.0
        evaluate, metric = evaluate or executor.evaluate, metric or TargetMetric()
        self._milestones = Milestones(session, stop, self.schedule, evaluate, metric)

    def open_spans(self) -> list[Span]:
        """The spans of the orders in flight, up to now."""
        return [run.span(self.now, "in flight") for run in self.runs.values()]

    # The loop ---------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Row | None]:
        if not self.queue.sequence:
            self._open()
        entries, end, session = self.queue.entries, self.stop.horizon, self.session
        checked = -1
        while self.reason is None:
            upcoming, tick = entries[0][0] if entries else inf, self._next_tick
            if upcoming <= tick and upcoming <= end and upcoming < inf:  # the most frequent case by far
                self.now, _, _, kind, subject, detail = heappop(entries)
                self._happen(kind, subject, detail)
                if session.version == checked and session.finished is None:
                    yield None  # only a new version or a Finish can end the run or make an evaluation due
                else:
                    checked = session.version
                    self.reason = self._milestones.reached() or self.reason
                    yield self._evaluate(self.now) if self._milestones.version_is_due() else None
            elif upcoming == inf and end == inf:
                self.reason = NOTHING_LEFT
            elif tick < upcoming and tick < end:
                self._ticks += 1
                self._next_tick = self._ticks * self.schedule.interval
                if not self._milestones.seen(tick):
                    yield self._evaluate(tick)
            else:
                self.now, self.reason = end, "time"
        if not self._milestones.seen(self.now):
            yield self._evaluate(self.now)

    def _open(self) -> None:
        self.lifecycle.follow(self.session.devices)
        self.queue.push(0.0, "start", 0)

    def _happen(self, kind: str, subject: int, detail: Any) -> None:
        match kind:
            case "upload" | "ask" | "vanished" | "upload lost":
                run = self.runs.get(subject)
                if run is None or run.token != detail:
                    return  # outdated: the run was planned again after this was scheduled
                if kind == "upload":
                    self._upload(run)
                elif kind == "ask":
                    run.first = run.progress.slices
                    self._handle(FreshRequested(device=run.device, ticket=run.ticket, progress=run.progress))
                elif kind == "vanished":
                    self.training.drop(run.ticket)
                    self._lose(run, max(self.now, run.fate.returns))
                else:
                    self.training.keep(run.ticket)
                    self._lose(run, self.now)
            case "notice":
                self._stop_soon(subject)
            case "timer":
                version = self.session.version
                self._handle(TimerFired(name=detail))
                if self._deserted() and (self.session.version == version or self.stop.versions is None):
                    self.reason = NOTHING_LEFT
            case "return":
                self.lifecycle.returned(subject, self.now)
                if self.lifecycle.is_available(subject, self.now):
                    self._handle(Ready(device=subject))
            case "change":
                self._change(subject)
            case "start":
                self._handle(Started())

    def _deserted(self) -> bool:
        """Whether all devices are gone for good, so that timers alone would keep a run without time limit going."""
        if self.stop.time is not None or self.session.in_flight or self.session.idle:
            return False
        return all(kind == "timer" for _, _, _, kind, _, _ in self.queue.entries)

    def _handle(self, event: Event) -> None:
        """Feed the event to the session and carry out the effects that it returns."""
        for effect in self.session.handle(event, self.now):
            match effect:  # the most frequent first, without patterns, which are slow
                case OrderInFlight():
                    self._begin(effect)
                case Resolved():
                    self.training.resolved(effect.tickets)
                    self.accounts.resolved(effect.tickets, effect.used, self.session.version)
                case FreshModel():
                    self._answer(effect)
                case StopNotice(device=device, ticket=ticket):
                    self.queue.push(self.now + self.fleet.links.latency(device), "notice", ticket)
                case TimerSet(name=name, at=at):
                    self.queue.push(at, "timer", 0, name, TIMERS_LAST)

    # What a device does with an order ---------------------------------------------------------------------------------

    def _begin(self, assignment: Assignment) -> None:
        device, ticket, order, fleet = assignment.device, assignment.ticket, assignment.order, self.fleet
        size = self._model_bytes if order.width == 1.0 else bytes_down(order, self.session.layout)
        arrived = self.now + fleet.links.down_seconds(device, size, self.now)
        samples, batch = self.session.held_samples(device), order.batch_size
        seconds = fleet.speeds.slice_seconds(device, ticket, order)
        run = TimedRun(
            order=order,
            device=device,
            ticket=ticket,
            base=assignment.base,
            sent=self.now,
            arrived=arrived,
            start=arrived,
            samples=samples,
            steps=ceil(samples / batch) if batch is not None and order.unit == "epoch" else 1,
            layers=self._layers,
            bytes_down=size,
            seconds=seconds,
            fate=self.lifecycle.fate(device, ticket, self.now, arrived, seconds),
        )
        self.runs[ticket] = run
        self.training.begin(assignment)
        self._proceed(run, arrived)

    def _proceed(self, run: TimedRun, at: float, fresh: Fresh | None = None) -> None:
        """Plan what the device does from this time on, up to the next event that the server sees.

        A fresh model is merged when it reaches the device, perhaps in the middle of a slice.
        """
        ticket, plan, order = run.ticket, self.training.plans[run.ticket], run.order
        layered = order.unit == "layer"
        while type(step := run.next(plan.rule, plan.remembered)) is Train:  # `isinstance` takes three times as long
            first, slices, began = run.progress.slices, step.slices, at
            seconds = run.seconds[first : first + slices]
            for each in seconds:
                at += each
            if order.budget is not None and at > run.arrived + order.budget:
                at = max(began, run.arrived + order.budget)
                slices = slices_by(ends_of(seconds, began), at)
                run.out_of_time()
            run.until = at
            run.trained(slices, run.steps_in(slices) if layered else slices * run.steps, at - began)
            if slices:
                if fresh is not None and run.heard < at:
                    self._merge_within(run, first, ends_of(seconds, began), began)
                    self.training.merge(ticket, fresh)
                    fresh = None
                self.training.train(ticket, first + slices, at)
        if at < run.heard:  # it went on training and uploads no earlier than the answer to its question arrives
            at = run.heard
        if fresh is not None:
            self.training.merge(ticket, fresh)
        if type(step) is Ask:
            run.asks = True
            run.ask(step)
            kind, at = "ask", at + self.fleet.links.latency(run.device)
        else:
            run.asks, size = False, self._model_bytes
            if layered or order.width != 1.0 or run.progress.slices < order.slices:
                run.mask = mask = coverage(order, run.progress.slices, self.session.layout)
                size = size if mask is None else mask.bytes
            run.bytes_up = size
            kind, at = "upload", at + self.fleet.links.up_seconds(run.device, size, at)
        if (fate := run.fate) is UNDISTURBED:
            run.over = self.queue.push(at, kind, ticket, run.token)
            return
        planned, at = kind, moment(at)
        run.over = min(at, fate.vanishes)
        kind, at = self.lifecycle.outcome(fate, kind, at)
        if kind != planned:
            self.training.hold(ticket)
        self.queue.push(at, kind, ticket, run.token)

    def _answer(self, answer: FreshModel) -> None:
        """Plan on after the answer to a device's question, for which it has waited or not."""
        run, links, fresh = self.runs[answer.ticket], self.fleet.links, None
        asked = max(run.until, run.start, run.heard)
        trains_on = run.asking and not run.stopping  # a device that was told to stop in the meantime waits
        run.answered()
        if answer.parameters is None:
            heard = max(asked, self.now + links.latency(answer.device))
        else:
            heard = max(asked, self.now + links.down_seconds(answer.device, self._model_bytes, self.now))
            run.bytes_down += self._model_bytes
            fresh = Fresh(version=answer.version, parameters=answer.parameters)
        if trains_on:
            run.start, run.heard = asked, heard
        else:
            run.start = heard
            run.pauses += ((asked, heard),)
            if fresh is not None:
                self.training.merge(answer.ticket, fresh)
                fresh = None
        self._proceed(run, run.start, fresh)

    def _merge_within(self, run: TimedRun, first: int, ends: list[float], began: float) -> None:
        """Plan the training up to the slice, or the step within a slice, at which a fresh model reaches the device.

        `ends` are the end times of the slices from `first` on; the model arrives before the last of them.
        """
        done = slices_by(ends, run.heard)
        start = ends[done - 1] if done else began
        step = min(int(run.steps * (run.heard - start) / (ends[done] - start)), run.steps - 1)
        if step:
            self.training.train(run.ticket, MidSlice(first + done, step), run.heard)
        elif done:
            self.training.train(run.ticket, first + done, run.heard)

    def _stop_soon(self, ticket: int) -> None:
        """Shorten the run of a device that receives a stop notice to its current slice, or to the one before."""
        run = self.runs.get(ticket)
        if run is None or run.fate.vanishes <= self.now:
            return
        run.stop_soon()
        run.noticed = self.now
        ends = run.ends
        if not ends or self.now >= ends[-1]:
            return
        done = slices_by(ends, self.now)
        if run.order.drops_unfinished and run.first + done:
            at = max(self.now, run.start)
        else:
            done += self.now >= run.start or not run.first
            at = ends[done - 1] if done else run.start
        run.take_back(len(ends) - done, at)
        self.training.shorten(run.ticket, run.first + done, at)
        run.token += 1
        self._proceed(run, at)

    def _upload(self, run: TimedRun) -> None:
        order = self.session.in_flight[run.ticket]
        outcome: Callable[[], Outcome] = self.training.deliver(run.ticket)
        if self.attackers is not None and run.device in self.attackers.members:
            outcome = self.attackers.outcome(run.device, run.ticket, self.now, order.parameters, run.mask, outcome)
        update = order.update(run.samples, run.progress, outcome, run.mask)
        del self.runs[run.ticket]
        self.accounts.delivered(run.span(self.now, "uploaded"))
        self._handle(Uploaded(device=run.device, ticket=run.ticket, update=update))

    def _lose(self, run: TimedRun, back: float) -> None:
        """End a run that the server has given up; its device returns at `back`."""
        vanishes = run.fate.vanishes
        if vanishes < run.until:  # what was planned for later was not done
            ends = run.ends
            run.take_back(len(ends) - slices_by(ends, vanishes), max(vanishes, run.start))
        del self.runs[run.ticket]
        self.accounts.lost(run.span(self.now, "lost"))
        self.lifecycle.lose(run.device, back)
        self._handle(Lost(device=run.device, ticket=run.ticket))

    def _change(self, device: int) -> None:
        """Handle a change of a device's availability. If it is in flight, its run accounts for it already."""
        if not self.lifecycle.changed(device, self.now):
            return
        if self.lifecycle.is_available(device, self.now):
            if self.session.is_away(device):
                self._handle(Ready(device=device))
        elif self.session.is_idle(device):
            self._handle(Left(device=device))

    # Evaluation and the end -------------------------------------------------------------------------------------------

    def evaluate(self) -> Row:
        """Evaluate the model now, for a run that is interrupted."""
        return self._evaluate(self.now)

    def _evaluate(self, at: float) -> Row:
        row = self._milestones.row(at, busy=self.accounts.busy_seconds, wasted=self.accounts.wasted_seconds)
        reached = self._milestones.reached_by(row)
        if reached is not None:
            self.now, self.reason = at, reached
        return row

    # Snapshots --------------------------------------------------------------------------------------------------------

    _SAVED = ("runs", "now", "reason", "_ticks", "_next_tick")

    def snapshot(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, for `core.snapshot.encode`.

        The session comes first: saving an update that is not resolved yet computes its numbers.
        """
        return {
            "session": self.session.snapshot(),
            "training": self.training.snapshot(),
            "accounts": self.accounts.snapshot(),
            "vanished": self.lifecycle.vanished,
            "paused": self.lifecycle.paused,
            "queue": self.queue.entries,
            "sequence": self.queue.sequence,
            "milestones": self._milestones.snapshot(),
            "attackers": None if self.attackers is None else self.attackers.state,
        } | {name: getattr(self, name) for name in self._SAVED}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue from a snapshot of a simulation of the same experiment."""
        self.session.restore(saved["session"])
        self.queue.entries = [tuple(entry) for entry in saved["queue"]]
        self.queue.sequence = saved["sequence"]
        self.lifecycle.vanished, self.lifecycle.paused = saved["vanished"], saved["paused"]
        self.accounts.restore(saved["accounts"])
        self._milestones.restore(saved["milestones"])
        if self.attackers is not None:
            self.attackers.state = saved["attackers"]
        for name in self._SAVED:
            setattr(self, name, saved[name])
        self.training.restore(saved["training"], self.session.in_flight, self.session.models)

    @property
    def snapshot_types(self) -> tuple[type[Any], ...]:
        """The classes that a snapshot may contain."""
        return (
            *self.session.snapshot_types,
            *Accounts.snapshot_types,
            TimedRun,
            Fate,
            DeviceMemory,
            Progress,
            Evaluation,
            Knowledge,
        )
