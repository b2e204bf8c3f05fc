"""FedASMU's server half on a model of two numbers: weights, control gradients, the bound, the trigger; and what holds
in any run. The device half is in test_fedasmu_device.py, the slots in test_slots.py, FedSSMU in test_fedssmu.py."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.algorithms.fedasmu.server import FedASMU, FedSSMU, TimelyPolicy, TimelyState
from offbeat.algorithms.fedasmu.slots import MetaModel
from offbeat.algorithms.fedasmu.weights import Aggregation, Control, control_slopes, upload_weight
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Assignment, Resolved, Uploaded
from offbeat.core.orders import KnownOutcome, Outcome, Plain, Progress, Update
from offbeat.core.parameters import Vector
from offbeat.core.state import JOURNAL_LINES, JournalLine
from offbeat.experiment.run_settings import Stop
from offbeat.results.rows import Row
from offbeat.simulation.engine import Simulation
from offbeat.testing import ScriptedSession, ToyExecutor, check_accounts, check_events, toy_simulation

EPOCHS = 2
STEPS = 4
RATE = 0.5
"""So that g = (w_o - w_i) / (0.5 * 4) = (w_o - w_i) / 2."""


def vector(*numbers: float) -> Vector:
    return np.array(numbers, dtype=np.float32)


def a_session(
    policy: TimelyPolicy, devices: int = 8, start: tuple[float, float] = (0.0, 0.0), epochs: int = EPOCHS
) -> ScriptedSession:
    return ScriptedSession(
        policy, devices=devices, start=start, epochs=epochs, learning_rate=RATE, steps_per_slice=STEPS // EPOCHS
    )


def unadapted(**changes: Any) -> FedASMU:
    """lambda 1, sigma 1, iota 0, and nothing learns."""
    fixed = {"lambda_0": 1.0, "sigma_0": 1.0, "iota_0": 0.0, "eta_lambda": 0.0, "eta_sigma": 0.0, "eta_iota": 0.0}
    return FedASMU.model_validate({"cohort": 3, "max_in_flight": 3} | fixed | changes)


# Equations (1) and (2) -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "staleness", "xi", "alpha"),
    [
        (0, 1, 2.5, 5 / 7),  # sqrt(max(0, 1)) = 1: 2 / (1 * 1) + 1/2;  2.5 / 3.5
        (1, 1, 2.5, 5 / 7),  # the same at version 1
        (1, 4, 1.5, 3 / 5),  # 2 / (1 * 2) + 1/2;  1.5 / 2.5
        (4, 1, 1.5, 3 / 5),  # 2 / (2 * 1) + 1/2
        (4, 4, 1.0, 1 / 2),  # 2 / (2 * 2) + 1/2;  1 / 2
        (16, 16, 0.625, 5 / 13),  # 2 / (4 * 4) + 1/2 = 5/8;  (5/8) / (13/8)
    ],
)
def test_equation_2(version: int, staleness: int, xi: float, alpha: float) -> None:
    assert upload_weight((2.0, 0.5, 0.5), version, staleness, mu=1.0) == pytest.approx((xi, alpha))


def test_equation_2_with_another_mu() -> None:
    # xi = 1 as above;  3 * 1 / (1 + 3 * 1)
    assert upload_weight((2.0, 0.5, 0.5), 4, 4, mu=3.0) == pytest.approx((1.0, 0.75))


def test_equation_2_without_any_control_leaves_the_model_as_it_is() -> None:
    assert upload_weight((0.0, 0.5, 0.0), 4, 4, mu=1.0) == (0.0, 0.0)


def test_equation_1_staleness_counts_from_one() -> None:
    session = a_session(unadapted())
    session.upload(4.0, 0.0, ticket=1)  # v = 0, s = 1: xi = 1, alpha = 1/2
    assert session.parameters == pytest.approx([2.0, 0.0])
    session.upload(
        0.0, 6.0, ticket=2
    )  # v = 1, s = 2: xi = 1 / (1 * 2), alpha = (1/2) / (3/2) = 1/3:  [2 * 2/3, 6 * 1/3]
    assert session.parameters == pytest.approx([4 / 3, 2.0])
    session.upload(0.0, 0.0, ticket=3)
    # v = 2, s = 3: xi = 1 / (sqrt 2 * 3) = 0.2357023, alpha = 0.2357023 / 1.2357023 = 0.1907436
    # [4/3 * 0.8092564, 2 * 0.8092564]
    assert session.parameters == pytest.approx([1.0790086, 1.6185129], rel=1e-6)
    assert (session.version, session.counters.used) == (3, 3)
    assert session.metrics["mean_alpha"] == pytest.approx((1 / 2 + 1 / 3 + 0.1907436) / 3)


def test_a_fresh_model_in_mid_training_does_not_make_an_update_fresher() -> None:
    session = a_session(unadapted())
    session.upload(4.0, 0.0, ticket=1)  # version 1 = [2, 0]
    assert session.ask(ticket=2).parameters is not None
    session.upload(0.0, 6.0, ticket=2)  # as above: it still counts from version 0, alpha = 1/3
    assert session.parameters == pytest.approx([4 / 3, 2.0])


@given(
    mu=st.floats(1e-3, 10.0),
    control=st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 10.0), st.floats(0.0, 100.0)),
    version=st.integers(0, 10_000),
    staleness=st.integers(1, 1000),
)
@settings(deadline=None)
def test_alpha_lies_in_0_1_and_falls_with_time_and_staleness(
    mu: float, control: Control, version: int, staleness: int
) -> None:
    alpha = upload_weight(control, version, staleness, mu)[1]
    assert 0.0 <= alpha < 1.0
    # Where hardly anything is left to fall, rounding may hide it: one unit in the last place.
    assert upload_weight(control, version + 1, staleness, mu)[1] <= alpha * (1 + 1e-12)
    assert upload_weight(control, version, staleness + 1, mu)[1] <= alpha * (1 + 1e-12)


# Equation (3): the control parameters --------------------------------------------------------------------------------


def at_version_2(*, lambda_0: float, sigma_0: float, first: float, **changes: Any) -> tuple[ScriptedSession, int]:
    """A device trains from version 2 = [1, 2], made by u = [-2, 4] with alpha' = 1/2, xi' = 1, s' = 2, o - 1 = 1.

    The lambda and sigma must make xi' = lambda / (1 * 2^sigma) = 1, and `first` the upload that leads to [2, 0]."""
    session = a_session(
        FedASMU.model_validate(
            {"cohort": 2, "max_in_flight": 2, "lambda_0": lambda_0, "sigma_0": sigma_0, "iota_0": 0.0} | changes
        )
    )
    session.upload(first, 0.0, ticket=1)
    assert session.parameters == pytest.approx([2.0, 0.0])
    session.upload(0.0, 4.0, ticket=2)  # u = [0, 4] - [2, 0], and half of it is taken
    assert session.parameters == pytest.approx([1.0, 2.0])
    assert session.metrics["lambda_spread"] == session.metrics["sigma_spread"] == 0.0, "no step for a base of 0"
    session.fire("period")
    return session, session.newest


