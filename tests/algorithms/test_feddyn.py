"""FedDyn: the server's correction by hand, and the devices' regulariser in real training."""

import numpy as np
import pytest

from offbeat.algorithms.feddyn import FedDyn
from offbeat.core.terms import LinearQuadratic
from offbeat.testing import ScriptedSession


def test_the_correction_grows_by_the_mean_drift_over_all_devices() -> None:
    session = ScriptedSession(FedDyn(cohort=2), devices=4)
    session.upload(4.0, 0.0)
    session.upload(0.0, 8.0)
    # h = ([4, 0] + [0, 8]) / 4 = [1, 2];  w = mean [2, 4] + h
    assert session.parameters.tolist() == [3.0, 6.0]
    session.move(2.0, 0.0)
    session.move(2.0, 0.0)
    # h = [1, 2] + ([2, 0] + [2, 0]) / 4 = [2, 2];  w = [3 + 2, 6] + h
    assert session.parameters.tolist() == [7.0, 8.0]


def test_the_mean_is_unweighted_as_published() -> None:
    session = ScriptedSession(FedDyn(cohort=2), samples=[10, 90])
    session.upload(4.0, 0.0, device=0)
    session.upload(0.0, 4.0, device=1)
    # mean [2, 2], h = [4, 4] / 2
    assert session.parameters.tolist() == [4.0, 4.0]


@pytest.mark.parametrize(("scaling", "alphas"), [("none", {0: 0.2, 1: 0.2}), ("samples", {0: 0.4, 1: 0.4 / 3})])
def test_alpha_is_the_same_for_all_or_falls_with_a_devices_samples(scaling: str, alphas: dict[int, float]) -> None:
    # samples 10 and 30, mean 20: 0.2 * 20 / 10 and 0.2 * 20 / 30
    policy = FedDyn(cohort=2, alpha=0.2, scaling=scaling)  # type: ignore[arg-type]
    session = ScriptedSession(policy, samples=[10, 30])
    for order in session.first.orders:
        (term,) = order.order.terms
        assert isinstance(term, LinearQuadratic)
        assert term.alpha == pytest.approx(alphas[order.device])


def test_a_snapshot_keeps_the_correction() -> None:
    session = ScriptedSession(FedDyn(cohort=1), devices=2)
    session.upload(2.0, 4.0)
    assert np.array_equal(session.state.correction, [1.0, 2.0])
