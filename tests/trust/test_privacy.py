"""DP-FedAvg and DP-FedBuff by hand: what is clipped, weighted, divided and added; what is refused before a run."""

from functools import partial
from math import exp, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offbeat
from offbeat.algorithms import FedAvg, FedBuff
from offbeat.core.combining import Contributions
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Left, Ready, Uploaded
from offbeat.core.policy import Policy, View
from offbeat.testing import ScriptedSession
from offbeat.trust.noise import Block, Source
from offbeat.trust.privacy import Privacy, PrivateSum

UNIT = {1: (1.0, -1.0, 0.0), 2: (0.5, 0.0), 3: (0.0, 2.0), 4: (4.0, 4.0)}
"""The fresh noise of each version."""


near = partial(pytest.approx, rel=1e-4, abs=1e-4)
"""Clipping leaves a little less than C, by `MARGIN`."""


class Scripted(PrivateSum):
    """Draws the noise of the table above; the count draws 2."""

    noise: float = 1.0

    def source(self, view: View) -> Source:
        def draw(role: str, *keys: int, size: int) -> Block:
            drawn = UNIT[keys[0]] if role == "privacy" else (2.0,)
            return np.array([self.noise * number for number in drawn[:size]], dtype=np.float32)

        return draw


def private(policy: Policy, *, devices: int = 4, noise: float = 1.0, **table: Any) -> ScriptedSession:
    """A session with the noise of the table; z = 1 and C = 5 unless given."""
    privacy = Privacy(**({"noise_multiplier": 1.0, "clip": 5.0, "most_updates": 9} | table))
    combiner = privacy.combiner(policy, secret=False)
    assert combiner is not None
    scripted = Scripted(**combiner.model_dump(), noise=noise)
    return ScriptedSession(policy, devices=devices, combiner=scripted, limits=privacy.limits(policy))


def test_fedbuff_clips_each_update_adds_noise_to_the_sum_and_divides_by_k() -> None:
    session = private(FedBuff(buffer=2, concurrency=2))
    session.move(3.0, 4.0)  # norm 5: as it is
    session.move(0.0, 10.0)  # norm 10: halved
    # ([3, 4] + [0, 5] + 1 * 5 * [1, -1]) / 2
    assert session.parameters.tolist() == near([4.0, 2.0])


def test_a_stale_update_is_clipped_before_it_is_weighted() -> None:
    session = private(FedBuff(buffer=1, concurrency=2), noise=0.0)
    session.move(0.0, 0.0)
    session.move(0.0, 10.0, ticket=2)  # one version late: 1 / sqrt(2) * [0, 5], not the clip of [0, 7.07]
    assert session.parameters.tolist() == near([0.0, 5 / sqrt(2)])


def test_fedavg_weighs_devices_equally_and_divides_by_the_cohort_also_if_one_is_lost() -> None:
    policy = FedAvg(cohort=3)
    privacy = Privacy(noise_multiplier=2.0, clip=5.0)
    combiner = privacy.combiner(policy, secret=False)
    assert combiner is not None
    session = ScriptedSession(policy, samples=[1, 1000, 1], combiner=Scripted(**combiner.model_dump()))
    session.move(3.0, 0.0, device=0)
    session.move(0.0, 3.0, device=1)
    session.lose(device=2)
    # ([3, 0] + [0, 3] + 2 * 5 * [1, -1]) / 3
    assert session.parameters.tolist() == pytest.approx([13 / 3, -7 / 3])


@pytest.mark.parametrize("bad", [(float("nan"), 1.0), (float("inf"), 0.0), (-float("inf"), float("nan"))])
def test_an_update_that_is_not_finite_counts_as_zero(bad: tuple[float, float]) -> None:
    session = private(FedBuff(buffer=2, concurrency=2), noise=0.0)
    session.upload(*bad)
    assert session.move(3.0, 4.0).used == [1, 2]
    assert session.parameters.tolist() == near([1.5, 2.0])