def after_a_step(session: ScriptedSession, ticket: int, *delta: float, steps: int = STEPS) -> Control:
    device = session.in_flight[ticket].device
    session.move(*delta, ticket=ticket, steps=steps)
    controls: dict[int, Control] = session.state.controls
    return controls[device]


CORRECTED = {"eta_lambda": 0.8, "eta_sigma": 0.4, "eta_iota": 0.4}
# lambda = 2, sigma = 1. Version 0: xi = 2, alpha = 2/3, [3, 0] leads to [2, 0]. Version 1: xi' = 2 / (1 * 2) = 1.
# d alpha' / d xi' = 1 / (1 + 1)^2 = 1/4.   d xi' / d lambda = 1 / (1 * 2) = 1/2,
# d xi' / d sigma = -2 ln 2 / (1 * 2) = -ln 2,   d xi' / d iota = 1.
# The device moves by [1, 1]: g = -[1, 1] / (0.5 * 4) = [-1/2, -1/2],  <g, u> = 1 - 2 = -1.


def test_equation_3_as_corrected() -> None:
    session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, **CORRECTED)
    # lambda: 2 - 0.8 * (-1 * 1/4 * 1/2) = 2.1;  sigma: 1 - 0.4 * (-1 * 1/4 * -ln 2) = 1 - 0.1 ln 2;
    # iota: 0 - 0.4 * (-1 * 1/4) = 0.1
    assert after_a_step(session, ticket, 1.0, 1.0) == pytest.approx((2.1, 1 - 0.1 * log(2), 0.1), rel=1e-6)
    # They count at once. v = 2, s = 1: xi = 2.1 / sqrt 2 + 0.1 = 1.5849242, alpha = 1.5849242 / 2.5849242 = 0.6131415
    assert session.parameters == pytest.approx([1.6131415, 2.6131415], rel=1e-6)


