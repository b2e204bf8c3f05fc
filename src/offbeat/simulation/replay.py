"""A real run again in the simulator: the record says who did what when, the numbers are computed anew.

A fresh session is fed the recorded events at the recorded times. What a device delivered is not in the record: it is
trained here, by the simulator's own training, up to where the record says that the device had come. Everything that the
session makes of it (orders, answers, notices, versions) must be what the record has, versions bit by bit.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, structs

from offbeat.algorithms import device_rule
from offbeat.core.coverage import coverage
from offbeat.core.effects import Assignment, FreshModel, Settled, StopNotice
from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.core.events import Event, FreshRequested, Left, Lost, Ready, Started, TimerFired, Uploaded
from offbeat.core.forecast import Forecast
from offbeat.core.orders import Progress, Update
from offbeat.core.policy import Fresh, ReadOnlyMemory, Train
from offbeat.core.session import Session
from offbeat.device.local_run import LocalRun
from offbeat.simulation.executors import Executor
from offbeat.simulation.lazy_training import LazyTraining

EVENTS = {kind.__name__ for kind in (Started, Ready, Left, Uploaded, FreshRequested, Lost, TimerFired)}
CONSEQUENCES = {"version", "order", "answer", "notice"}
REMARKS = {"run", "resumed", "joined", "fault"}


class Difference(OffbeatError):
    """The replay came out otherwise than the record."""


class RecordLine(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of a record; which fields matter depends on `what`."""

    at: float
    what: str
    device: int = -1
    ticket: int = 0
    base: int = -1
    """Of an order or an answer, the version that was sent along."""
    newer: bool = False
    slices: int = 0
    steps: int = 0
    seconds: float = 0.0
    remembered: int = 0
    """The ticket whose memory the device began this one with; 0: none."""
    name: str = ""
    version: int = -1
    sha256: str = ""
    samples: list[int] | int = 0
    present: list[int] = []
    own_data: bool = False
    speeds: list[float] | None = None
    communication: list[float] | None = None
    random_layers: bool | None = None

    @property
    def progress(self) -> Progress:
        return Progress(slices=self.slices, steps=self.steps, seconds=self.seconds)

    @property
    def forecast(self) -> Forecast | None:
        """What the server knew of its devices, from the line that a record begins with."""
        if self.speeds is None or self.communication is None:
            return None
        return Forecast(
            speeds=np.array(self.speeds),
            communication=np.array(self.communication),
            random_layers=bool(self.random_layers),
        )

    def __str__(self) -> str:
        details = msgspec.to_builtins(self)
        del details["at"], details["what"]
        return f"{self.what} ({', '.join(f'{name} {value}' for name, value in details.items())})"


def read_record(text: str, source: str) -> list[RecordLine]:
    """The lines of a record, of which the first says how the run began."""
    lines = []
    whole = text[: text.rfind("\n") + 1]  # a server that was killed may have left half a line
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            lines.append(msgspec.convert(json.loads(line), RecordLine))
        except ValueError as error:
            raise InvalidInput(f"{source}, line {number}, cannot be read: {error}") from None
        if lines[-1].what not in EVENTS | CONSEQUENCES | REMARKS:
            raise InvalidInput(f"{source}, line {number}: {lines[-1].what!r} is nothing that a record says")
    if not lines or lines[0].what != "run":
        raise InvalidInput(f"{source} is not the record of a run, or it is empty")
    return lines


