"""The session: what is legal, what it counts and keeps, and that the illegal changes nothing.

The policy is a puppet: a test writes the actions it wants into `session.state.script`, and the next event plays them.
"""

import json
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from offbeat.core.errors import DeviceFault, Diverged, InvalidInput, OffbeatError, PolicyError
from offbeat.core.messages import (
    Action,
    Assignment,
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
from offbeat.core.orders import KnownOutcome, LocalWork, Order, Outcome, Progress, Update
from offbeat.core.parameters import Layout, Mask
from offbeat.core.policy import Policy, View
from offbeat.core.session import Session
from offbeat.core.snapshot import encode
from offbeat.core.state import AWAY, IDLE, TRAINING, TRANSITIONS, WAITING, DeviceState
from offbeat.core.terms import Proximal

OTHER = 3
"""A device that no test is about: it comes and goes to let the puppet play its script."""


@dataclass
class Script:
    script: list[Any] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)


class Puppet(Policy):
    State = Script

    def react(self, event: Event, state: Script, view: View) -> Iterator[Action]:
        state.seen.append(type(event).__name__)
        actions, state.script = state.script, []
        for action in actions:
            yield action
            state.versions.append(view.version)


def vector(*numbers: float) -> Any:
    return np.array(numbers, dtype=np.float32)


def a_session(*present: int) -> Session:
    """Four devices, of which those named (all but `OTHER`, if none is) are there; nothing has happened yet."""
    here = np.isin(np.arange(4), present or (0, 1, 2))
    return Session(
        Puppet(),
        parameters=vector(0, 0),
        layout=Layout.flat(2),
        samples=np.array([10, 20, 30, 40]),
        local=LocalWork(epochs=3, batch_size=5),
        present=here,
    )


def play(session: Session, *actions: Any, at: float | None = None) -> list[Effect]:
    """Let the policy do this, on the occasion of `OTHER` coming or going."""
    session.state.script = list(actions)
    coming: Event = Ready(device=OTHER) if session.is_away(OTHER) else Left(device=OTHER)
    return session.handle(coming, session.now if at is None else at)


def dispatch(session: Session, device: int = 0) -> int:
    """Order a device; returns the ticket."""
    (assignment,) = play(session, Dispatch(device=device, order=session.order()))
    assert isinstance(assignment, Assignment)
    return assignment.ticket


def update_of(session: Session, ticket: int, parameters: Any = None, /, **changes: Any) -> Update:
    flight = session.in_flight[ticket]
    fields: dict[str, Any] = {
        "device": flight.device,
        "ticket": ticket,
        "base": flight.base,
        "base_parameters": session.models[flight.base],
        "samples": 10,
        "progress": Progress(slices=3),
        "outcome": KnownOutcome(Outcome(parameters=vector(1, 1) if parameters is None else parameters)),
    }
    return Update(**(fields | changes))


def uploaded(session: Session, ticket: int, parameters: Any = None, /, **changes: Any) -> Uploaded:
    update = update_of(session, ticket, parameters, **changes)
    return Uploaded(device=session.in_flight[ticket].device, ticket=ticket, update=update)


def facts(session: Session) -> str:
    """All that the session is, but for how often it refused something."""
    saved = session.copied()
    saved.counters.refused = 0
    tree, arrays = encode(saved)
    return json.dumps(tree) + str({name: (array.dtype, array.tolist()) for name, array in arrays.items()})


def refused(session: Session, event: Event, match: str = ".") -> None:
    """The event is the device's fault, is counted as such, and changes nothing else."""
    before, count = facts(session), session.counters.refused
    with pytest.raises(DeviceFault, match=match):
        session.handle(event, session.now + 1)
    assert facts(session) == before
    assert session.counters.refused == count + 1


def illegal(session: Session, action: Any, match: str = ".") -> None:
    """The action is the policy's fault and has no effect: all is as if the event had led to no action."""
    reference = a_session()
    reference.restore(session.copied())
    play(reference)
    with pytest.raises(PolicyError, match=match):
        play(session, action)
    assert facts(session) == facts(reference)


# What is legal -------------------------------------------------------------------------------------------------------

