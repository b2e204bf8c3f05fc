"""SFL, AUDG and PSURDG on a model of two numbers: every step worked out by hand."""

from typing import Any

import pytest

from offbeat import Experiment, run
from offbeat.algorithms import Audg, Psurdg, Sfl
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Ready
from offbeat.testing import ScriptedSession, check_resume


def a_session(policy: Audg, samples: tuple[int, ...] = (1, 1, 2), **training: Any) -> ScriptedSession:
    """Devices with a quarter, a quarter and half of the data; the model starts at [0, 0]."""
    return ScriptedSession(policy, samples=samples, batch_size=0, **training)


def tick(session: ScriptedSession) -> list[float]:
    """The iteration ends; returns the model."""
    session.fire("iteration")
    return [float(number) for number in session.parameters]


def test_everybody_is_ordered_at_the_start_and_iterations_have_a_fixed_length() -> None:
    session = a_session(Audg(iteration_seconds=2.5))
    assert sorted(flight.device for flight in session.in_flight.values()) == [0, 1, 2]
    assert session.timers == {"iteration": 2.5}
    tick(session)
    assert session.timers == {"iteration": 5.0}


def test_audg_applies_what_arrived_with_the_weights_as_they_are() -> None:
    session = a_session(Audg())
    session.move(4.0, 0.0, device=2)
    session.move(0.0, 8.0, device=0)
    # (13): [0, 0] + 1/2 [4, 0] + 1/4 [0, 8]; device 1 is missing, and nothing is normalised
    assert tick(session) == [2.0, 2.0]
    session.move(4.0, 4.0, device=1)
    # Its gradient was computed at [0, 0], one iteration ago, and is applied to [2, 2]: + 1/4 [4, 4]
    assert tick(session) == [3.0, 3.0]
    assert session.version == 2
    # Devices 0 and 2 have been in training from version 1 since then; device 1 begins from version 2
    assert {flight.device: flight.base for flight in session.in_flight.values()} == {0: 1, 2: 1, 1: 2}


def test_renormalised_audg_divides_by_the_weights_of_those_that_delivered() -> None:
    session = a_session(Audg(weights="renormalised"))
    session.move(3.0, 0.0, device=2)
    session.move(0.0, 6.0, device=0)
    # 1/2 and 1/4 of the data, together 3/4: 2/3 [3, 0] + 1/3 [0, 6]
    assert tick(session) == pytest.approx([2.0, 2.0])
    session.move(4.0, 4.0, device=1)
    # Alone it takes a whole step: + [4, 4]
    assert tick(session) == pytest.approx([6.0, 6.0])
    # PSURDG: of all who ever delivered. 1/4 and 1/2: 1/3 [3, 0] + 2/3 [0, 3], then with device 1 the weights are whole.
    session = a_session(Psurdg(weights="renormalised"))
    session.move(3.0, 0.0, device=0)
    session.move(0.0, 3.0, device=2)
    assert tick(session) == pytest.approx([1.0, 2.0])
    session.move(4.0, 4.0, device=1)
    # + 1/4 [3, 0] + 1/4 [4, 4] + 1/2 [0, 3] = + [1.75, 2.5]
    assert tick(session) == pytest.approx([2.75, 4.5])


def test_psurdg_applies_the_latest_gradient_of_everybody_who_ever_delivered() -> None:
    session = a_session(Psurdg())
    session.move(4.0, 0.0, device=0)
    session.move(0.0, 4.0, device=2)
    # Device 1 has delivered nothing: 1/4 [4, 0] + 1/2 [0, 4]
    assert tick(session) == [1.0, 2.0]
    # Nobody delivers: the same again
    assert tick(session) == [2.0, 4.0]
    session.move(0.0, -4.0, device=1)
    session.move(-8.0, 0.0, device=0)
    # (46): 1/4 [-8, 0] replaces device 0's, 1/4 [0, -4] is new, 1/2 [0, 4] is reused: + [-2, 1]
    assert tick(session) == [0.0, 5.0]
    assert session.version == 3
    assert session.counters.used == 4


def test_sfl_waits_whole_iterations_for_the_slowest() -> None:
    session = a_session(Sfl())
    session.move(4.0, 0.0, device=0)
    session.move(0.0, 4.0, device=1)
    assert tick(session) == [0.0, 0.0]
    assert len(session.in_flight) == 1  # those who delivered wait for the new model
    session.move(2.0, 2.0, device=2)
    # 1/4 [4, 0] + 1/4 [0, 4] + 1/2 [2, 2]
    assert tick(session) == [2.0, 2.0]
    assert len(session.in_flight) == 3


