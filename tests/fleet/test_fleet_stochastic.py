"""Zipf, exponential and Bernoulli fleets: their distributions, and draws that depend on device and ticket alone."""

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.fleet import BernoulliFleet, ExponentialFleet, Fleet, FleetSettings, NetworkSettings, Workload, ZipfFleet


def workload(*samples: int, layers: int = 5, seed: int = 3) -> Workload:
    return Workload(
        devices=len(samples),
        samples=np.array(samples, dtype=np.int64),
        layers=layers,
        flops_per_sample=0.0,
        seed=seed,
    )


@pytest.mark.parametrize("fleet", [ZipfFleet(), ExponentialFleet(), BernoulliFleet(success=0.1)])
def test_a_draw_depends_on_nothing_but_seed_device_and_ticket(fleet: FleetSettings) -> None:
    order = Order(slices=3)
    speeds, same = fleet.build(workload(9, 9)), fleet.build(workload(9, 9))
    forward = [list(speeds.slice_seconds(device, ticket, order)) for device in (0, 1) for ticket in range(20)]
    backward = [list(same.slice_seconds(device, ticket, order)) for device in (1, 0) for ticket in reversed(range(20))]
    assert forward == backward[::-1]
    assert forward[:20] != forward[20:], "devices differ"
    assert len({tuple(times) for times in forward[:20]}) > 1, "tickets differ"
    other = fleet.build(workload(9, 9, seed=4))
    assert forward[:20] != [list(other.slice_seconds(0, ticket, order)) for ticket in range(20)]


def test_zipf_idles_a_whole_number_of_seconds_after_each_epoch_with_the_published_odds() -> None:
    # s = 1.7 and at most 60 s: P(Z = 1) = 1 / sum k^-1.7 and the mean is sum k^-0.7 / sum k^-1.7.
    seconds = np.arange(1.0, 61)
    weights = seconds**-1.7
    speeds = ZipfFleet(epoch_seconds=0.5).build(workload(9))
    idle = np.array(speeds.slice_seconds(0, 0, Order(slices=40_000))) - 0.5
    assert np.array_equal(idle, np.round(idle))
    assert idle.min() == 1
    assert idle.max() <= 60
    assert np.mean(idle == 1) == pytest.approx(1 / weights.sum(), abs=0.01)
    assert idle.mean() == pytest.approx((seconds * weights).sum() / weights.sum(), rel=0.03)


def test_zipf_drawn_once_per_device_makes_lasting_stragglers_with_the_same_odds() -> None:
    devices = 20_000
    speeds = ZipfFleet(epoch_seconds=0.5, draw="device").build(workload(*[9] * devices))
    first = np.array([speeds.slice_seconds(device, 1, Order())[0] for device in range(devices)])
    again = [speeds.slice_seconds(device, 2, Order(slices=2))[1] for device in range(devices)]
    assert first.tolist() == again, "a device keeps its idle time"
    weights = np.arange(1.0, 61) ** -1.7
    assert np.mean(first - 0.5 == 1) == pytest.approx(1 / weights.sum(), abs=0.01)
    assert set(np.unique(first - 0.5)) <= set(range(1, 61))


def test_zipf_gives_a_layer_its_share_of_work_and_idle_time() -> None:
    # Z is always 1: (1 s + 1 s) x 10 of 100 samples / 5 layers = 0.04 s.
    speeds = ZipfFleet(max_seconds=1).build(workload(100))
    assert list(speeds.slice_seconds(0, 0, Order(slices=2, unit="layer", batch_size=10))) == pytest.approx([0.04] * 2)


def test_zipf_scales_its_base_time_but_not_its_idle_time_by_the_data() -> None:
    # mean(n) = 20; base times 10/20 and 30/20, plus Z = 1.
    speeds = ZipfFleet(max_seconds=1, cost="samples").build(workload(10, 30))
    assert [speeds.slice_seconds(device, 0, Order())[0] for device in (0, 1)] == [1.5, 2.5]


def test_exponential_layers_have_mean_and_deviation_batch_over_speed() -> None:
    speeds = ExponentialFleet(speeds=[50.0, 10.0]).build(workload(100, 100))
    for device, mean in ((0, 20 / 50), (1, 20 / 10)):
        times = np.array(speeds.slice_seconds(device, 0, Order(slices=20_000, unit="layer", batch_size=20)))
        assert times.mean() == pytest.approx(mean, rel=0.03)
        assert times.std() == pytest.approx(mean, rel=0.03)