LEGAL: dict[tuple[int, type[Any]], DeviceState] = {
    (AWAY, Ready): IDLE,
    (IDLE, Left): AWAY,
    (IDLE, Dispatch): TRAINING,
    (TRAINING, FreshRequested): TRAINING,  # waiting, until the session itself answers that there is nothing newer
    (WAITING, SendFresh): TRAINING,
    (TRAINING, StopSoon): TRAINING,
    (WAITING, StopSoon): WAITING,
    (TRAINING, Uploaded): IDLE,
    (TRAINING, Lost): AWAY,
    (WAITING, Lost): AWAY,
}
EVENTS = (Ready, Left, Uploaded, FreshRequested, Lost)
ACTIONS = (Dispatch, SendFresh, StopSoon)


def a_session_with_device_0(state: DeviceState) -> Session:
    session = a_session()
    if state == AWAY:
        session.handle(Left(device=0), 0.0)
    if state in (TRAINING, WAITING):
        dispatch(session)
    if state == WAITING:  # between two events nobody waits, so it takes a made-up snapshot to get there
        saved = session.copied()
        saved.states[0] = WAITING
        session.restore(saved)
    return session


def event_about_device_0(kind: type[Any], session: Session) -> Event:
    ticket = next(iter(session.in_flight), 1)
    if kind is Uploaded:
        made = update_of(session, ticket) if session.in_flight else an_update_of_nothing()
        return Uploaded(device=0, ticket=ticket, update=made)
    if kind is FreshRequested:
        return FreshRequested(device=0, ticket=ticket, progress=Progress(slices=1))
    if kind is Lost:
        return Lost(device=0, ticket=ticket)
    return Ready(device=0) if kind is Ready else Left(device=0)


def an_update_of_nothing() -> Update:
    done = KnownOutcome(Outcome(parameters=vector(1, 1)))
    return Update(
        device=0, ticket=1, base=0, base_parameters=vector(0, 0), samples=10, progress=Progress(), outcome=done
    )


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", list(DeviceState), ids=lambda state: state.name.lower())
def test_an_event_is_legal_by_the_table_or_is_refused_and_changes_nothing(state: DeviceState, kind: type[Any]) -> None:
    session = a_session_with_device_0(state)
    event = event_about_device_0(kind, session)
    if (state, kind) in LEGAL:
        session.handle(event, 1.0)
        assert session.copied().states[0] == LEGAL[state, kind]
    else:
        refused(session, event, match="device 0")


