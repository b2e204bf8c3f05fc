"""The hook through which a combiner or a screen takes part in a session."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from offbeat.algorithms import POLICIES, DelayAdaptive, FedASMU, FedAsync, FedAvg, FedBuff, Port, Seafl
from offbeat.core.combining import Combiner, Contributions, Floats, Movement, Screen
from offbeat.core.errors import InvalidInput
from offbeat.core.orders import KnownOutcome, Outcome, Update
from offbeat.core.parameters import frozen
from offbeat.core.policy import View
from offbeat.testing import ScriptedSession
from offbeat.testing.toy import toy_simulation


@dataclass
class Seen:
    calls: int = 0
    staleness: list[int] = field(default_factory=list)
    noise: float = 0.0


class Doubled(Combiner):
    """Twice the weighted mean; counts its calls."""

    State = Seen

    def combine(self, contributions: Contributions, state: Seen, view: View) -> Movement:
        state.calls += 1
        state.staleness = list(contributions.staleness)
        state.noise = float(view.stream("noise", view.version).random())
        weights = np.array(contributions.weights) / contributions.divisor

        def doubled(block: slice) -> Floats:
            return 2.0 * weights @ contributions.block(block)

        return doubled

    def metrics(self, state: Seen) -> dict[str, float]:
        return {"combined": float(state.calls)}


class Halved(Screen):
    """Half of every movement."""

    def admit(self, update: Update, norm: float, state: Any, view: View) -> Update:
        half = frozen(update.base_parameters + update.delta / 2)
        return replace(update, outcome=KnownOutcome(Outcome(parameters=half)))


def test_a_combiner_replaces_the_mean_of_a_buffer() -> None:
    session = ScriptedSession(FedBuff(buffer=2, concurrency=3), combiner=Doubled())
    session.move(4.0, 0.0, ticket=1)
    session.move(0.0, 4.0, ticket=2)
    assert session.parameters.tolist() == [4.0, 4.0]  # 2 ([4, 0] + [0, 4]) / 2
    session.move(6.0, 0.0, ticket=3)
    session.move(0.0, 6.0, ticket=5)
    # staleness 1 and 0: 2 (1/sqrt(2) [6, 0] + [0, 6]) / 2
    assert session.parameters.tolist() == pytest.approx([4 + 6 / 2**0.5, 10.0])
    assert session.combiner_state.staleness == [1, 0]
    assert session.own_metrics()["combined"] == 2.0


def test_a_combiner_replaces_the_mean_of_models() -> None:
    session = ScriptedSession(FedAvg(cohort=2), samples=[10, 30], start=(1.0, 1.0), combiner=Doubled())
    session.upload(5.0, 1.0, device=0)
    session.upload(1.0, 5.0, device=1)
    # movements [4, 0] and [0, 4], shares 1/4 and 3/4: [1, 1] + 2 [1, 3]
    assert session.parameters.tolist() == [3.0, 7.0]


@pytest.mark.parametrize(("policy", "step"), [(Seafl, 0.5), (Port, 0.5)])
def test_seafl_mixes_what_the_combiner_makes(policy: type[Seafl], step: float) -> None:
    session = ScriptedSession(policy(buffer=2, concurrency=2, mixing=step), combiner=Doubled())
    session.upload(4.0, 0.0)
    session.upload(0.0, 4.0)
    assert session.parameters.tolist() == [2.0, 2.0]  # 1/2 of 2 (1/2 [4, 0] + 1/2 [0, 4])


def test_a_screen_changes_an_update_before_the_policy_sees_it() -> None:
    session = ScriptedSession(FedAsync(concurrency=1, alpha=1.0), screen=Halved())
    session.upload(4.0, 2.0)
    assert session.parameters.tolist() == [2.0, 1.0]


def test_a_policy_without_a_mean_refuses_a_combiner() -> None:
    with pytest.raises(InvalidInput, match=r"DelayAdaptive does not make its versions .* which Doubled would replace"):
        ScriptedSession(DelayAdaptive(concurrency=1), combiner=Doubled())


def test_a_policy_that_uses_one_update_at_a_time_refuses_a_combiner_that_compares_several() -> None:
    with pytest.raises(InvalidInput, match="FedAsync uses one update at a time, and Doubled compares several"):
        ScriptedSession(FedAsync(concurrency=1), combiner=Doubled())


class DoubledSingly(Doubled):
    """One that also takes single updates."""

    singly = True


def test_fedasync_mixes_what_the_combiner_makes_of_an_update() -> None:
    session = ScriptedSession(FedAsync(concurrency=2, alpha=0.25), start=(1.0, 1.0), combiner=DoubledSingly())
    session.upload(5.0, 1.0, ticket=1)  # 1/4 of 2 [4, 0]
    assert session.parameters.tolist() == [3.0, 1.0]
    session.upload(3.0, 5.0, ticket=2)  # staleness 1, from the current version: 1/4 1/sqrt(2) of 2 [0, 4]
    assert session.parameters.tolist() == pytest.approx([3.0, 1 + 2 / 2**0.5])
    assert session.combiner_state.staleness == [1]


def test_fedasmu_mixes_and_remembers_what_the_combiner_makes_of_an_update() -> None:
    policy = FedASMU(cohort=2, lambda_0=1.0, sigma_0=1.0, iota_0=0.0)
    session = ScriptedSession(policy, combiner=DoubledSingly())
    session.upload(4.0, 0.0, ticket=1)  # alpha = 1/2 of 2 [4, 0]
    assert session.parameters.tolist() == [4.0, 0.0]
    assert session.state.made[1].movement.tolist() == [8.0, 0.0]  # alpha times it made the version


def test_the_state_of_a_combiner_is_in_the_snapshot() -> None:
    session = ScriptedSession(FedBuff(buffer=1, concurrency=1), combiner=Doubled())
    session.move(1.0, 0.0)
    again = ScriptedSession(FedBuff(buffer=1, concurrency=1), combiner=Doubled())
    again.restore(session.copied())
    assert again.combiner_state == session.combiner_state
    for each in (session, again):
        each.move(1.0, 0.0)
    assert again.combiner_state == session.combiner_state
    assert again.combiner_state.calls == 2


@pytest.mark.parametrize("name", [name for name, kind in POLICIES.items() if kind.combines or kind.mixes])
def test_every_version_of_a_policy_that_combines_is_made_by_the_combiner(name: str) -> None:
    simulation = toy_simulation(POLICIES[name](), combiner=DoubledSingly())
    session, used, made = simulation.session, 0, 0
    for _ in simulation:
        made += session.counters.used > used  # an event commits at most one version here
        used = session.counters.used
    assert session.combiner_state.calls == made > 0
