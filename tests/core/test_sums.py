"""Sessions that keep only the sum of their updates: the same versions, and nothing else can be read or kept."""

import gc
import json
import weakref
from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from offbeat.algorithms import POLICIES, Fadas, FedAvg, FedBuff, FedStaleWeight, Rennala
from offbeat.core.combining import mean_delta, mean_model
from offbeat.core.errors import InvalidInput, PolicyError
from offbeat.core.messages import Action, Commit, Event, Uploaded
from offbeat.core.orders import Outcome, Update
from offbeat.core.policy import Policy, View
from offbeat.core.snapshot import decode, encode
from offbeat.selection import Oort
from offbeat.testing import ScriptedSession, check_session, toy_simulation
from offbeat.trust.influence import InfluenceLimits
from offbeat.trust.robust import CoordinateMedian


def test_fedbuff_adds_each_update_with_the_weight_of_its_staleness() -> None:
    session = ScriptedSession(FedBuff(buffer=2, concurrency=3), sums_only=True)
    session.move(4.0, 0.0, ticket=1)
    assert session.move(0.0, 4.0, ticket=2).used == [1, 2]
    assert session.parameters.tolist() == [2.0, 2.0]  # ([4, 0] + [0, 4]) / 2
    session.move(6.0, 0.0, ticket=3)  # one version late: 1 / sqrt(2)
    session.move(0.0, 6.0, ticket=5)
    assert session.parameters.tolist() == pytest.approx([2 + 3 / sqrt(2), 2 + 3])


def test_fedavg_weighs_by_samples_and_leaves_out_what_trained_nothing() -> None:
    session = ScriptedSession(FedAvg(cohort=3), samples=[10, 30, 1000], start=[1.0, 1.0], sums_only=True)
    session.upload(5.0, 1.0, device=0)
    assert session.upload(9.0, 9.0, device=2, slices=0).discarded != []
    assert len(session.upload(1.0, 5.0, device=1).used) == 2
    assert session.parameters.tolist() == [2.0, 4.0]  # [1, 1] + (10 [4, 0] + 30 [0, 4]) / 40


def test_capped_samples_are_the_weights_of_the_sum() -> None:
    session = ScriptedSession(
        FedAvg(cohort=2), samples=[10, 1000], screen=InfluenceLimits(most_samples=30), sums_only=True
    )
    session.upload(4.0, 0.0, device=0)
    session.upload(0.0, 4.0, device=1)
    assert session.parameters.tolist() == [1.0, 3.0]  # 10 and 30


VARIANTS = [
    FedBuff(buffer=3, concurrency=4),
    FedBuff(buffer=3, concurrency=4, normaliser="weights", server_learning_rate=0.7),
    FedBuff(buffer=2, concurrency=4, server_optimiser="adam", server_learning_rate=0.1),
    FedStaleWeight(buffer=3, concurrency=4),
    Fadas(buffer=2, concurrency=4),
    Rennala(buffer=2, concurrency=4),
    FedAvg(cohort=3),
    FedAvg(cohort=3, weighting="uniform", server_optimiser="momentum", server_learning_rate=0.5),
]


def named(policy: Policy) -> str:
    return ", ".join([type(policy).__name__, *sorted(policy.model_fields_set)])


@pytest.mark.parametrize("policy", VARIANTS, ids=named)
@settings(max_examples=25, deadline=None)
@given(choices=st.lists(st.integers(0, 10**6), max_size=30))
def test_the_versions_are_those_of_the_plain_run(policy: Policy, choices: list[int]) -> None:
    """Bit for bit where the plain rule sums movements too; FedAvg sums models, so its last digits differ."""
    plain, summed = (ScriptedSession(policy, samples=[3, 7, 50, 9, 1], sums_only=on) for on in (False, True))
    for choice in choices:
        tickets = sorted(plain.in_flight)
        movement = np.random.default_rng(choice).normal(size=2).tolist()
        for session in (plain, summed):
            if choice % 5:
                session.move(*movement, ticket=tickets[choice % len(tickets)])
            else:
                lost = session.in_flight[tickets[choice % len(tickets)]].device
                session.lose(device=lost)
                session.come(lost)
            check_session(session)
        assert plain.version == summed.version and list(plain.in_flight) == list(summed.in_flight)
        if isinstance(policy, FedAvg):
            assert summed.parameters.tolist() == pytest.approx(plain.parameters.tolist(), rel=1e-5, abs=1e-6)
        else:
            assert summed.parameters.tobytes() == plain.parameters.tobytes()


