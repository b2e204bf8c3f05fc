"""The conformance suite that every policy must pass.

    from offbeat.testing import check_policy, check_selector
    check_policy(MyPolicy(buffer=5))
    check_selector(MySelector(tiers=3))

runs the policy on a toy model over a fleet with every failure that the simulator knows, and raises AssertionError with
the first violated property. It needs no torch and takes about a second. A selector is checked the same way, under a
synchronous and a buffered policy.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Any, cast

import numpy as np

from offbeat.algorithms import FedAvg, FedBuff
from offbeat.core.errors import DeviceFault, PolicyError
from offbeat.core.messages import (
    Action,
    Commit,
    Event,
    FreshRequested,
    Left,
    Lost,
    Ready,
    Started,
    TimerFired,
    Uploaded,
)
from offbeat.core.orders import KnownOutcome, LocalWork, Outcome, Progress, Update
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.core.policy import Forecast, Policy, View
from offbeat.core.selection import Selector
from offbeat.core.session import Session
from offbeat.core.snapshot import decode, encode
from offbeat.core.state import AWAY, IDLE, TRAINING
from offbeat.core.streams import stream
from offbeat.experiment.run_settings import Stop
from offbeat.results.rows import Row
from offbeat.simulation.engine import Simulation
from offbeat.testing.toy import SIZE, UPDATES, ToyExecutor, toy_simulation

FIRST_RUN = "a simulated run with failing devices ends without an error"


def check_policy(policy: Policy, *, devices: int = 24) -> None:
    """Check every property of this policy with these settings; raises AssertionError if one does not hold."""
    for _, failure in conformance(policy, devices=devices):
        if failure is not None:
            raise failure


def conformance(policy: Policy, *, devices: int = 24) -> Iterator[tuple[str, Exception | None]]:
    """Each property in words, and the exception that shows it does not hold, or None.

    Nothing more is checked if a plain run already fails.
    """
    runs: list[_ToyRun] = []
    checks: dict[str, Callable[[], None]] = {
        "its metrics do not reuse the names of standard ones": lambda: check_metrics(policy, devices),
        FIRST_RUN: lambda: runs.append(_ToyRun(policy, devices)),
        "the same seed gives the same bytes": lambda: _compare(runs[0], _ToyRun(policy, devices)),
        "a resumed run ends like an uninterrupted one": lambda: _resume(runs[0]),
        "it never writes to vectors it was given or has committed": lambda: _look_for_writing(runs[0]),
        "its state does not grow with the length of the run": lambda: _compare_sizes(runs[0]),
        "lost devices and uploads never hang a run": lambda: _look_for_losses(runs[0]),
        "every update is used, discarded or kept, and counted once": lambda: check_accounts(policy, devices),
        "no sequence of events makes it break the session's rules": lambda: _chaos(policy, devices),
    }
    if policy.sums_suffice:
        checks["it makes the same versions if it sees only sums"] = lambda: _hide_updates(runs[0])
    for promise, check in checks.items():
        try:
            check()
        except Exception as failure:  # an assertion, or whatever the policy raises
            yield promise, failure
            if promise == FIRST_RUN:
                return
        else:
            yield promise, None


def _chaos(policy: Policy, devices: int) -> None:
    for seed in range(20):
        check_events(policy, stream(seed, "chaos").integers(0, 2**31, 120).tolist(), devices)


def check_selector(selector: Selector, *, devices: int = 24) -> None:
    """Check every property of this selector with these settings, with synchronous rounds and with a buffer."""
    for policy in (FedAvg(cohort=6), FedBuff(buffer=3, concurrency=8)):
        whole = _ToyRun(policy, devices, selector=selector)
        _compare(whole, _ToyRun(policy, devices, selector=selector))
        _resume(whole, cuts=3)
        _compare_sizes(whole)
        _look_for_losses(whole)
        check_events(policy, stream(0, "chaos").integers(0, 2**31, 120).tolist(), devices, selector)


def check_metrics(policy: Policy, devices: int = 24) -> None:
    """Check that the policy's metrics do not reuse the names of standard metrics."""
    try:
        toy_simulation(policy, devices=devices).evaluate()
    except PolicyError as error:
        raise AssertionError(str(error)) from None


def check_determinism(policy: Policy, devices: int = 24) -> None:
    """Check that the same experiment and seed give the same bytes."""
    _compare(_ToyRun(policy, devices), _ToyRun(policy, devices))


def check_resume(policy: Policy, devices: int = 24) -> None:
    """Check that a run resumed from a snapshot ends exactly like an uninterrupted one."""
    _resume(_ToyRun(policy, devices))


def check_no_aliasing(policy: Policy, devices: int = 24) -> None:
    """Check that the policy never writes to vectors it was given or has committed."""
    _look_for_writing(_ToyRun(policy, devices))


