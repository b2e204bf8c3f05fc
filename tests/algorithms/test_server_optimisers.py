"""Server optimisers: two steps of each on two numbers, worked out by hand."""

from math import sqrt

import numpy as np
import pytest

from offbeat.algorithms import FedAvg, FedBuff
from offbeat.algorithms.server_optimisers import ServerMoments
from offbeat.testing import ScriptedSession, check_resume

ADAPTIVE = {"server_learning_rate": 0.5, "server_momentum": 0.75, "server_decay": 0.75, "server_epsilon": 2.0}


def steps(optimiser: str, *movements: float, **settings: float) -> list[float]:
    """Where one number is after each of these movements, from 0 on."""
    policy = FedAvg(server_optimiser=optimiser, **settings)  # type: ignore[arg-type]
    moments, place, places = ServerMoments(), np.zeros(1, dtype=np.float32), []
    for movement in movements:
        place = policy.server_step(place, np.array([movement]).__getitem__, moments)
        places.append(float(place[0]))
    return places


def test_momentum() -> None:
    # m = 4, w = 0.5 * 4 = 2;  m = 0.5 * 4 + 2 = 4, w = 2 + 0.5 * 4 = 4
    assert steps("momentum", 4.0, 2.0, server_learning_rate=0.5, server_momentum=0.5) == [2.0, 4.0]


def test_adagrad() -> None:
    # m = 0.25 * 4 = 1, v = 2^2 + 16 = 20, w = 0.5 * 1 / (sqrt 20 + 2)
    # m = 0.75 * 1 + 0.25 * 2 = 1.25, v = 20 + 4 = 24, w += 0.5 * 1.25 / (sqrt 24 + 2)
    first = 0.5 / (sqrt(20) + 2)
    assert steps("adagrad", 4.0, 2.0, **ADAPTIVE) == pytest.approx([first, first + 0.625 / (sqrt(24) + 2)])


def test_adam() -> None:
    # m as above; v = 0.75 * 4 + 0.25 * 16 = 7;  v = 0.75 * 7 + 0.25 * 4 = 6.25
    first = 0.5 / (sqrt(7) + 2)
    assert steps("adam", 4.0, 2.0, **ADAPTIVE) == pytest.approx([first, first + 0.625 / (2.5 + 2)])


def test_yogi() -> None:
    # m as above; v = 4 - 0.25 * 16 * sign(4 - 16) = 8;  v = 8 - 0.25 * 4 * sign(8 - 4) = 7
    first = 0.5 / (sqrt(8) + 2)
    assert steps("yogi", 4.0, 2.0, **ADAPTIVE) == pytest.approx([first, first + 0.625 / (sqrt(7) + 2)])


def test_fedavg_steps_along_the_mean_movement() -> None:
    policy = FedAvg(cohort=2, server_optimiser="momentum", server_momentum=0.5, server_learning_rate=1.0)
    session = ScriptedSession(policy, samples=[10, 30], start=(1.0, 0.0))
    session.upload(5.0, 0.0, device=0)
    session.upload(1.0, 4.0, device=1)
    # mean = [2, 3], Delta = [1, 3] = m
    assert session.parameters.tolist() == [2.0, 3.0]
    session.upload(2.0, 3.0, device=0)
    session.upload(2.0, 3.0, device=1)
    # Delta = 0, m = [0.5, 1.5]
    assert session.parameters.tolist() == [2.5, 4.5]


def test_a_server_learning_rate_alone_scales_the_movement() -> None:
    session = ScriptedSession(FedAvg(cohort=1, server_learning_rate=0.25), devices=1, start=(1.0, 0.0))
    session.upload(5.0, 8.0)
    assert session.parameters.tolist() == [2.0, 2.0]


def test_fedbuff_steps_along_its_scaled_movement() -> None:
    policy = FedBuff(buffer=2, concurrency=2, server_optimiser="momentum", server_momentum=0.5)
    session = ScriptedSession(policy, devices=2)
    session.upload(3.0, 0.0)
    session.upload(0.0, 3.0)
    assert session.parameters.tolist() == [1.5, 1.5]
    session.move(0.0, 0.0)
    session.move(0.0, 0.0)
    # Delta = 0, m = 0.5 * [1.5, 1.5]
    assert session.parameters.tolist() == [2.25, 2.25]


@pytest.mark.parametrize(
    "policy",
    [
        FedAvg(cohort=3, server_optimiser="momentum"),
        FedBuff(buffer=3, concurrency=6, variant="plato", server_optimiser="yogi", server_learning_rate=0.1),
    ],
)
def test_a_run_can_be_resumed_with_the_moments_of_its_optimiser(policy: FedAvg | FedBuff) -> None:
    check_resume(policy, devices=12)