def test_equation_3_uses_the_values_of_the_aggregation_that_made_the_base_whoever_made_it() -> None:
    session, _ = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, **CORRECTED)
    # Version 2 = [1, 2] was made with lambda' = 2, sigma' = 1, xi' = 1, s' = 2, t' = 1, u = [-2, 4]. The device that
    # trains from it has come to lambda = 3, sigma = 2, iota = 1/2 of its own.
    device = session.in_flight[session.newest].device
    session.state.controls[device] = (3.0, 2.0, 0.5)
    found = after_a_step(session, session.newest, 1.0, 1.0)
    # As above <g, u> = -1, d alpha' / d xi' = 1/4, d xi' / d lambda = 1/2, d xi' / d sigma = -ln 2, d xi' / d iota = 1:
    # lambda: 3 + 0.8 * 1/4 * 1/2 = 3.1;  sigma: 2 - 0.4 * 1/4 ln 2;  iota: 1/2 + 0.4 * 1/4 = 0.6
    # (With its own lambda and sigma: 3 + 0.8 * 1/4 * 1/4 = 3.05, and sigma 2 - 0.4 * 1/4 * 3/4 ln 2.)
    assert found == pytest.approx((3.1, 2 - 0.1 * log(2), 0.6), rel=1e-6)
    # The new parameters are those of the aggregation that made version 3.
    assert session.state.made[3].control == found


def test_equation_3_uses_what_the_other_device_had_come_to_and_not_what_all_began_with() -> None:
    session, _ = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, **CORRECTED)
    session.state.controls[session.in_flight[session.newest].device] = (3.0, 2.0, 0.5)
    # As above, but the device that made version 2 had come to lambda' = 8, sigma' = 3: xi' = 8 / 2^3 = 1 again, and
    # d xi' / d lambda = 1/8, d xi' / d sigma = -8 ln 2 / 8.
    session.state.made[2] = replace(session.state.made[2], control=(8.0, 3.0, 0.0))
    found = after_a_step(session, session.newest, 1.0, 1.0)
    assert found == pytest.approx((3 + 0.8 / 4 / 8, 2 - 0.1 * log(2), 0.6), rel=1e-6)


def test_equation_3_takes_a_step_for_each_parameter_on_its_own() -> None:
    session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, eta_lambda=0.0, eta_sigma=0.4, eta_iota=0.0)
    assert after_a_step(session, ticket, 1.0, 1.0) == pytest.approx((2.0, 1 - 0.1 * log(2), 0.0), rel=1e-6)


def test_the_gradient_is_the_mean_over_the_steps_that_were_made() -> None:
    session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, **CORRECTED)
    # Half as many steps for the same way: g and every step are twice as large.
    found = after_a_step(session, ticket, 1.0, 1.0, steps=STEPS // 2)
    assert found == pytest.approx((2.2, 1 - 0.2 * log(2), 0.2), rel=1e-6)


@pytest.mark.parametrize(
    "schedule",
    [
        {"schedule_over": "time", "learning_rate_decay": 0.5, "decay_every": 10},  # 1 at 0 s, 1/2 at 10 s
        {"schedule_over": "steps", "schedule": "step", "learning_rate_decay": 0.25, "milestones": [2]},
    ],
    ids=["time", "steps"],
)
def test_the_gradient_is_taken_with_the_rate_of_the_devices_order(schedule: dict[str, Any]) -> None:
    # lambda = 0, iota = 1: every xi is 1, alpha is 1/2, d alpha / d xi = 1/4, and only iota takes a step.
    policy = FedASMU(cohort=1, max_in_flight=1, lambda_0=0.0, iota_0=1.0, eta_lambda=0.0, eta_sigma=0.0, eta_iota=1.0)
    session = ScriptedSession(policy, devices=2, learning_rate=1.0, steps_per_slice=6, **schedule)
    session.upload(2.0, 0.0, ticket=1)  # u = [2, 0] makes version 1 at 0 s, when orders have the rate 1
    assert session.parameters.tolist() == [1.0, 0.0]
    session.fire("period")  # ticket 2, from version 1, at 10 s
    assert (session.now, session.in_flight[2].base) == (10.0, 1)
    # eta_i is 1/2: over time by the decay; over steps the mean of 1, 1 and four times 1/4.
    # g = [1/4, 0] / (1/2 * 6) = [1/12, 0],  <g, u> = 1/6:  iota = 1 - 1/6 * 1/4 = 1 - 1/24
    # (With the rate when version 1 was made, 1, it would be 1 - 1/48 = 0.979167.)
    assert after_a_step(session, 2, -0.25, 0.0, steps=6) == pytest.approx((0.0, 0.5, 0.958333), abs=1e-6)


def test_a_device_that_goes_on_in_the_direction_of_the_last_aggregation_asks_for_more_of_it() -> None:
    session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, **CORRECTED)
    lambda_, sigma, iota = after_a_step(session, ticket, -2.0, 4.0)  # along u
    assert lambda_ > 2.0
    assert sigma < 1.0
    assert iota > 0.0


