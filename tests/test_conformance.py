"""Every registered policy keeps every promise of the conformance suite."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offbeat.algorithms import POLICIES
from offbeat.core.errors import PolicyError
from offbeat.core.messages import Action, Commit, Dispatch, Event, Uploaded
from offbeat.core.orders import Update
from offbeat.core.policy import Policy, View
from offbeat.testing import check_events, check_policy, toy_simulation


@pytest.mark.parametrize("name", POLICIES)
def test_registered_policies_conform(name: str) -> None:
    check_policy(POLICIES[name]())


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(choices=st.lists(st.integers(0, 10_000), max_size=80))
def test_no_sequence_of_events_corrupts_a_session(name: str, choices: list[int]) -> None:
    check_events(POLICIES[name](), choices)


@pytest.mark.parametrize(
    "policy",
    [
        POLICIES["fedasync"](staleness="hinge", max_staleness=3),  # type: ignore[call-arg]
        POLICIES["fedbuff"](buffer=3, concurrency=24, normaliser="weights"),  # type: ignore[call-arg]
        POLICIES["fedavg"](cohort=1),  # type: ignore[call-arg]
        POLICIES["adel"](warmup_rounds=2, time_budget=400.0, rounds=40, local_steps=2),  # type: ignore[call-arg]
        POLICIES["salf"](variant="code", time_budget=300.0, rounds=60),  # type: ignore[call-arg]
        POLICIES["drop-stragglers"](variant="keep", time_budget=300.0, rounds=60),  # type: ignore[call-arg]
        POLICIES["fedasmu"](while_asking="train", slot="first"),  # type: ignore[call-arg]
        POLICIES["delayed-nesterov"](dylu=True),  # type: ignore[call-arg]
    ],
    ids=[
        "fedasync hinge bounded",
        "fedbuff weights",
        "fedavg alone",
        "adel with warm-up",
        "salf as in its code",
        "drop-stragglers keep",
        "fedasmu that trains on",
        "delayed-nesterov in steps",
    ],
)
def test_variants_conform(policy: Policy) -> None:
    check_policy(policy)


@dataclass
class Kept:
    updates: list[Update] = field(default_factory=list)


class Base(Policy):
    """What the broken policies below have in common: keep ten devices busy."""

    State = Kept

    def react(self, event: Event, state: Kept, view: View) -> Any:
        if isinstance(event, Uploaded):
            yield from self.use(event.update, state, view)
        for device in view.pick(10 - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order())

    def use(self, update: Update, state: Kept, view: View) -> Any:
        yield Commit(parameters=update.parameters.copy(), used=(update.ticket,))


class Hoarder(Base):
    """Never forgets an update."""

    def use(self, update: Update, state: Kept, view: View) -> Any:
        state.updates.append(update)
        yield from super().use(update, state, view)


class Twice(Base):
    """Applies an update twice."""

    def use(self, update: Update, state: Kept, view: View) -> Any:
        yield from super().use(update, state, view)
        yield from super().use(update, state, view)


class Scribbler(Base):
    """Writes into what it was given."""

    def use(self, update: Update, state: Kept, view: View) -> Any:
        update.parameters[0] = 1.0
        yield from super().use(update, state, view)


class Forgetful(Base):
    """Keeps its state where no snapshot sees it."""

    def use(self, update: Update, state: Kept, view: View) -> Any:
        SECRET.append(update.ticket)
        yield Commit(parameters=update.parameters * (1 + len(SECRET)), used=(update.ticket,))


SECRET: list[int] = []


class Waiter(Policy):
    """Waits for all devices of a round for ever."""

    State = Kept

    def react(self, event: Event, state: Kept, view: View) -> Any:
        actions: list[Action] = []
        if isinstance(event, Uploaded):
            state.updates.append(event.update)
            if len(state.updates) == 10:
                used = tuple(update.ticket for update in state.updates)
                yield Commit(parameters=event.update.parameters.copy(), used=used)
                state.updates = []
        if not state.updates and not view.in_flight and view.idle >= 10:
            actions = [Dispatch(device=device, order=view.order()) for device in view.pick(10)]
        yield from actions


@pytest.mark.parametrize("broken", [Hoarder, Twice, Scribbler, Forgetful, Waiter])
def test_the_suite_catches_broken_policies(broken: type[Policy]) -> None:
    with pytest.raises(Exception):  # noqa: B017 (which promise is broken first differs)
        check_policy(broken())


class Boaster(Base):
    """Would write its own figures over those of the run."""

    def metrics(self, state: Kept) -> dict[str, float]:
        return {"kept": 1.0, "accuracy": 1.0, "training_loss": 0.0}


def test_a_policy_cannot_overwrite_the_metrics_of_the_run() -> None:
    complaint = r"metrics\(\) of Boaster returns 'accuracy', 'training_loss', which every row already has"
    with pytest.raises(AssertionError, match=complaint):
        check_policy(Boaster())
    with pytest.raises(PolicyError, match=complaint):
        list(toy_simulation(Boaster()))