@pytest.mark.parametrize("kind", ACTIONS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("state", list(DeviceState), ids=lambda state: state.name.lower())
def test_an_action_is_legal_by_the_table_or_is_an_error_without_effect(state: DeviceState, kind: type[Any]) -> None:
    session = a_session_with_device_0(state)
    action = Dispatch(device=0, order=Order()) if kind is Dispatch else kind(device=0)
    if (state, kind) in LEGAL:
        play(session, action)
        assert session.copied().states[0] == LEGAL[state, kind]
    else:
        illegal(session, action, match="device 0 is " + state.name.lower())


def test_the_table_holds_what_these_tests_say_and_nothing_else() -> None:
    assert dict(TRANSITIONS) == LEGAL | {(TRAINING, FreshRequested): WAITING}


@pytest.mark.parametrize("device", [-1, 4, 10**9])
def test_a_device_that_does_not_exist_can_do_nothing_and_be_asked_nothing(device: int) -> None:
    session = a_session()
    ticket = dispatch(session)
    for event in (
        Ready(device=device),
        Left(device=device),
        Lost(device=device, ticket=ticket),
        FreshRequested(device=device, ticket=ticket, progress=Progress()),
        Uploaded(device=device, ticket=ticket, update=update_of(session, ticket)),
    ):
        refused(session, event, match=str(device))
    for action in (Dispatch(device=device, order=Order()), SendFresh(device=device), StopSoon(device=device)):
        session = a_session()
        illegal(session, action, match=f"device {device}: device numbers go from 0 to 3")


def test_nobody_can_be_told_twice_to_stop() -> None:
    session = a_session()
    ticket = dispatch(session)
    assert play(session, StopSoon(device=0)) == [StopNotice(device=0, ticket=ticket)]
    assert session.in_flight[ticket].notified
    assert session.counters.notices == 1
    illegal(session, StopSoon(device=0), match="already told")


def test_what_is_no_action_is_the_policys_fault() -> None:
    illegal(a_session(), "dispatch")


# Drivers -------------------------------------------------------------------------------------------------------------


def test_a_driver_that_goes_back_in_time_or_starts_twice_or_invents_a_timer_is_stopped() -> None:
    session = a_session()
    session.handle(Started(), 1.0)
    before = facts(session)
    for event, at in ((Ready(device=OTHER), 0.5), (Started(), 1.0), (TimerFired(name="deadline"), 1.0)):
        with pytest.raises(OffbeatError) as caught:
            session.handle(event, at)
        assert not isinstance(caught.value, DeviceFault)
    assert facts(session) == before
    assert session.counters.refused == 0


def test_a_driver_without_a_time_is_stopped() -> None:
    with pytest.raises(OffbeatError):
        a_session().handle(Started(), float("nan"))


def test_a_model_that_does_not_fit_its_layout_or_a_policy_that_does_not_fit_the_fleet_is_refused() -> None:
    class Demanding(Puppet):
        def check(self, devices: int) -> None:
            raise InvalidInput(f"not with {devices} devices")

    arguments: dict[str, Any] = {"layout": Layout.flat(2), "samples": np.ones(4, np.int64), "local": LocalWork()}
    with pytest.raises(PolicyError, match="shape"):
        Session(Puppet(), parameters=vector(0, 0, 0), **arguments)
    with pytest.raises(InvalidInput, match="not with 4 devices"):
        Session(Demanding(), parameters=vector(0, 0), **arguments)


# Orders and tickets --------------------------------------------------------------------------------------------------


def test_an_order_takes_the_device_a_fresh_ticket_and_the_current_model() -> None:
    session = a_session()
    play(session, Commit(parameters=vector(5, 6)))
    order = session.order(terms=(Proximal(mu=0.5),))
    first, second = play(session, Dispatch(device=0, order=order), Dispatch(device=2, order=order))
    assert isinstance(first, Assignment)
    assert isinstance(second, Assignment)
    assert (first.ticket, second.ticket) == (1, 2)
    assert (first.device, first.base, first.order) == (0, 1, order)
    assert first.parameters.tolist() == [5.0, 6.0]
    assert not first.parameters.flags.writeable
    assert [session.is_idle(device) for device in range(3)] == [False, True, False]
    assert list(session.in_flight) == [1, 2]
    assert (session.counters.dispatched, session.counters.bytes_down) == (2, 2 * 8)


def test_a_ticket_is_never_given_again() -> None:
    session = a_session()
    tickets = []
    for _ in range(5):
        tickets.append(dispatch(session))
        session.handle(uploaded(session, tickets[-1]), session.now)
    assert tickets == [1, 2, 3, 4, 5]


def test_the_learning_rate_of_an_order_falls_with_the_version() -> None:
    training = LocalWork(learning_rate=1.0, learning_rate_decay=0.5, decay_every=2)
    assert [training.order(version).learning_rate for version in range(5)] == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert training.order(0, slices=7, rule="mine").slices == 7


# Uploads -------------------------------------------------------------------------------------------------------------


def test_an_upload_makes_the_device_idle_and_counts() -> None:
    session = a_session()
    ticket = dispatch(session)
    session.handle(uploaded(session, ticket), 2.0)
    assert session.is_idle(0)
    assert session.received == {ticket: 0}
    assert session.in_flight == {}
    assert (session.counters.received, session.counters.bytes_up) == (1, 8)
    assert session.now == 2.0


def test_a_masked_upload_weighs_what_it_carries() -> None:
    session = a_session()
    session.handle(uploaded(session, dispatch(session), mask=Mask(np.array([True, False]))), 0.0)
    assert session.counters.bytes_up == 4


def test_the_same_upload_twice_and_an_upload_after_a_loss_are_refused() -> None:
    session = a_session()
    event = uploaded(session, dispatch(session))
    session.handle(event, 1.0)
    refused(session, event, match="does not hold")
    late = uploaded(session, dispatch(session))
    session.handle(Lost(device=0, ticket=late.ticket), 2.0)
    refused(session, late, match="does not hold")
    refused(session, Lost(device=0, ticket=late.ticket), match="does not hold")


def test_an_upload_for_an_older_ticket_of_the_same_device_is_refused() -> None:
    session = a_session()
    old = uploaded(session, dispatch(session))
    session.handle(old, 1.0)
    dispatch(session)
    refused(session, old, match="does not hold")


def test_an_upload_by_another_device_is_refused() -> None:
    session = a_session()
    mine, other = dispatch(session, 0), dispatch(session, 1)
    refused(session, Uploaded(device=1, ticket=mine, update=update_of(session, mine)), match="does not hold")
    refused(session, Uploaded(device=2, ticket=mine, update=update_of(session, mine)), match="does not hold")
    refused(
        session, Uploaded(device=0, ticket=mine, update=update_of(session, other)), match="the update is of device 1"
    )


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"device": 1}, "is of device 1"),
        ({"ticket": 9}, "ticket 9"),
        ({"base": 1}, "base 1"),
        ({"base": -1}, "base -1"),
        ({"samples": -1}, "-1 samples"),
        ({"progress": Progress(slices=4)}, "4 slices"),
        ({"progress": Progress(slices=-1)}, "-1 slices"),
        ({"mask": Mask(np.array([True]))}, "mask"),
        ({"mask": Mask(np.array([[True, False]]))}, "mask"),
    ],
    ids=str,
)
def test_an_update_that_contradicts_its_order_is_refused(changes: dict[str, Any], match: str) -> None:
    session = a_session()
    refused(session, uploaded(session, dispatch(session), **changes), match=match)
    assert session.copied().states[0] == TRAINING