def test_equation_3_as_printed() -> None:
    # lambda = 4, sigma = 2. Version 0: xi = 4, alpha = 4/5, [2.5, 0] leads to [2, 0]. Version 1: xi' = 4 / (1 * 4) = 1.
    session, ticket = at_version_2(
        lambda_0=4.0, sigma_0=2.0, first=2.5, eta_lambda=0.8, eta_sigma=0.8, eta_iota=0.4, control_gradient="printed"
    )
    # The device moves by [-1, -1] in 2 epochs: printed g = (w_i - w_o) / (0.5 * 2) = [-1, -1],  <g, u> = 2 - 4 = -2.
    # d alpha' / d xi' = 1/4;  d xi' / d lambda = 1/4;  printed d xi' / d sigma = -ln(sigma) / 4 = -ln(2) / 4
    # lambda: 4 - 0.8 * (-2/4/4) = 4.1;  sigma: 2 - 0.8 * (-2/4 * -ln(2) / 4) = 2 - 0.1 ln 2;  iota: 0.4 * 2/4 = 0.2
    assert after_a_step(session, ticket, -1.0, -1.0) == pytest.approx((4.1, 2 - 0.1 * log(2), 0.2), rel=1e-6)


def test_the_printed_form_climbs_where_the_corrected_one_descends() -> None:
    for form, sign in (("corrected", 1), ("printed", -1)):
        session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, control_gradient=form, **CORRECTED)
        lambda_, _, _ = after_a_step(session, ticket, 1.0, 1.0)
        assert sign * (lambda_ - 2.0) > 0


def a_making(u: Vector, control: Control, xi: float, clock: int, staleness: int) -> Aggregation:
    return Aggregation(movement=u, control=control, xi=xi, turn=clock, staleness=staleness)


NUMBERS = st.floats(-2.0, 2.0, width=32)
PAIRS = st.tuples(NUMBERS, NUMBERS)


@given(
    control=st.tuples(st.floats(0.1, 3.0), st.floats(0.0, 3.0), st.floats(0.0, 1.0)),
    mu=st.floats(0.2, 3.0),
    version=st.integers(1, 60),
    staleness=st.integers(1, 20),
    before=PAIRS,
    u=PAIRS,
    centre=PAIRS,
)
@settings(max_examples=60, deadline=None)
def test_the_corrected_gradients_are_those_of_autograd_on_a_quadratic(
    control: Control,
    mu: float,
    version: int,
    staleness: int,
    before: tuple[float, float],
    u: tuple[float, float],
    centre: tuple[float, float],
) -> None:
    """F(w) = 1/2 (w - c)' A (w - c); the device makes one full step from w_o, so that g is the gradient there."""
    theta = torch.tensor(control, dtype=torch.float64, requires_grad=True)
    curvature = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)

    def loss(w: torch.Tensor) -> torch.Tensor:
        away = w - torch.tensor(centre, dtype=torch.float64)
        return away @ curvature @ away / 2

    xi = theta[0] / (max(version - 1, 1) ** 0.5 * staleness ** theta[1]) + theta[2]
    alpha = mu * xi / (1 + mu * xi)
    made = torch.tensor(before, dtype=torch.float64) + alpha * torch.tensor(u, dtype=torch.float64)
    (expected,) = torch.autograd.grad(loss(made), theta)

    base = made.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(base), base)
    start = base.detach().numpy()
    update = Update(
        device=0,
        ticket=1,
        base=version,
        base_parameters=start,  # in double precision here, so that g is exact
        samples=10,
        progress=Progress(slices=1, steps=1),
        outcome=KnownOutcome(Outcome(parameters=start - RATE * gradient.numpy())),
    )
    making = a_making(vector(*u), control, xi.item(), version - 1, staleness)
    slopes = control_slopes(update, making, RATE, mu)
    assert slopes == pytest.approx(expected.numpy(), rel=1e-6, abs=1e-9)


# Guards --------------------------------------------------------------------------------------------------------------


def test_lambda_sigma_and_iota_stay_in_their_bounds() -> None:
    steep = {"eta_lambda": 1e4, "eta_sigma": 1e4, "eta_iota": 1e4}
    # Down: <g, u> = -1 has lambda and iota rise and sigma fall (see above), +1 the other way round.
    session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, **steep)
    lambda_, sigma, iota = after_a_step(session, ticket, -1.0, -1.0)
    assert (lambda_, sigma, iota) == (0.0, 10.0, 0.0)
    session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, **steep)
    lambda_, sigma, iota = after_a_step(session, ticket, 1.0, 1.0)
    assert sigma == 0.0
    assert isfinite(lambda_)
    assert isfinite(iota)
    assert np.isfinite(session.parameters).all()


def test_a_step_that_is_not_finite_is_skipped_and_counted_and_the_update_is_used() -> None:
    session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, **CORRECTED)
    assert after_a_step(session, ticket, 1.0, 1.0, steps=0) == (2.0, 1.0, 0.0)  # g = 1 / 0
    assert session.metrics["skipped_adaptations"] == 1
    assert (session.version, session.counters.used) == (3, 3)