def test_the_tree_adds_the_difference_of_the_nodes() -> None:
    # R = 2: h = 2, sigma = 5 sqrt(2). Version 2 replaces node 1 by node 2; version 3 begins a new tree.
    session = private(FedBuff(buffer=1, concurrency=1), mechanism="tree", tree=2)
    seen = []
    for _ in range(4):
        session.move(0.0, 0.0)
        seen.append(session.parameters / (5 * np.sqrt(2)))
    node = [np.array(UNIT[version][:2]) for version in (1, 2, 3, 4)]
    assert np.allclose(seen, [node[0], node[1], node[1] + node[2], node[1] + node[3]], atol=1e-6)


def test_banded_noise_takes_back_part_of_the_earlier() -> None:
    # b = 2: c = 1, 1/2, sigma = 5 sqrt(1.25); n2 = Z2 - n1 / 2, n3 = Z3 - n2 / 2
    session = private(FedBuff(buffer=1, concurrency=1), mechanism="banded", band=2)
    before, seen = session.parameters, []
    for _ in range(3):
        session.move(0.0, 0.0)
        seen.append((session.parameters - before) / (5 * sqrt(1.25)))
        before = session.parameters
    first = np.array(UNIT[1][:2])
    second = np.array(UNIT[2]) - first / 2
    assert np.allclose(seen, [first, second, np.array(UNIT[3]) - second / 2], atol=1e-6)


def test_an_adaptive_clip_follows_the_noisy_share_of_small_norms() -> None:
    policy = FedBuff(buffer=2, concurrency=2)
    session = private(policy, clip="adaptive", first_clip=5.0, quantile=0.5, clip_rate=0.2, count_noise=1.0)
    session.move(3.0, 0.0)  # below the clip
    session.move(0.0, 10.0)  # above
    # sigma = 5 / sqrt(1 - 1/4), because the count takes (2 * 1)^-2 of z^-2 = 1
    sigma = 5 / sqrt(0.75)
    assert session.parameters.tolist() == near([(3 + sigma) / 2, (5 - sigma) / 2])
    # b = 1/2 + (1/2 - 1/2 + 1 * 2) / 2 = 1.5; C = 5 exp(-0.2 (1.5 - 0.5))
    assert session.own_metrics()["privacy_clip"] == pytest.approx(5 * exp(-0.2))


def test_the_default_noise_of_the_count_depends_on_k_and_z() -> None:
    def count_noise(buffer: int, z: float) -> float | None:
        made = Privacy(noise_multiplier=z, clip="adaptive").combiner(FedBuff(buffer=buffer), secret=False)
        return None if made is None else made.count_noise

    assert (count_noise(100, 1.0), count_noise(10, 1.0)) == (5.0, 2.0)


def test_a_budget_limits_each_device_and_the_run_ends_when_none_may_contribute() -> None:
    policy, table = FedBuff(buffer=1, concurrency=1), Privacy(noise_multiplier=1.0, most_updates=5)
    session = ScriptedSession(policy, devices=2, limits=table.limits(policy, budget=table.epsilon(2)))
    fast = session.first.ordered[0]
    session.handle(Left(device=1 - fast))
    session.move(1.0, 0.0)
    assert session.move(1.0, 0.0).ordered == []  # a third contribution would exceed the budget
    assert session.version == 2
    session.handle(Ready(device=1 - fast))
    session.move(1.0, 0.0)
    session.move(1.0, 0.0)
    assert (session.version, session.finished) == (4, "epsilon")
    assert session.participation is not None and session.participation.epsilon == table.epsilon(2)


