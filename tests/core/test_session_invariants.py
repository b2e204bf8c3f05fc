"""Whatever devices do, legal or not and in any order, a session stays sound and a restored one goes on alike."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.core.errors import DeviceFault
from offbeat.core.messages import (
    Action,
    Commit,
    Discard,
    Dispatch,
    Event,
    FreshRequested,
    Left,
    Lost,
    Ready,
    SendFresh,
    SetTimer,
    Started,
    StopSoon,
    TimerFired,
    Uploaded,
)
from offbeat.core.orders import KnownOutcome, LocalWork, Outcome, Progress, Update
from offbeat.core.parameters import Layout
from offbeat.core.policy import Policy, View
from offbeat.core.session import Session
from offbeat.core.snapshot import encode
from offbeat.core.state import AWAY, IDLE, TRAINING, WAITING

DEVICES = 4
KINDS = ("ready", "left", "uploaded", "asked", "lost", "timer")


@dataclass
class Desk:
    updates: list[Update] = field(default_factory=list)


class DoesEverything(Policy):
    """Keeps two devices busy, aggregates by twos, discards stale ones, answers every other request, hurries the old."""

    State = Desk

    def react(self, event: Event, state: Desk, view: View) -> Iterator[Action]:
        match event:
            case Started() | TimerFired():
                yield SetTimer(name="tick", after=1.0)
            case Uploaded(update=update) if view.version - update.base > 2:
                yield Discard(ticket=update.ticket, reason="too stale")
            case Uploaded(update=update):
                state.updates.append(update)
            case FreshRequested(device=device, ticket=ticket) if ticket % 2:
                yield SendFresh(device=device)
        if len(state.updates) == 2:
            mean = (state.updates[0].parameters + state.updates[1].parameters) / np.float32(2)
            yield Commit(parameters=mean, used=tuple(update.ticket for update in state.updates))
            state.updates = []
        elif isinstance(event, TimerFired):
            yield Commit(parameters=view.parameters + np.float32(1))
        for flight in list(view.in_flight.values()):
            if view.version - flight.base > 1 and not flight.notified:
                yield StopSoon(device=flight.device)
        for device in view.pick(2 - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order())


def a_session() -> Session:
    return Session(
        DoesEverything(),
        parameters=np.zeros(2, dtype=np.float32),
        layout=Layout.flat(2),
        samples=np.arange(DEVICES),
        local=LocalWork(epochs=2),
        present=np.array([True, True, True, False]),
    )


@dataclass(frozen=True)
class Attempt:
    """Something that a device tries: `ticket` counts from the oldest in flight, so that most attempts come near."""

    kind: str
    device: int
    honest: bool
    ticket: int
    bad: bool

    def event(self, session: Session) -> Event:
        held = list(session.in_flight.values())
        flight = held[self.ticket % len(held)] if held else None
        device = flight.device if flight and self.honest else self.device
        ticket = flight.ticket if flight else self.ticket
        base = flight.base if flight else 0
        match self.kind:
            case "ready":
                return Ready(device=self.device)
            case "left":
                return Left(device=self.device)
            case "asked":
                return FreshRequested(device=device, ticket=ticket, progress=Progress(slices=1))
            case "lost":
                return Lost(device=device, ticket=ticket)
            case "timer":
                return TimerFired(name="tick")
        update = Update(
            device=device,
            ticket=ticket,
            base=base,
            base_parameters=session.models[base] if flight else session.parameters,
            samples=3,
            progress=Progress(slices=2),
            outcome=KnownOutcome(Outcome(parameters=np.full(2, np.nan if self.bad else ticket, dtype=np.float32))),
        )
        return Uploaded(device=device, ticket=ticket, update=update)


ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        kind=st.sampled_from((*KINDS, "uploaded", "uploaded")),
        device=st.integers(-1, DEVICES),
        honest=st.integers(0, 4).map(bool),
        ticket=st.integers(0, 5),
        bad=st.integers(0, 4).map(lambda number: number == 0),
    ),
    max_size=40,
)


def facts(session: Session) -> str:
    """All that the session is, but for how often it refused something."""
    saved = session.copied()
    saved.counters.refused = 0
    tree, arrays = encode(saved)
    return json.dumps(tree) + str({name: array.tolist() for name, array in arrays.items()})


def check(session: Session) -> None:
    saved = session.copied()
    states = saved.states.tolist()
    flights, counters = session.in_flight, session.counters
    assert sorted(saved.idle.tolist()) == [device for device, state in enumerate(states) if state == IDLE]
    assert session.idle == states.count(IDLE)
    assert [session.is_idle(device) for device in range(DEVICES)] == [state == IDLE for state in states]
    assert [session.is_away(device) for device in range(DEVICES)] == [state == AWAY for state in states]
    at_work = [device for device, state in enumerate(states) if state in (TRAINING, WAITING)]
    assert sorted(flight.device for flight in flights.values()) == at_work
    assert WAITING not in states, "between two events every request has been answered"
    assert list(flights) == sorted(flights), "oldest first"
    assert all(ticket == flight.ticket for ticket, flight in flights.items())
    referred = {version for flight in flights.values() for version in flight.versions}
    assert set(session.models) == referred
    assert all(flight.versions[0] == flight.base <= session.version for flight in flights.values())
    assert counters.dispatched == counters.received + counters.lost + len(flights)
    assert counters.received == counters.used + counters.discarded + len(session.received)
    assert set(session.received) == {update.ticket for update in session.state.updates}
    assert counters.answered <= counters.requests
    assert counters.staleness_max <= counters.staleness_sum <= counters.used * session.version
    assert counters.bytes_down == 8 * (counters.dispatched + counters.answered)
    assert counters.bytes_up == 8 * counters.received
    assert np.isfinite(session.parameters).all()


def feed(session: Session, attempts: list[Attempt], at: float) -> None:
    for attempt in attempts:
        with suppress(DeviceFault):
            session.handle(attempt.event(session), at)


@settings(deadline=None)
@given(ATTEMPTS)
def test_no_sequence_of_events_corrupts_a_session(attempts: list[Attempt]) -> None:
    session = a_session()
    session.handle(Started(), 0.0)
    check(session)
    for number, attempt in enumerate(attempts):
        before, refusals = facts(session), session.counters.refused
        try:
            session.handle(attempt.event(session), float(number))
        except DeviceFault:
            assert facts(session) == before
            assert session.counters.refused == refusals + 1
        check(session)


@settings(deadline=None, max_examples=40)
@given(ATTEMPTS, st.integers(0, 40))
def test_a_session_restored_at_any_moment_goes_on_alike(attempts: list[Attempt], moment: int) -> None:
    original, restored = a_session(), a_session()
    original.handle(Started(), 0.0)
    feed(original, attempts[:moment], 1.0)
    restored.restore(original.copied())
    for session in (original, restored):
        feed(session, attempts[moment:], 2.0)
    assert facts(restored) == facts(original)