def test_the_printed_logarithm_of_a_sigma_of_0_is_skipped_and_counted() -> None:
    # sigma = 0, lambda = 1: xi = 1, alpha = 1/2, so that [4, 0] leads to [2, 0], and xi' = 1 / (1 * 2^0) = 1.
    session, ticket = at_version_2(lambda_0=1.0, sigma_0=0.0, first=4.0, control_gradient="printed", **CORRECTED)
    assert after_a_step(session, ticket, 1.0, 1.0) == (1.0, 0.0, 0.0)
    assert session.metrics["skipped_adaptations"] == 1


def test_a_huge_step_ends_at_the_bound_and_a_step_to_infinity_is_skipped() -> None:
    session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, eta_lambda=1e4)
    assert after_a_step(session, ticket, 1e5, 1e5)[0] == 1e4
    session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, eta_lambda=1e4)
    session.state.rates[session.in_flight[ticket].device] = 1e-308
    assert after_a_step(session, ticket, 1e5, 1e5)[0] == 2.0
    assert session.metrics["skipped_adaptations"] == 1


def test_version_0_was_made_by_no_aggregation() -> None:
    session = a_session(FedASMU(cohort=3, max_in_flight=3, eta_lambda=10.0, eta_sigma=10.0, eta_iota=10.0))
    for ticket in (1, 2, 3):
        session.move(5.0, -3.0, ticket=ticket)
    assert set(session.state.controls.values()) == {(4.0, 0.5, 0.1)}
    assert session.metrics["skipped_adaptations"] == 0


def test_each_device_has_control_parameters_of_its_own() -> None:
    session, _ = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, **CORRECTED)
    one, other = session.in_flight
    first = after_a_step(session, one, 1.0, 1.0)  # <g, u> = -1
    second = after_a_step(session, other, -1.0, -1.0)  # <g, u> = +1, on the same version 2
    assert first == pytest.approx((2.1, 1 - 0.1 * log(2), 0.1), rel=1e-6)
    assert second == pytest.approx((1.9, 1 + 0.1 * log(2), 0.0), rel=1e-6)
    assert session.metrics["lambda_spread"] == pytest.approx(0.2)
    assert session.metrics["sigma_spread"] == pytest.approx(0.2 * log(2))
    assert session.metrics["iota_spread"] == pytest.approx(0.1)


def test_what_made_old_versions_is_forgotten_with_them() -> None:
    session = a_session(FedASMU(cohort=2, max_in_flight=4, fresh_models=False))
    for _ in range(20):
        session.fire("period")
        session.upload(ticket=session.newest)
        session.upload(ticket=session.newest)
        bases = {flight.base for flight in session.in_flight.values()}
        assert set(session.state.made) <= bases | {session.version}


# The bound -----------------------------------------------------------------------------------------------------------


def test_at_the_bound_an_update_is_used_beyond_it_is_discarded() -> None:
    session = a_session(unadapted(staleness_bound=2))
    session.upload(4.0, 0.0, ticket=1)  # s = 1
    session.upload(0.0, 6.0, ticket=2)  # s = 2, at the bound
    before = session.parameters
    device = session.in_flight[3].device
    assert session.upload(9.0, 9.0, ticket=3) == [Resolved(tickets=(3,), used=False)]  # s = 3
    assert (session.version, session.counters.used, session.counters.discarded) == (2, 2, 1)
    assert session.metrics["too_stale"] == 1
    assert session.parameters is before
    assert session.is_idle(device)
    assert device not in session.state.controls


def test_a_bound_of_one_takes_fresh_updates_only() -> None:
    session = a_session(unadapted(staleness_bound=1))
    session.upload(ticket=1)
    session.upload(ticket=2)
    assert (session.counters.used, session.counters.discarded) == (1, 1)


def test_without_fresh_models_what_is_too_stale_is_never_computed() -> None:
    session = a_session(unadapted(staleness_bound=1, fresh_models=False))
    session.upload(ticket=1)
    flight = session.in_flight[2]

    def nobody_should_ask() -> Outcome:
        raise AssertionError("the numbers of a discarded update were read")

    update = Update(
        device=flight.device,
        ticket=2,
        base=0,
        base_parameters=session.models[0],
        samples=10,
        progress=Progress(slices=EPOCHS),
        outcome=nobody_should_ask,
    )
    session.handle(Uploaded(device=flight.device, ticket=2, update=update), session.now)
    assert session.counters.discarded == 1


# Whom it orders, and when --------------------------------------------------------------------------------------------