def test_an_exponential_epoch_is_the_sum_of_its_steps_layers() -> None:
    # 90 samples in batches of 20: 5 steps x 4 layers, mean 4 x 90 / 50 = 7.2 s, deviation 7.2 / sqrt(20).
    speeds = ExponentialFleet(speeds=[50.0]).build(workload(90, layers=4))
    times = np.array(speeds.slice_seconds(0, 0, Order(slices=20_000, batch_size=20)))
    assert times.mean() == pytest.approx(7.2, rel=0.01)
    assert times.std() == pytest.approx(7.2 / 20**0.5, rel=0.03)


def test_exponential_speeds_are_drawn_between_slowest_and_fastest() -> None:
    # The mean time of a whole-data layer is 10 samples / speed, speeds in [10, 20]: between 0.5 and 1 s.
    speeds = ExponentialFleet(slowest=10, fastest=20).build(workload(*[10] * 50))
    layer = Order(slices=4000, unit="layer", batch_size=None)
    means = [np.mean(speeds.slice_seconds(device, 0, layer)) for device in range(50)]
    assert min(means) > 0.45
    assert max(means) < 1.06
    assert np.std(means) > 0.08


def test_bernoulli_arrives_amid_its_kth_iteration_however_many_slices() -> None:
    speeds = BernoulliFleet(success=0.3, iteration_seconds=4.0).build(workload(9))
    for ticket in range(50):
        whole = sum(speeds.slice_seconds(0, ticket, Order(slices=3)))
        assert whole == pytest.approx(sum(speeds.slice_seconds(0, ticket, Order(slices=1, unit="layer"))))
        iterations = whole / 4.0 + 0.5
        assert iterations == pytest.approx(round(iterations))
        assert iterations > 0.9


def test_bernoulli_that_always_succeeds_takes_half_an_iteration() -> None:
    assert list(BernoulliFleet(success=1).build(workload(9)).slice_seconds(0, 7, Order(slices=2))) == [0.25, 0.25]


def test_bernoulli_delays_have_the_mean_of_each_device() -> None:
    # Delay = k - 1 = seconds - 1/2 for iterations of a second: its mean is 1/phi - 1.
    by_delay = BernoulliFleet(mean_delay=[1.0, 9.0]).build(workload(9, 9))
    by_success = BernoulliFleet(success=[0.5, 0.1]).build(workload(9, 9))
    for device, mean in ((0, 1.0), (1, 9.0)):
        seconds = [by_delay.slice_seconds(device, ticket, Order())[0] for ticket in range(4000)]
        assert np.mean(seconds) - 0.5 == pytest.approx(mean, rel=0.06)
        assert seconds[:100] == [by_success.slice_seconds(device, ticket, Order())[0] for ticket in range(100)]


@pytest.mark.parametrize(
    "fleet",
    [BernoulliFleet(success=[0.5]), BernoulliFleet(mean_delay=[1.0] * 3), ExponentialFleet(speeds=[1.0])],
)
def test_a_list_must_have_one_value_per_device(fleet: FleetSettings) -> None:
    with pytest.raises(InvalidInput, match="for 2 devices: give one value per device"):
        fleet.build(workload(9, 9))


def test_bernoulli_repetitions_draw_other_delays_for_the_same_seed() -> None:
    def seconds(repetition: int) -> list[float]:
        speeds = BernoulliFleet(success=0.3, repetition=repetition).build(workload(9))
        return [speeds.slice_seconds(0, ticket, Order())[0] for ticket in range(50)]

    assert seconds(1) == seconds(1)
    assert len({tuple(seconds(repetition)) for repetition in range(3)}) == 3


def test_bernoulli_has_the_way_there_and_back_in_its_probability() -> None:
    fleet = Fleet.build(workload(9, 9), BernoulliFleet(success=0.5), NetworkSettings(uplink_mbps=0.001, latency=9.0))
    assert fleet.links.up_seconds(1, 10**9) == fleet.links.down_seconds(0, 10**9) == fleet.links.latency(0) == 0.0


def test_bernoulli_wants_exactly_one_of_success_and_mean_delay() -> None:
    with pytest.raises(InvalidInput, match="exactly one of success and mean_delay"):
        BernoulliFleet()
    with pytest.raises(InvalidInput, match="exactly one of success and mean_delay"):
        BernoulliFleet(success=0.5, mean_delay=1.0)


@pytest.mark.parametrize(
    ("settings", "bad"),
    [
        (BernoulliFleet, {"success": 0.0}),
        (BernoulliFleet, {"success": [0.5, 1.5]}),
        (BernoulliFleet, {"mean_delay": -1.0}),
        (ExponentialFleet, {"slowest": 3.0, "fastest": 2.0}),
        (ExponentialFleet, {"speeds": [1.0, 0.0]}),
        (ZipfFleet, {"max_seconds": 0}),
        (ZipfFleet, {"exponent": -1.0}),
    ],
)
def test_bad_settings_of_stochastic_fleets_are_refused(settings: type[FleetSettings], bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        settings.model_validate(bad)
