"""Advice: delays from the fleet, constants from gradients, and an honest word where theory and simulation differ."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from offbeat import Experiment
from offbeat.algorithms import Psurdg
from offbeat.comparison.delayed_gradients.advice import (
    Advice,
    Simulated,
    _prepared,
    advise,
    beyond_the_theory,
    tables,
)
from offbeat.comparison.delayed_gradients.bounds import BoundConstants, Delays
from offbeat.comparison.delayed_gradients.constants import (
    CONVERGED,
    BoundEstimate,
    _Point,
    _Seen,
    delays_of,
    estimate,
    median_order_seconds,
)
from offbeat.running.assembly import ExperimentParts
from offbeat.simulation.run import simulation_of

INF = float("inf")


def an_experiment(**changes: Any) -> Experiment:
    table: dict[str, Any] = {
        "stop": {"time": 20.0},
        "data": {"name": "digits", "devices": 4},
        "partition": {"name": "shards"},
        "model": {"name": "logistic"},
        "local": {"epochs": 1, "batch_size": 0, "learning_rate": 0.5},
        "fleet": {"name": "bernoulli", "mean_delay": [3.0, 1.0, 1.0, 0.0]},
        "algorithm": {"name": "audg", "weights": [0.4, 0.2, 0.2, 0.2]},
    }
    return Experiment.parse(table | changes)


def an_advice(theta_sign: int, psurdg: list[float] | None = None) -> Advice:
    """With a short or a long radius Theta is positive or negative; AUDG ends at a loss of 1 in every seed."""
    constants = BoundConstants(
        smoothness=2.0, convexity=1.0, gradient=3.0, radius=0.01 if theta_sign > 0 else 9.0, heterogeneity=0.0
    )
    found = None
    if psurdg is not None:
        accuracies = {"audg": 0.5, "psurdg": 0.6}
        found = Simulated(iterations=10, audg=[1.0] * len(psurdg), psurdg=psurdg, accuracies=accuracies)
    return Advice(
        iteration_seconds=1.0,
        rate=0.1,
        iterations=10,
        delays=Delays.bernoulli([0.5, 0.5], [0.5, 0.5]),
        ages=Delays.bernoulli([0.5, 0.5], [0.5, 0.5], reused=True),
        estimate=BoundEstimate(constants, True, 2, remaining=0.01, remaining_alone=0.01),
        simulated=found,
    )


@pytest.mark.parametrize(
    ("sign", "psurdg", "sentence"),
    [
        (-1, None, "The theory prefers PSURDG. Its bounds are loose"),
        (1, None, "The theory prefers AUDG"),
        (-1, [0.8, 0.81, 0.79], "PSURDG, and so does the simulation"),
        (-1, [1.2, 1.21, 1.19], "DISAGREE: the theory prefers PSURDG, the simulation AUDG"),
        (1, [0.8, 0.81, 0.79], "DISAGREE: the theory prefers AUDG, the simulation PSURDG"),
        (1, [0.5, 1.6, 1.0], "no clear difference"),
        (1, [0.5], "has a single seed, which shows no spread"),
        # Differences -0.1, -0.3: mean -0.2, s.e. 0.1. Two seeds need 12.7 s.e., not 2
        (1, [0.9, 0.7], "no clear difference"),
        (-1, [0.8, INF, 0.7], "DISAGREE: the theory prefers PSURDG, the simulation AUDG (it diverged with PSURDG in 1"),
        (1, [INF], "AUDG, and so does the simulation (it diverged with PSURDG in 1 of 1 seeds)"),
    ],
)
def test_the_verdict_says_where_theory_and_simulation_disagree(
    sign: int, psurdg: list[float] | None, sentence: str
) -> None:
    advice = an_advice(sign, psurdg)
    assert sentence in advice.verdict
    console = Console(width=200, record=True, file=None)
    with console.capture() as said:
        console.print(*tables(advice), advice.verdict)
    assert sentence in said.get()
    assert "nan" not in said.get() and "± inf" not in said.get()


def said(advice: Advice) -> str:
    console = Console(width=300)
    with console.capture() as captured:
        console.print(*tables(advice), advice.verdict)
    return captured.get()


def test_both_verdicts_are_shown_where_the_printed_bound_prefers_the_other() -> None:
    # The example of our notes on the paper at a delay of 5: Theta = -3.68 as printed, +2.76 with the real ages.
    success, weights = [1 / 6, 0.5, 0.5, 0.5], [0.25] * 4
    constants = BoundConstants(smoothness=1.0, convexity=0.1, gradient=1.0, radius=1.0, heterogeneity=0.3)
    known = an_advice(-1)
    advice = replace(
        known,
        delays=Delays.bernoulli(success, weights),
        ages=Delays.bernoulli(success, weights, reused=True),
        estimate=known.estimate._replace(constants=constants),
    )
    assert advice.prefers == "audg" and advice.is_turned
    text = said(advice)
    assert (
        "The theory prefers AUDG (the printed bound, with delays that are not those of the gradients, prefers PSURDG)."
        in text
    )
    assert f"{advice.theta:+.4g}" in text and f"{advice.printed_theta:+.4g}" in text
    assert (advice.theta, advice.printed_theta) == pytest.approx((2.76, -3.68), abs=0.005)
    assert not known.is_turned and "the printed bound, with delays that are not" not in said(known)


def test_settings_that_leave_the_theory_are_named() -> None:
    local = {"epochs": 3, "batch_size": 32, "learning_rate": 0.5, "learning_rate_decay": 0.9}
    advice = advise(an_experiment(local=local), iterations=5)
    assert (
        "one full-batch step at a constant rate; it does not cover local.epochs = 3, local.batch_size = 32, "
        "local.learning_rate_decay = 0.9." in " ".join(said(advice).split())
    )
    assert beyond_the_theory(an_experiment()) == ()
    renormalised = an_experiment(algorithm={"name": "audg", "weights": "renormalised"})
    assert beyond_the_theory(renormalised) == ("algorithm.weights = 'renormalised'",)


def test_a_rate_that_the_theory_does_not_cover_is_pointed_out() -> None:
    advice = an_advice(-1)  # eta L = 0.1 * 2
    assert advice.is_stable
    fast = replace(advice, rate=0.6)
    assert not fast.is_stable
    assert "does not cover learning rates this high" in fast.verdict


def test_when_both_diverge_alike_neither_is_preferred() -> None:
    found = Simulated(iterations=1, audg=[INF, 1.0], psurdg=[2.0, INF], accuracies={"audg": 0.1, "psurdg": 0.1})
    assert found.prefers is None
    verdict = replace(an_advice(1), simulated=found).verdict
    assert "diverged with AUDG in 1 and PSURDG in 1 of 2 seeds. Lower the learning rate." in verdict


@pytest.mark.parametrize("bad", [{"training_loss": float("nan")}, {"stopped_by": "diverged: version 3"}])
def test_runs_that_explode_are_reported_and_not_averaged(bad: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(experiment: Experiment) -> SimpleNamespace:
        good = {"training_loss": 1.0, "final_accuracy": 0.5, "stopped_by": "time"}
        return SimpleNamespace(summary=good | (bad if experiment.algorithm.name == "psurdg" else {}))

    monkeypatch.setattr("offbeat.comparison.delayed_gradients.advice.run", ended)
    advice = advise(an_experiment(), simulate=True, seeds=[0, 1])
    assert advice.simulated is not None
    assert advice.simulated.diverged == {"psurdg": 2}
    assert advice.simulated.prefers == "audg"
    assert "it diverged with PSURDG in 2 of 2 seeds" in advice.verdict


def test_an_unfinished_descent_is_said_to_give_lower_bounds() -> None:
    advice = an_advice(1)
    stuck = replace(advice, estimate=advice.estimate._replace(remaining_alone=0.5))
    for each, said in ((advice, False), (stuck, True)):
        console = Console(width=200)
        with console.capture() as shown:
            console.print(*tables(each), each.verdict)
        assert ("NOT CONVERGED: R and phi are lower bounds" in shown.get()) is said
        assert "without availability and failures" in shown.get()
        assert "bound, averaged model" in shown.get()


def test_weights_and_storage_are_kept_for_the_simulations() -> None:
    weights = [0.4, 0.2, 0.2, 0.2]
    experiment = an_experiment(algorithm={"name": "psurdg", "weights": weights, "storage": "float16"})
    policies = [_prepared(experiment, name, 1.0, 5).algorithm.policy for name in ("audg", "psurdg")]
    assert [policy.model_dump()["weights"] for policy in policies] == [weights, weights]
    assert isinstance(policies[1], Psurdg) and policies[1].storage == "float16"


def test_differences_are_taken_seed_by_seed() -> None:
    found = Simulated(iterations=1, audg=[1.0, 2.0, 3.0], psurdg=[1.1, 2.1, 3.1], accuracies={})
    # Each seed has a difference of 0.1, so it has no error although the seeds are far apart.
    assert found.difference == pytest.approx(0.1)
    assert found.error == pytest.approx(0.0, abs=1e-12)
    assert found.prefers == "audg"


def test_the_standard_error_by_hand() -> None:
    found = Simulated(iterations=1, audg=[1.0, 2.0, 3.0], psurdg=[1.2, 2.5, 3.3], accuracies={})
    # Differences 0.2, 0.5, 0.3, mean 1/3: squares (0.017778 + 0.027778 + 0.001111) / 2 = 0.0233333, root 0.1527525;
    # / sqrt 3 = 0.0881917. The t quantile of 2 degrees is 4.30, and 4.30 * 0.0882 = 0.379 > 1/3.
    assert found.difference == pytest.approx(1 / 3)
    assert found.error == pytest.approx(0.0881917, abs=1e-6)
    assert found.prefers is None


def test_without_delays_there_is_nothing_to_choose() -> None:
    advice = advise(an_experiment(fleet={"name": "bernoulli", "mean_delay": 0.0}))
    assert advice.prefers is None
    assert advice.verdict.startswith("No gradient is delayed")


def test_delays_of_the_bernoulli_fleet_are_in_closed_form_with_the_weights_of_the_file() -> None:
    experiment = an_experiment()
    with simulation_of(experiment) as simulation:
        delays, ages = (delays_of(experiment, simulation, reused=reused) for reused in (False, True))
    assert delays.first == pytest.approx([3.0, 1.0, 1.0, 0.0])
    assert ages.first == pytest.approx([6.0, 2.0, 2.0, 0.0])
    assert delays.weights.tolist() == [0.4, 0.2, 0.2, 0.2]
    assert delays.participants == pytest.approx(0.25 + 0.5 + 0.5 + 1.0)


def test_delays_of_other_fleets_are_timed() -> None:
    # Every order takes half a second, so three iterations of 0.2 s: ages 0, 1, 2, a delivery every third iteration.
    network = {"uplink_mbps": float("inf"), "downlink_mbps": float("inf"), "latency": 0.0}
    experiment = an_experiment(
        fleet={"name": "ratio", "ratio": 1.0, "epoch_seconds": 0.5},
        network=network,
        algorithm={"name": "audg", "iteration_seconds": 0.2},
    )
    with simulation_of(experiment) as simulation:
        delays, ages = (delays_of(experiment, simulation, reused=reused) for reused in (False, True))
    assert delays.first.tolist() == [1.0] * 4
    assert ages.first.tolist() == [3.0] * 4  # 2 old when it comes, and applied in three iterations: 2, 3, 4
    assert delays.participants == pytest.approx(4 / 3)
    assert median_order_seconds(experiment) == pytest.approx(0.5)


def test_other_algorithms_are_advised_on_with_the_median_order_as_iteration() -> None:
    experiment = an_experiment(
        fleet={"name": "ratio", "ratio": 10.0}, algorithm={"name": "fedbuff", "concurrency": 4, "buffer": 2}
    )
    advice = advise(experiment, iterations=5)
    assert advice.iteration_seconds == median_order_seconds(experiment)
    assert 0 < advice.delays.participants < 4


EQUAL = np.full(4, 0.25)


def test_the_constants_of_a_convex_model_are_those_of_a_convex_model() -> None:
    told: list[float] = []
    first = estimate(an_experiment(), EQUAL, told.append)
    assert first.convex and first.converged
    assert 0 < max(first.remaining, first.remaining_alone) <= CONVERGED
    constants = first.constants
    assert 0 < constants.convexity < constants.smoothness
    assert min(constants.gradient, constants.radius, constants.heterogeneity) > 0
    assert told[-1] == 1.0 and told == sorted(told)


def test_curvatures_and_gradients_by_hand() -> None:
    # Two clients with the Hessians diag(1, 3) and diag(2.1, 2.1), a step of [1, 1]: changes [1, 3] and [2.1, 2.1].
    #   |dg| / |dw|: sqrt(10 / 2) = 2.236 and 2.1;  <dg, dw> / |dw|^2: (1 + 3) / 2 and 2.1
    #   and by a step of [2, 0]: 1 and 2.1 in both.
    def look(x: float, y: float) -> _Point:
        gradients = np.array([[x, 3 * y], [2.1 * x, 2.1 * y]], dtype=np.float32)
        return _Point(np.array([x, y], dtype=np.float32), 0.0, gradients, gradients.mean(axis=0))

    seen = _Seen()
    seen.visit(look(0.0, 1.0))  # gradients [0, 3] and [0, 2.1]
    assert seen.longest == pytest.approx(3.0)
    seen.visit(look(2.0, 0.0))  # [2, 0] and [4.2, 0]
    assert seen.longest == pytest.approx(4.2)
    seen.compare(look(0.0, 0.0), look(1.0, 1.0))
    assert (seen.steepest, seen.flattest) == pytest.approx((5**0.5, 2.0))
    seen.compare(look(0.0, 0.0), look(2.0, 0.0))
    assert (seen.steepest, seen.flattest) == pytest.approx((5**0.5, 1.0))


class Quadratic:
    """In place of a trainer: f_0 = 1/2 (w - 1)^2 and f_1 = 5/2 (w + 1)^2, of a model of one number."""

    def loss_and_gradient(self, model: Any, client: int, *_: Any) -> tuple[float, Any]:
        curvature, centre = ((1.0, 1.0), (5.0, -1.0))[client]
        away = model - np.float32(centre)
        return float(curvature / 2 * away[0] ** 2), np.float32(curvature) * away


def test_the_constants_of_a_quadratic_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExperimentParts, "trainer", lambda parts: Quadratic())
    monkeypatch.setattr(ExperimentParts, "parameters", np.array([4.0], dtype=np.float32))
    experiment = an_experiment(
        data={"name": "digits", "devices": 2},
        fleet={"name": "bernoulli", "mean_delay": 1.0},
        algorithm={"name": "audg"},
    )
    found = estimate(experiment, np.array([0.75, 0.25]), lambda done: None)
    constants = found.constants
    # L and mu: the curvatures 5 and 1.  G: at the first model, w = 4, client 1 has 5 (4 + 1).
    assert (constants.smoothness, constants.convexity, constants.gradient) == pytest.approx((5.0, 1.0, 25.0))
    # Together 3/4 (w - 1) + 1/4 5 (w + 1) = 2 w + 1/2: the rate 1/2 comes from w = 4 to w* = -1/4 in one step.
    assert constants.radius == pytest.approx(4.25)
    # Client 0 alone, steps of 1/2, 5/8, 25/32, 125/128: 4, 2.5, 1.5625, 1.1230469, 1.0028839, where its gradient is
    # less than 0.02 of the first. Client 1 ends near -1, which is nearer. So phi = 1.0028839 + 1/4.
    assert constants.heterogeneity == pytest.approx(1.2528839)
    assert (found.convex, found.clients, found.remaining) == (True, 2, 0.0)
    # Client 1 alone, steps of 1/8 (after 1/2 and 1/4 were too long), 5/32, 25/128: 4, 0.875, -0.5898438, -0.9903870.
    # What remains of the gradients: 0.0028839 / 3 and 5 0.0096130 / 25.
    assert found.remaining_alone == pytest.approx(0.0019226, abs=1e-7)


def test_the_optimum_does_not_depend_on_the_rate_of_the_experiment() -> None:
    same = {"data": {"name": "digits", "devices": 1}, "partition": {"name": "same", "samples": 100}}
    fleet = {"name": "bernoulli", "mean_delay": 1.0}
    slow, fast = (
        estimate(
            an_experiment(
                **same,
                fleet=fleet,
                algorithm={"name": "audg"},
                local={"epochs": 1, "batch_size": 0, "learning_rate": rate},
            ),
            np.ones(1),
            lambda done: None,
        )
        for rate in (0.001, 3.0)
    )
    assert slow.converged and fast.converged
    assert slow.constants.radius == pytest.approx(fast.constants.radius, rel=0.05)


def test_the_optimum_is_that_of_the_weighted_loss() -> None:
    # With all weight on one client its optimum is the common one
    even = estimate(an_experiment(), EQUAL, lambda done: None)
    alone = estimate(an_experiment(), np.array([1.0, 0.0, 0.0, 0.0]), lambda done: None)
    assert alone.clients == 1 and alone.constants.heterogeneity < 0.01 * even.constants.heterogeneity


@pytest.mark.parametrize("samples", [100, 1000])
def test_clients_with_the_same_data_have_the_same_optimum_also_when_only_some_samples_are_used(samples: int) -> None:
    found = estimate(an_experiment(partition={"name": "same", "samples": samples}), EQUAL, lambda done: None).constants
    assert found.heterogeneity < 0.02 * found.radius


def test_a_simulation_stands_beside_the_theory() -> None:
    told: list[float] = []
    advice = advise(an_experiment(), iterations=8, simulate=True, seeds=[0, 1], watch=told.append)
    found = advice.simulated
    assert found is not None
    assert len(found.audg) == len(found.psurdg) == 2
    assert np.isfinite([*found.audg, *found.psurdg]).all()
    assert told[-1] == pytest.approx(1.0)


def test_infinite_bounds_prefer_nobody_and_the_simulation_has_the_word() -> None:
    known = an_advice(-1, [0.5, 0.4, 0.6])
    constants = replace(known.estimate.constants, convexity=0.0)
    advice = replace(known, estimate=known.estimate._replace(constants=constants))
    assert advice.theta < 0 and advice.prefers is None
    assert advice.verdict == (
        "The theory prefers neither: all its bounds are infinite, because the loss is not strongly convex; "
        "the simulation prefers PSURDG."
    )
    assert replace(advice, simulated=None).verdict.endswith("not strongly convex. Compare the two by simulation.")
