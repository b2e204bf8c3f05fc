"""PORT on a model of two numbers: its weights, and movements that are taken from each update's own base.

What it shares with SEAFL² (the buffer, the wait, the notices, the concurrency) is tested for both in test_seafl.py.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
import pytest

from offbeat.algorithms import POLICIES
from offbeat.algorithms.seafl import Port
from offbeat.core.messages import StopNotice
from offbeat.core.orders import KnownOutcome, Outcome, Progress, Update
from offbeat.core.parameters import Vector
from offbeat.testing import ScriptedSession, check_resume


def vector(*numbers: float) -> Vector:
    return np.array(numbers, dtype=np.float32)


def a_session(policy: Port, samples: Sequence[int], start: tuple[float, float] = (0.0, 0.0)) -> ScriptedSession:
    return ScriptedSession(policy, samples=samples, start=start, epochs=2)


def an_update(after: Vector, before: Vector, *, base: int, samples: int) -> Update:
    return Update(
        device=0,
        ticket=1,
        base=base,
        base_parameters=before,
        samples=samples,
        progress=Progress(slices=2),
        outcome=KnownOutcome(Outcome(parameters=after)),
    )


def test_the_defaults_are_those_of_the_authors_code() -> None:
    policy = POLICIES["port"]()
    assert isinstance(policy, Port)
    assert (policy.similarity_weight, policy.staleness_weight, policy.staleness_limit) == (1.0, 3.0, 10.0)
    assert (policy.similarity, policy.mixing) == ("last-step", 1.0)


def test_weights_by_data_staleness_and_similarity_with_the_global_movement() -> None:
    policy = Port(buffer=1, concurrency=1, similarity="movement")  # l_sim 1, l_st 3, b 10
    session = a_session(policy, samples=(1,))
    session.version, session.parameters = 5, vector(2.0, 1.0)
    base = vector(1.0, 1.0)  # from here the global model has moved by [1, 0]
    buffer = [
        # s = 2: 3 * 10 / 12 = 2.5;  Delta = [3, 4], cos 3/5, (0.6 + 1) / 2 = 0.8:   5 * 3.3 = 16.5
        an_update(base + vector(3.0, 4.0), base, base=3, samples=5),
        # s = 5: 3 * 10 / 15 = 2;    Delta = [-2, 0], cos -1:                        4 * 2   = 8
        an_update(base + vector(-2.0, 0.0), base, base=0, samples=4),
        # fresh: 3;                  no global movement yet, cos 1:                  2 * 4   = 8
        an_update(vector(-9.0, 9.0), session.parameters, base=5, samples=2),
        # s = 10: 3 * 10 / 20 = 1.5; Delta = 0, cos 1:                               6 * 2.5 = 15
        an_update(base, base, base=-5, samples=6),
    ]
    assert policy.weights(buffer, session) == pytest.approx([16.5, 8.0, 8.0, 15.0])


def test_weights_without_a_staleness_limit() -> None:
    policy = Port(buffer=1, concurrency=1, staleness_limit=inf, similarity="movement")
    session = a_session(policy, samples=(1,))
    session.version, session.parameters = 100, vector(2.0, 1.0)
    base = vector(1.0, 1.0)
    # 5 * (3 + 0.8), however stale
    assert policy.weights([an_update(base + vector(3.0, 4.0), base, base=0, samples=5)], session) == pytest.approx(
        [19.0]
    )


def test_movements_are_taken_from_the_updates_own_base_and_added() -> None:
    session = a_session(Port(buffer=2, concurrency=3, staleness_limit=2.0, similarity="movement"), samples=(1, 3, 8))
    session.upload(4.0, 0.0, device=0)
    session.upload(0.0, 4.0, device=1)
    # Both fresh, cos 1: n * (3 + 1), so p = 1/4, 3/4.  w = [0, 0] + 1/4 [4, 0] + 3/4 [0, 4] = [1, 3]
    assert session.parameters == pytest.approx([1.0, 3.0])
    session.upload(3.0, -1.0, device=2)
    session.upload(4.0, 8.0, device=0)
    # device 2: base 0 = [0, 0], s = 1: 3 * 2 / 3 = 2; Delta = [3, -1] at a right angle to the global movement [1, 3],
    #           cos 0, 1/2:  8 * 2.5 = 20
    # device 0: base 1 = [1, 3], fresh: 3; Delta = [3, 5], cos 1:  1 * 4 = 4.  p = 5/6, 1/6
    # w = [1, 3] + 5/6 [3, -1] + 1/6 [3, 5] = [1 + 3, 3 - 5/6 + 5/6] = [4, 3]
    # (Movements from the current model would have given [1, 3] + 5/6 [2, -4] + 1/6 [3, 5] = [3.17, 0.5].)
    assert session.parameters == pytest.approx([4.0, 3.0])
    assert (session.version, session.counters.staleness_max) == (2, 1)


def test_the_authors_code_compares_with_the_last_step_from_a_staleness_of_two_on() -> None:
    policy = Port(buffer=1, concurrency=3, staleness_limit=10.0, similarity="last-step")
    session = a_session(policy, samples=(1, 1, 1))
    session.upload(2.0, 0.0, device=0)  # alone: w_1 = [2, 0]
    assert session.state.last_step.tolist() == [2.0, 0.0]
    session.upload(0.0, 3.0, device=1)  # alone: w_2 = [2, 0] + [0, 3] from its own base, the last step [0, 3]
    assert session.parameters.tolist() == [2.0, 3.0]
    step = session.state.last_step
    assert step.tolist() == [0.0, 3.0]
    buffer = [
        # s = 2: 3 * 10 / 12 = 2.5;  Delta = [3, 4], cos with [0, 3] = 4/5, (0.8 + 1) / 2 = 0.9:   5 * 3.4 = 17
        # (With the movement [2, 3] since its base: cos = (6 + 12) / (5 sqrt 13) = 0.998.)
        an_update(vector(3.0, 4.0), vector(0.0, 0.0), base=0, samples=5),
        # s = 2: 2.5;                Delta = [0, -1], cos -1:                                       4 * 2.5 = 10
        an_update(vector(0.0, -1.0), vector(0.0, 0.0), base=0, samples=4),
        # s = 1: 30 / 11;            Delta = [0, -1] too, but cos 1:                              11 * (30/11 + 1) = 41
        an_update(vector(2.0, -1.0), vector(2.0, 0.0), base=1, samples=11),
        # fresh: 3;                  cos 1:                                                         2 * 4 = 8
        an_update(vector(-9.0, 9.0), session.parameters, base=2, samples=2),
    ]
    assert policy.weights(buffer, session, step) == pytest.approx([17.0, 10.0, 41.0, 8.0])


def test_a_run_with_the_last_step_can_be_resumed() -> None:
    check_resume(Port(buffer=3, concurrency=6, similarity="last-step"), devices=12)


def test_a_share_of_the_movement_can_be_applied() -> None:
    session = a_session(
        Port(buffer=1, concurrency=1, mixing=0.25, similarity="movement"), samples=(10,), start=(10.0, 0.0)
    )
    session.upload(14.0, 8.0, device=0)
    assert session.parameters == pytest.approx([11.0, 2.0])  # [10, 0] + 1/4 [4, 8]


def test_it_can_compare_with_the_model_as_seafl_does() -> None:
    policy = Port(buffer=1, concurrency=1, similarity="model")
    session = a_session(policy, samples=(1,), start=(2.0, 0.0))
    # Fresh, Delta = [0, 1] at a right angle to the model: 6 * (3 + 1/2)
    update = an_update(vector(2.0, 1.0), vector(2.0, 0.0), base=0, samples=6)
    assert policy.weights([update], session) == pytest.approx([21.0])


def test_an_urgent_notice_brings_a_partial_model_that_counts_like_any_other() -> None:
    session = a_session(Port(buffer=1, concurrency=2, staleness_limit=1.0, similarity="movement"), samples=(10, 10))
    (notice,) = (effect for effect in session.upload(2.0, 0.0, device=0) if isinstance(effect, StopNotice))
    assert notice.device == 1
    session.upload(3.0, 0.0, device=0)
    assert session.version == 1, "device 1 is waited for"
    session.upload(2.0, 0.0, device=1, slices=1)
    # w = [2, 0]. device 0: fresh, Delta = [1, 0]: 10 * (3 + 1) = 40
    # device 1: s = 1: 3 * 1 / 2 = 1.5; Delta = [2, 0] along the global movement [2, 0], cos 1: 10 * 2.5 = 25
    # w = [2, 0] + (40 [1, 0] + 25 [2, 0]) / 65 = [2 + 90/65, 0]
    assert session.parameters == pytest.approx([2 + 90 / 65, 0.0])
    assert session.metrics == {"mean_epochs": 5 / 3, "partial_updates": 1}  # (2 + 2 + 1) / 3
