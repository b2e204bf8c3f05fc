"""What algorithms state about their compatibility is what they do."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import compatibility_of
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Uploaded
from offbeat.core.orders import KnownOutcome, Update
from offbeat.core.parameters import Layout
from offbeat.core.streams import stream
from offbeat.testing import SIZE, ScriptedSession, toy_simulation

DEVICES = 24
LAYERS = Layout.of([("a.weight", (2, 2), True), ("b.weight", (2, 2), True)])


class Script:
    """A session that uploads orders in irregular order and fires a timer now and then.

    Its first two orders are uploaded together, at once or, if they are `late`, when they are stale. `pooled`: one of
    the two uploads carries the movements of both.
    """

    def __init__(
        self,
        name: str,
        *,
        late: bool = False,
        pooled: bool = False,
        forecast: bool = True,
        seconds: float = 1.0,
        loss: float = 1.0,
    ) -> None:
        self.session = session = ScriptedSession(
            POLICIES[name](),
            devices=DEVICES,
            start=[1.0] * 8,
            layout=LAYERS,
            speeds=[50.0] * DEVICES if forecast else None,
            horizon=1000.0,
            epochs=4,
        )
        self.late, self.pooled, self.seconds, self.loss = late, pooled, seconds, loss
        self.movements = stream(0, "movements").integers(-3, 6, (120, 8)) / 8.0  # they agree a little
        self.orders = list(session.first.orders)
        self.models, self.used, self.notified = [session.parameters], list[int](), list[int]()
        for number in range(len(self.movements)):
            soon = [timer for timer, due in session.timers.items() if due < session.now + 20.0]
            if session.in_flight and not (soon and number % 5 == 4):
                reaction = session.handle(self.uploaded(number))
            else:
                reaction = session.fire()
            self.orders += reaction.orders
            self.notified += reaction.notified
            if session.version >= len(self.models):
                self.models.append(session.parameters)
                self.used.append(len(reaction.used))

    @property
    def orders_and_models(self) -> tuple[list[Any], list[Any]]:
        return [(each.device, each.order) for each in self.orders], [each.tolist() for each in self.models]

    def uploaded(self, number: int) -> Uploaded:
        """The next upload."""
        pair = {1, 2} & self.session.in_flight.keys()
        others = self.session.in_flight.keys() - (pair if self.late and number not in (22, 23) else set())
        ready = sorted(pair & others or others or pair)
        ticket = ready[number * number % 7 % len(ready)]
        movement = self.movements[number]
        if ticket <= 2:
            pooled = (self.movements[0] + self.movements[1]) * (ticket - 1)
            movement = pooled if self.pooled else self.movements[ticket - 1]
        update = self.session.update(*(self.session.in_flight[ticket].parameters + movement).tolist(), ticket=ticket)
        outcome = KnownOutcome(replace(update.outcome(), loss=self.loss * number))
        progress = replace(update.progress, seconds=self.seconds * (1 + number % 3))
        return Uploaded(device=update.device, ticket=ticket, update=replace(update, outcome=outcome, progress=progress))


@pytest.fixture(scope="module")
def scripts() -> dict[str, Script]:
    return {name: Script(name) for name in POLICIES}


@pytest.mark.parametrize("name", POLICIES)
def test_sums_suffice_where_an_algorithm_says_so_and_only_there(name: str, scripts: dict[str, Script]) -> None:
    """Two uploads of equal weight are replaced by two others with the same sum: no version may change."""
    pairs = [
        (scripts[name], Script(name, pooled=True)),
        (Script(name, late=True), Script(name, late=True, pooled=True)),
    ]
    same = [
        len(one.models) == len(other.models) and np.allclose(one.models, other.models, atol=1e-5)
        for one, other in pairs
    ]
    assert len(scripts[name].models) > 4
    assert all(same) == compatibility_of(POLICIES[name]).sums_only


@pytest.mark.parametrize("name", POLICIES)
def test_versions_are_made_from_what_an_algorithm_says(name: str, scripts: dict[str, Script]) -> None:
    """Fedcompass uses the first upload of each device alone."""
    single = compatibility_of(POLICIES[name]).made_from == "single uploads"
    used = scripts[name].used[DEVICES if name == "fedcompass" else 0 :]
    assert (float(np.median(used)) == 1.0) == single


@pytest.mark.parametrize("name", POLICIES)
def test_training_times_and_losses_matter_where_an_algorithm_says_so(name: str, scripts: dict[str, Script]) -> None:
    needs = compatibility_of(POLICIES[name]).needs
    for need, changed in [("training times", Script(name, seconds=99.0)), ("training losses", Script(name, loss=7.0))]:
        same = scripts[name].orders_and_models == changed.orders_and_models
        assert same == (need not in needs)


@pytest.mark.parametrize("name", POLICIES)
def test_device_speeds_and_stop_notices_are_used_where_an_algorithm_says_so(
    name: str, scripts: dict[str, Script]
) -> None:
    needs = compatibility_of(POLICIES[name]).needs
    assert "stop notices" in needs or not scripts[name].notified
    if "device speeds" in needs:
        with pytest.raises(InvalidInput):
            Script(name, forecast=False)
    else:
        assert Script(name, forecast=False).orders_and_models == scripts[name].orders_and_models


@pytest.mark.parametrize("name", POLICIES)
def test_the_server_keeps_the_stated_number_of_models(name: str) -> None:
    policy, memory = POLICIES[name](), compatibility_of(POLICIES[name]).server_memory
    simulation = toy_simulation(policy, devices=DEVICES, troubled=False)
    most = stated = 0.0
    for _ in simulation:
        session = simulation.session
        kept = {id(each): each for each in vectors(session.state) if each.size == SIZE}
        most = max(most, sum(each.nbytes for each in kept.values()) / (4 * SIZE))
        per_setting = getattr(policy, memory.per_setting) if memory.per_setting else 0
        limit = (
            memory.models
            + memory.per_device * DEVICES
            + memory.per_base * len({held.base for held in session.in_flight.values()})
            + per_setting
        )
        stated = max(stated, limit)
    assert stated / 2 <= most <= stated


def vectors(thing: Any) -> Iterator[Any]:
    """All arrays in a state, without those of uploads that wait for the next version."""
    if isinstance(thing, np.ndarray):
        yield thing
    elif isinstance(thing, dict | list | tuple | set):
        for each in thing.values() if isinstance(thing, dict) else thing:
            yield from vectors(each)
    elif is_dataclass(thing) and not isinstance(thing, Update):
        for each in fields(thing):
            yield from vectors(getattr(thing, each.name))
