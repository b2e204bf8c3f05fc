"""What changes over time: transfers across changes of bandwidth, devices that come and go, and traces that repeat."""

from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import InvalidInput
from offbeat.fleet import Fleet, NetworkSettings, RatioFleet, TraceAvailable, TraceFleet, Workload
from offbeat.fleet.series import MeasuredSeries, TracedAvailability, VaryingBandwidth

Steps = list[tuple[float, float]]
STEPS = st.lists(st.tuples(st.floats(0.5, 50.0), st.sampled_from([0.0, 0.25, 1.0, 7.5])), min_size=1, max_size=6)


def workload(devices: int) -> Workload:
    return Workload(devices=devices, samples=np.ones(devices, dtype=np.int64), layers=1, flops_per_sample=0.0, seed=0)


def test_a_transfer_goes_on_with_the_bandwidth_of_each_moment_and_into_the_next_round() -> None:
    # 2 Mbit/s for 10 s, nothing for 5 s, 4 Mbit/s for 5 s: 40 Mbit in a round of 20 s.
    bandwidth = VaryingBandwidth([0.0, 10.0, 15.0], [2.0, 0.0, 4.0], 20.0)
    assert bandwidth.mean == 2e6
    assert bandwidth.seconds(6e6, 1.0) == 3.0
    assert bandwidth.seconds(20e6, 0.0) == 10.0  # exactly until the gap, and not until its end
    assert bandwidth.seconds(24e6, 0.0) == 16.0  # 20 Mbit until 10, nothing until 15, 4 Mbit at 4 Mbit/s
    assert bandwidth.seconds(4e6, 12.0) == 4.0  # waits until 15
    assert bandwidth.seconds(12e6, 18.0) == 4.0  # 8 Mbit until 20, then 4 at 2 Mbit/s
    assert bandwidth.seconds(40e6, 0.0) == 20.0
    assert bandwidth.seconds(82e6, 20.0) == 41.0  # two rounds and a second
    assert bandwidth.seconds(0.0, 12.0) == 0.0


@given(steps=STEPS, bits=st.floats(1.0, 1e9), at=st.floats(0.0, 500.0))
def test_what_is_sent_in_the_time_that_a_transfer_takes_is_the_transfer(steps: Steps, bits: float, at: float) -> None:
    times = np.concatenate([[0.0], np.cumsum([length for length, _ in steps])])
    rates = [rate for _, rate in steps]
    if not any(rates):
        return
    period = float(times[-1])
    seconds = VaryingBandwidth(times[:-1].tolist(), rates, period).seconds(bits, at)

    def sent(until: float) -> float:
        """Bits from time 0, by adding up whole rounds and the pieces of the last one."""
        rounds, phase = divmod(until, period)
        pieces = np.clip(phase - times[:-1], 0.0, np.diff(times)) * np.array(rates) * 1e6
        whole = (np.diff(times) * np.array(rates) * 1e6).sum()
        return float(rounds * whole + pieces.sum())

    assert sent(at + seconds) - sent(at) == pytest.approx(bits, rel=1e-6, abs=50.0)


@given(
    times=st.lists(st.integers(0, 99_000), min_size=1, max_size=8, unique=True),
    first=st.booleans(),
    at=st.floats(0.0, 1e5),
)
def test_a_device_changes_at_the_very_times_that_were_foretold(times: list[int], first: bool, at: float) -> None:
    changes = [time / 1000 for time in sorted(times)[: len(times) // 2 * 2]]
    availability = TracedAvailability([changes], [first], [100.0])
    then = availability.next_change(0, at)
    assert then > at
    if changes:
        assert availability.available(0, then) != availability.available(0, at)
        assert availability.available(0, np.nextafter(then, 0.0)) == availability.available(0, at)
    else:
        assert then == inf


def test_links_over_time_come_from_a_file_of_their_own_by_name_number_or_draw(tmp_path: Path) -> None:
    phones, links = tmp_path / "phones.csv", tmp_path / "links.csv"
    phones.write_text("device,slowness\nPixel,1\nNokia,2\n")
    links.write_text("who;ms;kbit\nNokia;1000;1000\nPixel;1000;4000\nNokia;6000;2000\n")
    columns = {"device": "who", "time": "ms", "uplink_mbps": "kbit"}
    trace = MeasuredSeries(path=str(links), columns=columns, units={"time": "ms", "uplink_mbps": "kbit/s"})
    network = NetworkSettings(latency=0.0, trace=trace)
    named = Fleet.build(workload(2), TraceFleet(path=str(phones)), network).links
    # 500 kB are 4 Mbit. The file's time 1000 ms is the run's 0; Nokia has 2 Mbit/s from 5 s to 10 s, then 1 again.
    assert [named.up_seconds(1, 500_000, at) for at in (0.0, 99.0)] == [1.0, 1.0]
    assert [named.up_seconds(0, 500_000, at) for at in (0.0, 5.0, 9.0, 10.0, 15.0)] == [4.0, 2.0, 3.0, 4.0, 2.0]
    assert named.down_seconds(0, 12_500_000, 5.0) == 1.0  # 100 Mbit/s of [network]
    assert named.round_trips(500_000).tolist() == pytest.approx([4 / 1.5 + 0.04, 1.04])  # with the mean bandwidth
    ordered = Fleet.build(workload(2), RatioFleet(), network).links  # no names here: in sorted order, Nokia is device 0
    assert [ordered.up_seconds(device, 500_000) for device in (0, 1)] == [4.0, 1.0]
    drawn = network.model_copy(update={"trace": trace.model_copy(update={"assign": "random"})})
    many = Fleet.build(workload(9), RatioFleet(), drawn).links
    assert {many.up_seconds(device, 500_000) for device in range(9)} == {1.0, 4.0}
    with pytest.raises(InvalidInput, match=r"describes 2 devices.*network.trace.assign = 'random'"):
        Fleet.build(workload(9), RatioFleet(), network)
    phones.write_text("device,slowness\nPixel,1\nSony,2\n")
    with pytest.raises(InvalidInput, match=r"'who' of .* has no 'Sony', which is a device of"):
        Fleet.build(workload(2), TraceFleet(path=str(phones)), network)


def test_availability_over_time_comes_from_a_file_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "presence.csv"
    file.write_text("device,time,available\n0,10,1\n0,30,0\n1,20,1\n")
    there = TraceAvailable(path=str(file), repeat_seconds=50.0).build(workload(2))
    # The file's time 10 is the run's 0: device 0 is there from 0 to 20 of every 50 s, device 1 always.
    assert [there.available(0, at) for at in (0.0, 19.0, 20.0, 49.0, 50.0, 70.0)] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]
    assert [there.next_change(0, at) for at in (0.0, 20.0, 50.0)] == [20.0, 50.0, 70.0]
    assert there.next_change(1, 5.0) == inf and there.available(1, 5.0)
    with pytest.raises(InvalidInput, match=r"'30' in line 3, but must be before availability.repeat_seconds = 15"):
        TraceAvailable(path=str(file), repeat_seconds=15.0).build(workload(2))
