"""The deadline family on a simulated fleet: one time model, one budget, rounds that last exactly their deadline."""

from typing import Any

import numpy as np
import pytest

from offbeat.experiment.schema import Experiment
from offbeat.fleet import BernoulliFleet, ExponentialFleet, Fleet, RatioFleet, Workload, ZipfFleet
from offbeat.simulation.run import run, simulation_of

FAMILY = ("adel", "salf", "drop-stragglers", "wait-stragglers", "heterofl")


def experiment_of(name: str, **changes: Any) -> Experiment:
    algorithm: dict[str, Any] = {"name": name} | ({} if name == "wait-stragglers" else {"rounds": 12})
    table: dict[str, Any] = {
        "stop": {"time": 30.0},
        "data": {"name": "digits", "devices": 6},
        "model": {"name": "mlp"},
        "local": {"batch_size": 16, "learning_rate": 0.5, "schedule": "inverse"},
        "fleet": {"name": "exponential", "slowest": 10.0, "fastest": 60.0},
        "algorithm": algorithm | changes.pop("algorithm", {}),
        "execution": {"executor": "sequential"},
    }
    return Experiment.parse(table | changes)


@pytest.mark.parametrize("name", FAMILY)
def test_rounds_last_exactly_their_deadline_and_nobody_exceeds_the_budget(name: str) -> None:
    with simulation_of(experiment_of(name)) as simulation:
        committed, version = [0.0], 0
        for _ in simulation:
            if simulation.session.version != version:
                version = simulation.session.version
                committed.append(simulation.now)
        deadlines = getattr(simulation.session.state, "deadlines", None)
        counters = simulation.session.counters
        assert simulation.session.finished == "time budget"
        assert committed[-1] <= 30.0
        assert max(span.landed for span in simulation.spans) <= 30.0
    if deadlines is None:  # Wait-Stragglers: a round ends with its last upload
        landed = {span.landed for span in simulation.spans if span.outcome == "uploaded"}
        assert set(committed[1:]) <= landed
        return
    np.testing.assert_allclose(np.diff(committed), deadlines, rtol=1e-9)
    assert counters.dispatched == counters.received == 6 * 12  # everybody takes part and is back in time
    assert counters.staleness_max == 0


def test_all_members_see_the_same_fleet_and_the_same_draws() -> None:
    speeds, first = [], []
    for name in FAMILY:
        with simulation_of(experiment_of(name)) as simulation:
            assert simulation.session.forecast is not None
            speeds.append(simulation.session.forecast.speeds)
            next(iter(simulation))  # the first round is ordered
            run_of = simulation.runs[1]
            order = run_of.order
            assert order.batch_size is not None
            first.append(np.array(run_of.seconds) / order.batch_size / order.width**2)
            assert order.learning_rate == 0.5
    for other in range(1, len(FAMILY)):
        np.testing.assert_array_equal(speeds[0], speeds[other])
        np.testing.assert_allclose(first[0], first[other])


@pytest.mark.parametrize("name", FAMILY)
def test_they_learn_with_several_steps_decay_and_a_constant_rate(name: str) -> None:
    local = {"batch_size": 16, "learning_rate": 0.3, "weight_decay": 0.001}
    once, thrice = (
        run(experiment_of(name, local=local, algorithm={"local_steps": steps}, stop={"time": 120.0}))
        for steps in (1, 3)
    )
    assert thrice.rows[-1]["loss"] < 0.9 * thrice.rows[0]["loss"]
    assert thrice.rows[-1]["loss"] < once.rows[-1]["loss"], "three steps in the time of a round lead further than one"
    assert thrice.summary["final_accuracy"] > 0.3
    if name != "wait-stragglers":
        assert 2 < once.rows[-1]["mean_depth"] <= 3 < thrice.rows[-1]["mean_depth"] <= 9


def test_partial_backward_passes_send_fewer_bytes() -> None:
    rows = run(experiment_of("salf")).rows
    with simulation_of(experiment_of("salf")) as simulation:
        whole = simulation.session.layout.bytes
    assert 0 < rows[-1]["bytes_up"] < 72 * whole
    assert rows[-1]["bytes_down"] == 72 * whole
    assert 0 < rows[-1]["mean_depth"] < 3


