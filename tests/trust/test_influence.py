"""Bounds on the influence of devices, computed by hand."""

import pytest

from offbeat.algorithms import FedASMU, FedAsync, FedAvg, FedBuff, Ringmaster, Safa
from offbeat.core.errors import DeviceFault
from offbeat.core.messages import Uploaded
from offbeat.core.policy import Policy
from offbeat.testing import ScriptedSession
from offbeat.testing.conformance import check_session
from offbeat.testing.toy import toy_simulation
from offbeat.trust.influence import InfluenceLimits


def test_a_small_site_that_scales_its_update_no_longer_moves_the_mean() -> None:
    # the last site has 0.6 % of the samples and moves 833 times as far as the others
    samples = [142] * 7 + [6]

    def hostile_step(screen: InfluenceLimits | None) -> float:
        session = ScriptedSession(FedAvg(cohort=8), samples=samples, screen=screen)
        for device in range(7):
            session.move(1.0, 0.0, device=device)
        session.move(0.0, 833.0, device=7)
        return float(session.parameters[1])

    assert hostile_step(None) == pytest.approx(0.006 * 833, rel=1e-5)  # five times the honest step of 0.994
    assert hostile_step(InfluenceLimits(clip="auto")) == pytest.approx(0.006, rel=1e-5)  # the median norm is 1
    assert hostile_step(InfluenceLimits(clip=7.0)) == pytest.approx(0.042, rel=1e-5)


@pytest.mark.parametrize(
    "policy", [FedAsync(concurrency=1, alpha=1.0), FedASMU(cohort=1), FedBuff(buffer=1, concurrency=1)]
)
def test_every_algorithm_sees_the_clipped_update(policy: FedAsync | FedASMU | FedBuff) -> None:
    seen = []
    session = ScriptedSession(policy, screen=InfluenceLimits(clip=5.0))
    react = type(policy).react

    def watching(event: object, state: object, view: object) -> object:
        if isinstance(event, Uploaded):
            seen.append(event.update.parameters.tolist())
        return react(policy, event, state, view)  # type: ignore[arg-type]

    object.__setattr__(policy, "react", watching)
    session.upload(30.0, 40.0)
    assert seen == [[3.0, 4.0]]


def test_auto_clips_to_the_median_of_what_devices_reported_last() -> None:
    session = ScriptedSession(
        FedBuff(buffer=1, concurrency=4), devices=4, start=(100.0, 0.0), screen=InfluenceLimits(clip="auto")
    )
    for device, step in ((0, 1.0), (1, 2.0), (2, 3.0)):
        session.move(0.0, step, device=device)  # no median yet: the limit is the norm of the base, above 100
    assert session.parameters.tolist() == pytest.approx([100.0, 1 + 2 + 3], rel=0.5)
    before = session.parameters[1]
    session.move(0.0, 50.0, device=3)  # staleness 3: 1/sqrt(4); the median of 1, 2 and 3 is 2
    assert session.parameters[1] - before == pytest.approx(2.0 / 2)
    # influence 10, 10, 10 and 10 * 2/50 of 30.4
    assert session.own_metrics() == pytest.approx(
        {"clip_norm": 2.0, "clipped_updates": 1.0, "largest_influence": 10 / 30.4}
    )
    assert session.screen is not None
    shares = session.screen.columns(session.screen_state, 4)["influence"]
    assert list(shares) == pytest.approx([10 / 30.4] * 3 + [0.4 / 30.4])


def test_before_there_is_a_median_the_norm_of_the_base_is_the_limit() -> None:
    session = ScriptedSession(FedBuff(buffer=1, concurrency=1), start=(3.0, 4.0), screen=InfluenceLimits(clip="auto"))
    session.move(0.0, 1e6)
    assert session.parameters.tolist() == [3.0, 9.0]  # 4 + 5


def test_claimed_samples_are_capped() -> None:
    session = ScriptedSession(FedAvg(cohort=2), samples=[10, 1000], screen=InfluenceLimits(most_samples=30))
    session.upload(4.0, 0.0, device=0)
    session.upload(0.0, 4.0, device=1)
    assert session.parameters.tolist() == [1.0, 3.0]  # 10 and 30
    assert [session.samples(1), session.held_samples(1)] == [30, 1000]


