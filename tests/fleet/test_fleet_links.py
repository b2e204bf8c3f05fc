"""Links: transfer times by hand, the share of slow ones, infinite bandwidth."""

import math
import tomllib

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.fleet import NetworkSettings, Workload


def workload(devices: int, seed: int = 3) -> Workload:
    return Workload(
        devices=devices, samples=np.ones(devices, dtype=np.int64), layers=1, flops_per_sample=0.0, seed=seed
    )


def test_a_transfer_takes_bits_over_bandwidth_plus_latency() -> None:
    # 1 MB = 8 Mbit: 0.8 s up at 10 Mbit/s, 0.08 s down at 100 Mbit/s, and 0.05 s of latency either way.
    links = NetworkSettings().build(workload(2))
    assert links.up_seconds(1, 1_000_000) == pytest.approx(0.85)
    assert links.down_seconds(1, 1_000_000) == pytest.approx(0.13)
    assert links.latency(1) == 0.05
    assert type(links.up_seconds(0, 1)) is float


def test_the_slow_share_has_less_bandwidth_and_the_same_latency() -> None:
    settings = NetworkSettings(slow_share=0.25, slow_factor=50, latency=0.0)
    links = settings.build(workload(200))
    times = [links.up_seconds(device, 1_250_000) for device in range(200)]
    slow = [device for device, seconds in enumerate(times) if seconds > 1.5]
    assert len(slow) == 50
    assert sorted(set(times)) == pytest.approx([1.0, 50.0])
    assert links.down_seconds(slow[0], 12_500_000) == pytest.approx(50.0)
    again, other = settings.build(workload(200)), settings.build(workload(200, seed=4))
    assert times == [again.up_seconds(device, 1_250_000) for device in range(200)]
    assert times != [other.up_seconds(device, 1_250_000) for device in range(200)]


def test_bandwidth_may_be_infinite_in_toml() -> None:
    settings = NetworkSettings.model_validate(tomllib.loads("uplink_mbps = inf\nlatency = 0\nslow_share = 1.0"))
    links = settings.build(workload(3))
    assert settings.uplink_mbps == math.inf
    assert links.up_seconds(2, 10**12) == 0.0


@pytest.mark.parametrize(
    "bad",
    [{"uplink_mbps": 0.0}, {"downlink_mbps": math.nan}, {"latency": -1.0}, {"slow_share": 1.1}, {"slow_factor": 0.5}],
)
def test_bad_network_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        NetworkSettings.model_validate(bad)


def test_a_million_links_are_no_trouble() -> None:
    links = NetworkSettings(slow_share=0.5).build(workload(1_000_000))
    assert links.up_seconds(999_999, 0) == 0.05
