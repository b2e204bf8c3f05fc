"""The session of a run: events come in, the policy reacts with actions, and effects go out to the driver.

A session owns the version, the parameters, the idle devices, the orders in flight, tickets, timers and counters; only
it changes them. Every event and every action is checked before anything changes, and the transition table of
`core.state` alone decides the next state of a device. An illegal event raises `DeviceFault` and changes nothing but the
count of refused messages; an illegal action raises `PolicyError`. A session does no IO and has no clock: a driver
passes the time with each event and carries out the effects.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from offbeat.core.combining import Combiner, Contributions, Movement, Screen
from offbeat.core.coverage import bytes_down
from offbeat.core.errors import DeviceFault, Diverged, InvalidInput, OffbeatError, PolicyError
from offbeat.core.messages import (
    Action,
    Commit,
    Discard,
    Dispatch,
    Effect,
    Event,
    Finish,
    FreshModel,
    FreshRequested,
    Left,
    Lost,
    Ready,
    Resolved,
    SendFresh,
    SetTimer,
    Started,
    StopNotice,
    StopSoon,
    TimerFired,
    TimerSet,
    Uploaded,
)
from offbeat.core.orders import LocalWork, Order, Update, WithheldOutcome
from offbeat.core.parameters import Layout, Vector, frozen, movement_norm
from offbeat.core.participation import Participation, ParticipationLimits, ParticipationState, sample_of
from offbeat.core.policy import Forecast, Policy
from offbeat.core.selection import Selection, SelectionSnapshot, Selector, check_states_differ
from offbeat.core.snapshot import decode, encode
from offbeat.core.state import (
    AWAY,
    FOLLOWING,
    IDLE,
    JOURNAL_LINES,
    TRAINING,
    TRANSITIONS,
    WAITING,
    Counters,
    DeviceState,
    IdleSet,
    Journal,
    JournalLine,
    OrderInFlight,
    check_update,
    moment,
)
from offbeat.core.streams import stream
from offbeat.core.sums import RunningSum, SumState
from offbeat.core.vectors import StoredInMemory, VectorStore

NO_OWN_WORK: Mapping[int, tuple[int | None, int | None]] = MappingProxyType({})
MOST_TIMERS_AT_ONCE = 1000
"""Timers of 0 s that a policy may set at one time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SessionSnapshot:
    """The state of a session, from which a run can continue."""

    version: int
    parameters: Vector
    now: float
    finished: str | None
    timers: dict[str, float]
    counters: Counters
    in_flight: dict[int, OrderInFlight]
    received: dict[int, int]
    state: Any
    """The state of the policy."""
    idle: npt.NDArray[np.int32]
    states: npt.NDArray[np.uint8]
    random: dict[str, Any]
    tickets: int
    started: bool
    horizon_read: bool
    journal: list[JournalLine]
    selection: SelectionSnapshot | None = None
    participation: ParticipationState | None = None
    combiner: Any = None
    """The state of the combiner."""
    screen: Any = None
    """The state of the screen."""
    sums: SumState | None = None