@pytest.mark.parametrize(
    "parameters",
    [
        vector(1, np.nan),
        vector(np.inf, 1),
        vector(1, -np.inf),
        vector(1),
        vector(1, 2, 3),
        vector(1, 2).reshape(1, 2),
        np.array([1.0, 2.0], dtype=np.float64),
        np.array([1, 2], dtype=np.int32),
    ],
    ids=str,
)
def test_numbers_that_would_harm_the_model_are_refused(parameters: Any) -> None:
    session = a_session()
    refused(session, uploaded(session, dispatch(session), parameters), match="parameters")
    session.handle(uploaded(session, 1), session.now)  # the device may try again


def test_numbers_that_are_still_to_be_computed_are_not_asked_for_by_the_session() -> None:
    session = a_session()

    def outcome() -> Outcome:
        raise AssertionError("nobody reads this update")

    ticket = dispatch(session)
    session.handle(uploaded(session, ticket, outcome=outcome), 1.0)
    assert play(session, Discard(ticket=ticket, reason="test")) == [Resolved(tickets=(ticket,), used=False)]


# Versions ------------------------------------------------------------------------------------------------------------


def test_a_commit_makes_the_next_version_before_the_policy_goes_on() -> None:
    session = a_session()
    play(session, Commit(parameters=vector(1, 2)), Commit(parameters=vector(3, 4)))
    assert session.state.versions == [1, 2]
    assert session.version == 2
    assert session.parameters.tolist() == [3.0, 4.0]
    assert not session.parameters.flags.writeable


def test_staleness_is_counted_in_versions_between_base_and_use() -> None:
    session = a_session()
    old, new = dispatch(session, 0), 2
    play(session, Commit(parameters=vector(1, 1)), Commit(parameters=vector(1, 1)))
    assert dispatch(session, 1) == new
    play(session, Commit(parameters=vector(1, 1)))
    for ticket in (old, new):
        session.handle(uploaded(session, ticket), session.now)
    effects = play(session, Commit(parameters=vector(2, 2), used=(old, new)))
    # Version 3 at use: base 0 is 3 versions old, base 2 is one.
    assert effects == [Resolved(tickets=(old, new), used=True)]
    counters = session.counters
    assert (counters.used, counters.staleness_sum, counters.staleness_max) == (2, 4, 3)
    assert session.received == {}