class Replay:
    """Iterating replays a record line by line; raises Difference at the first line that comes out otherwise."""

    def __init__(self, session: Session, executor: Executor, lines: Sequence[RecordLine]) -> None:
        self.session = session
        self.training = LazyTraining(executor, session.layout.bytes)
        self.orders = 0
        self._lines = lines
        self._number = 0
        self._due: deque[RecordLine] = deque()
        """What must come next in the record, because of the last event."""
        self._runs: dict[int, LocalRun] = {}
        self._remembered = dict(_remembered(lines))
        self._memories: dict[int, tuple[int, ReadOnlyMemory]] = {}
        """What each device remembers after the last ticket that it delivered, and the ticket."""

    def __iter__(self) -> Iterator[RecordLine]:
        for number, line in enumerate(self._lines, 1):
            self._number = number
            if line.what in EVENTS:
                self._handle(line)
            elif line.what in CONSEQUENCES:
                self._compare(line)
            yield line

    def check_complete(self) -> None:
        """Raise Difference if the record ends before everything has come that must come."""
        if self._due:
            raise Difference(f"the record ends, where the replay has {self._due[0]}")

    # Comparing ----------------------------------------------------------------------------------------------------

    def _compare(self, line: RecordLine) -> None:
        if not self._due:
            raise self._differs(f"the record has {line}, the replay nothing")
        due = self._due.popleft()
        if line.what == due.what == "version" and line.version == due.version and line.sha256 != due.sha256:
            raise self._differs(
                f"version {line.version} has other parameters in the replay "
                f"(sha256 {due.sha256[:12]}..., in the record {line.sha256[:12]}...)"
            )
        if line != due:
            raise self._differs(f"the record has {line}, the replay {due}")

    def _differs(self, what: str) -> Difference:
        return Difference(f"line {self._number} of the record, at {self._lines[self._number - 1].at:g} s: {what}")

    # Events -------------------------------------------------------------------------------------------------------

    def _handle(self, line: RecordLine) -> None:
        """Tell the session, and note what it asks for in return."""
        if self._due:
            raise self._differs(f"the record has {line}, the replay {self._due[0]}")
        session, version, event = self.session, self.session.version, self._event(line)
        try:
            effects = session.handle(event, line.at)
        except OffbeatError as error:
            raise self._differs(str(error)) from error
        if session.version != version:
            digest = hashlib.sha256(session.parameters.tobytes()).hexdigest()
            self._expect(line, "version", version=session.version, sha256=digest)
        for effect in effects:
            match effect:
                case Assignment(device=device, ticket=ticket, base=base):
                    self._expect(line, "order", device=device, ticket=ticket, base=base)
                    self._begin(effect)
                case Settled(ticket=ticket):
                    self.training.settle(ticket)
                case FreshModel(device=device, ticket=ticket, version=base, parameters=parameters):
                    newer = parameters is not None
                    self._expect(line, "answer", device=device, ticket=ticket, base=base, newer=newer)
                    self._runs[ticket].answered()
                    if parameters is not None:
                        self.training.merge(ticket, Fresh(version=base, parameters=parameters))
                case StopNotice(device=device, ticket=ticket):
                    self._expect(line, "notice", device=device, ticket=ticket)

    def _expect(self, event: RecordLine, what: str, **details: Any) -> None:
        self._due.append(RecordLine(at=event.at, what=what, **details))

    def _event(self, line: RecordLine) -> Event:
        if line.what in ("Uploaded", "FreshRequested", "Lost") and line.ticket not in self._runs:
            raise self._differs(f"{line} is about a ticket that nobody is working on")
        match line.what:
            case "Uploaded":
                self._train(line)
                return Uploaded(device=line.device, ticket=line.ticket, update=self._update(line))
            case "FreshRequested":
                self._train(line)
                return FreshRequested(device=line.device, ticket=line.ticket, progress=line.progress)
            case "Lost":
                del self._runs[line.ticket]
                self.training.drop(line.ticket)
                return Lost(device=line.device, ticket=line.ticket)
            case "Ready":
                return Ready(device=line.device)
            case "Left":
                return Left(device=line.device)
            case "TimerFired":
                return TimerFired(name=line.name)
            case _:
                return Started()

    # What a device did with an order --------------------------------------------------------------------------------

    def _begin(self, assignment: Assignment) -> None:
        """With the memory that the device really had: it may have lost it, and a lost order leaves none."""
        device, ticket, memories = assignment.device, assignment.ticket, self.training.memories
        wanted = self._remembered.get(ticket)
        if wanted == 0:
            memories.pop(device, None)
        elif wanted is not None:
            delivered, memories[device] = self._memories.get(device, (0, {}))
            if delivered != wanted:
                raise self._differs(
                    f"device {device} began ticket {ticket} with what it had learned in ticket {wanted}, "
                    f"but the last that it delivered is {delivered}"
                )
        self.training.begin(assignment)
        self._runs[ticket] = LocalRun(order=assignment.order)
        self.orders += 1

    def _train(self, line: RecordLine) -> None:
        """Train up to where the device had come, in the stretches that it did: they number a merge's batches."""
        run, ticket = self._runs[line.ticket], line.ticket
        rule, remembered = device_rule(run.order.rule), self.training.trajectories[ticket].remembered
        while (done := run.progress.slices) < line.slices:
            step = run.next(rule, remembered)
            stretch = step.slices if isinstance(step, Train) else 1  # told to stop, a device trains where it would ask
            run.progress = structs.replace(run.progress, slices=min(done + stretch, line.slices))
            self.training.train(ticket, run.progress.slices, line.at)
        run.progress = line.progress

    def _update(self, line: RecordLine) -> Update:
        session, flight, run = self.session, self.session.in_flight[line.ticket], self._runs.pop(line.ticket)
        outcome = self.training.deliver(line.ticket)
        if device_rule(run.order.rule).remembers:
            outcome()
            self._memories[line.device] = line.ticket, self.training.memories[line.device]
        return Update(
            device=line.device,
            ticket=line.ticket,
            base=flight.base,
            base_parameters=flight.parameters,
            samples=session.samples(flight.device),
            progress=line.progress,
            outcome=outcome,
            mask=coverage(run.order, line.slices, session.layout),
        )


def _remembered(lines: Iterable[RecordLine]) -> Iterator[tuple[int, int]]:
    """Of every ticket that something came back for, which ticket's memory it was begun with."""
    for line in lines:
        if line.what in ("Uploaded", "FreshRequested"):
            yield line.ticket, line.remembered