def check_bounded_memory(policy: Policy, devices: int = 24) -> None:
    """Check that the policy's state does not grow with the length of the run."""
    _compare_sizes(_ToyRun(policy, devices))


def check_losses_are_survived(policy: Policy, devices: int = 24) -> None:
    """Check that lost devices and lost uploads never hang a run."""
    _look_for_losses(_ToyRun(policy, devices))


class _ToyRun:
    """A completed toy simulation, shared by several checks."""

    def __init__(
        self,
        policy: Policy,
        devices: int,
        updates: int = UPDATES,
        selector: Selector | None = None,
        sums_only: bool = False,
    ) -> None:
        self.policy, self.devices, self.selector, self.sums_only = policy, devices, selector, sums_only
        self.simulation = self.fresh_simulation(updates)
        session = self.simulation.session
        self.rows: list[Row] = []
        self.turns = 0
        self.versions: dict[int, tuple[Vector, bytes]] = {}
        """Every version, with its bytes at the time of its commit."""
        for row in self.simulation:
            self.turns += 1
            self.rows += [] if row is None else [row]
            if session.version not in self.versions:
                self.versions[session.version] = (session.parameters, session.parameters.tobytes())
        self.model = session.parameters.tobytes()

    def fresh_simulation(self, updates: int = UPDATES) -> Simulation:
        stop = Stop(updates=updates, time=1e5)
        return toy_simulation(
            self.policy, devices=self.devices, stop=stop, selector=self.selector, sums_only=self.sums_only
        )

    @property
    def size(self) -> int:
        """Bytes of the policy's state, the selector's, and the received updates."""
        saved = self.simulation.session.snapshot()
        tree, arrays = encode((saved.state, saved.received, saved.selection))
        return len(json.dumps(tree)) + sum(int(array.nbytes) for array in arrays.values())


def _compare(first: _ToyRun, second: _ToyRun) -> None:
    assert first.rows == second.rows, "two runs with the same seed have different metrics"
    assert first.model == second.model, "two runs with the same seed end with different models"


def _resume(whole: _ToyRun, cuts: int = 8) -> None:
    for cut in stream(0, "cuts").integers(0, whole.turns, cuts).tolist():
        stopped, resumed = whole.fresh_simulation(), whole.fresh_simulation()
        before = [row for row in islice(stopped, cut) if row is not None]
        tree, arrays = encode(stopped.snapshot())
        resumed.restore(decode(json.loads(json.dumps(tree)), arrays, resumed.snapshot_types))
        after = [row for row in resumed if row is not None]
        assert before + after == whole.rows, f"a run resumed after {cut} events has different metrics"
        model = resumed.session.parameters.tobytes()
        assert model == whole.model, f"a run resumed after {cut} events ends with a different model"


def _hide_updates(plain: _ToyRun) -> None:
    summed = _ToyRun(plain.policy, plain.devices, sums_only=True)
    assert summed.versions.keys() == plain.versions.keys(), "with sums only the run has other versions"
    for version, (parameters, _) in plain.versions.items():
        close = np.allclose(parameters, summed.versions[version][0], rtol=1e-4, atol=1e-6)
        assert close, f"with sums only version {version} is another"
    _resume(summed, cuts=3)


def _look_for_writing(whole: _ToyRun) -> None:
    for version, (parameters, then) in whole.versions.items():
        assert parameters.tobytes() == then, f"the policy changed version {version} after it was committed"
    assert isinstance(whole.simulation.executor, ToyExecutor)
    for parameters, then in whole.simulation.executor.given:
        assert parameters.tobytes() == then, "the policy changed the parameters of an update"


def _compare_sizes(whole: _ToyRun) -> None:
    size, later = whole.size, _ToyRun(whole.policy, whole.devices, 4 * UPDATES, whole.selector).size
    room = 2 * size + whole.devices * (4 * SIZE + 2000)
    assert later <= room, f"the policy's state grew from {size} to {later} bytes in a run 4 times as long"


def _look_for_losses(whole: _ToyRun) -> None:
    simulation, session = whole.simulation, whole.simulation.session
    assert session.counters.lost > 0, "the toy fleet lost no order: the run is too short to check losses"
    ended_well = simulation.reason == "updates" or session.finished is not None
    assert ended_well, f"the run hung after {session.counters.used} used updates ({simulation.reason})"