def adel(**algorithm: Any) -> tuple[list[float], float, list[float]]:
    """The deadlines, the time at the end and the model of a run of ADEL-FL."""
    with simulation_of(experiment_of("adel", algorithm=algorithm)) as simulation:
        list(simulation)
        session = simulation.session
        assert session.finished == "time budget"
        assert session.version == len(session.state.deadlines)
        return session.state.deadlines, simulation.now, session.parameters.tolist()


def test_adel_with_warm_up_and_automatic_rounds_keeps_the_budget() -> None:
    plain, end, model = adel()
    assert len(plain) == 12
    assert end == pytest.approx(30.0)
    # Three equal rounds of 30/12 s, then nine that fall and fill the rest of the time.
    warm, end, _ = adel(warmup_rounds=3)
    assert len(warm) == 12
    assert end == pytest.approx(30.0)
    assert warm[:3] == pytest.approx([2.5] * 3)
    assert warm[3:] == sorted(set(warm[3:]), reverse=True) != plain[3:]
    automatic, end, _ = adel(rounds="auto", initial_distance=50.0)
    assert end == pytest.approx(30.0)
    assert len(automatic) > 12, "far from the optimum many short rounds are better"
    exact, _, other = adel(probabilities="exact")
    assert exact == plain, "the plan is the same ..."
    assert other != model, "... and the correction another"


def test_timing_does_not_depend_on_who_computes() -> None:
    alone = run(experiment_of("adel")).rows
    stacked = run(experiment_of("adel", execution={"executor": "auto"})).rows
    assert [(row["time"], row["bytes_up"]) for row in alone] == [(row["time"], row["bytes_up"]) for row in stacked]
    assert alone[-1]["loss"] == pytest.approx(stacked[-1]["loss"], rel=1e-4)


def test_what_fleets_tell_in_advance() -> None:
    workload = Workload(devices=2, samples=np.array([100, 50]), layers=4, flops_per_sample=0.0, seed=0)
    # Ratio 1, an epoch of 2 s: 100 samples x 4 layers / 2 s = 200 samples per second through one layer.
    forecast = Fleet.build(workload, RatioFleet(ratio=1.0, epoch_seconds=2.0)).forecast(1_250_000)
    assert forecast is not None
    assert forecast.speeds.tolist() == [200.0, 100.0]
    # 10 megabits down at 100 Mbit/s and up at 10 Mbit/s, 0.05 s of latency each way: 0.1 + 1 + 0.1.
    assert forecast.communication == pytest.approx([1.2, 1.2])
    assert not forecast.random_layers
    exponential = Fleet.build(workload, ExponentialFleet(speeds=[3.0, 9.0])).forecast(0)
    assert exponential is not None and exponential.speeds.tolist() == [3.0, 9.0] and exponential.random_layers
    # Zipf with at most 2 s and exponent 1: P(1) = 2/3, P(2) = 1/3, mean 4/3 s of idling after 1 s of work.
    zipf = Fleet.build(workload, ZipfFleet(exponent=1.0, max_seconds=2)).forecast(0)
    assert zipf is not None and zipf.speeds == pytest.approx([400 / (7 / 3), 200 / (7 / 3)])
    assert Fleet.build(workload, BernoulliFleet(success=0.5)).forecast(0) is None


@pytest.mark.parametrize("name", FAMILY)
def test_layers_by_tensor_are_trained_and_delivered_one_by_one(name: str) -> None:
    with simulation_of(experiment_of(name, model={"name": "mlp", "layers": "tensors"})) as simulation:
        list(simulation)
        assert simulation.session.layout.trained_layers == 6
        depths = {span.slices for span in simulation.spans}
    assert max(depths) == 6
    if name in ("adel", "salf"):
        assert depths - {0, 2, 4, 6}, "somebody stopped between the weight and the bias of a layer"


@pytest.mark.parametrize("name", ["adel", "salf", "drop-stragglers"])
def test_the_variants_of_the_authors_code_run(name: str) -> None:
    changes = {"variant": "keep" if name == "drop-stragglers" else "code"}
    if name != "adel":
        changes |= {"batch": "speed"}
    result = run(experiment_of(name, algorithm=changes, model={"name": "mlp", "layers": "tensors"}))
    assert result.summary["updates_used"] > 0