@pytest.mark.parametrize("again", [Commit(parameters=vector(9, 9), used=(1,)), Discard(ticket=1, reason="test")])
@pytest.mark.parametrize("first", [Commit(parameters=vector(2, 2), used=(1,)), Discard(ticket=1, reason="test")])
def test_an_update_is_used_or_given_up_once(first: Action, again: Action) -> None:
    session = a_session()
    session.handle(uploaded(session, dispatch(session)), 1.0)
    play(session, first)
    illegal(session, again, match="ticket 1 is not a received update, or was resolved before")


def test_what_is_still_in_flight_or_was_lost_or_never_existed_cannot_be_used() -> None:
    session = a_session()
    flying, lost = dispatch(session, 0), dispatch(session, 1)
    session.handle(Lost(device=1, ticket=lost), 1.0)
    for ticket in (flying, lost, 99):
        illegal(session, Commit(parameters=vector(9, 9), used=(ticket,)), match=f"ticket {ticket}")
        illegal(session, Discard(ticket=ticket, reason="test"), match=f"ticket {ticket}")


@pytest.mark.parametrize("used", [(1, 1), (1, 99)], ids=str)
def test_a_commit_that_names_a_bad_ticket_beside_a_good_one_has_no_effect(used: tuple[int, ...]) -> None:
    session = a_session()
    session.handle(uploaded(session, dispatch(session)), 1.0)
    illegal(session, Commit(parameters=vector(9, 9), used=used))


def test_a_version_of_another_shape_is_the_policys_fault_and_one_that_is_not_finite_a_divergence() -> None:
    session = a_session()
    session.handle(uploaded(session, dispatch(session)), 1.0)
    illegal(session, Commit(parameters=vector(1, 2, 3), used=(1,)), match="shape")
    before = session.parameters
    with pytest.raises(Diverged, match="version 1 is not finite"):
        play(session, Commit(parameters=vector(np.nan, 0), used=(1,)))
    assert (session.version, session.parameters is before, session.received) == (0, True, {1: 0})


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_a_version_that_is_finite_only_in_float64_is_a_divergence() -> None:
    with pytest.raises(Diverged):
        play(a_session(), Commit(parameters=np.array([1e300, 0.0])))


def test_old_versions_are_kept_as_long_as_something_in_flight_refers_to_them() -> None:
    session = a_session()
    assert len(session.models) == 0
    old = dispatch(session, 0)
    play(session, Commit(parameters=vector(1, 1)))
    both = dispatch(session, 1)
    same = dispatch(session, 2)
    play(session, Commit(parameters=vector(2, 2)))
    assert len(session.models) == 2
    assert (session.models[0].tolist(), session.models[1].tolist()) == ([0.0, 0.0], [1.0, 1.0])
    session.handle(uploaded(session, both), session.now)
    assert len(session.models) == 2
    session.handle(Lost(device=2, ticket=same), session.now)
    assert len(session.models) == 1
    session.handle(uploaded(session, old), session.now)
    assert len(session.models) == 0


def test_a_fresh_model_that_was_sent_is_kept_until_that_flight_ends() -> None:
    session = a_session()
    ticket = dispatch(session)
    play(session, Commit(parameters=vector(1, 1)))
    session.state.script = [SendFresh(device=0)]
    session.handle(FreshRequested(device=0, ticket=ticket, progress=Progress(slices=1)), session.now)
    play(session, Commit(parameters=vector(2, 2)))
    assert session.in_flight[ticket].versions == [0, 1]
    assert len(session.models) == 2
    session.handle(uploaded(session, ticket), session.now)
    assert len(session.models) == 0
    assert session.received == {ticket: 0}, "staleness still counts from the original base"


def test_the_memory_for_versions_does_not_grow_with_the_run() -> None:
    session, versions = a_session(), []
    for number in range(50):
        ticket = dispatch(session)
        versions.append(weakref.ref(session.parameters))
        play(session, Commit(parameters=vector(number, number)))
        assert len(session.models) == 1
        session.handle(uploaded(session, ticket), session.now)
        play(session, Discard(ticket=ticket, reason="test"))
    assert len(session.models) == 0
    assert not any(version() is not None for version in versions)


# Fresh models --------------------------------------------------------------------------------------------------------