def test_sfl_no_longer_waits_for_a_device_that_is_lost_and_takes_it_back() -> None:
    session = a_session(Sfl())
    session.move(4.0, 0.0, device=0)
    session.lose(device=1)
    assert tick(session) == [0.0, 0.0]
    session.lose(device=2)
    session.handle(Ready(device=1), session.now)
    assert tick(session) == [1.0, 0.0]  # 1/4 [4, 0]
    assert sorted(flight.device for flight in session.in_flight.values()) == [0, 1]


@pytest.mark.parametrize("policy", [Sfl(), Audg(), Psurdg()])
def test_with_nobody_left_iterations_go_on_without_a_version(policy: Audg) -> None:
    session = a_session(policy)
    for device in range(3):
        session.lose(device=device)
    tick(session)
    tick(session)
    assert (session.version, session.state.number) == (0, 2)
    session.handle(Ready(device=1), session.now)
    tick(session)
    assert [flight.device for flight in session.in_flight.values()] == [1]


def test_psurdg_goes_on_with_the_gradient_of_a_device_that_is_lost() -> None:
    session = a_session(Psurdg())
    session.move(2.0, 0.0, device=2)
    assert tick(session) == [1.0, 0.0]
    session.lose(device=2)
    assert tick(session) == [2.0, 0.0]


def test_delays_are_counted_in_iterations_since_the_model_was_sent() -> None:
    session = a_session(Psurdg())
    session.move(1.0, 0.0, device=0)  # delay 0
    tick(session)
    tick(session)
    session.move(1.0, 0.0, device=0)  # ordered when iteration 1 began, delivered in iteration 2: delay 1
    session.move(1.0, 0.0, device=1)  # since iteration 0: delay 2
    tick(session)
    metrics = session.metrics
    assert metrics["delay_0"] == 0.5
    assert metrics["delay_1"] == 2.0
    assert "delay_2" not in metrics  # it has not delivered yet
    assert (metrics["mean_delay"], metrics["max_delay"], metrics["iterations"]) == (1.0, 2, 3)
    # Ages of what was applied: 0; 1 (reused); 1 and 2
    assert metrics["mean_gradient_age"] == 1.0


def test_large_fleets_report_no_device_by_itself() -> None:
    session = a_session(Audg(), samples=(1,) * 1001)
    session.move(1.0, 0.0, device=3)
    tick(session)
    assert session.metrics.keys() == {"iterations", "mean_delay", "max_delay"}