def test_every_period_the_cohort_is_ordered_from_the_current_version() -> None:
    session = a_session(FedASMU(cohort=2, period=10.0, max_in_flight=6))
    assert (len(session.in_flight), session.timers) == (2, {"period": 10.0})
    session.upload(1.0, 1.0, ticket=1)
    assert len(session.in_flight) == 1, "an upload orders nobody: the period does"
    effects = session.fire("period")
    assert len(effects.ordered) == 2
    assert {effect.base for effect in effects if isinstance(effect, Assignment)} == {1}
    assert session.timers == {"period": 20.0}


def test_below_the_threshold_the_whole_cohort_is_ordered_and_at_it_nobody() -> None:
    session = a_session(FedASMU(cohort=3, max_in_flight=4))
    assert len(session.first.ordered) == 3
    assert len(session.fire("period").ordered) == 3, "3 < 4: all three, although that makes 6"
    assert session.fire("period").ordered == [], "6 >= 4"
    assert "period" in session.timers, "it goes on although nobody was ordered"
    session.upload(ticket=1)
    session.lose(ticket=2)
    assert session.fire("period").ordered == [], "4 >= 4"
    session.upload(ticket=3)
    assert len(session.fire("period").ordered) == 3, "3 < 4 again"


@pytest.mark.parametrize(("devices", "threshold"), [(8, 4), (9, 4), (1, 1)])
def test_by_default_the_threshold_is_half_of_the_devices(devices: int, threshold: int) -> None:
    session = a_session(FedASMU(cohort=1), devices)
    for _ in range(12):
        session.fire("period")
    assert len(session.in_flight) == threshold


def test_fewer_idle_devices_than_the_cohort_are_all_ordered() -> None:
    session = a_session(FedASMU(cohort=3, max_in_flight=8), devices=4)
    assert len(session.fire("period").ordered) == 1
    assert session.fire("period").ordered == []


def test_anybody_idle_may_be_ordered() -> None:
    session = a_session(FedASMU(cohort=2, max_in_flight=2))
    seen = set()
    for _ in range(40):
        seen |= {flight.device for flight in session.in_flight.values()}
        for ticket in list(session.in_flight):
            session.upload(ticket=ticket)
        session.fire("period")
    assert seen == set(range(8))


# Settings, ablations, requests ---------------------------------------------------------------------------------------


def test_the_published_defaults() -> None:
    policy = FedASMU()
    assert (policy.cohort, policy.period, policy.staleness_bound) == (10, 10.0, 99)
    assert (policy.eta_lambda, policy.eta_sigma, policy.eta_iota) == (1e-4, 1e-4, 1e-4)
    assert (policy.dynamic_weights, policy.fresh_models, policy.slot) == (True, True, "learned")
    assert policy.control_gradient == "corrected"


def test_more_devices_in_a_cohort_than_there_are_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"algorithm\.cohort = 9: there are only 8 devices"):
        a_session(FedASMU(cohort=9))


@pytest.mark.parametrize("length", [1, 3])
def test_a_history_of_another_length_than_the_epochs_is_refused(length: int) -> None:
    with pytest.raises(InvalidInput, match=rf"algorithm\.history has {length} rewards: .* 2 epochs"):
        a_session(FedASMU(cohort=2, history=[0.0] * length))


@pytest.mark.parametrize(
    "bad",
    [
        {"period": 0.0},
        {"staleness_bound": 0},
        {"mu_alpha": 0.0},
        {"lambda_0": -1.0},
        {"sigma_0": 10.5},
        {"iota_0": float("inf")},
        {"eta_gamma": float("nan")},
        {"epsilon": 1.5},
        {"slot": "last"},
        {"control_gradient": "published"},
    ],
)
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        FedASMU.model_validate(bad)


def test_without_dynamic_weights_the_control_parameters_stay_as_they_begin() -> None:
    session, ticket = at_version_2(lambda_0=2.0, sigma_0=1.0, first=3.0, dynamic_weights=False, **CORRECTED)
    assert session.in_flight[ticket].order.rule == "fedasmu", "FedASMU-DA still sends fresh models"
    assert after_a_step(session, ticket, 1.0, 1.0) == (2.0, 1.0, 0.0)
    # xi = 2 / sqrt 2 = 1.4142136, alpha = 1.4142136 / 2.4142136 = 0.5857864 (= 2 - sqrt 2)
    assert session.parameters == pytest.approx([3 - sqrt(2), 4 - sqrt(2)], rel=1e-6)
    assert session.state.made == {}


@pytest.mark.parametrize("dynamic", [True, False])
def test_without_fresh_models_devices_just_train(dynamic: bool) -> None:
    session, ticket = at_version_2(
        lambda_0=2.0, sigma_0=1.0, first=3.0, fresh_models=False, dynamic_weights=dynamic, **CORRECTED
    )
    assert session.in_flight[ticket].order == session.order(), "FedASMU-FA orders plain training"
    found = after_a_step(session, ticket, 1.0, 1.0)
    assert found == (pytest.approx((2.1, 1 - 0.1 * log(2), 0.1), rel=1e-6) if dynamic else (2.0, 1.0, 0.0))