class _Watched:
    """Wraps a policy and counts used updates and staleness independently of the session."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.staleness = 0
        self.used: list[int] = []
        self.bases: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def react(self, event: Event, state: Any, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            self.bases[event.ticket] = event.update.base
        for action in self.policy.react(event, state, view):
            if isinstance(action, Commit):
                self.used.extend(action.used)
                self.staleness += sum(view.version - self.bases[ticket] for ticket in action.used)
            yield action


def check_accounts(policy: Policy, devices: int = 24) -> None:
    """Check that staleness is counted correctly, no update is used twice, and every order is accounted for."""
    watched = _Watched(policy)
    simulation = toy_simulation(cast("Policy", watched), devices=devices)
    session = simulation.session
    for _ in simulation:
        check_session(session)
    assert len(set(watched.used)) == len(watched.used), "an update was used twice"
    assert session.counters.used == len(watched.used), "the session miscounts used updates"
    assert session.counters.staleness_sum == watched.staleness, "the session miscounts staleness"


def check_session(session: Session) -> None:
    """Check the invariants of a session."""
    wrong = session.audit()
    assert not wrong, "; ".join(wrong)


def check_events(policy: Policy, choices: Iterable[int], devices: int = 24, selector: Selector | None = None) -> None:
    """Check that no sequence of events violates an invariant of the session, and that illegal events change nothing.

    `choices` are arbitrary integers that select the events; hypothesis can generate them.
    """
    chaos = _Chaos(policy, devices, selector)
    for choice in choices:
        chaos.happen(choice)
        check_session(chaos.session)


class _Chaos:
    """A driver that produces arbitrary legal and illegal events."""

    def __init__(self, policy: Policy, devices: int, selector: Selector | None = None) -> None:
        self.session = Session(
            policy,
            parameters=np.zeros(SIZE, dtype=np.float32),
            layout=Layout.flat(SIZE),
            samples=np.arange(1, devices + 1),
            local=LocalWork(epochs=3),
            forecast=Forecast(speeds=np.ones(devices), communication=np.zeros(devices)),
            horizon=1e5,
            selector=selector,
        )
        self.time = 0.0
        self.ended: list[tuple[int, int]] = []
        self.session.handle(Started(), self.time)

    def happen(self, choice: int) -> None:
        """Handle one event; the digits of `choice` select its kind and its device."""
        kind, subject = choice % 10, choice // 10
        event = self._illegal(kind, subject) if kind >= 7 else self._legal(kind, subject)
        if event is None or self.session.finished is not None:
            return
        self.time += 0.5
        if kind < 7:
            self.session.handle(event, self.time)
            if isinstance(event, Uploaded | Lost):
                self.ended.append((event.device, event.ticket))
            return
        before = _content(self.session)
        try:
            self.session.handle(event, self.time)
        except DeviceFault:
            assert _content(self.session) == before, f"an illegal {type(event).__name__} changed the session"
        else:
            raise AssertionError(f"an illegal {type(event).__name__} was accepted")

    def _legal(self, kind: int, subject: int) -> Event | None:
        session, orders = self.session, list(self.session.in_flight.values())
        if kind <= 3 and orders:
            order = orders[subject % len(orders)]
            if session.state_of(order.device) == TRAINING and kind <= 2:
                return self._upload(order.device, order.ticket, order.base, float(subject % 7))
            return Lost(device=order.device, ticket=order.ticket)
        if kind == 4 and orders:
            order = orders[subject % len(orders)]
            if session.state_of(order.device) == TRAINING:
                return FreshRequested(device=order.device, ticket=order.ticket, progress=Progress(slices=1))
        if kind == 5 and session.timers:
            name = sorted(session.timers)[subject % len(session.timers)]
            return TimerFired(name=name)
        device = subject % session.devices
        if session.state_of(device) == AWAY:
            return Ready(device=device)
        return Left(device=device) if session.state_of(device) == IDLE and kind == 6 else None

    def _illegal(self, kind: int, subject: int) -> Event | None:
        orders = list(self.session.in_flight.values())
        if kind == 7 and self.ended:  # a ticket that was resolved
            device, ticket = self.ended[subject % len(self.ended)]
            return self._upload(device, ticket, 0, 1.0)
        if kind == 8 and orders:  # parameters that are not finite
            order = orders[subject % len(orders)]
            return self._upload(order.device, order.ticket, order.base, (inf, -inf, float("nan"))[subject % 3])
        device = subject % self.session.devices
        return Ready(device=device) if self.session.state_of(device) != AWAY else Left(device=device)

    def _upload(self, device: int, ticket: int, base: int, value: float) -> Uploaded:
        numbers = frozen(np.full(SIZE, value, dtype=np.float32))
        outcome = Outcome(parameters=numbers, loss=abs(value), squared_loss=value * value)
        order = self.session.in_flight.get(ticket)
        update = Update(
            device=device,
            ticket=ticket,
            base=base,
            base_parameters=self.session.models.get(base, self.session.parameters),
            samples=device + 1,
            progress=Progress(slices=3 if order is None else order.order.slices),
            outcome=KnownOutcome(outcome),
        )
        return Uploaded(device=device, ticket=ticket, update=update)


def _content(session: Session) -> tuple[Any, ...]:
    """The complete content of a session, except the count of refused events."""
    journal = list(session.journal.lines)  # plain tuples; encoding them would be slow
    tree, arrays = encode(replace(session.snapshot(), counters=replace(session.counters, refused=0), journal=[]))
    return journal, tree, {name: array.tobytes() for name, array in arrays.items()}
