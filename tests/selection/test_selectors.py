"""What holds for every selector: conformance, legal picks, losses read late, and a user's own one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offbeat.algorithms import POLICIES, FedAvg, FedBuff
from offbeat.comparison.fairness import notes_on
from offbeat.core.errors import InvalidInput, PolicyError
from offbeat.core.messages import Uploaded
from offbeat.core.orders import Outcome, Progress, Update
from offbeat.core.selection import Devices, SelectionView, Selector
from offbeat.experiment.schema import Experiment
from offbeat.selection import SELECTORS, Oort, Tifl, why_no_selection
from offbeat.testing import ScriptedSession, check_selector, toy_simulation

VARIANTS = [kind() for kind in SELECTORS.values()] + [
    Oort(loss="mean", percentile=60.0, pacer_rounds=3),
    Tifl(tiers=3, choice="adaptive", interval=4, credits=5),
]


def named(selector: Selector) -> str:
    return ", ".join([type(selector).__name__, *sorted(selector.model_fields_set)])


@pytest.mark.parametrize("selector", VARIANTS, ids=named)
def test_selectors_conform(selector: Selector) -> None:
    check_selector(selector)


@pytest.mark.parametrize("selector", VARIANTS, ids=named)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(choices=st.lists(st.integers(0, 10_000), max_size=25))
def test_picks_are_distinct_idle_devices_as_many_as_there_are(selector: Selector, choices: list[int]) -> None:
    session = ScriptedSession(FedBuff(buffer=2, concurrency=4), devices=9, selector=selector)
    for choice in choices:
        session.now += choice % 7
        orders = list(session.in_flight.values())
        if choice % 3 and orders:
            session.upload(ticket=orders[choice % len(orders)].ticket, loss=float(choice % 11))
        elif choice % 2 and orders:
            session.lose(ticket=orders[choice % len(orders)].ticket)
        elif session.state_of(choice % 9).name == "AWAY":
            session.come(choice % 9)
        idle = {device for device in range(9) if session.is_idle(device)}
        excluded = {choice % 9, choice % 5}
        count = choice % 12
        picked, others = session.pick(count), session.pick(count, excluding=excluded)
        assert len(set(picked)) == len(picked) == min(count, len(idle)) and set(picked) <= idle
        assert len(set(others)) == len(others) == min(count, len(idle - excluded)) and set(others) <= idle - excluded


@pytest.mark.parametrize("selector", VARIANTS, ids=named)
def test_a_loss_is_read_only_when_a_pick_needs_it(selector: Selector) -> None:
    session = ScriptedSession(FedAvg(cohort=2), devices=3, selector=selector)
    read: list[int] = []
    for held in list(session.in_flight.values()):

        def outcome(ticket: int = held.ticket) -> Outcome:
            read.append(ticket)
            return Outcome(parameters=session.parameters, loss=1.0, squared_loss=1.0)

        assert not read  # the round goes on: nothing is picked
        update = Update(
            device=held.device,
            ticket=held.ticket,
            base=0,
            base_parameters=held.parameters,
            samples=10,
            progress=Progress(slices=1),
            outcome=outcome,
        )
        session.handle(Uploaded(device=held.device, ticket=held.ticket, update=update))
    assert set(read) == {1, 2}


@dataclass
class Asked:
    """The counts of all picks, and how many devices were idle."""

    picks: list[tuple[int, int]] = field(default_factory=list)


class First(Selector):
    """The devices with the lowest numbers."""

    State = Asked

    skip: int = 0

    def pick(self, count: int, idle: Devices, state: Asked, view: SelectionView) -> Sequence[int]:
        state.picks.append((count, len(idle)))
        return sorted(idle.tolist())[self.skip : self.skip + count]


@pytest.mark.parametrize("name", POLICIES)
def test_an_algorithm_that_does_not_choose_among_idle_devices_says_so(name: str) -> None:
    policy = POLICIES[name]()
    simulation = toy_simulation(policy, selector=First())
    for _ in islice(simulation, 100):
        pass
    saved = simulation.session.snapshot().selection
    assert saved is not None
    chosen = any(count < idle for count, idle in saved.state.picks)
    assert chosen is (why_no_selection(policy) is None)


def experiment_of(**tables: Any) -> Experiment:
    small: dict[str, Any] = {"stop": {"versions": 4}, "data": {"name": "digits", "devices": 4}, "model": "logistic"}
    return Experiment(**(small | tables))


def test_own_selectors_and_settings_in_an_experiment() -> None:
    own = experiment_of(selection={"name": First, "skip": 1})
    assert own.table()["selection"] == {"name": f"{__name__}:First", "skip": 1}
    assert own.selection.selector == First(skip=1)
    assert experiment_of(selection=Oort(penalty=1.0)).table()["selection"]["penalty"] == 1.0
    assert experiment_of(selection="tifl").selection.selector == Tifl()
    assert "selection" not in experiment_of(selection="uniform").table() | experiment_of().table()
    compared = experiment_of(compare={"a": {"algorithm": {"name": "fedbuff"}, "selection": {"name": "pisces"}}})
    assert compared.for_algorithm("a", 0).selection.name == "pisces"


def test_a_comparison_notes_which_selection_each_algorithm_has() -> None:
    oort, tifl = {"name": "oort"}, {"name": "tifl"}
    plain = {"a": experiment_of(), "b": experiment_of(selection="uniform")}
    assert notes_on(plain, []) == []
    several = plain | {"c": experiment_of(selection=oort), "d": experiment_of(selection=tifl)}
    (note,) = notes_on(several, [])
    assert note == "Not the same for all: selection.name = uniform (a, b), oort (c), tifl (d)."
    settings = {"a": experiment_of(selection=oort), "b": experiment_of(selection=oort | {"penalty": 1.0})}
    assert notes_on(settings, []) == ["Not the same for all: selection.penalty = 2.0 (a), 1.0 (b)."]


class NoPick(Selector):
    State = Asked


class NoState(Selector):
    def pick(self, count: int, idle: Devices, state: Any, view: SelectionView) -> Sequence[int]:
        return [int(device) for device in idle[:count]]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"selection": "orot"}, "unknown selection 'orot': did you mean 'oort'"),
        ({"selection": {"name": "oort", "penatly": 1.0}}, "unknown key 'selection.penatly': did you mean 'penalty'"),
        ({"selection": {"name": "tifl", "tiers": 0}}, "selection.tiers = 0"),
        ({"selection": "oort", "algorithm": "safa"}, "algorithm 'safa' keeps all devices in training, leave it out"),
        ({"selection": f"{__name__}:Asked"}, "not a subclass of offbeat.Selector"),
        ({"selection": f"{__name__}:NoPick"}, "does not define pick"),
        ({"selection": f"{__name__}:NoState"}, "does not define State"),
        ({"selection": "nowhere:Mine"}, "no module 'nowhere'"),
    ],
)
def test_mistakes_are_explained_before_the_run(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message.replace("(", r"\(")):
        experiment_of(**tables)


class Greedy(First):
    """Picks devices that are not idle."""

    def pick(self, count: int, idle: Devices, state: Asked, view: SelectionView) -> Sequence[int]:
        return list(range(view.devices))[:count]


def test_a_pick_of_a_device_that_is_not_idle_ends_the_run() -> None:
    session = ScriptedSession(FedBuff(buffer=4, concurrency=3), devices=4, selector=Greedy())
    with pytest.raises(PolicyError, match=r"Greedy picked \[0\]: must be up to 1 distinct idle devices"):
        session.upload(device=2)


@dataclass
class FedAvgState:
    """Named like the state of the policy."""


class Namesake(NoState):
    State = FedAvgState


def test_states_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="both have a state class 'FedAvgState'"):
        ScriptedSession(FedAvg(cohort=1), selector=Namesake())
