"""Fixed-speed fleets: epoch and layer times by hand, the distributions of slowness, a million devices."""

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.fleet import FLEETS, BimodalFleet, FleetSettings, ParetoFleet, RatioFleet, Workload


def workload(*samples: int, flops: float = 0.0, layers: int = 5, seed: int = 3) -> Workload:
    return Workload(
        devices=len(samples),
        samples=np.array(samples, dtype=np.int64),
        layers=layers,
        flops_per_sample=flops,
        seed=seed,
    )


def epoch_of_each(fleet: FleetSettings, work: Workload) -> list[float]:
    speeds = fleet.build(work)
    return [speeds.slice_seconds(device, 0, Order())[0] for device in range(work.devices)]


def test_the_registry_knows_each_fleet_by_its_own_name_and_has_one_line_of_help() -> None:
    for name, settings in FLEETS.items():
        assert settings.model_fields["name"].default == name
        assert settings.__doc__ and "\n" not in settings.__doc__


def test_cost_in_seconds_ignores_the_data() -> None:
    # ratio 1: every slowness is 1.
    assert epoch_of_each(RatioFleet(ratio=1, epoch_seconds=2.5), workload(10, 30)) == [2.5, 2.5]


def test_cost_in_samples_scales_with_a_devices_share_of_the_mean() -> None:
    # mean(n) = 20, so the devices take 2 x 10/20 and 2 x 30/20 seconds.
    assert epoch_of_each(RatioFleet(ratio=1, epoch_seconds=2, cost="samples"), workload(10, 30)) == [1.0, 3.0]


def test_cost_in_flops_is_operations_over_speed() -> None:
    # 4e6 x 1000 samples / (2 x 1e9 per second) = 2 s, and half of it for 500 samples.
    fleet = RatioFleet(ratio=1, cost="flops", gflops=2.0)
    assert epoch_of_each(fleet, workload(1000, 500, flops=4e6)) == pytest.approx([2.0, 1.0])


def test_cost_in_flops_needs_a_model_whose_operations_are_known() -> None:
    with pytest.raises(InvalidInput, match="'flops'"):
        RatioFleet(cost="flops").build(workload(1, flops=0.0))


def test_an_order_gets_the_same_time_for_each_of_its_epochs_whatever_the_batch() -> None:
    speeds = RatioFleet(ratio=1, epoch_seconds=2).build(workload(10))
    assert list(speeds.slice_seconds(0, 0, Order(slices=3, batch_size=7))) == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("batch_size", "seconds"),
    [
        (25, 0.5),  # 10 s / 100 samples x 25 in the batch / 5 layers
        (None, 2.0),  # the batch is all 100 samples: a fifth of an epoch
        (1000, 2.0),  # a device cannot put more than its 100 samples into a batch
    ],
)
def test_a_layer_takes_its_share_of_one_step(batch_size: int | None, seconds: float) -> None:
    speeds = RatioFleet(ratio=1, epoch_seconds=10).build(workload(100))
    times = speeds.slice_seconds(0, 0, Order(slices=5, unit="layer", batch_size=batch_size))
    assert list(times) == pytest.approx([seconds] * 5)


def test_a_device_without_data_is_timed_as_if_it_had_one_sample() -> None:
    speeds = RatioFleet(ratio=1, cost="samples").build(workload(0, 3))
    assert list(speeds.slice_seconds(0, 0, Order())) == [0.5]
    assert list(speeds.slice_seconds(0, 0, Order(unit="layer"))) == [0.1]


def test_ratio_is_uniform_between_one_and_the_ratio() -> None:
    times = np.array(epoch_of_each(RatioFleet(ratio=110), workload(*[1] * 5000)))
    assert times.min() >= 1
    assert times.max() <= 110
    assert times.mean() == pytest.approx(55.5, rel=0.03)
    assert np.quantile(times, 0.25) == pytest.approx(28.25, rel=0.06)


def test_pareto_has_its_tail_and_its_cap() -> None:
    # P(slowness > x) = x^-1.5: 0.3536 at 2, 0.0894 at 5; the mean of the uncapped one with shape 3 is 3/2.
    times = np.array(epoch_of_each(ParetoFleet(most=20), workload(*[1] * 5000)))
    assert times.min() >= 1
    assert times.max() == 20
    assert np.mean(times > 2) == pytest.approx(0.3536, abs=0.02)
    assert np.mean(times > 5) == pytest.approx(0.0894, abs=0.012)
    light = np.array(epoch_of_each(ParetoFleet(shape=3, most=float("inf")), workload(*[1] * 5000)))
    assert light.mean() == pytest.approx(1.5, rel=0.04)


def test_the_same_seed_gives_the_same_fleet_and_another_seed_another() -> None:
    first, again, other = (epoch_of_each(RatioFleet(), workload(1, 1, seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_fixed_fleets_give_plain_floats_and_no_links() -> None:
    speeds = RatioFleet().build(workload(5))
    assert type(speeds.slice_seconds(0, 0, Order())[0]) is float
    assert not speeds.measured_links


def test_a_bimodal_fleet_has_its_share_of_slow_devices() -> None:
    times = epoch_of_each(BimodalFleet(slow_share=0.3, slowness=4.0, epoch_seconds=2.0), workload(*[1] * 10))
    assert sorted(times) == [2.0] * 7 + [8.0] * 3  # 2 s, and 4 times that for 30 % of 10


@pytest.mark.parametrize("name", ["ratio", "pareto", "bimodal", "zipf", "exponential", "bernoulli"])
def test_a_million_devices_are_no_trouble(name: str) -> None:
    devices = 1_000_000
    work = Workload(devices=devices, samples=np.full(devices, 100), layers=5, flops_per_sample=1e6, seed=0)
    given = {"success": 0.5} if name == "bernoulli" else {}
    speeds = FLEETS[name].model_validate({"name": name, **given}).build(work)
    assert speeds.slice_seconds(devices - 1, 0, Order())[0] > 0


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "ratio", "ratio": 0.5},
        {"name": "ratio", "epoch_seconds": 0.0},
        {"name": "ratio", "cost": "money"},
        {"name": "pareto", "shape": 0.0},
        {"name": "pareto", "most": float("nan")},
        {"name": "ratio", "speed": 3},
    ],
)
def test_bad_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        FLEETS[str(bad["name"])].model_validate(bad)


def test_a_workload_has_one_number_of_samples_per_device() -> None:
    with pytest.raises(ValueError, match="3 devices"):
        Workload(devices=3, samples=np.array([1, 2]), layers=1, flops_per_sample=0.0, seed=0)