def test_long_vectors_are_added_in_blocks_with_the_same_bits() -> None:
    size = 2**17 + 5
    models = np.random.default_rng(0).normal(size=(4, size)).astype(np.float32)
    ends = []
    for sums_only in (False, True):
        session = ScriptedSession(FedBuff(buffer=2, concurrency=3), start=models[0].tolist(), sums_only=sums_only)
        for ticket, model in zip((1, 2, 3, 4), (models[1], models[2], models[3], models[1]), strict=True):
            session.upload(*model.tolist(), ticket=ticket)
        ends.append(session.parameters.tobytes())
    assert session.version == 2 and ends[0] == ends[1]


# Nothing else can be read or kept ------------------------------------------------------------------------------------


class Peeking(FedBuff):
    """Reads one property of the update that has arrived."""

    looks_at: str = "parameters"

    def react(self, event: Event, state: Any, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            getattr(event.update, self.looks_at)
        yield from super().react(event, state, view)


class PeekingForItsWeight(FedBuff):
    """Reads the update to weigh it."""

    def weight_in_sum(self, update: Update, view: View) -> float:
        return float(np.linalg.norm(update.delta))


@pytest.mark.parametrize("name", ["parameters", "delta", "loss", "extras"])
def test_a_policy_that_reads_an_update_is_told_in_one_sentence(name: str) -> None:
    for policy in (Peeking(buffer=2, concurrency=2, looks_at=name), PeekingForItsWeight(buffer=2, concurrency=2)):
        session = ScriptedSession(policy, sums_only=True)
        with pytest.raises(PolicyError, match=r"^with trust\.sums_only = true a policy cannot read a single update"):
            session.move(1.0, 2.0)


class Counted:
    """An outcome that counts how often it is read, and forgets its numbers."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome: Outcome | None = outcome
        self.reads = 0

    def __call__(self) -> Outcome:
        assert self.outcome is not None, "the update is read again"
        outcome, self.outcome, self.reads = self.outcome, None, self.reads + 1
        return outcome


@pytest.mark.parametrize("policy", [FedBuff(buffer=3, concurrency=3), FedAvg(cohort=3)], ids=named)
def test_an_update_is_read_once_and_then_gone(policy: Policy) -> None:
    """From memory, and from a snapshot: that has one vector for the model and one for the sum."""
    session = ScriptedSession(policy, devices=3, sums_only=True)
    for number in range(7):
        update = session.update(float(number), 1.0)
        counted = Counted(update.outcome())
        known = weakref.ref(update.parameters)
        session.handle(Uploaded(device=update.device, ticket=update.ticket, update=replace(update, outcome=counted)))
        del update
        gc.collect()
        assert counted.reads == 1 and known() is None
        _, arrays = encode(replace_in_flight(session))
        assert sum(array.size == 2 and array.dtype.kind == "f" for array in arrays.values()) <= 2


def replace_in_flight(session: ScriptedSession) -> Any:
    """What a snapshot has besides the orders in flight, which refer to the versions that they started from."""
    saved = session.snapshot()
    return (saved.parameters, saved.state, saved.sums, saved.received)


def test_a_session_continues_from_a_snapshot_with_the_same_sum() -> None:
    def sessions() -> ScriptedSession:
        return ScriptedSession(FedBuff(buffer=3, concurrency=3), sums_only=True)

    whole, stopped, resumed = sessions(), sessions(), sessions()
    for session in (whole, stopped):
        session.move(1.0, 0.0)
        session.move(0.0, 0.3)
    tree, arrays = encode(stopped.snapshot())
    for array in arrays.values():
        array.flags.writeable = False  # as read from a file
    resumed.restore(decode(json.loads(json.dumps(tree)), arrays, resumed.snapshot_types))
    for session in (whole, resumed):
        assert session.move(0.5, 0.7).used == [1, 2, 3]
        session.move(0.1, 0.2)
    assert whole.parameters.tobytes() == resumed.parameters.tobytes()
    with pytest.raises(PolicyError, match="cannot read a single update"):
        _ = resumed.state.updates[0].parameters


def test_a_simulation_with_sums_is_as_lazy_as_the_plain_one() -> None:
    """An update that is discarded with the weight 0 is never computed."""
    simulations = [toy_simulation(Rennala(buffer=2, concurrency=8), sums_only=on) for on in (False, True)]
    for simulation in simulations:
        for _ in simulation:
            pass
    plain, summed = (each.session for each in simulations)
    assert summed.counters.discarded > 0 and summed.parameters.tobytes() == plain.parameters.tobytes()


# Mistakes ------------------------------------------------------------------------------------------------------------


class WrongWeight(FedBuff):
    """Says 1 when an update arrives, and scales it by its staleness later."""

    def weight_in_sum(self, update: Update, view: View) -> float:
        return 1.0


class HalfOfThem(FedBuff):
    """Uses the first update of the buffer alone."""

    def aggregate(self, state: Any, view: View) -> Commit:
        first, state.updates = state.updates[:1], state.updates[1:]
        return Commit(parameters=mean_delta(first, [1.0], view), used=(first[0].ticket,))


def test_the_policy_must_take_exactly_what_was_added() -> None:
    session = ScriptedSession(WrongWeight(buffer=1, concurrency=2), sums_only=True)
    session.move(1.0, 0.0, ticket=1)
    with pytest.raises(PolicyError, match=r"weights \{2: 0\.7.*\{2: 1\.0\}: weight_in_sum must return"):
        session.move(1.0, 0.0, ticket=2)
    session = ScriptedSession(HalfOfThem(buffer=2, concurrency=2), sums_only=True)
    session.move(1.0, 0.0)
    with pytest.raises(PolicyError, match=r"weights \{1: 1\.0\} by ticket, but was given the sum with \{1: 1\.0, 2"):
        session.move(1.0, 0.0)


class MeanOfStaleModels(FedBuff):
    """The mean of models that started from different versions: not the current version plus the mean movement."""

    def aggregate(self, state: Any, view: View) -> Commit:
        updates, state.updates = state.updates, []
        return Commit(parameters=mean_model(updates, [1.0], view), used=(updates[0].ticket,))

    def weight_in_sum(self, update: Update, view: View) -> float:
        return 1.0


def test_the_sum_has_the_movements_from_their_own_bases_only() -> None:
    session = ScriptedSession(MeanOfStaleModels(buffer=1, concurrency=2), sums_only=True)
    session.upload(1.0, 0.0, ticket=1)
    assert session.parameters.tolist() == [1.0, 0.0]  # from the current version
    with pytest.raises(PolicyError, match="has the movement of ticket 2 from its base, version 0, and no other"):
        session.upload(1.0, 0.0, ticket=2)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_needs_single_updates_is_refused_and_says_so_itself(name: str) -> None:
    policy = POLICIES[name]()
    if policy.sums_suffice:
        assert policy.about.sums_only and policy.combines
        return
    with pytest.raises(InvalidInput, match=f"^{type(policy).__name__} reads single updates"):
        ScriptedSession(policy, devices=24, sums_only=True)


def test_other_parts_that_read_single_updates_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^FedBuff reads single updates"):
        ScriptedSession(FedBuff(buffer=2, concurrency=2, variant="plato"), sums_only=True)
    with pytest.raises(InvalidInput, match=r"^CoordinateMedian reads single updates"):
        ScriptedSession(FedAvg(cohort=2), combiner=CoordinateMedian(), sums_only=True)
    with pytest.raises(InvalidInput, match=r"^Oort reads single updates"):
        ScriptedSession(FedAvg(cohort=2), selector=Oort(), sums_only=True)
