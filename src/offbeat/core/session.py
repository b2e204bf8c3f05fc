"""The session: the one owner of the truth of a run, and the gate through which everything passes.

It owns the version, the parameters, who is idle, who is in flight from which base, tickets, timers and counters.
Every event and every action is checked against what is legal before anything changes. An illegal event is the
device's fault (`DeviceFault`, the session is as before); an illegal action is the policy's (`PolicyError`).
It does no IO and has no clock: drivers tell it the time, and carry out the effects that it returns.
"""

from collections import deque
from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from offbeat.core.actions import Action, Commit, Discard, Dispatch, Finish, SendFresh, SetTimer, StopSoon
from offbeat.core.coverage import bytes_down
from offbeat.core.effects import Effect, FreshModel, Settled, StopNotice, TimerSet
from offbeat.core.errors import DeviceFault, Diverged, OffbeatError, PolicyError
from offbeat.core.events import Event, FreshRequested, Left, Lost, Ready, Started, TimerFired, Uploaded
from offbeat.core.forecast import Forecast
from offbeat.core.idle import IdleSet
from offbeat.core.in_flight import OrderInFlight
from offbeat.core.journal import JOURNAL_LINES, Counters, Journal
from offbeat.core.orders import LocalWork, Order
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.core.policy import Policy
from offbeat.core.snapshot import decode, encode
from offbeat.core.states import AWAY, IDLE, TRAINING, TRANSITIONS, WAITING, DeviceState
from offbeat.core.streams import stream
from offbeat.core.update_checks import check_update

NANOSECOND = 9
"""Decimals of a time that matter: timers, and what a simulation compares with them, lie on this grid, so that the tenth
firing of a timer of 0.1 s is at 1 s and not a rounding error before it."""