def ask(session: Session, ticket: int, *actions: Action) -> list[Effect]:
    session.state.script = list(actions)
    device = session.in_flight[ticket].device
    return session.handle(FreshRequested(device=device, ticket=ticket, progress=Progress(slices=1)), session.now)


def test_a_request_is_answered_with_the_newest_model() -> None:
    session = a_session()
    ticket = dispatch(session)
    play(session, Commit(parameters=vector(1, 1)), Commit(parameters=vector(2, 2)))
    down = session.counters.bytes_down
    (answer,) = ask(session, ticket, SendFresh(device=0))
    assert isinstance(answer, FreshModel)
    assert (answer.device, answer.ticket, answer.version) == (0, ticket, 2)
    assert answer.parameters is session.parameters
    assert (session.counters.requests, session.counters.answered) == (1, 1)
    assert session.counters.bytes_down == down + 8


@pytest.mark.parametrize("willing", [True, False])
def test_a_request_is_answered_with_nothing_newer_if_there_is_nothing_or_the_policy_is_silent(willing: bool) -> None:
    session = a_session()
    ticket = dispatch(session)
    down = session.counters.bytes_down
    if not willing:
        play(session, Commit(parameters=vector(1, 1)))
    (answer,) = ask(session, ticket, *([SendFresh(device=0)] if willing else []))
    assert isinstance(answer, FreshModel)
    assert answer.parameters is None
    assert session.copied().states[0] == TRAINING
    assert (session.counters.requests, session.counters.answered, session.counters.bytes_down) == (1, 0, down)


def test_what_was_sent_already_is_not_newer_the_second_time() -> None:
    session = a_session()
    ticket = dispatch(session)
    play(session, Commit(parameters=vector(1, 1)))
    answers = [ask(session, ticket, SendFresh(device=0))[0] for _ in range(2)]
    assert [each.parameters is None for each in answers if isinstance(each, FreshModel)] == [False, True]


def test_a_commit_in_answer_to_a_request_is_in_the_answer() -> None:
    session = a_session()
    ticket = dispatch(session)
    (answer,) = ask(session, ticket, Commit(parameters=vector(4, 4)), SendFresh(device=0))
    assert isinstance(answer, FreshModel)
    assert answer.parameters is not None
    assert (answer.version, answer.parameters.tolist()) == (1, [4.0, 4.0])


def test_a_request_cannot_be_answered_twice() -> None:
    session = a_session()
    ticket = dispatch(session)
    with pytest.raises(PolicyError, match="device 0 is training: SendFresh is not possible"):
        ask(session, ticket, SendFresh(device=0), SendFresh(device=0))


def test_a_device_that_waits_may_be_told_to_stop() -> None:
    session = a_session()
    ticket = dispatch(session)
    notice, answer = ask(session, ticket, StopSoon(device=0))
    assert notice == StopNotice(device=0, ticket=ticket)
    assert isinstance(answer, FreshModel)


# Timers and the end --------------------------------------------------------------------------------------------------


def test_a_timer_fires_once_and_may_then_be_set_again() -> None:
    session = a_session()
    assert play(session, SetTimer(name="deadline", after=2.5), at=10.0) == [TimerSet(name="deadline", at=12.5)]
    illegal(session, SetTimer(name="deadline", after=1.0), match="deadline")
    session.handle(TimerFired(name="deadline"), 12.5)
    with pytest.raises(OffbeatError, match="not set"):
        session.handle(TimerFired(name="deadline"), 12.5)
    session.state.script = []
    assert play(session, SetTimer(name="deadline", after=0.0)) == [TimerSet(name="deadline", at=12.5)]


@pytest.mark.parametrize("after", [-1.0, float("nan")])
def test_a_timer_in_the_past_is_the_policys_fault(after: float) -> None:
    illegal(a_session(), SetTimer(name="deadline", after=after), match="deadline")


def test_timers_of_different_names_do_not_touch_each_other() -> None:
    session = a_session()
    play(session, SetTimer(name="a", after=1.0), SetTimer(name="b", after=2.0))
    session.handle(TimerFired(name="a"), 1.0)
    assert session.timers == {"b": 2.0}


