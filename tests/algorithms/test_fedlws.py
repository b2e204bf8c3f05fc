"""FedLWS on two layers of two numbers: every norm worked out by hand."""

import pytest

from offbeat.algorithms.fedlws import FedLWS
from offbeat.core.parameters import Layout
from offbeat.testing import ScriptedSession

TWO_LAYERS = Layout.of([("a.weight", (2,), True), ("b.weight", (2,), True)])


def a_session(**settings: float) -> ScriptedSession:
    policy = FedLWS(cohort=2, **settings)  # type: ignore[arg-type]
    return ScriptedSession(policy, samples=[30, 10], start=[3.0, 4.0, 0.0, 1.0], layout=TWO_LAYERS)


def test_each_layer_shrinks_by_its_own_factor() -> None:
    session = a_session(shrinking=0.1, least=0.0, most=10.0)
    session.upload(3.0, 4.0, 0.0, 3.0, device=0)
    session.upload(11.0, 4.0, 0.0, 3.0, device=1)
    # Layer a: w^ = (30 * [3, 4] + 10 * [11, 4]) / 40 = [5, 4].  g_0 = [0, 0], g_1 = [8, 0], their mean [4, 0], so
    # both are 4 away from it: tau = 0.1 * 4 = 0.4.  ||w|| = 5, ||w^ - w|| = 2: gamma = 5 / (5 + 0.4 * 2) = 5 / 5.8
    # Layer b: both moved by [0, 2], so tau = 0 and gamma = 1: w^ = [0, 3] stays.
    assert session.parameters == pytest.approx([5 * 5 / 5.8, 4 * 5 / 5.8, 0.0, 3.0])


def test_tau_is_clipped_from_both_sides() -> None:
    session = a_session(shrinking=0.1, least=0.25, most=0.3)
    session.upload(3.0, 4.0, 0.0, 3.0, device=0)
    session.upload(11.0, 4.0, 0.0, 3.0, device=1)
    # Layer a: 0.4 becomes 0.3: gamma = 5 / 5.6.  Layer b: 0 becomes 0.25, ||w|| = 1, ||w^ - w|| = 2: 1 / 1.5
    assert session.parameters == pytest.approx([5 * 5 / 5.6, 4 * 5 / 5.6, 0.0, 3 / 1.5])


def test_tau_goes_by_the_mean_distance_of_the_devices_from_their_mean() -> None:
    one = Layout.of([("a.weight", (2,), True)])
    session = ScriptedSession(
        FedLWS(cohort=3, shrinking=0.3, least=0.0, most=10.0), devices=3, start=[3.0, 4.0], layout=one
    )
    for x in (3.0, 3.0, 9.0):
        session.upload(x, 4.0)
    # Moved by 0, 0 and 6, mean 2, so 2, 2 and 4 away from it: tau = 0.3 * 8/3 = 0.8 (by the largest: 1.2).
    # w^ = [5, 4], ||w|| = 5, ||w^ - w|| = 2: gamma = 5 / 6.6
    assert session.parameters == pytest.approx([5 * 5 / 6.6, 4 * 5 / 6.6])


def test_the_centre_is_the_plain_mean_of_the_devices_whatever_their_samples() -> None:
    policy = FedLWS(cohort=3, shrinking=0.3, least=0.0, most=10.0)
    one = Layout.of([("a.weight", (2,), True)])
    session = ScriptedSession(policy, samples=[10, 10, 40], start=[3.0, 4.0], layout=one)
    for device, x in enumerate((3.0, 3.0, 9.0)):
        session.upload(x, 4.0, device=device)
    # Moved by 0, 0 and 6. The centre is 2, not 4, the mean by samples; so 2, 2 and 4 away: tau = 0.3 * 8/3 = 0.8
    # (Around 4 they would be 4, 4 and 2 away: tau = 1. The mean of 2, 2 and 4 by samples would be 10/3: tau = 1.)
    # w^ = (10 * 3 + 10 * 3 + 40 * 9) / 60 = 7, ||w|| = 5, ||w^ - w|| = 4: gamma = 5 / (5 + 0.8 * 4) = 5 / 8.2
    assert session.parameters == pytest.approx([7 * 5 / 8.2, 4 * 5 / 8.2])


def test_the_published_constants() -> None:
    assert (FedLWS().shrinking, FedLWS().least, FedLWS().most) == (0.03, 0.01, 0.2)


def test_a_layer_of_zeros_and_buffers_are_not_shrunk() -> None:
    layout = Layout.of([("a.weight", (1,), True), ("a.mean", (1,), False)])
    session = ScriptedSession(FedLWS(cohort=2), devices=2, start=[0.0, 5.0], layout=layout)
    session.upload(1.0, 7.0)
    session.upload(3.0, 9.0)
    assert session.parameters.tolist() == [2.0, 8.0]