def test_a_session_reports_epsilon_and_what_it_follows_from() -> None:
    session = private(FedBuff(buffer=1, concurrency=1), devices=1)
    assert session.own_metrics()["epsilon"] == 0.0
    session.move(1.0, 0.0)
    session.move(1.0, 0.0)
    assert session.participation is not None
    rho = 2 / 2  # p / (2 z^2)
    assert session.own_metrics()["epsilon"] == pytest.approx(rho + 2 * sqrt(rho * np.log(1e5)))
    assert session.participation.summary() == {
        "epsilon": session.participation.epsilon,
        "level": "device",
        "noise_multiplier": 1.0,
        "clip": 5.0,
        "most_updates": 9,
        "delta": 1e-5,
        "mechanism": "gaussian",
        "accountant": "zcdp",
        "divisor": 1,
        "devices_by_contributions": {"2": 1},
    }


numbers = st.one_of(st.floats(-(2.0**127), 2.0**127, width=32), st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e-30]))
vectors = st.lists(numbers, min_size=3, max_size=3)
weights = st.one_of(st.floats(0, 1), st.floats(1, 1e6))


@settings(deadline=None)
@given(st.lists(st.tuples(vectors, weights), min_size=1, max_size=4), st.floats(1e-3, 1e3), st.booleans())
def test_no_device_changes_the_sum_by_more_than_the_clip(
    given_updates: list[tuple[list[float], float]], clip: float, by_staleness: bool
) -> None:
    policy: Policy = FedBuff(buffer=4) if by_staleness else FedAvg(cohort=4)
    made = Privacy(noise_multiplier=1.0, clip=clip).combiner(policy, secret=False)
    assert made is not None
    combiner = Scripted(**made.model_dump(), noise=0.0)
    zero: npt.NDArray[np.float32] = np.zeros(3, dtype=np.float32)
    view = ScriptedSession(policy, devices=20)

    def moved(models: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float64]:
        contributions = Contributions(
            models=models,
            references=[zero] * len(models),
            weights=[weight for _, weight in given_updates],
            divisor=1.0,
            devices=list(range(len(models))),
            staleness=[0] * len(models),
            samples=[1] * len(models),
        )
        return combiner.combine(contributions, combiner.init(view), view)(slice(0, 3)) * 4  # K = 4

    models = [np.array(numbers, dtype=np.float32) for numbers, _ in given_updates]
    everyone = moved(models)
    for left_out in range(len(models)):
        without = moved([zero if number == left_out else model for number, model in enumerate(models)])
        assert np.linalg.norm(everyone - without) <= clip * (1 + 1e-5)


def test_a_resumed_session_draws_the_same_noise_and_two_versions_never_do() -> None:
    policy = FedBuff(buffer=1, concurrency=2)
    privacy = Privacy(noise_multiplier=1.0, most_updates=9, mechanism="tree", tree=4)

    def session() -> ScriptedSession:
        combiner = privacy.combiner(policy, secret=False)
        return ScriptedSession(policy, devices=8, combiner=combiner, limits=privacy.limits(policy), seed=3)

    straight, resumed = session(), session()
    steps = []
    for version in range(8):
        before = straight.parameters
        straight.move(0.0, 0.0)
        resumed.move(0.0, 0.0)
        steps.append((straight.parameters - before).tolist())
        if version in (0, 2, 5):
            again = session()
            again.restore(resumed.copied())
            resumed = again
    assert straight.parameters.tolist() == resumed.parameters.tolist()
    assert len({tuple(step) for step in steps}) == 8


def test_a_deployment_never_draws_noise_twice() -> None:
    policy = FedBuff(buffer=1, concurrency=1)
    privacy = Privacy(noise_multiplier=1.0, most_updates=9)

    def session() -> ScriptedSession:
        combiner = privacy.combiner(policy, secret=True)
        return ScriptedSession(policy, devices=8, combiner=combiner, limits=privacy.limits(policy), seed=3)

    one, other = session(), session()
    saved = one.copied()
    one.move(0.0, 0.0)
    other.restore(saved)
    other.move(0.0, 0.0)  # the same version of the same update, after a crash
    assert one.parameters.tolist() != other.parameters.tolist()