def test_after_finish_nothing_more_is_done_and_every_event_comes_too_late() -> None:
    session = a_session()
    ticket = dispatch(session)
    event = uploaded(session, ticket)
    assert play(session, Finish(reason="enough"), Commit(parameters=vector(1, 1))) == []
    assert (session.finished, session.version) == ("enough", 0)
    for late in (event, Ready(device=OTHER), Left(device=OTHER), Lost(device=0, ticket=ticket), Started()):
        refused(session, late, match="the run has ended")


# Stories, snapshots --------------------------------------------------------------------------------------------------


def test_an_error_tells_what_happened_to_the_device_before() -> None:
    session = a_session()
    session.handle(Started(), 0.0)
    play(session, Dispatch(device=0, order=session.order()), Commit(parameters=vector(1, 1)), at=1.0)
    dispatch(session, 1)
    event = uploaded(session, 1)
    session.handle(event, 2.5)
    with pytest.raises(DeviceFault) as caught:
        session.handle(event, 3.0)
    assert str(caught.value) == (
        "device 0: Uploaded for ticket 1, which it does not hold (1 dispatched v0; 2.5 uploaded v1)"
    )
    with pytest.raises(DeviceFault, match="no earlier events"):
        session.handle(Ready(device=2), 3.0)


def test_the_journal_keeps_the_last_lines() -> None:
    session = a_session()
    for _ in range(300):
        play(session)
    assert len(session.journal.lines) == 256


def busy_session() -> Session:
    """One with something of everything."""
    session = a_session()
    session.handle(Started(), 0.0)
    asking, waiting_for_use = dispatch(session, 0), dispatch(session, 1)
    play(session, Commit(parameters=vector(1, 1)), SetTimer(name="deadline", after=9.0), at=1.0)
    ask(session, asking, SendFresh(device=0), StopSoon(device=0))
    session.handle(uploaded(session, waiting_for_use), 2.0)
    dispatch(session, 2)
    return session


def test_a_restored_session_is_equal_and_goes_on_alike() -> None:
    original, restored = busy_session(), a_session()
    restored.restore(original.copied())
    assert facts(restored) == facts(original)
    for session in (original, restored):
        session.handle(uploaded(session, 1), 3.0)
        play(session, Commit(parameters=vector(3, 3), used=(1, 2)))
        session.handle(TimerFired(name="deadline"), 10.0)
        dispatch(session, session.pick(1)[0])
    assert facts(restored) == facts(original)
    assert len(restored.models) == len(original.models) == 2


def test_a_copy_shares_nothing_with_the_session() -> None:
    session = busy_session()
    before = facts(session)
    saved = session.copied()
    saved.in_flight[1].parameters[:] = 99
    saved.states[:] = 0
    saved.in_flight.clear()
    saved.timers.clear()
    saved.counters.used = 99
    saved.state.seen.clear()
    assert facts(session) == before


def test_the_restored_current_version_is_the_one_that_is_kept() -> None:
    session = busy_session()
    session.restore(session.copied())
    assert session.parameters is session.models[1]
    assert not session.parameters.flags.writeable
    assert not session.models[0].flags.writeable


def test_devices_are_drawn_from_the_sessions_own_stream() -> None:
    first, second = a_session(0, 1, 2, 3), a_session(0, 1, 2, 3)
    assert [first.pick(2) for _ in range(5)] == [second.pick(2) for _ in range(5)]
    assert first.pick(0) == first.pick(-3) == []
    assert sorted(first.pick(99)) == [0, 1, 2, 3]


def test_a_misspelt_attribute_of_a_session_is_an_error() -> None:
    with pytest.raises(AttributeError):
        a_session().finnished = "misspelt"  # type: ignore[attr-defined]


def test_a_policy_reads_the_local_table_also_under_its_former_name() -> None:
    session = a_session()
    assert session.training is session.local and session.local.epochs == 3


def test_orders_carry_how_running_statistics_are_treated() -> None:
    local = LocalWork(epochs=1)
    session = Session(
        Puppet(), parameters=vector(0), layout=Layout.flat(1), samples=np.array([1]), local=local, buffers="local"
    )
    assert [session.order().buffers, session.order(slices=2).buffers] == ["local", "local"]
    assert session.order(buffers="ignore").buffers == "ignore"