def test_a_request_is_answered_if_there_is_a_newer_model() -> None:
    session = a_session(unadapted())
    nothing = session.ask(ticket=1)
    assert nothing.parameters is None
    session.upload(4.0, 0.0, ticket=2)
    newer = session.ask(ticket=3)
    assert (newer.version, newer.device) == (1, session.in_flight[3].device)
    assert newer.parameters is not None
    assert newer.parameters.tolist() == [2.0, 0.0]
    session.fire("period")
    fresh = session.newest
    assert session.in_flight[fresh].base == 1
    assert session.ask(ticket=fresh).parameters is None, "its base is the newest version"
    assert (session.metrics["requests"], session.metrics["requests_answered"]) == (3, 1)
    assert (session.counters.requests, session.counters.answered) == (3, 1)


def merge_told(*, first: bool, reward: float, gamma: float, upsilon: float, beta: float) -> Mapping[str, Plain]:
    return {"slot": 2, "first": first, "reward": reward, "beta": beta, "gamma": gamma, "upsilon": upsilon}


def test_metrics_of_what_devices_tell_of_their_merges() -> None:
    session = a_session(unadapted())
    session.upload(ticket=1)
    session.upload(ticket=2, extras=merge_told(first=True, reward=0.5, gamma=1.5, upsilon=0.5, beta=0.25))
    session.upload(ticket=3, extras=merge_told(first=True, reward=-0.1, gamma=1.0, upsilon=0.75, beta=0.5))
    found = session.metrics
    assert found["mean_beta"] == pytest.approx(0.375)  # (0.25 + 0.5) / 2
    assert found["mean_reward"] == pytest.approx(0.2)  # (0.5 - 0.1) / 2
    assert (found["gamma_spread"], found["upsilon_spread"]) == pytest.approx((0.5, 0.25))


def test_metrics_before_anything_happened_are_all_zero() -> None:
    assert set(FedASMU().metrics(TimelyState()).values()) == {0.0}


def test_only_the_first_merge_of_a_device_teaches_the_meta_model() -> None:
    session = a_session(unadapted(meta_rate=0.1, meta_memory=0.25))
    before = session.state.meta.theta.copy()
    session.upload(ticket=1, extras=merge_told(first=False, reward=4.0, gamma=1.0, upsilon=1.0, beta=0.5))
    assert (session.state.meta.theta == before).all()
    session.upload(ticket=2, extras=merge_told(first=True, reward=4.0, gamma=1.0, upsilon=1.0, beta=0.5))
    assert session.state.meta.baseline == pytest.approx(1.0)  # 3/4 * 0 + 1/4 * 4
    assert (session.state.meta.theta != before).any()
    after = session.state.meta.theta.copy()
    session.upload(ticket=3, extras=merge_told(first=True, reward=float("nan"), gamma=1.0, upsilon=1.0, beta=0.5))
    assert (session.state.meta.theta == after).all(), "a reward that is not a number teaches nothing"


def test_the_reward_of_an_update_that_is_too_stale_still_counts() -> None:
    session = a_session(unadapted(staleness_bound=1, meta_rate=0.1, meta_memory=0.25))
    session.upload(4.0, 0.0, ticket=1)
    before = session.state.meta.theta.copy()
    told = merge_told(first=True, reward=4.0, gamma=1.5, upsilon=0.5, beta=0.25)
    assert session.upload(9.0, 9.0, ticket=2, extras=told).discarded == [2]  # s = 2 > 1
    assert session.parameters.tolist() == [2.0, 0.0], "its parameters do not count ..."
    assert session.state.meta.baseline == pytest.approx(1.0)  # ... but 3/4 * 0 + 1/4 * 4 does
    score = MetaModel(EPOCHS).score(before, 2)
    assert session.state.meta.theta == pytest.approx(before + 0.1 * score * (4.0 - 1.0))  # Eq. (7)
    assert (session.metrics["mean_reward"], session.metrics["mean_beta"]) == (4.0, 0.25)


# Whole runs ----------------------------------------------------------------------------------------------------------

