"""The lines of `record.jsonl`, the record of a real run, from which it can be replayed.

A line is JSON with its kind under `what`, the time of the run's clock under `at`, and the fields of its kind. There are
remarks, events (as the session handled them), and effects of an event. A deployment writes the record, `fleet.record`
reads the speed of devices from it, and `simulation.replay` compares its own lines with it.
"""

import hashlib

import msgspec
import numpy as np
from msgspec import Struct, structs

from offbeat.core.errors import InvalidInput
from offbeat.core.messages import (
    Assignment,
    Effect,
    Event,
    FreshModel,
    FreshRequested,
    Left,
    Lost,
    Ready,
    Started,
    StopNotice,
    TimerFired,
    Uploaded,
)
from offbeat.core.orders import Progress
from offbeat.core.policy import Forecast
from offbeat.core.session import Session

FORMAT = 3
"""The number of this format, in the first line of a record. A record without one has format 1."""


class RecordedLine(Struct, frozen=True, kw_only=True, tag_field="what"):
    """A line of a record."""

    at: float

    def __str__(self) -> str:
        details = msgspec.to_builtins(self)
        what = details.pop("what")
        del details["at"]
        return f"{what} ({', '.join(f'{name} {value}' for name, value in details.items())})"


# Remarks --------------------------------------------------------------------------------------------------------------


class RunLine(RecordedLine, frozen=True, kw_only=True, tag="run"):
    """The first line: how the run started, and what the server knew about its devices."""

    format: int
    samples: list[int]
    present: list[int]
    own_data: bool
    """Whether the devices hold their own data, which the experiment does not describe."""
    speeds: list[float] | None
    communication: list[float] | None
    random_layers: bool | None

    @classmethod
    def of(cls, session: Session, *, at: float, samples: list[int], present: list[int], own_data: bool) -> "RunLine":
        """Make the first line of a run with this session."""
        known = session.forecast
        return cls(
            at=at,
            format=FORMAT,
            samples=samples,
            present=present,
            own_data=own_data,
            speeds=None if known is None else known.speeds.tolist(),
            communication=None if known is None else known.communication.tolist(),
            random_layers=None if known is None else known.random_layers,
        )

    @property
    def forecast(self) -> Forecast | None:
        """What the server knew about its devices."""
        if self.speeds is None or self.communication is None:
            return None
        return Forecast(
            speeds=np.array(self.speeds),
            communication=np.array(self.communication),
            random_layers=bool(self.random_layers),
        )


class ResumedLine(RecordedLine, frozen=True, kw_only=True, tag="resumed"):
    """The server resumed from a checkpoint."""


class JoinedLine(RecordedLine, frozen=True, kw_only=True, tag="joined"):
    """A device joined after the run had started."""

    device: int
    samples: int


class FaultLine(RecordedLine, frozen=True, kw_only=True, tag="fault"):
    """A device failed, or a node that is no device yet (-1)."""

    device: int
    why: str
    node: int | None = None
    """The Flower node, if it is known."""


class HeardLine(RecordedLine, frozen=True, kw_only=True, tag="heard"):
    """A device on a persistent node received a stop notice or a newer version during its training."""

    device: int
    ticket: int
    slices: int
    """Completed slices."""
    step: int | None
    """Completed steps of the next slice; None: it was between two slices."""
    version: int | None = None
    """The version that it merged; None: it received a stop notice."""

    def uploads_after(self, *, drops_unfinished: bool) -> int:
        """The slices that the device uploads: with its current one unless the order drops it, and at least one."""
        return max(1, self.slices if self.step is None or drops_unfinished else self.slices + 1)


# Events ---------------------------------------------------------------------------------------------------------------


class RecordedUpload(Struct, frozen=True, kw_only=True, gc=False, tag="Uploaded"):
    """The event `Uploaded` without the numbers of its update, which a replay computes again."""

    device: int
    ticket: int
    progress: Progress


RecordedEvent = Started | Ready | Left | RecordedUpload | FreshRequested | Lost | TimerFired