class Session:
    """See the module's docstring. Satisfies `core.policy.View`, which is all that a policy sees of it."""

    def __init__(
        self,
        policy: Policy,
        *,
        parameters: Vector,
        layout: Layout,
        samples: npt.NDArray[np.int64],
        training: LocalWork,
        seed: int = 0,
        present: npt.NDArray[np.bool_] | None = None,
        forecast: Forecast | None = None,
        horizon: float = inf,
    ) -> None:
        devices = len(samples)
        policy.check(devices)
        if parameters.shape != (layout.size,):
            raise PolicyError(f"the initial model has shape {parameters.shape}, its layout {layout.size} elements")
        self.policy = policy
        self.layout = layout
        self.training = training
        self.forecast = forecast
        self.horizon = horizon
        self.version = 0
        self.parameters = frozen(parameters)
        self.devices = devices
        self.now = 0.0
        self.finished: str | None = None
        self.timers: dict[str, float] = {}
        self.counters = Counters()
        self.journal = Journal()
        self.in_flight: dict[int, OrderInFlight] = {}
        self.received: dict[int, int] = {}
        """Tickets of updates that were delivered and are neither used nor given up yet, with their base."""
        self._samples = samples
        here = np.ones(devices, dtype=bool) if present is None else present
        self._states = bytearray(np.where(here, IDLE, AWAY).astype(np.uint8))
        self._idle = IdleSet(devices, np.flatnonzero(here))
        self.random = stream(seed, "policy")
        self._tickets = 0
        self._plain_order: tuple[float, Order] = (0, training.order(0))
        """The order without changes at the moment it was made for: most policies give that to every device."""
        self.started = False
        self._ticket_of: dict[int, int] = {}
        self.state = policy.init(self)

    # What a policy sees -------------------------------------------------------------------------------------------

    @property
    def idle(self) -> int:
        return len(self._idle)

    def is_idle(self, device: int) -> bool:
        return device in self._idle

    def is_away(self, device: int) -> bool:
        return self._states[device] == AWAY

    def samples(self, device: int) -> int:
        return self._samples.item(device)

    def pick(self, count: int) -> list[int]:
        return self._idle.sample(count, self.random) if count > 0 else []

    def order(self, **changes: Any) -> Order:
        moment: float = self.version
        if self.training.schedule_over != "versions":
            moment = self.training.moment(version=self.version, updates=self.counters.used, time=self.now)
        if changes:
            return self.training.order(moment, **changes)
        if self._plain_order[0] != moment:
            self._plain_order = (moment, self.training.order(moment))
        return self._plain_order[1]

    # Events -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event, at: float) -> list[Effect]:
        """Let the policy react to what happened at this time; returns what the driver has to do about it."""
        try:
            self._check(event, at)
        except DeviceFault:
            self.counters.refused += 1
            raise
        self.now = at
        self._receive(event)
        effects: list[Effect] = []
        for action in self.policy.react(event, self.state, self):
            self._apply(action, effects)
            if self.finished is not None:
                break
        if isinstance(event, FreshRequested) and self._states[event.device] == WAITING:
            effects.append(self._answer(self.in_flight[event.ticket], None))
        return effects

    def _check(self, event: Event, at: float) -> None:
        if self.finished is not None:
            raise DeviceFault(f"the run has ended ({self.finished}): {type(event).__name__} comes too late")
        if not at >= self.now:
            raise OffbeatError(f"a driver went back in time, from {self.now} to {at}")
        match event:  # the most frequent first, and no patterns in it: they are slow
            case Uploaded():
                check_update(event.update, self._flight(event), self.layout)
            case Lost():
                self._flight(event)
            case Started():
                if self.started:
                    raise OffbeatError("a driver started a session twice")
            case TimerFired(name=name):
                if name not in self.timers:
                    raise OffbeatError(f"a driver fired the timer {name!r}, which is not set")
            case Ready(device=device) | Left(device=device):
                self._next_state(device, event, DeviceFault)
            case FreshRequested(device=device, ticket=ticket, progress=progress):
                if not 0 <= progress.slices <= self._flight(event).order.slices:
                    raise DeviceFault(f"device {device}, ticket {ticket}: it claims {progress.slices} slices")

    def _flight(self, event: Uploaded | Lost | FreshRequested) -> OrderInFlight:
        """What the device is at work on, if it holds this ticket and the event is legal for it."""
        flight, device = self.in_flight.get(event.ticket), event.device
        if flight is None or flight.device != device:
            raise DeviceFault(
                f"device {device}: {type(event).__name__} for ticket {event.ticket}, which it does not hold "
                f"({self.journal.story(device)})"
            )
        self._next_state(device, event, DeviceFault)
        return flight

    def _next_state(self, device: int, what: Event | Action, error: type[OffbeatError]) -> DeviceState:
        if not 0 <= device < self.devices:
            raise error(f"{type(what).__name__} for device {device}: there are {self.devices} devices, from 0")
        state = self._states[device]
        following = TRANSITIONS.get((state, type(what)))
        if following is None:
            raise error(
                f"device {device} is {DeviceState(state).name.lower()}: {type(what).__name__} is not possible "
                f"({self.journal.story(device)})"
            )
        return following

    def _receive(self, event: Event) -> None:
        match event:
            case Uploaded():
                device, ticket = event.device, event.ticket
                self._states[device] = IDLE
                self._idle.add(device)
                del self.in_flight[ticket], self._ticket_of[device]
                self.received[ticket] = event.update.base
                self.counters.received += 1
                self.counters.bytes_up += event.update.bytes(self.layout)
                self._note("uploaded", device, ticket)
            case FreshRequested(device=device, ticket=ticket):
                self._states[device] = WAITING
                self.counters.requests += 1
                self._note("asked", device, ticket)
            case Lost(device=device, ticket=ticket):
                self._states[device] = AWAY
                del self.in_flight[ticket], self._ticket_of[device]
                self.counters.lost += 1
                self._note("lost", device, ticket)
            case Ready(device=device):
                self._states[device] = IDLE
                self._idle.add(device)
                self._note("ready", device)
            case Left(device=device):
                self._states[device] = AWAY
                self._idle.remove(device)
                self._note("left", device)
            case TimerFired(name=name):
                del self.timers[name]
                self._note(f"timer {name}")
            case Started():
                self.started = True
                self._note("started")

    # Actions ------------------------------------------------------------------------------------------------------

    def _apply(self, action: Action, effects: list[Effect]) -> None:
        """Carry out an action of the policy; what the driver has to do for it joins the effects."""
        match action:
            case Dispatch():
                device, order = action.device, action.order
                self._states[device] = self._next_state(device, action, PolicyError)
                self._idle.remove(device)
                self._tickets = ticket = self._tickets + 1
                flight = OrderInFlight(
                    device=device, ticket=ticket, order=order, base=self.version, parameters=self.parameters
                )
                self.in_flight[ticket] = flight
                self._ticket_of[device] = ticket
                self.counters.dispatched += 1
                self.counters.bytes_down += bytes_down(order, self.layout)
                self._note("dispatched", device, ticket)
                effects.append(flight)
            case Commit(parameters=parameters, used=used):
                self._commit(parameters, used)
                effects += [Settled(ticket=ticket, used=True) for ticket in used]
            case Discard(ticket=ticket, reason=reason):
                self._check_settled((ticket,))
                del self.received[ticket]
                self.counters.discarded += 1
                self._note(f"discarded ({reason})", None, ticket)
                effects.append(Settled(ticket=ticket, used=False))
            case SendFresh(device=device):
                self._next_state(device, action, PolicyError)
                flight = self.in_flight[self._ticket_of[device]]
                newer = self.version > flight.versions[-1]
                effects.append(self._answer(flight, self.parameters if newer else None))
            case StopSoon(device=device):
                self._next_state(device, action, PolicyError)
                flight = self.in_flight[self._ticket_of[device]]
                if flight.notified:
                    raise PolicyError(f"device {device} was already told to stop ({self.journal.story(device)})")
                self.in_flight[flight.ticket] = replace(flight, notified=True)
                self.counters.notices += 1
                self._note("notified", device, flight.ticket)
                effects.append(StopNotice(device=device, ticket=flight.ticket))
            case SetTimer(name=name, after=after):
                if name in self.timers or not after >= 0.0:
                    raise PolicyError(f"timer {name!r} after {after} s: it is set already, or the time is negative")
                self.timers[name] = round(self.now + after, NANOSECOND)
                effects.append(TimerSet(name=name, at=self.timers[name]))
            case Finish(reason=reason):
                self.finished = reason
                self._note(f"finished ({reason})")
            case _:
                raise PolicyError(f"{action!r} is not an action")

    def _commit(self, parameters: Vector, used: tuple[int, ...]) -> None:
        if parameters.shape != self.parameters.shape:
            raise PolicyError(f"a version of shape {parameters.shape} was committed, not {self.parameters.shape}")
        if parameters.dtype != np.float32:
            with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused next
                parameters = parameters.astype(np.float32)
        parameters = frozen(parameters)
        if not np.isfinite(parameters).all():
            raise Diverged(f"version {self.version + 1} is not finite: lower the learning rate or the mixing weight")
        self._check_settled(used)
        for ticket in used:
            staleness = self.version - self.received.pop(ticket)
            self.counters.staleness_sum += staleness
            if staleness > self.counters.staleness_max:
                self.counters.staleness_max = staleness
        self.counters.used += len(used)
        self.parameters = parameters
        self.version += 1
        self._note("committed")

    def _check_settled(self, tickets: tuple[int, ...]) -> None:
        """An update is used or given up once, after it was delivered."""
        named = set[int]()
        for ticket in tickets:
            if ticket not in self.received or ticket in named:
                raise PolicyError(
                    f"ticket {ticket} is not a delivered update, or it was used before ({self.journal.story(None)})"
                )
            named.add(ticket)

    def _answer(self, flight: OrderInFlight, parameters: Vector | None) -> FreshModel:
        self._states[flight.device] = TRAINING
        if parameters is not None:
            given = (*flight.fresh, (self.version, parameters))
            self.in_flight[flight.ticket] = replace(flight, fresh=given)
            self.counters.answered += 1
            self.counters.bytes_down += self.layout.bytes
        self._note("answered" if parameters is not None else "nothing newer", flight.device, flight.ticket)
        return FreshModel(device=flight.device, ticket=flight.ticket, version=self.version, parameters=parameters)

    # Versions in use ----------------------------------------------------------------------------------------------

    def kept(self, version: int) -> Vector:
        """The parameters of a version that something in flight refers to."""
        return self.models[version]

    @property
    def kept_versions(self) -> int:
        return len(self.models)

    @property
    def models(self) -> dict[int, Vector]:
        """All of these. It is the flights that keep them: with the last one that refers to a version it is gone."""
        found: dict[int, Vector] = {}
        for flight in self.in_flight.values():
            found[flight.base] = flight.parameters
            found.update(flight.fresh)
        return found

    def _note(self, what: str, device: int | None = None, ticket: int | None = None) -> None:
        line = (self.now, what, device, ticket, self.version)
        self.journal.lines.append(line)
        if self.journal.record is not None:
            self.journal.record(line)

    # Snapshots ----------------------------------------------------------------------------------------------------

    _SAVED = ("version", "parameters", "now", "finished", "timers", "counters", "in_flight", "received", "state")

    def snapshot(self) -> dict[str, Any]:
        """Everything that the future depends on, as values that `core.snapshot.encode` understands."""
        saved = {name: getattr(self, name) for name in self._SAVED}
        return saved | {
            "idle": self._idle.members(),
            "states": np.frombuffer(bytes(self._states), dtype=np.uint8),
            "random": self.random.bit_generator.state,
            "tickets": self._tickets,
            "started": self.started,
            "journal": list(self.journal.lines),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot of a session with the same policy, devices and seed."""
        for name in self._SAVED:
            setattr(self, name, saved[name])
        kept = {version: frozen(parameters) for version, parameters in self.models.items()}
        self.parameters = kept[self.version] if self.version in kept else frozen(self.parameters)
        self.in_flight = {
            ticket: replace(
                flight,
                parameters=kept[flight.base],
                fresh=tuple((version, kept[version]) for version, _ in flight.fresh),
            )
            for ticket, flight in self.in_flight.items()
        }
        self._ticket_of = {flight.device: ticket for ticket, flight in self.in_flight.items()}
        self._idle = IdleSet(self.devices, saved["idle"])
        self._states = bytearray(saved["states"])
        self.random.bit_generator.state = saved["random"]
        self._tickets = saved["tickets"]
        self.started = saved["started"]
        self.journal.lines = deque(saved["journal"], maxlen=JOURNAL_LINES)

    @property
    def snapshot_types(self) -> tuple[type[Any], ...]:
        """The dataclasses that a snapshot holds beside the messages."""
        return (OrderInFlight, Counters, self.policy.State, *self.policy.Records)

    def copied(self) -> dict[str, Any]:
        """A snapshot that shares nothing with this session: for tests and for replays."""
        tree, arrays = encode(self.snapshot())
        copies = {name: array.copy() for name, array in arrays.items()}
        return dict(decode(tree, copies, self.snapshot_types))
