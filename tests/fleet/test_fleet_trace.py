"""Fleets from a file: what each column means, which row describes which device, and what is refused."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.fleet import Fleet, NetworkSettings, Speeds, TraceFleet, Workload

MEASURED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "device-traces"


def workload(*samples: int, seed: int = 3) -> Workload:
    return Workload(
        devices=len(samples), samples=np.array(samples, dtype=np.int64), layers=5, flops_per_sample=1e6, seed=seed
    )


def epochs(speeds: Speeds, devices: int) -> list[float]:
    return [speeds.slice_seconds(device, 0, Order())[0] for device in range(devices)]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.csv"


def test_rows_follow_the_device_column_and_seconds_are_absolute(trace: Path) -> None:
    trace.write_text("device,epoch_seconds\n2,30\n0,10\n1,20.5\n")
    assert epochs(TraceFleet(path=str(trace), epoch_seconds=7).build(workload(1, 1)), 2) == [10.0, 20.5]


def test_slowness_is_relative_to_the_settings(trace: Path) -> None:
    trace.write_text('note,slowness,device\n"slow, old",3,1\n# fast,1,0\n')
    fleet = TraceFleet(path=str(trace), epoch_seconds=2)
    assert epochs(fleet.build(workload(1, 1)), 2) == [2.0, 6.0]
    # 1e6 operations x 500 samples / 1e9 per second = 0.5 s, x slowness.
    assert epochs(TraceFleet(path=str(trace), cost="flops").build(workload(500, 500)), 2) == pytest.approx([0.5, 1.5])


def test_absolute_seconds_scale_with_samples_but_not_with_flops(trace: Path) -> None:
    trace.write_text("device,epoch_seconds\n0,4\n1,4\n")
    assert epochs(TraceFleet(path=str(trace), cost="samples").build(workload(10, 30)), 2) == [2.0, 6.0]
    with pytest.raises(InvalidInput, match="needs a column 'slowness'"):
        TraceFleet(path=str(trace), cost="flops").build(workload(10, 30))


def test_without_a_device_column_rows_are_drawn_without_replacement_while_they_last(trace: Path) -> None:
    trace.write_text("slowness\n" + "\n".join(str(slowness) for slowness in range(1, 11)))
    fleet = TraceFleet(path=str(trace))
    drawn = epochs(fleet.build(workload(*[1] * 10)), 10)
    assert sorted(drawn) == list(range(1, 11))
    assert drawn == epochs(fleet.build(workload(*[1] * 10)), 10)
    assert drawn != epochs(fleet.build(workload(*[1] * 10, seed=4)), 10)
    many = epochs(fleet.build(workload(*[1] * 2000)), 2000)
    assert set(many) == set(range(1, 11))
    assert np.mean(many) == pytest.approx(5.5, rel=0.05)


def test_link_columns_come_before_the_network_settings_and_those_left_out_do_not(trace: Path) -> None:
    trace.write_text("device,slowness,uplink_mbps,latency\n0,1,8,0\n1,1,inf,0.5\n")
    network = NetworkSettings(uplink_mbps=1.0, downlink_mbps=100.0, latency=9.0)
    links = Fleet.build(workload(1, 1), TraceFleet(path=str(trace)), network).links
    assert links.up_seconds(0, 3_000_000) == pytest.approx(3.0)  # 24 Mbit / 8 Mbit/s
    assert links.up_seconds(1, 3_000_000) == 0.5
    assert links.down_seconds(0, 12_500_000) == pytest.approx(1.0)  # 100 Mbit / 100 Mbit/s


def test_without_link_columns_nothing_is_measured_of_the_links(trace: Path) -> None:
    trace.write_text("slowness\n1\n")
    assert not TraceFleet(path=str(trace)).build(workload(1)).measured_links


def test_a_gzipped_trace_is_the_same_trace(tmp_path: Path) -> None:
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbfdevice,epoch_seconds\r\n0,1.5\r\n\r\n1,2.5\r\n"))
    assert epochs(TraceFleet(path=str(packed)).build(workload(1, 1)), 2) == [1.5, 2.5]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it has: none"),
        ("device,speed\n0,1\n", "'epoch_seconds' or 'slowness', and not both; it has: device, speed"),
        ("slowness,epoch_seconds\n1,1\n", "not both"),
        ("slowness\n", "no rows"),
        ("slowness\n1\nfast\n", "without a number in slowness"),
        ("device,slowness\n0\n", "without a number"),
        ("slowness\n1\n-2\n", "'slowness' of .* is -2.0 in row 2, but must be positive"),
        ("epoch_seconds\n0\n", "must be positive"),
        ("slowness\nnan\n", "must be positive"),
        ("slowness\ninf\n", "must be positive"),
        ("slowness,uplink_mbps\n1,0\n", "'uplink_mbps' of .* must be positive"),
        ("slowness,latency\n1,-1\n", "'latency' of .* must be zero or more"),
        ("device,slowness\n0,1\n2,1\n", "each of 0 to 1 exactly once"),
        ("device,slowness\n0,1\n", "describes 1 devices, but the experiment has 2"),
    ],
)
def test_a_bad_trace_is_refused_in_one_sentence_that_names_the_file(trace: Path, text: str, complaint: str) -> None:
    trace.write_text(text)
    with pytest.raises(InvalidInput, match=complaint) as caught:
        TraceFleet(path=str(trace)).build(workload(1, 1))
    assert str(trace) in str(caught.value)
    assert str(caught.value).startswith("fleet.path")


def test_a_missing_or_broken_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no file"):
        TraceFleet(path=str(tmp_path / "nowhere.csv")).build(workload(1))
    with pytest.raises(InvalidInput, match="there is no file"):
        TraceFleet(path=str(tmp_path)).build(workload(1))
    broken = tmp_path / "broken.csv.gz"
    for content in (b"slowness\n1\n", gzip.compress(b"slowness\n1\n" * 99)[:-12], b"\x1f\x8b\x08\x00" + b"\xff" * 30):
        broken.write_bytes(content)
        with pytest.raises(InvalidInput, match="cannot be read"):
            TraceFleet(path=str(broken)).build(workload(1))
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"slowness\n\xff\xfe\n")
    with pytest.raises(InvalidInput, match="cannot be read"):
        TraceFleet(path=str(binary)).build(workload(1))


def test_a_fleet_of_measured_phones_keeps_their_relative_speeds(trace: Path) -> None:
    source = MEASURED / "ai_benchmark_phones.csv"
    if not source.is_file():
        pytest.skip("the measured device traces are not on this machine")
    with source.open(newline="") as file:
        scores = [float(row["cpu_float_score"]) for row in csv.DictReader(file) if row["cpu_float_score"]]
    scores = [score for score in scores if score > 0]
    slowness = [max(scores) / score for score in scores]
    trace.write_text("slowness\n" + "\n".join(repr(value) for value in slowness))
    devices = len(slowness)
    drawn = epochs(TraceFleet(path=str(trace)).build(workload(*[1] * devices)), devices)
    assert sorted(drawn) == pytest.approx(sorted(slowness))
    assert min(drawn) == 1.0
    assert max(drawn) > 2.0