def test_the_cap_of_samples_may_follow_the_median() -> None:
    session = ScriptedSession(
        FedAvg(cohort=4), samples=[10, 10, 20, 10_000], screen=InfluenceLimits(most_samples_factor=2.0)
    )
    for device in range(3):
        session.upload(0.0, 0.0, device=device)
    session.upload(0.0, 6.0, device=3)
    assert session.parameters.tolist() == [0.0, 2.0]  # the median claim is 10: 20 of 10 + 10 + 20 + 20
    assert [session.samples(device) for device in range(4)] == [10, 10, 20, 30]  # twice the median of the fleet, 15


def test_repeated_uploads_of_a_device_count_less() -> None:
    session = ScriptedSession(
        FedBuff(buffer=1, concurrency=1), devices=2, present=[0], screen=InfluenceLimits(repeats=0.5, repeats_window=2)
    )
    session.move(4.0, 0.0)
    assert session.parameters[0] == 4.0
    session.move(4.0, 0.0)
    assert session.parameters[0] == 6.0  # one earlier upload in the window: 1/2
    session.move(4.0, 0.0)
    assert session.parameters[0] == 7.0  # two: 1/4
    session.move(4.0, 0.0)
    assert session.parameters[0] == 8.0  # the window holds two


def test_an_update_within_all_bounds_stays_the_same_object() -> None:
    screen = InfluenceLimits(clip=50.0, most_samples=10)
    session = ScriptedSession(FedBuff(buffer=2, concurrency=2), screen=screen)
    update = session.update(3.0, 4.0)
    session.handle(Uploaded(device=update.device, ticket=update.ticket, update=update))
    assert session.state.updates[0].outcome() is update.outcome()


def test_a_discarded_update_has_no_influence_and_a_fixed_clip_counts() -> None:
    policy = Ringmaster(concurrency=2, threshold=1)
    session = ScriptedSession(policy, devices=2, samples=[10, 30], screen=InfluenceLimits(clip=5.0))
    late = session.ticket_of(1, None)
    for _ in range(3):
        session.move(6.0, 8.0, device=0)  # norm 10: half of it remains
    assert session.own_metrics() == {"clipped_updates": 3.0, "largest_influence": 1.0}
    session.move(0.0, 1.0, ticket=late)  # three versions old
    assert session.counters.discarded == 1
    assert session.influence_columns == {"influence": [1.0, 0.0]}
    session.move(0.0, 1.0, device=1)  # 3 x 10 / 2, and 30
    assert list(session.influence_columns["influence"]) == pytest.approx([1 / 3, 2 / 3])


def test_an_update_that_is_not_finite_is_refused_before_anything_changes() -> None:
    session = ScriptedSession(FedBuff(buffer=2, concurrency=2), devices=2, screen=InfluenceLimits(clip="auto"))
    with pytest.raises(DeviceFault, match="the parameters are not finite"):
        session.move(float("nan"), 0.0, device=0)
    assert (session.counters.received, session.counters.refused) == (0, 1)
    assert session.screen_state.norms == {}
    session.move(1e30, 0.0, device=0)  # its norm overflows in float32; the numbers are finite
    assert session.counters.received == 1


@pytest.mark.parametrize("policy", [Safa(share=0.5), FedBuff(buffer=3, concurrency=5)])
@pytest.mark.parametrize("clip", ["auto", 0.5])
def test_a_checkpoint_between_uploads_changes_nothing(clip: float | str, policy: Policy) -> None:
    """A snapshot computes the updates that wait in a buffer; SAFA reads them in another order than they arrive."""
    screen = InfluenceLimits(clip=clip, repeats=0.7, most_samples_factor=1.0)  # type: ignore[arg-type]
    plain, saved = (toy_simulation(policy, screen=screen) for _ in range(2))
    for _ in plain:
        check_session(plain.session)
    for _ in saved:
        saved.session.restore(saved.session.copied())
    assert plain.session.parameters.tobytes() == saved.session.parameters.tobytes()
    assert plain.session.own_metrics() == saved.session.own_metrics()


def test_a_session_continues_from_a_snapshot_with_the_same_bounds() -> None:
    one = toy_simulation(FedBuff(), screen=InfluenceLimits(clip="auto", repeats=0.5))
    turns = iter(one)
    for _ in range(60):
        next(turns)
    again = toy_simulation(FedBuff(), screen=InfluenceLimits(clip="auto", repeats=0.5))
    again.session.restore(one.session.copied())
    assert again.session.screen_state.norms == one.session.screen_state.norms
    assert again.session.screen_state.median_norm.median == one.session.screen_state.median_norm.median
