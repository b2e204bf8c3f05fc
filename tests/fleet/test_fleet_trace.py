"""Fleets from a file: what each column means, which row describes which device, and what is refused."""

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.experiment.schema import Experiment
from offbeat.fleet import Fleet, NetworkSettings, RatioFleet, Speeds, TraceFleet, Workload
from offbeat.fleet.series import MeasuredSeries

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
        ("device,pace\n0,1\n", "'epoch_seconds', 'slowness' and 'speed' .* has: device, pace"),
        ("slowness,epoch_seconds\n1,1\n", "exactly one of the columns"),
        ("slowness\n", "no rows"),
        ("slowness\n1\nfast\n", "'slowness' of .* is 'fast' in line 3, but must be positive, not text"),
        ("device,slowness\n0\n", "line 2 of .* has 1 columns, but the header has 2"),
        ("slowness\n1\n\n-2\n", "'slowness' of .* is '-2' in line 4, but must be positive"),
        ("device,slowness\na,1\nb,2\na,3\n", "'device' of .* is 'a' in line 4, but must be another .* line 2"),
        ("device,time,slowness\n0,0,1\n1,0,2\n0,9,3\n", "is '3' in line 4, but must be as in line 2"),
        (
            "device,time,slowness,downlink_mbps\n0,5,1,1\n1,0,1,1\n0,5,1,2\n",
            "'time' of .* is '5' in line 4, but must be later",
        ),
        (
            "device,time,slowness,uplink_mbps\n0,5,1,0\n1,5,1,1\n",
            "'uplink_mbps' .* line 2, but must be above zero at some",
        ),
        (
            "device,time,slowness,available\n0,0,1,maybe\n1,0,1,1\n",
            "'maybe' in line 2, but must be 1 or 0, true or false",
        ),
        ("time,slowness\n0,1\n", "none that identifies the device"),
        ("device,slowness,available\n0,1,1\n1,1,1\n", "has no column 'time'"),
        ("epoch_seconds\n0\n", "must be positive"),
        ("slowness\nnan\n", "must be positive"),
        ("slowness\ninf\n", "must be positive"),
        ("slowness,uplink_mbps\n1,0\n", "'uplink_mbps' of .* must be positive"),
        ("slowness,latency\n1,-1\n", "'latency' of .* must be zero or more"),
        ("device,slowness\n0,1\n2,1\n", "every number from 0 to 1, or names"),
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
    with pytest.raises(InvalidInput, match="does not exist"):
        TraceFleet(path=str(tmp_path / "nowhere.csv")).build(workload(1))
    with pytest.raises(InvalidInput, match="does not exist"):
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


def test_columns_and_units_are_what_the_settings_say(trace: Path) -> None:
    trace.write_text("phone;train [ms];up;ping;slowness\nPixel;1500;2,5;40;9\nNokia;30000;0.5;100;9\n")
    fleet = TraceFleet(
        path=str(trace),
        columns={"device": "phone", "epoch_seconds": "train [ms]", "uplink_mbps": "up", "latency": "ping"},
        units={"epoch_seconds": "ms", "uplink_mbps": "MB/s", "latency": "ms"},
    )
    built = Fleet.build(workload(1, 1), fleet)
    assert epochs(built.speeds, 2) == [30.0, 1.5]  # and not by the column 'slowness', which nobody named
    assert built.speeds.names == ["Nokia", "Pixel"]  # sorted: the order of the rows means nothing
    # 5 MB at 0.5 MB/s and 100 ms; at 2.5 MB/s (with a decimal comma) and 40 ms.
    assert [built.links.up_seconds(device, 5_000_000) for device in (0, 1)] == pytest.approx([10.1, 2.04])


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_separator_is_found_in_the_header(trace: Path, separator: str) -> None:
    trace.write_text("\n" + "device,slowness\n1,3\n0,2\n".replace(",", separator))
    assert epochs(TraceFleet(path=str(trace)).build(workload(1, 1)), 2) == [2.0, 3.0]


def test_a_separator_may_be_said(trace: Path) -> None:
    trace.write_text("a;b;slowness,device\n2,0\n3,1\n")
    fleet = TraceFleet(path=str(trace), separator=",", columns={"slowness": "a;b;slowness"})
    assert epochs(fleet.build(workload(1, 1)), 2) == [2.0, 3.0]