class EventLine(RecordedLine, frozen=True, kw_only=True, tag="event"):
    """The session handled this event."""

    event: RecordedEvent
    remembered: int = 0
    """The ticket whose memory the device started this order with; 0: none."""
    norm: float | None = None
    """The distance of an update from its base."""

    def __str__(self) -> str:
        details = ", ".join(f"{name} {value}" for name, value in structs.asdict(self.event).items())
        return f"{self.event.__struct_config__.tag} ({details})"


# Effects --------------------------------------------------------------------------------------------------------------


class VersionLine(RecordedLine, frozen=True, kw_only=True, tag="version"):
    """The session committed a version."""

    version: int
    sha256: str
    """The checksum of its parameters."""


class OrderLine(RecordedLine, frozen=True, kw_only=True, tag="order", omit_defaults=True):
    """A device was sent an order that starts from this version."""

    device: int
    ticket: int
    base: int
    batch: int | None = None
    """Samples in a step, if the slices of the order are steps of less than an epoch."""


class AnswerLine(RecordedLine, frozen=True, kw_only=True, tag="answer"):
    """A device that asked was sent this version, if it was newer."""

    device: int
    ticket: int
    base: int
    newer: bool


class NoticeLine(RecordedLine, frozen=True, kw_only=True, tag="notice"):
    """A device was sent a stop notice."""

    device: int
    ticket: int


Remark = RunLine | ResumedLine | JoinedLine | FaultLine | HeardLine
ConsequenceLine = VersionLine | OrderLine | AnswerLine | NoticeLine
RecordLine = Remark | EventLine | ConsequenceLine


def event_line(event: Event, *, at: float, remembered: int = 0, norm: float | None = None) -> EventLine:
    """Make the line of an event; `remembered` is the ticket whose memory the device started its order with."""
    if isinstance(event, Uploaded):
        recorded = RecordedUpload(device=event.device, ticket=event.ticket, progress=event.update.progress)
        return EventLine(at=at, event=recorded, remembered=remembered, norm=norm)
    return EventLine(at=at, event=event, remembered=remembered)


def effect_line(effect: Effect, *, at: float) -> ConsequenceLine | None:
    """Make the line of an effect; None if the effect is not sent to a device."""
    match effect:
        case Assignment(device=device, ticket=ticket, base=base, order=order):
            batch = order.batch_size if order.unit == "step" else None
            return OrderLine(at=at, device=device, ticket=ticket, base=base, batch=batch)
        case FreshModel(device=device, ticket=ticket, version=version, parameters=parameters):
            return AnswerLine(at=at, device=device, ticket=ticket, base=version, newer=parameters is not None)
        case StopNotice(device=device, ticket=ticket):
            return NoticeLine(at=at, device=device, ticket=ticket)
    return None


def version_line(session: Session, *, at: float) -> VersionLine:
    """Make the line of the session's current version."""
    digest = hashlib.sha256(session.parameters.tobytes()).hexdigest()
    return VersionLine(at=at, version=session.version, sha256=digest)


# Reading --------------------------------------------------------------------------------------------------------------


class _FirstLine(Struct):
    what: str = ""
    format: int = 1


def read_record(text: str, source: str) -> tuple[RunLine, list[RecordLine]]:
    """Read a record: its first line, and all lines with it."""
    whole = text[: text.rfind("\n") + 1].splitlines()  # a killed server may have left half a line
    _check_format(whole, source)
    lines: list[RecordLine] = []
    for number, line in enumerate(whole, 1):
        try:
            lines.append(msgspec.json.decode(line, type=RecordLine))
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"{source}, line {number}, cannot be read: {error}") from None
    first = lines[0]
    assert isinstance(first, RunLine)
    return first, lines


def _check_format(lines: list[str], source: str) -> None:
    """Raise InvalidInput if this is not a record, or one of another format."""
    try:
        first = msgspec.json.decode(lines[0] if lines else "{}", type=_FirstLine)
    except msgspec.MsgspecError:
        first = _FirstLine()
    if first.what != "run":
        raise InvalidInput(f"{source} is empty or not the record of a run")
    if first.format != FORMAT:
        raise InvalidInput(
            f"{source} has format {first.format}, but this version of offbeat reads only format {FORMAT}: use the "
            "version that wrote it"
        )
