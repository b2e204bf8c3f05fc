"""Which devices are ordered: an exchangeable part of a run, used by every policy that calls `view.pick`.

A `Selector` is frozen settings plus a state dataclass, as a policy is. The session tells it of orders, uploads, losses
and versions and asks it in `pick`. A run without one draws uniformly. `Selection` holds a selector's part of a session:
its state, its random stream, and the uploads whose losses it has not read. In a simulation reading a loss computes the
training, so a selector that needs losses gets its notices when it is asked to pick, and in a snapshot.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from offbeat.core.errors import InvalidInput, PolicyError
from offbeat.core.orders import Update
from offbeat.core.settings import Settings
from offbeat.core.streams import stream

Devices = npt.NDArray[np.int32]
"""Numbers of devices."""
LossKind = Literal["squared", "mean"]
"""Which training loss of an update a selector reads: the root of the mean squared loss of its samples, or the mean."""


class Report(Struct, frozen=True, kw_only=True, gc=False):
    """What an upload says about its device."""

    device: int
    samples: int
    seconds: float
    """From the dispatch of the order to the upload."""
    staleness: int
    """Versions committed between the base of the update and its upload."""
    version: int
    """The version at the upload."""
    loss: float
    """The training loss that the selector reads (`Selector.reads`); nan if it reads none."""


class SelectionView(Protocol):
    """The part of a session that a selector can read."""

    @property
    def version(self) -> int:
        """The number of the current version; in a notice, at the time of what it tells."""
        ...

    @property
    def now(self) -> float:
        """Seconds since the start of the run; in a notice, at the time of what it tells."""
        ...

    @property
    def devices(self) -> int:
        """Number of devices, available or not."""
        ...

    @property
    def random(self) -> np.random.Generator:
        """The selector's random generator."""
        ...

    def samples(self, device: int) -> int:
        """Number of samples on the device."""
        ...

    def is_away(self, device: int) -> bool:
        """Whether the device is unavailable."""
        ...