def test_speed_is_relative_to_the_fastest_of_the_file(trace: Path) -> None:
    trace.write_text("device,speed\n0,100\n1,400\n2,800\n")
    assert epochs(TraceFleet(path=str(trace), epoch_seconds=3).build(workload(1, 1)), 2) == [24.0, 6.0]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"columns": {"velocity": "v"}}, "columns has 'velocity', which is none of device, time, epoch_seconds"),
        ({"units": {"latency": "hours"}}, "units.latency = 'hours': it must be one of s, ms, us, min, h, d"),
        ({"units": {"slowness": "s"}}, "units.slowness = 's': it is a quantity without a unit"),
    ],
)
def test_unknown_quantities_and_units_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Experiment.parse({"stop": {"time": 1.0}, "fleet": {"name": "trace", "path": "x.csv"} | settings})


def test_a_column_that_is_not_there_is_named_with_those_that_are(trace: Path) -> None:
    trace.write_text("device,slowness\n0,1\n")
    with pytest.raises(InvalidInput, match=r"fleet.columns.latency: .* has no column 'ping'; it has: device, slowness"):
        TraceFleet(path=str(trace), columns={"latency": "ping"}).build(workload(1))
    with pytest.raises(InvalidInput, match=r"fleet.units.time: .* has no column 'time'"):
        TraceFleet(path=str(trace), units={"time": "h"}).build(workload(1))


def test_a_time_column_makes_bandwidth_and_availability_change_over_the_day(trace: Path) -> None:
    trace.write_text(
        "device,hour,slowness,downlink_mbps,available\n"
        "0,0,1,8,yes\n1,0,2,1,no\n0,6,1,80,no\n1,12,2,1,yes\n0,18,1,8,yes\n"
    )
    fleet = TraceFleet(path=str(trace), columns={"time": "hour"}, units={"time": "h"}, repeat_seconds=86400.0)
    built = Fleet.build(workload(1, 1), fleet, NetworkSettings(latency=0.0))
    links, availability, hour = built.links, built.availability, 3600.0
    assert epochs(built.speeds, 2) == [1.0, 2.0]
    # A megabyte is 8 Mbit: 1 s at 8 Mbit/s, 0.1 s from 6 to 18 h, and the same on the next day.
    for at, seconds in ((0.0, 1.0), (7 * hour, 0.1), (19 * hour, 1.0), (30 * hour, 0.1), (42 * hour, 1.0)):
        assert links.down_seconds(0, 1_000_000, at) == pytest.approx(seconds)
    assert links.up_seconds(0, 1_250_000, 7 * hour) == pytest.approx(1.0)  # 10 Mbit/s: not measured, so of [network]
    assert [availability.available(0, hour * at) for at in (0, 5, 6, 17, 18, 29, 30)] == [1, 1, 0, 0, 1, 1, 0]
    assert [availability.available(1, hour * at) for at in (0, 11, 12, 23, 24, 36)] == [0, 0, 1, 1, 0, 1]
    assert [availability.next_change(0, hour * at) / hour for at in (0, 6, 18, 29)] == [6, 18, 30, 30]
    assert availability.present(0.0).tolist() == [True, False]


def test_a_fleet_of_measured_phones_keeps_their_relative_speeds() -> None:
    source = MEASURED / "ai_benchmark_phones.csv"
    if not source.is_file():
        pytest.skip("the measured device traces are not on this machine")
    with source.open(newline="") as file:
        scores = [float(row["cpu_float_score"]) for row in csv.DictReader(file)]
    fleet = TraceFleet(path=str(source), columns={"device": "model", "speed": "cpu_float_score"}, assign="random")
    built = fleet.build(workload(*[1] * len(scores)))
    assert sorted(epochs(built, len(scores))) == pytest.approx(sorted(max(scores) / score for score in scores))
    assert built.names is not None and "Huawei Mate 30 Pro 5G" in built.names


def test_measured_bandwidths_over_time_are_drawn_for_any_fleet() -> None:
    source = MEASURED / "bandwidth_traces.csv.gz"
    if not source.is_file():
        pytest.skip("the measured device traces are not on this machine")
    trace = MeasuredSeries(
        path=str(source),
        columns={"device": "trace", "time": "t_s", "downlink_mbps": "mbps"},
        assign="random",
    )
    links = Fleet.build(workload(*[1] * 100), RatioFleet(), NetworkSettings(trace=trace, latency=0.0)).links
    seconds = [links.down_seconds(device, 1_000_000, 10.0) for device in range(100)]
    assert len(set(seconds)) > 90 and 0.5 < float(np.median(seconds)) < 50  # 8 Mbit at about 1 to 2 Mbit/s
    assert any(links.down_seconds(device, 1_000_000, 200.0) != seconds[device] for device in range(100))