class Session:
    """The state of a run; it satisfies `core.policy.View`, which is all that a policy sees of it."""

    __slots__ = (
        "_by_version",
        "_changes",
        "_horizon",
        "_idle",
        "_own_work",
        "_plain_order",
        "_samples",
        "_seed",
        "_selection",
        "_stalled",
        "_states",
        "_ticket_of",
        "_tickets",
        "_trusted",
        "_weights",
        "combiner",
        "combiner_state",
        "counters",
        "devices",
        "finished",
        "forecast",
        "horizon_read",
        "in_flight",
        "journal",
        "layout",
        "local",
        "now",
        "parameters",
        "participation",
        "policy",
        "random",
        "received",
        "screen",
        "screen_state",
        "started",
        "state",
        "store",
        "sums",
        "timers",
        "version",
    )

    def __init__(
        self,
        policy: Policy,
        *,
        parameters: Vector,
        layout: Layout,
        samples: npt.NDArray[np.int64],
        local: LocalWork,
        seed: int = 0,
        present: npt.NDArray[np.bool_] | None = None,
        forecast: Forecast | None = None,
        horizon: float = inf,
        buffers: Literal["average", "local", "ignore"] = "average",
        own_work: Mapping[int, tuple[int | None, int | None]] = NO_OWN_WORK,
        selector: Selector | None = None,
        limits: ParticipationLimits | None = None,
        order_fields: Mapping[str, Any] = MappingProxyType({}),
        combiner: Combiner | None = None,
        screen: Screen | None = None,
        sums_only: bool = False,
        store: VectorStore | None = None,
        trusted: Callable[[Vector, int], Vector] | None = None,
    ) -> None:
        """`own_work` are the slices and the batch size of single devices, where they differ from `local`.

        `selector` chooses the devices that `pick` returns; None: a uniform draw. `limits` bounds how often devices
        contribute; `order_fields` are fields of every order. `sums_only` withholds single updates from the policy.
        """
        devices = len(samples)
        policy.check(devices)
        if combiner is not None:
            check_combines(policy, combiner)
            combiner.check(devices)
        if sums_only:
            check_sums(policy, combiner, selector)
        if parameters.shape != (layout.size,):
            raise PolicyError(f"the initial model has shape {parameters.shape}, its layout {layout.size} elements")
        self.policy = policy
        self.layout = layout
        self.local = local
        self.forecast = forecast
        self._horizon = horizon
        self.horizon_read = False
        """Whether the policy has asked when the run ends: then a longer run would have gone another way."""
        self.version = 0
        self.parameters = frozen(parameters)
        self.devices = devices
        self.now = 0.0
        self.finished: str | None = None
        self.timers: dict[str, float] = {}
        self._stalled = (-1.0, 0)
        """A time, and how many timers of 0 s were set at it."""
        self.counters = Counters()
        self.journal = Journal()
        self.in_flight: dict[int, OrderInFlight] = {}
        self.received: dict[int, int] = {}
        """The base of every received update that is not resolved, by ticket."""
        self.store: VectorStore = StoredInMemory() if store is None else store
        """Keeps vectors outside the memory of the process if the driver can."""
        self._samples = samples
        self._weights = samples if screen is None else screen.capped(samples)
        self._own_work = own_work
        here = np.ones(devices, dtype=bool) if present is None else present
        self._states = bytearray(np.where(here, IDLE, AWAY).astype(np.uint8))
        self._idle = IdleSet(devices, np.flatnonzero(here))
        self._seed = seed
        self.random = stream(seed, "policy")
        self._tickets = 0
        self._by_version = local.schedule_over == "versions"
        self._changes: dict[str, Any] = {} if buffers == "average" else {"buffers": buffers}
        """Fields of every order that the `[local]` table does not say."""
        self._changes |= order_fields
        if selector is not None and selector.reads == "squared":
            self._changes["squared_loss"] = True
        self._plain_order: tuple[float, Order] = (0, local.order(0, **self._changes))
        """The order without changes and its moment; cached because most policies give it to every device."""
        self.started = False
        self._ticket_of: dict[int, int] = {}
        self._selection = None if selector is None else Selection(selector, self, seed)
        if selector is not None:
            check_states_differ(policy.State, selector.State)
        self.participation = None if limits is None else Participation(limits, devices)
        """How often each device has contributed; None unless the run limits it."""
        self.combiner = combiner
        self.screen = screen
        self.sums = RunningSum() if sums_only else None
        self._trusted = trusted
        self.combiner_state: Any = None if combiner is None else combiner.init(self)
        self.screen_state: Any = None if screen is None else screen.init(self)
        self.state = policy.init(self)

    # What a policy sees -------------------------------------------------------------------------------------------

    @property
    def training(self) -> LocalWork:
        """Former name of `local`."""
        return self.local

    @property
    def horizon(self) -> float:
        """Seconds after which the run ends; infinite if time does not end it."""
        self.horizon_read = True
        return self._horizon

    @property
    def idle(self) -> int:
        """Number of devices that are available and have no order."""
        return len(self._idle)

    def is_idle(self, device: int) -> bool:
        """Whether the device is available and has no order."""
        return device in self._idle

    def is_away(self, device: int) -> bool:
        """Whether the device is unavailable."""
        return self._states[device] == AWAY

    def state_of(self, device: int) -> DeviceState:
        """The state of a device."""
        return DeviceState(self._states[device])

    @property
    def private_sums(self) -> bool:
        """Whether versions protect single devices. Updates whose numbers are not finite are then admitted, because a
        refusal would reveal them, and the combiner counts them as zero."""
        return self.participation is not None and not self.participation.limits.orders

    def samples(self, device: int) -> int:
        """Number of samples on the device, or the cap on what it may claim."""
        return self._weights.item(device)

    def held_samples(self, device: int) -> int:
        """Number of samples on the device, of which its training time depends."""
        return self._samples.item(device)

    def pick(self, count: int, excluding: Collection[int] = ()) -> list[int]:
        """Choose up to `count` idle devices that are not excluded: as the selector says, or uniformly.

        Devices that may not contribute any more are never chosen.
        """
        if count <= 0:
            return []
        idle = None
        if self.participation is not None:
            idle = self.participation.allowed(self._idle.members(), self.version + 1)
        if self._selection is not None:
            return self._selection.pick(count, self._idle.members() if idle is None else idle, excluding)
        if idle is not None:
            return sample_of(idle, count, excluding, self.random)
        if not excluding:
            return self._idle.sample(count, self.random)
        drawn = self._idle.sample(count + len(excluding), self.random)
        return [device for device in drawn if device not in excluding][:count]

    def order(self, **changes: Any) -> Order:
        """Make an order from the `[local]` table at this moment, with some fields changed."""
        moment: float = self.version
        if not self._by_version:
            moment = self.local.moment(version=self.version, updates=self.counters.used, time=self.now)
        if changes:
            return self.local.order(moment, **(self._changes | changes))
        if self._plain_order[0] != moment:
            self._plain_order = (moment, self.local.order(moment, **self._changes))
        return self._plain_order[1]

    def combine(self, contributions: Contributions) -> Movement:
        """The combined movement by `combiner`, which there must be."""
        assert self.combiner is not None
        return self.combiner.combine(contributions, self.combiner_state, self)

    def trusted_movement(self) -> Vector:
        """The movement that training on the server's trusted samples gives the current version."""
        if self._trusted is None:
            raise InvalidInput(f"{type(self.combiner).__name__} needs trusted samples, and this server has none")
        return self._trusted(self.parameters, self.version)

    def stream(self, role: str, *keys: int) -> np.random.Generator:
        """A random generator that depends on the seed, the role and the keys only."""
        return stream(self._seed, role, *keys)

    def own_metrics(self) -> dict[str, float]:
        """The metrics of the policy, of the combiner and of the screen; epsilon if the run is private."""
        found = dict(self.policy.metrics(self.state))
        if self.participation is not None:
            found["epsilon"] = self.participation.epsilon
        for part, state in ((self.combiner, self.combiner_state), (self.screen, self.screen_state)):
            if part is not None:
                found |= part.metrics(state)
        return found

    @property
    def influence_columns(self) -> Mapping[str, Sequence[float]]:
        """The screen's columns of `devices.csv`; empty without a screen."""
        return {} if self.screen is None else self.screen.columns(self.screen_state, self.devices)

    # Devices ------------------------------------------------------------------------------------------------------

    def _following(self, device: int, what: Event | Action, error: type[OffbeatError]) -> DeviceState:
        """The next state of a device; raises `error` if what happens to it is illegal now."""
        if not 0 <= device < self.devices:
            raise error(f"{type(what).__name__} for device {device}: device numbers go from 0 to {self.devices - 1}")
        following = FOLLOWING[type(what)][self._states[device]]
        if following is None:
            raise error(
                f"device {device} is {self.state_of(device).name.lower()}: {type(what).__name__} is not possible "
                f"({self.journal.last(device)})"
            )
        return following

    def _transition(self, device: int, following: DeviceState) -> None:
        """Change the state of a device, and the idle set with it. No other code does."""
        if following is IDLE:
            self._idle.add(device)
        elif self._states[device] == IDLE:
            self._idle.remove(device)
        self._states[device] = following

    # Events -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, at: float) -> list[Effect]:
        """Let the policy react to an event at this time; returns the effects that the driver carries out."""
        try:
            following, norm = self._check(event, at), 0.0
            if self.screen is not None and type(event) is Uploaded and self.screen.measures:
                norm = self._norm(event.update)
        except DeviceFault:
            self.refuse()
            raise
        self.now = at
        self._receive(event, following)
        if self.screen is not None and type(event) is Uploaded:
            event = replace(event, update=self.screen.admit(event.update, norm, self.screen_state, self))
        if self.sums is not None and type(event) is Uploaded:
            event = replace(event, update=self._summed(event.update, self.sums))
        if self._selection is not None:
            self._tell_selection(event, self._selection)
        effects: list[Effect] = []
        for action in self.policy.react(event, self.state, self):
            self._apply(action, effects)
            if self.finished is not None:
                break
        if self.participation is not None and not self.in_flight and self.participation.exhausted(self.version + 1):
            self.finished = self.finished or self.participation.limits.reason
        if type(event) is FreshRequested and self._states[event.device] == WAITING:
            effects.append(self._answer(self.in_flight[event.ticket], TRANSITIONS[WAITING, SendFresh], None))
        return effects

    def _summed(self, update: Update, sums: RunningSum) -> Update:
        """Add an update to the running sum; returns it without its numbers."""
        return sums.add(update, self.policy.weight_in_sum(replace(update, outcome=WithheldOutcome()), self))

    def _tell_selection(self, event: Event, selection: Selection) -> None:
        match event:
            case Uploaded(update=update):
                selection.uploaded(update)
            case Lost(device=device, ticket=ticket):
                selection.lost(device, ticket)
            case Ready(device=device):
                selection.came(device)
            case Left(device=device):
                selection.left(device)

    def refuse(self) -> None:
        """Count a message of a device that was refused, here or before it became an event."""
        self.counters.refused += 1

    def _check(self, event: Event, at: float) -> DeviceState:
        """The next state of the event's device; AWAY if the event concerns none. Raises if the event is illegal."""
        if self.finished is not None:
            raise DeviceFault(f"the run has ended ({self.finished}): {type(event).__name__} came too late")
        if not at >= self.now:
            raise OffbeatError(f"the driver went back in time, from {self.now} to {at}")
        match event:  # the most frequent first, and without attribute patterns, which are slow
            case Uploaded():
                order = self._order_of(event)
                following = self._following(event.device, event, DeviceFault)
                private = self.participation is not None and self.private_sums
                measured = self.screen is not None and self.screen.measures
                check_update(event.update, order, self.layout, finite=not (private or measured))
                if private:
                    self._check_contributes(event)
                return following
            case Lost():
                self._order_of(event)
                return self._following(event.device, event, DeviceFault)
            case Started():
                if self.started:
                    raise OffbeatError("the driver started the session twice")
            case TimerFired(name=name):
                if name not in self.timers:
                    raise OffbeatError(f"the driver fired the timer {name!r}, which is not set")
            case Ready(device=device) | Left(device=device):
                return self._following(device, event, DeviceFault)
            case FreshRequested(device=device, ticket=ticket, progress=progress):
                order = self._order_of(event)
                following = self._following(device, event, DeviceFault)
                if not 0 <= progress.slices <= order.order.slices:
                    raise DeviceFault(
                        f"device {device}, ticket {ticket}: reports {progress.slices} of {order.order.slices} slices"
                    )
                return following
        return AWAY

    def _norm(self, update: Update) -> float:
        """The norm of a checked update's movement; raises DeviceFault if its numbers are not finite."""
        norm = movement_norm(update.parameters, update.base_parameters)
        if not isfinite(norm) and not self.private_sums:
            check_update(update, self.in_flight[update.ticket], self.layout)
        return norm

    def _check_contributes(self, event: Uploaded) -> None:
        """Raise DeviceFault if the device of this update may not contribute."""
        assert self.participation is not None
        if not self.participation.allows(event.device, self.version + 1):
            raise DeviceFault(f"device {event.device}, ticket {event.ticket}: it may not contribute any more")

    def _order_of(self, event: Uploaded | Lost | FreshRequested) -> OrderInFlight:
        """The order in flight of an event; raises DeviceFault if the event's device does not hold that ticket."""
        found = self.in_flight.get(event.ticket)
        if found is None or found.device != event.device:
            raise DeviceFault(
                f"device {event.device}: {type(event).__name__} for ticket {event.ticket}, which it does not hold "
                f"({self.journal.last(event.device)})"
            )
        return found

    def _receive(self, event: Event, following: DeviceState) -> None:
        match event:
            case Uploaded():
                device, ticket = event.device, event.ticket
                self._transition(device, following)
                del self.in_flight[ticket], self._ticket_of[device]
                self.received[ticket] = event.update.base
                if self.participation is not None:
                    self.participation.receive(ticket, device)
                self.counters.received += 1
                self.counters.bytes_up += event.update.bytes(self.layout)
                self._note("uploaded", device, ticket)
            case FreshRequested(device=device, ticket=ticket):
                self._transition(device, following)
                self.counters.requests += 1
                self._note("asked", device, ticket)
            case Lost(device=device, ticket=ticket):
                self._transition(device, following)
                del self.in_flight[ticket], self._ticket_of[device]
                self.counters.lost += 1
                self._note("lost", device, ticket)
            case Ready(device=device):
                self._transition(device, following)
                self._note("ready", device)
            case Left(device=device):
                self._transition(device, following)
                self._note("left", device)
            case TimerFired(name=name):
                del self.timers[name]
                self._note(f"timer {name}")
            case Started():
                self.started = True
                self._note("started")

    # Actions ------------------------------------------------------------------------------------------------------

    def _apply(self, action: Action, effects: list[Effect]) -> None:
        """Apply an action of the policy, and append what the driver has to do to the effects."""
        match action:
            case Dispatch():
                device, order = action.device, action.order
                if device in self._own_work:
                    order = self._own_order(device, order)
                following = self._following(device, action, PolicyError)
                if self.participation is not None and not self.participation.allows(device, self.version + 1):
                    raise PolicyError(f"device {device} may not contribute any more ({self.journal.last(device)})")
                self._transition(device, following)
                if self.participation is not None:
                    self.participation.order(device)
                self._tickets = ticket = self._tickets + 1
                dispatched = OrderInFlight(
                    device=device, ticket=ticket, order=order, base=self.version, parameters=self.parameters
                )
                self.in_flight[ticket] = dispatched
                self._ticket_of[device] = ticket
                self.counters.dispatched += 1
                size = self.layout.bytes if order.width == 1.0 else bytes_down(order, self.layout)
                self.counters.bytes_down += size
                self._note("dispatched", device, ticket)
                if self._selection is not None:
                    self._selection.ordered(device, ticket)
                effects.append(dispatched)
            case Commit(parameters=parameters, used=used):
                if self.participation is not None:
                    self._check_received(used)
                self._commit(parameters, used)
                if used:
                    effects.append(Resolved(tickets=used, used=True))
            case Discard(ticket=ticket, reason=reason):
                self._check_received((ticket,))
                del self.received[ticket]
                if self.participation is not None:
                    self.participation.discard(ticket)
                self.counters.discarded += 1
                if self.screen is not None:
                    self.screen.resolved((ticket,), False, self.screen_state)
                self._note(f"discarded ({reason})", None, ticket)
                effects.append(Resolved(tickets=(ticket,), used=False))
            case SendFresh(device=device):
                following = self._following(device, action, PolicyError)
                asked = self.in_flight[self._ticket_of[device]]
                newer = self.version > asked.versions[-1]
                effects.append(self._answer(asked, following, self.parameters if newer else None))
            case StopSoon(device=device):
                following = self._following(device, action, PolicyError)
                working = self.in_flight[self._ticket_of[device]]
                if working.notified:
                    raise PolicyError(f"device {device} was already told to stop ({self.journal.last(device)})")
                self._transition(device, following)
                self.in_flight[working.ticket] = replace(working, notified=True)
                self.counters.notices += 1
                self._note("notified", device, working.ticket)
                effects.append(StopNotice(device=device, ticket=working.ticket))
            case SetTimer(name=name, after=after):
                if name in self.timers or not after >= 0.0:
                    raise PolicyError(f"timer {name!r} after {after} s: it is already set, or the time is negative")
                self.timers[name] = moment(self.now + after)
                self._check_clock_advances(name)
                effects.append(TimerSet(name=name, at=self.timers[name]))
            case Finish(reason=reason):
                self.finished = reason
                self._note(f"finished ({reason})")
            case _:
                raise PolicyError(f"{action!r} is not an action")

    def _own_order(self, device: int, order: Order) -> Order:
        """The order with the device's own batch size and, if it has the usual number of slices, its own number."""
        slices, batch_size = self._own_work[device]
        if slices is not None and (order.unit, order.slices) == (self.local.unit, self.local.slices):
            order = replace(order, slices=slices)
        return order if batch_size is None else replace(order, batch_size=batch_size)

    def _check_clock_advances(self, name: str) -> None:
        """Raise PolicyError if timers of 0 s follow each other without end: no other event could ever happen."""
        if self.timers[name] > self.now:
            return
        at, count = self._stalled
        self._stalled = (self.now, count + 1 if at == self.now else 1)
        if self._stalled[1] > MOST_TIMERS_AT_ONCE:
            raise PolicyError(
                f"timer {name!r} was set to 0 s more than {MOST_TIMERS_AT_ONCE} times at {self.now:g} s: the clock "
                "would never advance"
            )

    def _commit(self, parameters: Vector, used: tuple[int, ...]) -> None:
        if parameters.shape != self.parameters.shape:
            raise PolicyError(f"a version of shape {parameters.shape} was committed, not {self.parameters.shape}")
        if parameters.dtype != np.float32:
            with np.errstate(over="ignore"):  # overflow becomes infinity, which is refused below
                parameters = parameters.astype(np.float32)
        parameters = frozen(parameters)
        if not np.isfinite(parameters).all():
            raise Diverged(f"version {self.version + 1} is not finite: lower the learning rate or the mixing weight")
        self._check_received(used)
        if self.participation is not None:
            self.participation.commit(used, self.version + 1)
        for ticket in used:
            staleness = self.version - self.received.pop(ticket)
            self.counters.staleness_sum += staleness
            if staleness > self.counters.staleness_max:
                self.counters.staleness_max = staleness
        self.counters.used += len(used)
        if self.screen is not None:
            self.screen.resolved(used, True, self.screen_state)
        self.parameters = self._kept(parameters)
        self.version += 1
        self._note("committed")
        if self._selection is not None:
            self._selection.committed()

    def _check_received(self, tickets: tuple[int, ...]) -> None:
        """Raise PolicyError unless these updates are received and not resolved."""
        named = set(tickets)
        if len(named) == len(tickets) and named <= self.received.keys():
            return
        wrong = next(each for each in tickets if each not in self.received or tickets.count(each) > 1)
        raise PolicyError(
            f"ticket {wrong} is not a received update, or was resolved before ({self.journal.last(None)})"
        )

    def _answer(self, asked: OrderInFlight, following: DeviceState, parameters: Vector | None) -> FreshModel:
        """Reply to a device that asked for a newer version; `parameters` is None if there is none."""
        self._transition(asked.device, following)
        if parameters is not None:
            given = (*asked.fresh, (self.version, parameters))
            self.in_flight[asked.ticket] = replace(asked, fresh=given)
            self.counters.answered += 1
            self.counters.bytes_down += self.layout.bytes
        self._note("answered" if parameters is not None else "nothing newer", asked.device, asked.ticket)
        return FreshModel(device=asked.device, ticket=asked.ticket, version=self.version, parameters=parameters)

    # Versions in use ----------------------------------------------------------------------------------------------

    def _kept(self, version: Vector) -> Vector:
        """A version as the session keeps it: where the policy keeps vectors on disk, versions are there too."""
        return self.store.mapped(version) if getattr(self.policy, "cache", None) == "disk" else version

    @property
    def models(self) -> dict[int, Vector]:
        """Parameters of every version that an order in flight refers to."""
        found: dict[int, Vector] = {}
        for each in self.in_flight.values():
            found[each.base] = each.parameters
            found.update(each.fresh)
        return found

    def _note(self, what: str, device: int | None = None, ticket: int | None = None) -> None:
        self.journal.lines.append((self.now, what, device, ticket, self.version))

    # Audit --------------------------------------------------------------------------------------------------------

    def audit(self) -> list[str]:
        """Violated invariants, a sentence each; empty unless there is a bug."""
        states, counters = np.frombuffer(bytes(self._states), dtype=np.uint8), self.counters
        working = sorted(each.device for each in self.in_flight.values())
        invariants = {
            "the idle set and the states disagree": sorted(self._idle) == np.flatnonzero(states == IDLE).tolist(),
            "orders in flight and states disagree": working
            == np.flatnonzero((states == TRAINING) | (states == WAITING)).tolist(),
            "a device and its order in flight disagree": self._ticket_of
            == {each.device: ticket for ticket, each in self.in_flight.items()},
            "an order is not accounted for": counters.dispatched == counters.received + counters.lost + len(working),
            "an update is missing": counters.received == counters.used + counters.discarded + len(self.received),
            "an update comes from the future": all(base <= self.version for base in self.received.values()),
            "the running sum has an update that was resolved": self.sums is None
            or self.sums.tickets <= self.received.keys(),
            "the model is not finite": bool(np.isfinite(self.parameters).all()),
            "the model can be written to": not self.parameters.flags.writeable,
        }
        return [sentence for sentence, kept in invariants.items() if not kept]

    # Snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> SessionSnapshot:
        """The state of the session, as values that `core.snapshot.encode` understands."""
        return SessionSnapshot(
            version=self.version,
            parameters=self.parameters,
            now=self.now,
            finished=self.finished,
            timers=self.timers,
            counters=self.counters,
            in_flight=self.in_flight,
            received=self.received,
            state=self.state,
            idle=self._idle.members(),
            states=np.frombuffer(bytes(self._states), dtype=np.uint8),
            random=dict(self.random.bit_generator.state),
            tickets=self._tickets,
            started=self.started,
            horizon_read=self.horizon_read,
            journal=list(self.journal.lines),
            selection=None if self._selection is None else self._selection.snapshot(),
            participation=None if self.participation is None else self.participation.snapshot(),
            combiner=self.combiner_state,
            screen=self.screen_state,
            sums=None if self.sums is None else self.sums.snapshot(),
        )

    def restore(self, saved: SessionSnapshot, forecast: Forecast | None = None) -> None:
        """Continue from a snapshot of a session with the same policy, devices and seed.

        `forecast` replaces the session's own, because a server that resumes may have measured its devices again.
        """
        self.version, self.now, self.finished, self.started = saved.version, saved.now, saved.finished, saved.started
        self.timers, self.counters, self.received, self.state = (
            saved.timers,
            saved.counters,
            saved.received,
            saved.state,
        )
        if self.participation is not None:
            assert saved.participation is not None, "the snapshot is of a run without limits of participation"
            self.participation.restore(saved.participation)
        self.combiner_state, self.screen_state = saved.combiner, saved.screen
        if self.sums is not None:
            self.sums = RunningSum(saved.sums)
        self.horizon_read = saved.horizon_read
        self.forecast = forecast or self.forecast
        self.in_flight = saved.in_flight
        kept = {version: self._kept(frozen(parameters)) for version, parameters in self.models.items()}
        self.parameters = kept[self.version] if self.version in kept else self._kept(frozen(saved.parameters))
        self.in_flight = {
            ticket: replace(
                each,
                parameters=kept[each.base],
                fresh=tuple((version, kept[version]) for version, _ in each.fresh),
            )
            for ticket, each in saved.in_flight.items()
        }
        self._ticket_of = {each.device: ticket for ticket, each in self.in_flight.items()}
        self._idle = IdleSet(self.devices, saved.idle)
        self._states = bytearray(saved.states)
        self.random.bit_generator.state = saved.random
        self._tickets = saved.tickets
        if self._selection is not None and saved.selection is not None:
            self._selection.restore(saved.selection)
        self.journal.lines = deque(saved.journal, maxlen=JOURNAL_LINES)

    @property
    def snapshot_types(self) -> tuple[type[Any], ...]:
        """The record types that a snapshot holds in addition to `core.snapshot.MESSAGES`."""
        selection = () if self._selection is None else self._selection.snapshot_types
        own = (SessionSnapshot, ParticipationState, SumState, OrderInFlight, Counters)
        parts = [each for each in (self.policy, self.combiner, self.screen) if each is not None]
        states = [kind for each in parts for kind in (each.State, *each.Records)]
        return (*own, *states, *selection)

    def copied(self) -> SessionSnapshot:
        """A snapshot that shares no memory with this session."""
        tree, arrays = encode(self.snapshot())
        copies = {name: array.copy() for name, array in arrays.items()}
        copy: SessionSnapshot = decode(tree, copies, self.snapshot_types)
        return copy


def check_combines(policy: Policy, combiner: Combiner) -> None:
    """Raise InvalidInput if the policy does not leave the combination of updates to a combiner."""
    if policy.mixes and not combiner.singly:
        raise InvalidInput(
            f"{type(policy).__name__} uses one update at a time, and {type(combiner).__name__} compares several"
        )
    if not (policy.combines or policy.mixes):
        raise InvalidInput(
            f"{type(policy).__name__} does not make its versions from a weighted mean of several updates, which "
            f"{type(combiner).__name__} would replace"
        )


def check_sums(policy: Policy, combiner: Combiner | None, selector: Selector | None) -> None:
    """Raise InvalidInput if the policy or another part of the session reads single updates."""
    reader: Policy | Combiner | Selector | None = combiner if policy.sums_suffice else policy
    if reader is None and selector is not None and selector.reads is not None:
        reader = selector
    if reader is not None:
        raise InvalidInput(f"{type(reader).__name__} reads single updates, of which this session keeps only the sum")