BASE: dict[str, Any] = {"stop": {"versions": 2}, "model": "mlp", "algorithm": "fedbuff"}


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"algorithm": "fedasync", "privacy": {"noise_multiplier": 1.0}}, "'fedasync' has no private form"),
        ({"algorithm": "fedprox", "privacy": {"noise_multiplier": 1.0}}, "'fedprox' has no private form"),
        (
            {"algorithm": {"name": "fedbuff", "normaliser": "weights"}, "privacy": {"noise_multiplier": 1.0}},
            "algorithm.normaliser = 'weights': a private fedbuff divides by a fixed K",
        ),
        (
            {"algorithm": {"name": "fedbuff", "variant": "plato"}, "privacy": {"noise_multiplier": 1.0}},
            "algorithm.variant = 'plato'",
        ),
        ({"privacy": {"clip": 2.0}}, "privacy.clip has no effect: set privacy.noise_multiplier too"),
        ({"privacy": {"noise_multiplier": 1.0, "tree": 6}}, "privacy.tree = 6: must be a power of two"),
        ({"privacy": {"noise_multiplier": 1.0, "clip": "adaptive", "mechanism": "tree"}}, "need one clip"),
        ({"privacy": {"noise_multiplier": -1.0}}, "privacy.noise_multiplier"),
        ({"privacy": {"noise_multiplier": 1.0, "level": "example", "mechanism": "tree"}}, "independent noise"),
        ({"stop": {"versions": 2, "epsilon": 1.0}}, "stop.epsilon = 1: the run is not private"),
        (
            {"stop": {"epsilon": 1.0}, "privacy": {"noise_multiplier": 1.0}},
            "stop.epsilon = 1: the first version already costs epsilon = 5.3",
        ),
        ({"privacy": {"noise_multiplier": 1.0}, "selection": "oort"}, "it reads the losses of devices"),
        ({"privacy": {"noise_multiplier": 1.0, "level": "example"}, "local": {"steps": 5}}, "local.steps = 5"),
        (
            {"privacy": {"noise_multiplier": 1.0, "level": "example"}, "local": {"optimiser": "polyak"}},
            "local.optimiser = 'polyak': privacy.level",
        ),
    ],
)
def test_what_cannot_be_private_is_refused_before_a_run_in_one_sentence(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        offbeat.Experiment(**(BASE | tables))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_too_few_devices_for_a_tree_are_refused() -> None:
    privacy = Privacy(noise_multiplier=1.0, mechanism="tree", tree=4)
    policy = FedBuff(buffer=2, concurrency=2)
    with pytest.raises(InvalidInput, match=r"once in 4 versions of 2 updates, which needs 8 devices, but there are 7"):
        ScriptedSession(policy, devices=7, combiner=privacy.combiner(policy, secret=False))


def test_a_count_with_too_little_noise_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"privacy.count_noise = 0.5: must be more than half"):
        Privacy(noise_multiplier=1.0, clip="adaptive", count_noise=0.5).combiner(FedBuff(), secret=False)


def test_the_table_is_read_again_as_it_was_written() -> None:
    given_table = {"noise_multiplier": 0.5, "clip": "adaptive", "most_updates": 3}
    experiment = offbeat.Experiment(**(BASE | {"privacy": given_table}))
    assert offbeat.Experiment.parse(experiment.table()).privacy == experiment.privacy
    assert "privacy" not in offbeat.Experiment(**BASE).table()


def test_an_upload_twice_changes_nothing() -> None:
    session = private(FedBuff(buffer=2, concurrency=2), noise=0.0)
    update = session.update(1.0, 0.0)
    event = Uploaded(device=update.device, ticket=update.ticket, update=update)
    session.handle(event)
    with pytest.raises(offbeat.OffbeatError):
        session.handle(event)
    session.move(1.0, 0.0)
    assert session.parameters.tolist() == [1.0, 0.0]