def test_given_weights_take_the_place_of_data_shares() -> None:
    session = a_session(Audg(weights=[0.5, 0.25, 0.25]))
    session.move(4.0, 0.0, device=0)
    session.move(0.0, 4.0, device=2)
    assert tick(session) == [2.0, 1.0]


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([0.5, 0.5], r"algorithm\.weights has 2 values for 3 devices"),
        ([0.5, 0.5, 0.5], r"algorithm\.weights sum to 1\.5"),
    ],
)
def test_weights_must_fit_the_devices_and_sum_to_one(weights: list[float], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        a_session(Audg(weights=weights))


def test_old_gradients_are_applied_with_the_present_learning_rate() -> None:
    session = a_session(Psurdg(), learning_rate=1.0, learning_rate_decay=0.5)
    session.move(8.0, 0.0, device=2)
    # At version 0 the rate is 1: 1/2 [8, 0]
    assert tick(session) == [4.0, 0.0]
    # The gradient [-8, 0] again, with the rate 1/2 of version 1: 1/2 * 1/2 [8, 0]; then 1/4
    assert tick(session) == [6.0, 0.0]
    assert tick(session) == [7.0, 0.0]


def test_audg_applies_a_delayed_gradient_with_the_present_learning_rate() -> None:
    session = a_session(Audg(), learning_rate=1.0, learning_rate_decay=0.5)
    session.move(8.0, 0.0, device=2)
    # Ordered and applied at version 0, with the rate 1: 1/2 [8, 0]
    assert tick(session) == [4.0, 0.0]
    session.move(0.0, 8.0, device=0)
    session.move(8.0, 0.0, device=2)
    # Device 0 was ordered at the rate 1, its gradient is [0, -8]; now the rate is 1/2: + 1/4 * 1/2 [0, 8].
    # Device 2 was ordered at the rate 1/2 of now, and counts as it is: + 1/2 [8, 0]
    # (With the ratio upside down device 0 would add 1/4 * 2 [0, 8] = [0, 4].)
    assert tick(session) == [8.0, 1.0]


@pytest.mark.parametrize("policy", [Audg(), Psurdg()])
def test_a_learning_rate_that_has_decayed_to_nothing_moves_nothing(policy: Audg) -> None:
    session = a_session(policy, learning_rate=1.0, learning_rate_decay=1e-200)
    for device, movement in ((2, 8.0), (2, 0.0), (2, 0.0), (2, 0.0)):  # rates 1, 1e-200, 0, 0
        session.move(movement, 0.0, device=device)
        assert tick(session) == [4.0, 0.0]


def test_float16_storage_keeps_three_digits_of_small_gradients_in_half_the_memory() -> None:
    session, exact = a_session(Psurdg(storage="float16")), a_session(Psurdg())
    for each in (session, exact):  # 3e-8 is nothing in plain float16
        each.move(3e-8, -1.1e-8, device=2)
        tick(each)
    assert session.parameters == pytest.approx(exact.parameters, rel=1e-3)
    assert (session.state.cache.vectors[2].nbytes, exact.state.cache.vectors[2].nbytes) == (4, 8)


def test_float16_storage_resumes() -> None:
    check_resume(Psurdg(storage="float16"))


def delayed_run(name: str, **changes: Any) -> Any:
    table: dict[str, Any] = {
        "stop": {"time": 12.0},
        "data": {"name": "digits", "devices": 4},
        "partition": {"name": "dirichlet"},
        "model": {"name": "mlp"},
        "local": {"epochs": 1, "batch_size": 0, "learning_rate": 0.2},
        "fleet": {"name": "bernoulli", "mean_delay": 0.0},
        "algorithm": {"name": name},
        "evaluation": {"every_seconds": 12.0, "training_loss": True},
        "execution": {"executor": "sequential"},
    }
    return run(Experiment.parse(table | changes))


@pytest.mark.parametrize("batch_size", [0, 32])
def test_without_delays_all_three_are_the_same_bit_for_bit(batch_size: int) -> None:
    local = {"epochs": 1, "batch_size": batch_size, "learning_rate": 0.2}
    models = [delayed_run(name, local=local).parameters for name in ("sfl", "audg", "psurdg")]
    assert models[0].tobytes() == models[1].tobytes() == models[2].tobytes()


def test_under_the_bernoulli_fleet_audg_and_psurdg_see_the_same_delays_with_the_right_means() -> None:
    fleet = {"name": "bernoulli", "mean_delay": [3.0, 1.0, 1.0, 0.0]}
    stop = {"time": 250.0}
    evaluation = {"every_seconds": 250.0}
    local = {"epochs": 1, "batch_size": 0, "learning_rate": 0.01}
    one, other = (
        delayed_run(name, fleet=fleet, stop=stop, evaluation=evaluation, local=local).summary
        for name in ("audg", "psurdg")
    )
    for device, mean in enumerate(fleet["mean_delay"]):
        assert one[f"delay_{device}"] == other[f"delay_{device}"] == pytest.approx(mean, rel=0.3)
    assert one["updates_used"] == other["updates_used"]
    # A reused gradient is on average as old again as it was when it arrived: 2 (3 + 1 + 1 + 0) / 4
    assert other["mean_gradient_age"] == pytest.approx(2.5, rel=0.2)


def test_under_real_durations_what_arrives_in_an_iteration_counts_in_it() -> None:
    # Half a second of training and no network: with iterations of 0.2 s every upload is in the third, delay 2.
    table = {
        "fleet": {"name": "ratio", "ratio": 1.0, "epoch_seconds": 0.5},
        "network": {"uplink_mbps": float("inf"), "downlink_mbps": float("inf"), "latency": 0.0},
        "stop": {"time": 6.0},
    }
    summary = delayed_run("audg", **table, algorithm={"name": "audg", "iteration_seconds": 0.2}).summary
    assert summary["mean_delay"] == summary["max_delay"] == 2
    # At the very end of an iteration is in time
    summary = delayed_run("audg", **table, algorithm={"name": "audg", "iteration_seconds": 0.5}).summary
    assert (summary["max_delay"], summary["versions"]) == (0, 12)


def test_iterations_of_fleet_and_algorithm_must_agree() -> None:
    with pytest.raises(InvalidInput, match=r"fleet\.iteration_seconds = 1\.0 and algorithm\.iteration_seconds = 2\.0"):
        delayed_run("audg", algorithm={"name": "audg", "iteration_seconds": 2.0})