POLICIES = st.builds(
    lambda kind, **chosen: kind.model_validate(chosen),
    st.sampled_from([FedASMU, FedSSMU]),
    cohort=st.integers(1, 12),
    staleness_bound=st.sampled_from([1, 3, 99]),
    dynamic_weights=st.booleans(),
    fresh_models=st.booleans(),
    control_gradient=st.sampled_from(["corrected", "printed"]),
    mu_alpha=st.sampled_from([0.2, 1.0, 5.0]),
    lambda_0=st.sampled_from([0.0, 1.0]),
    sigma_0=st.sampled_from([0.0, 0.5, 10.0]),
    iota_0=st.sampled_from([0.1, 0.5]),
    eta_lambda=st.sampled_from([0.0, 1e-4, 1.0, 100.0]),
    eta_sigma=st.sampled_from([0.0, 1e-4, 1.0, 100.0]),
    eta_iota=st.sampled_from([0.0, 1e-4, 1.0]),
    eta_gamma=st.sampled_from([0.0, 1e-4, 1.0, 100.0]),
    eta_upsilon=st.sampled_from([0.0, 1e-4, 1.0, 100.0]),
    upsilon_0=st.sampled_from([0.0, 1.0, 3.0]),
    slot=st.sampled_from(["learned", "first", "middle", "penultimate"]),
    epsilon=st.sampled_from([0.0, 0.5, 1.0]),
)


def watched(simulation: Simulation) -> list[Row]:
    """The rows of a run of which everything was checked that must always hold."""
    session, told = simulation.session, Counter[tuple[str, int | None]]()

    class Journal(deque[JournalLine]):
        def append(self, line: JournalLine) -> None:
            told.update([(line[1], line[3])] if line[3] is not None else [])
            super().append(line)

    session.journal.lines = Journal(maxlen=JOURNAL_LINES)
    rows, version = [], 0
    for row in simulation:
        if row is not None:
            rows.append(row)
            assert 0.0 <= row["mean_alpha"] < 1.0
            assert 0.0 <= row["mean_beta"] < 1.0
            assert row["requests_answered"] <= row["requests"]
        assert version <= session.version <= version + 1, "a version at a time, and never back"
        version = session.version
        for flight in session.in_flight.values():
            assert len(flight.versions) <= 2, "the base, and at most one fresh model"
            assert flight.versions == sorted(set(flight.versions)), "which is newer than the base"
        for lambda_, sigma, iota in session.state.controls.values():
            assert 0.0 <= lambda_ < np.inf
            assert 0.0 <= sigma <= 10.0
            assert 0.0 <= iota < np.inf
        for memory in filter(None, simulation.training.memories.values()):  # empty: it never merged
            assert min(float(memory["gamma"]), float(memory["upsilon"])) >= 0.0
            assert 0.0 <= float(memory["beta"]) < 1.0
            assert 1 <= int(memory["slot"]) <= session.order().slices
    assert max(told.values()) == 1, "a ticket is ordered, asks, is answered, lands once"
    return rows


@given(policy=POLICIES, seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_what_holds_in_any_run(policy: TimelyPolicy, seed: int) -> None:
    rows = watched(toy_simulation(policy, seed=seed, devices=12, stop=Stop(updates=40, time=1e4)))
    assert rows[-1]["version"] == rows[-1]["updates_used"], "every version is one update"
    if not policy.dynamic_weights:
        assert rows[-1]["lambda_spread"] == rows[-1]["sigma_spread"] == rows[-1]["iota_spread"] == 0.0
    if not policy.fresh_models:
        assert rows[-1]["requests"] == 0


@given(policy=POLICIES, choices=st.lists(st.integers(0, 10_000), max_size=60))
@settings(max_examples=25, deadline=None)
def test_whatever_happens_the_session_stays_sound(policy: TimelyPolicy, choices: list[int]) -> None:
    check_events(policy, choices, devices=12)


@pytest.mark.parametrize("policy", [FedASMU(slot="first", eta_lambda=1.0), FedSSMU(slot="first", eta_lambda=1.0)])
def test_nothing_is_applied_twice(policy: TimelyPolicy) -> None:
    check_accounts(policy)


@pytest.mark.parametrize("kind", [FedASMU, FedSSMU])
def test_how_many_are_computed_together_changes_nothing(
    kind: type[TimelyPolicy], monkeypatch: pytest.MonkeyPatch
) -> None:
    learning = {"eta_lambda": 1.0, "eta_sigma": 1.0, "eta_gamma": 1.0, "eta_upsilon": 1.0, "epsilon": 0.5}
    ends = []
    for batch_capacity in (1, 8):
        monkeypatch.setattr(ToyExecutor, "batch_capacity", batch_capacity)
        simulation = toy_simulation(kind.model_validate(learning))
        rows = [row for row in simulation if row is not None]
        memories = {
            device: {key: np.asarray(value).tolist() for key, value in memory.items()}
            for device, memory in simulation.training.memories.items()
        }
        ends.append((rows, simulation.session.parameters.tobytes(), memories))
    assert ends[0][0][-1]["requests_answered"] > 5, "the run should have been worth comparing"
    assert ends[0] == ends[1]
