"""A real run again in the simulator: the record says who did what when, the numbers are computed anew.

A fresh session is fed the recorded events at the recorded times. What a device delivered is not in the record: it is
trained here, by the simulator's own training, up to where the record says that the device had come. Everything that the
session makes of it (orders, answers, notices, versions) must be what the record has, versions bit by bit.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from offbeat.core.coverage import coverage
from offbeat.core.errors import OffbeatError
from offbeat.core.messages import (
    Assignment,
    Event,
    FreshModel,
    FreshRequested,
    Lost,
    Resolved,
    Uploaded,
)
from offbeat.core.orders import Update
from offbeat.core.policy import Ask, Fresh, Train
from offbeat.core.record import (
    ConsequenceLine,
    EventLine,
    HeardLine,
    RecordedUpload,
    RecordLine,
    VersionLine,
    effect_line,
    version_line,
)
from offbeat.core.session import Session
from offbeat.simulation.lazy_training import LazyTraining, MidSlice
from offbeat.training.executor import Executor
from offbeat.training.local_run import LocalRun


class Difference(OffbeatError):
    """The replay came out otherwise than the record."""


class Replay:
    """Iterating replays a record line by line; raises Difference at the first line that comes out otherwise."""

    def __init__(self, session: Session, executor: Executor, lines: Sequence[RecordLine]) -> None:
        self.session = session
        self.training = LazyTraining(executor, session.layout.bytes)
        self.orders = 0
        self._lines = lines
        self._number = 0
        self._due: deque[ConsequenceLine] = deque()
        """What must come next in the record, because of the last event."""
        self._runs: dict[int, LocalRun] = {}
        self._remembered = {
            line.event.ticket: line.remembered
            for line in lines
            if isinstance(line, EventLine) and isinstance(line.event, RecordedUpload | FreshRequested)
        }
        """The ticket whose memory a ticket was begun with, for each that something came back for."""
        self._heard: dict[int, HeardLine] = {}
        """Where tickets were when they were told to stop in the midst of training."""
        self._merged = {(line.ticket, line.version): line for line in lines if isinstance(line, HeardLine)}
        """Where tickets were when a fresh model reached them in the midst of training, by its version."""

    def __iter__(self) -> Iterator[RecordLine]:
        for number, line in enumerate(self._lines, 1):
            self._number = number
            if isinstance(line, EventLine):
                self._handle(line)
            elif isinstance(line, ConsequenceLine):
                self._compare(line)
            elif isinstance(line, HeardLine) and line.version is None:
                self._heard[line.ticket] = line
            yield line

    def check_complete(self) -> None:
        """Raise Difference if the record ends before everything has come that must come."""
        if self._due:
            raise Difference(f"the record ends, where the replay has {self._due[0]}")

    # Comparing ----------------------------------------------------------------------------------------------------

    def _compare(self, line: ConsequenceLine) -> None:
        if not self._due:
            raise self._differs(f"the record has {line}, the replay nothing")
        due = self._due.popleft()
        if line == due:
            return
        if isinstance(line, VersionLine) and isinstance(due, VersionLine) and line.version == due.version:
            raise self._differs(
                f"version {line.version} has other parameters in the replay "
                f"(sha256 {due.sha256[:12]}..., in the record {line.sha256[:12]}...)"
            )
        raise self._differs(f"the record has {line}, the replay {due}")

    def _differs(self, what: str) -> Difference:
        return Difference(f"line {self._number} of the record, at {self._lines[self._number - 1].at:g} s: {what}")

    # Events -------------------------------------------------------------------------------------------------------

    def _handle(self, line: EventLine) -> None:
        """Tell the session, and note what it asks for in return."""
        if self._due:
            raise self._differs(f"the record has {line}, the replay {self._due[0]}")
        session, version, event = self.session, self.session.version, self._event(line)
        try:
            effects = session.handle(event, line.at)
        except OffbeatError as error:
            raise self._differs(str(error)) from error
        if session.version != version:
            self._due.append(version_line(session, at=line.at))
        for effect in effects:
            if (due := effect_line(effect, at=line.at)) is not None:
                self._due.append(due)
            match effect:
                case Assignment():
                    self._begin(effect)
                case Resolved(tickets=tickets):
                    self.training.resolved(tickets)
                case FreshModel(ticket=ticket, version=base, parameters=parameters):
                    if (heard := self._merged.get((ticket, base))) is not None:
                        self._train_on(heard)
                    self._runs[ticket].answered()
                    if parameters is not None:
                        self.training.merge(ticket, Fresh(version=base, parameters=parameters))

    def _event(self, line: EventLine) -> Event:
        match line.event:
            case RecordedUpload(device=device, ticket=ticket) as done:
                self._train(line, done)
                return Uploaded(device=device, ticket=ticket, update=self._update(done))
            case FreshRequested() as asked:
                self._train(line, asked)
                return asked
            case Lost(ticket=ticket) as lost:
                self._check_in_flight(line, lost)
                del self._runs[ticket]
                self.training.drop(ticket)
                return lost
            case event:
                return event

    def _check_in_flight(self, line: EventLine, event: RecordedUpload | FreshRequested | Lost) -> None:
        if event.ticket not in self._runs:
            raise self._differs(f"{line} is about a ticket that nobody is working on")

    # What a device did with an order --------------------------------------------------------------------------------

    def _begin(self, assignment: Assignment) -> None:
        """Begin an order with the memory that the device really had: that may be lost, and a lost order leaves none."""
        device, ticket = assignment.device, assignment.ticket
        wanted = self._remembered.get(ticket)
        if self.training.begin(assignment, received=wanted) != wanted and wanted:
            raise self._differs(
                f"device {device} began ticket {ticket} with what it had learned in ticket {wanted}, "
                "which is not the last that it delivered"
            )
        self._runs[ticket] = LocalRun(order=assignment.order)
        self.orders += 1

    def _train(self, line: EventLine, event: RecordedUpload | FreshRequested) -> None:
        """Train up to where the device had come, in the stretches that it did: they number a merge's batches."""
        self._check_in_flight(line, event)
        run, ticket, plan = self._runs[event.ticket], event.ticket, self.training.plans[event.ticket]
        slices = event.progress.slices
        heard = self._heard.get(ticket)
        if heard is not None:
            most = heard.uploads_after(drops_unfinished=run.order.drops_unfinished)
            if slices > most:
                raise self._differs(f"{line} is about {slices} slices, where it was to stop after {most}")
        while (done := run.progress.slices) < slices:
            step = run.next(plan.rule, plan.remembered)
            if not isinstance(step, Train):  # where it would ask or upload, a device trains only if told to stop
                run.stop_soon()
                step = run.next(plan.rule, plan.remembered)
            if not isinstance(step, Train):
                raise self._differs(f"{line} is about {slices} slices, and the replay ends the order after {done}")
            run.trained(min(step.slices, slices - done), 0, 0.0)
            self.training.train(ticket, run.progress.slices, line.at)
        run.progress = event.progress

    def _train_on(self, heard: HeardLine) -> None:
        """Train up to where the device was when a fresh model reached it for which it had not waited."""
        run, ticket, plan = self._runs[heard.ticket], heard.ticket, self.training.plans[heard.ticket]
        run.ask(Ask(waits=False))
        while (done := run.progress.slices) < heard.slices or heard.step:
            step = run.next(plan.rule, plan.remembered)
            if not isinstance(step, Train):
                raise self._differs(f"ticket {ticket} has {heard}, where the replay ends the training after {done}")
            until = min(heard.slices, run.goal)
            run.trained(until - done, 0, 0.0)
            if heard.step and until < run.goal:
                self.training.train(ticket, MidSlice(until, heard.step), heard.at)
                break
            self.training.train(ticket, until, heard.at)

    def _update(self, done: RecordedUpload) -> Update:
        session, run = self.session, self._runs.pop(done.ticket)
        samples = session.samples(session.in_flight[done.ticket].device)
        mask = coverage(run.order, done.progress.slices, session.layout)
        outcome = self.training.deliver(done.ticket)
        return session.in_flight[done.ticket].update(samples, done.progress, outcome, mask)