class Selector(Settings):
    """Chooses devices: settings as fields, a mutable `State` dataclass, `pick`, and notices of what happens."""

    State: ClassVar[type[Any]]
    """The dataclass of the state, of plain values, arrays, lists and dicts, so that a checkpoint can hold it."""
    Records: ClassVar[tuple[type[Any], ...]] = ()
    """Other dataclasses that the state holds."""
    about: ClassVar[Any] = None
    """Its source and search space: an `offbeat.policy.About`, or None."""

    @property
    def reads(self) -> LossKind | None:
        """Which training loss it needs of every update; None: none."""
        return None

    def init(self, view: SelectionView) -> Any:
        """The state at the start of a run."""
        return self.State()

    def pick(self, count: int, idle: Devices, state: Any, view: SelectionView) -> Sequence[int]:
        """Up to `count` distinct devices out of the idle ones. Neither is 0."""
        raise TypeError(f"{type(self).__name__} does not define pick")

    def ordered(self, device: int, state: Any, view: SelectionView) -> None:
        """A device was given an order."""

    def uploaded(self, report: Report, state: Any, view: SelectionView) -> None:
        """A device uploaded its update and is idle."""

    def came(self, device: int, state: Any, view: SelectionView) -> None:
        """A device that was away is available."""

    def left(self, device: int, state: Any, view: SelectionView) -> None:
        """A device is away: it left, or its order was lost."""

    def committed(self, state: Any, view: SelectionView) -> None:
        """A version was made."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectionSnapshot:
    """The state of a selection, from which a run can continue."""

    state: Any
    random: dict[str, Any]
    sent: dict[int, float]


class _Moment(Struct, gc=False):
    """A session as it was when something happened: its version and time."""

    version: int
    now: float


Notice = Callable[[SelectionView], None]


class Selection:
    """A selector at work in a session. It is the view that the selector sees."""

    __slots__ = ("_moment", "_notices", "_sent", "_session", "random", "selector", "state")

    def __init__(self, selector: Selector, session: Any, seed: int) -> None:
        self.selector = selector
        self.random = stream(seed, "selection")
        self._session = session
        self._sent: dict[int, float] = {}
        """When each order in flight was dispatched, by ticket."""
        self._notices: list[tuple[_Moment, Notice]] = []
        """Notices that the selector has not got yet, because an earlier one may need a loss."""
        self._moment: _Moment | None = None
        self.state = selector.init(self)

    # What a selector sees -----------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The number of the current version; in a notice, at the time of what it tells."""
        return int((self._moment or self._session).version)

    @property
    def now(self) -> float:
        """Seconds since the start of the run; in a notice, at the time of what it tells."""
        return float((self._moment or self._session).now)

    @property
    def devices(self) -> int:
        """Number of devices, available or not."""
        return int(self._session.devices)

    def samples(self, device: int) -> int:
        """Number of samples on the device."""
        return int(self._session.samples(device))

    def is_away(self, device: int) -> bool:
        """Whether the device is unavailable."""
        return bool(self._session.is_away(device))

    # What a session says ------------------------------------------------------------------------------------------

    def pick(self, count: int, idle: Devices, excluding: Collection[int] = ()) -> list[int]:
        """Up to `count` of the idle devices without the excluded ones, as the selector chooses."""
        if len(excluding):
            idle = idle[~np.isin(idle, np.fromiter(excluding, dtype=np.int32))]
        if not len(idle):
            return []
        self._catch_up()
        picked = [int(device) for device in self.selector.pick(count, idle, self.state, self)]
        if len(picked) > count or len(set(picked)) < len(picked) or not set(picked) <= set(idle.tolist()):
            raise PolicyError(
                f"{type(self.selector).__name__} picked {picked}: must be up to {count} distinct idle devices"
            )
        return picked

    def ordered(self, device: int, ticket: int) -> None:
        """Note that a device was given an order."""
        self._sent[ticket] = self._session.now
        self._notify(lambda view: self.selector.ordered(device, self.state, view))

    def uploaded(self, update: Update) -> None:
        """Note an upload. Its loss is read when the selector gets the notice."""
        now, version = self._session.now, self._session.version
        seconds, reads = now - self._sent.pop(update.ticket), self.selector.reads

        def notice(view: SelectionView) -> None:
            report = Report(
                device=update.device,
                samples=update.samples,
                seconds=seconds,
                staleness=version - update.base,
                version=version,
                loss=loss_of(update, reads) if reads is not None else float("nan"),
            )
            self.selector.uploaded(report, self.state, view)

        self._notify(notice)

    def lost(self, device: int, ticket: int) -> None:
        """Note that an order was lost, and that its device is away."""
        del self._sent[ticket]
        self.left(device)

    def came(self, device: int) -> None:
        """Note that a device is available."""
        self._notify(lambda view: self.selector.came(device, self.state, view))

    def left(self, device: int) -> None:
        """Note that a device is away."""
        self._notify(lambda view: self.selector.left(device, self.state, view))

    def committed(self) -> None:
        """Note a new version."""
        self._notify(lambda view: self.selector.committed(self.state, view))

    def _notify(self, notice: Notice) -> None:
        if self.selector.reads is None:
            notice(self)
        else:
            self._notices.append((_Moment(self._session.version, self._session.now), notice))

    def _catch_up(self) -> None:
        """Give the selector the notices that wait, in order."""
        notices, self._notices = self._notices, []
        for self._moment, notice in notices:
            notice(self)
        self._moment = None

    # Snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> SelectionSnapshot:
        """The state of the selection, for a snapshot of the session. Losses that were not read are read now."""
        self._catch_up()
        return SelectionSnapshot(state=self.state, random=dict(self.random.bit_generator.state), sent=self._sent)

    def restore(self, saved: SelectionSnapshot) -> None:
        """Continue from a snapshot."""
        self.state, self._sent = saved.state, saved.sent
        self.random.bit_generator.state = saved.random

    @property
    def snapshot_types(self) -> tuple[type[Any], ...]:
        """The record types that a snapshot holds."""
        return (SelectionSnapshot, self.selector.State, *self.selector.Records)


def loss_of(update: Update, kind: LossKind) -> float:
    """The loss of an update that a selector reads; nan if the device did not report it.

    >>> from offbeat.core.orders import KnownOutcome, Outcome, Progress
    >>> outcome = KnownOutcome(Outcome(parameters=np.zeros(1, dtype=np.float32), loss=2.0, squared_loss=9.0))
    >>> update = Update(
    ...     device=0, ticket=1, base=0, base_parameters=np.zeros(1), samples=5, progress=Progress(), outcome=outcome
    ... )
    >>> loss_of(update, "squared"), loss_of(update, "mean")
    (3.0, 2.0)
    """
    outcome = update.outcome()
    return float(np.sqrt(outcome.squared_loss)) if kind == "squared" else outcome.loss


def check_states_differ(policy: type[Any], selector: type[Any]) -> None:
    """Raise InvalidInput if a snapshot could not tell the state of the policy from that of the selector."""
    if policy is not selector and policy.__name__ == selector.__name__:
        raise InvalidInput(f"the policy and the selector both have a state class {policy.__name__!r}: rename one")
