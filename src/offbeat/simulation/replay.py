"""Replays a real run in the simulator and compares every consequence with the record.

A new session is fed the recorded events at their recorded times. Updates are not in the record: they are trained again,
by the simulator's lazy training, up to the slices that the record names. Orders, answers and stop notices must be equal
to the recorded ones, and versions equal bit for bit.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from offbeat.core.coverage import coverage
from offbeat.core.errors import InvalidInput, OffbeatError
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
    read_record,
    version_line,
)
from offbeat.core.session import Session
from offbeat.experiment.schema import Experiment
from offbeat.results.result import Result, read_run, tensors_of
from offbeat.running.assembly import ExperimentParts, own_settings, session_of
from offbeat.running.directory import read_model
from offbeat.simulation.lazy_training import LazyTraining, MidSlice
from offbeat.training.executor import Executor, torch_executor
from offbeat.training.local_run import LocalRun


class Difference(OffbeatError):
    """The replay differs from the record."""


class Replay:
    """Iterating replays a record line by line; raises Difference at the first line that differs."""

    def __init__(self, session: Session, executor: Executor, lines: Sequence[RecordLine]) -> None:
        self.session = session
        self.training = LazyTraining(executor, session.layout.bytes)
        self.orders = 0
        self._lines = lines
        self._number = 0
        self._due: deque[ConsequenceLine] = deque()
        """Consequences of the last event, which the record must hold next."""
        self._runs: dict[int, LocalRun] = {}
        self._remembered = {
            line.event.ticket: line.remembered
            for line in lines
            if isinstance(line, EventLine) and isinstance(line.event, RecordedUpload | FreshRequested)
        }
        """For each ticket with an upload or a question: the ticket whose memory the device began with."""
        self._heard: dict[int, HeardLine] = {}
        """Progress of tickets when a stop notice reached them during training."""
        self._merged = {(line.ticket, line.version): line for line in lines if isinstance(line, HeardLine)}
        """Progress of tickets when a fresh model reached them during training, by its version."""

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
        """Raise Difference if the record ends before all consequences of its last event."""
        if self._due:
            raise Difference(f"the record ends, but the replay continues with {self._due[0]}")

    # Comparing --------------------------------------------------------------------------------------------------------

    def _compare(self, line: ConsequenceLine) -> None:
        if not self._due:
            raise self._differs(f"the record has {line}, which does not occur in the replay")
        due = self._due.popleft()
        if line == due:
            return
        if isinstance(line, VersionLine) and isinstance(due, VersionLine) and line.version == due.version:
            raise self._differs(
                f"version {line.version} has different parameters: sha256 {due.sha256[:12]}... in the replay, "
                f"{line.sha256[:12]}... in the record"
            )
        raise self._differs(f"the record has {line}, the replay has {due}")

    def _differs(self, what: str) -> Difference:
        return Difference(f"line {self._number} of the record, at {self._lines[self._number - 1].at:g} s: {what}")

    # Events -----------------------------------------------------------------------------------------------------------

    def _handle(self, line: EventLine) -> None:
        """Feed the event to the session and carry out the effects that it returns."""
        if self._due:
            raise self._differs(f"the record has {line}, the replay has {self._due[0]}")
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
            raise self._differs(f"{line}: ticket {event.ticket} is not in flight")

    # What a device did with an order ----------------------------------------------------------------------------------

    def _begin(self, assignment: Assignment) -> None:
        """Begin an order with the memory that the real device had, which may have been lost."""
        device, ticket = assignment.device, assignment.ticket
        wanted = self._remembered.get(ticket)
        if self.training.begin(assignment, received=wanted) != wanted and wanted:
            raise self._differs(
                f"device {device} began ticket {ticket} with its memory after ticket {wanted}, "
                "which is not the last ticket that the server received"
            )
        self._runs[ticket] = LocalRun(order=assignment.order)
        self.orders += 1

    def _train(self, line: EventLine, event: RecordedUpload | FreshRequested) -> None:
        """Train up to the recorded slice, in the same stretches as the device: they number the batches of a merge."""
        self._check_in_flight(line, event)
        run, ticket, plan = self._runs[event.ticket], event.ticket, self.training.plans[event.ticket]
        slices = event.progress.slices
        heard = self._heard.get(ticket)
        if heard is not None:
            most = heard.uploads_after(drops_unfinished=run.order.drops_unfinished)
            if slices > most:
                raise self._differs(f"{line} has {slices} slices, but the stop notice allows {most}")
        while (done := run.progress.slices) < slices:
            step = run.next(plan.rule, plan.remembered)
            if not isinstance(step, Train):  # a device that trains where it would ask or upload was told to stop
                run.stop_soon()
                step = run.next(plan.rule, plan.remembered)
            if not isinstance(step, Train):
                raise self._differs(f"{line} has {slices} slices, but the replay ends the order after {done}")
            run.trained(min(step.slices, slices - done), 0, 0.0)
            self.training.train(ticket, run.progress.slices, line.at)
        run.progress = event.progress

    def _train_on(self, heard: HeardLine) -> None:
        """Train up to the position at which a fresh model reached a device that had not waited for it."""
        run, ticket, plan = self._runs[heard.ticket], heard.ticket, self.training.plans[heard.ticket]
        run.ask(Ask(waits=False))
        while (done := run.progress.slices) < heard.slices or heard.step:
            step = run.next(plan.rule, plan.remembered)
            if not isinstance(step, Train):
                raise self._differs(
                    f"ticket {ticket} has {heard}, but the replay ends the training after {done} slices"
                )
            until = min(heard.slices, run.goal)
            run.trained(until - done, 0, 0.0)
            if heard.step and until < run.goal:
                self.training.train(ticket, MidSlice(until, heard.step), heard.at)
                break
            self.training.train(ticket, until, heard.at)

    def _update(self, done: RecordedUpload) -> Update:
        session, run = self.session, self._runs.pop(done.ticket)
        samples = session.held_samples(session.in_flight[done.ticket].device)
        mask = coverage(run.order, done.progress.slices, session.layout)
        outcome = self.training.deliver(done.ticket)
        return session.in_flight[done.ticket].update(samples, done.progress, outcome, mask)


def replay(path: str | os.PathLike[str], watch: Callable[[float], None] | None = None) -> Result:
    """Replay the real run in a directory; raises Difference at the first line that differs from the record.

    The result is the real run with the replay's model. Its summary counts what was found equal: `replayed_versions`,
    `replayed_orders`, and `replayed_model` (False: the run left no model to compare with). `watch` is called with the
    fraction that is done, from 0 to 1.
    """
    directory = Path(path)
    if not (directory / "record.jsonl").is_file():
        raise InvalidInput(
            f"{directory} holds no real run: record.jsonl is missing, which only runs on Flower nodes write"
        )
    experiment = Experiment.load(directory / "config.toml")
    first, lines = read_record((directory / "record.jsonl").read_text(encoding="utf-8"), "record.jsonl")
    if first.own_data:
        raise InvalidInput(f"{directory} cannot be replayed: its devices trained on their own data, which is not here")
    if experiment.privacy.on:
        raise InvalidInput(f"{directory} cannot be replayed: the noise of a private run is secret and not recorded")
    parts = ExperimentParts.of(experiment)
    if first.samples != parts.partition.sizes.tolist():
        raise InvalidInput(
            f"{directory} cannot be replayed: the sizes of its devices' data differ from {experiment.data.name!r}"
        )
    executor = torch_executor(parts.factory(), parts.dataset, parts.partition, arithmetic="sequential")
    session = session_of(
        experiment,
        parts.network,
        samples=parts.partition.sizes,
        present=np.isin(np.arange(experiment.data.devices), first.present),
        secret=False,
        forecast=first.forecast,
        own=own_settings(experiment, parts.partition.devices, parts.device_names),
        trusted=parts.trusted_training,
    )
    with closing(executor):
        replaying = Replay(session, executor, lines)
        for number, _ in enumerate(replaying, 1):
            if watch is not None:
                watch(number / len(lines))
    final = read_model(directory / "model.safetensors", parts.layout)
    if (directory / "summary.json").is_file():
        replaying.check_complete()
    if final is not None and final.tobytes() != session.parameters.tobytes():
        raise Difference("all versions equal the record, but model.safetensors holds a different model")
    found = read_run(directory)
    compared = {
        "replayed_versions": session.version,
        "replayed_orders": replaying.orders,
        "replayed_model": final is not None,
    }
    return Result(
        rows=found.rows,
        summary=found.summary | compared,
        experiment=experiment,
        directory=directory,
        tensors=tensors_of(session.parameters, session.layout),
    )
