"""The views of a run: every number of a small run computed by hand."""

import base64
import zlib
from math import nan
from typing import Any

import numpy as np
import pytest

from offbeat.results.fleet_facts import FleetFacts
from offbeat.results.orders import DISCARDED, IN_FLIGHT, LOST, RECEIVED, USED, Records, parse_records, record
from offbeat.results.rows import Span
from offbeat.results.views import FRESH_WAIT, GONE, KINDS, STOPPING, TRAINING, UNUSED, UPLOAD, run_views

FACTS = FleetFacts(
    samples=[10, 20, 30, 40, 100],
    samples_per_second=[5.0, 4.0, 3.0, 2.0, 1.0],
    labels=["a", "b"],
    counts=[[10, 0], [20, 0], [0, 30], [20, 20], [50, 50]],
)


def order(device: int, ticket: int, sent: float, landed: float, base: int = 0, **more: Any) -> Span:
    """One second down, one up, and training between."""
    given = {"trained_until": landed - 1.0, "samples": FACTS.samples[device], "ended": landed, **more}
    return Span(device, ticket, base, sent, sent + 1.0, landed, 2, "uploaded", **given)


def log() -> Records:
    """Two versions of two updates each, one update discarded, one lost, one in the buffer, one in flight."""
    return parse_records(
        b"".join(
            [
                record(order(0, 1, 0.0, 5.0), USED, 1, 9.0),  # 3 s of training
                record(order(1, 2, 0.0, 9.0), USED, 1, 9.0),  # 7 s
                record(order(0, 3, 5.0, 11.0, pauses=((7.0, 8.5),)), USED, 2, 15.0),  # 4 s, 1.5 s of them waiting
                record(order(2, 4, 0.0, 15.0, noticed=10.0), USED, 2, 15.0),  # 13 s, 4 s of them after the notice
                record(order(1, 5, 9.0, 14.0, base=1), DISCARDED, 0, 14.0),  # 3 s
                record(order(3, 6, 0.0, 12.0), LOST, 0, 12.0),
                record(order(0, 7, 11.0, 17.0, base=1), RECEIVED),  # 4 s
                record(order(4, 8, 0.0, 20.0, trained_until=20.0), IN_FLIGHT),  # 19 s so far
            ]
        )
    )


@pytest.fixture(scope="module")
def views() -> dict[str, Any]:
    return run_views(log(), FACTS, 20.0, weight=lambda staleness: 1 / (1 + staleness))


def drawn(strip: dict[str, Any]) -> list[tuple[int, int, float, float]]:
    count, data = strip["parts"], zlib.decompress(base64.b64decode(strip["data"]))
    row = np.frombuffer(data, "<u2", count)
    kind = np.frombuffer(data, "u1", count, 2 * count)
    start = np.frombuffer(data, "<f4", count, 3 * count)
    length = np.frombuffer(data, "<f4", count, 7 * count)
    return list(zip(row.tolist(), kind.tolist(), start.tolist(), (start + length).tolist(), strict=True))


def test_the_strip_has_a_row_per_device_from_fast_to_slow_with_what_it_did(views: dict[str, Any]) -> None:
    strip = views["strip"]
    # Seconds per slice: device 0 (3 + 2.5 + 4) / 6, device 1 (7 + 3) / 4, device 2 13 / 2; 3 and 4 by their speeds.
    assert strip["device"] == [0, 1, 2, 3, 4]
    assert strip["pace"][:3] == [1.58333, 2.5, 6.5]
    parts = drawn(strip)
    assert [part[1:] for part in parts if part[0] == 0] == [
        (0, 0.0, 1.0), (TRAINING, 1.0, 4.0), (UPLOAD, 4.0, 5.0),
        (0, 5.0, 6.0), (TRAINING, 6.0, 10.0), (UPLOAD, 10.0, 11.0),
        (0, 11.0, 12.0), (TRAINING, 12.0, 16.0), (UPLOAD, 16.0, 17.0),
        (FRESH_WAIT, 7.0, 8.5),
    ]  # fmt: skip
    assert (1, UNUSED, 10.0, 13.0) in parts
    assert (2, TRAINING, 1.0, 10.0) in parts and (2, STOPPING, 10.0, 14.0) in parts
    assert [part for part in parts if part[0] == 3] == [(3, GONE, 0.0, 12.0)]
    assert strip["commits"] == [9.0, 15.0] and strip["until"] == 20.0


def test_device_seconds_add_up_to_devices_times_time(views: dict[str, Any]) -> None:
    time = views["time"]
    assert time["training"] == 3 + 7 + 2.5 + 13 + 4 + 19
    assert time["wasted"] == 3 + 12  # the discarded update, and the whole lost order
    assert time["fresh"] == 1.5
    assert time["transfer"] == 6 * 2 + 1  # down and up of six orders, down of the one in flight
    assert sum(time.values()) == 5 * 20


def test_staleness_counts_versions_between_base_and_use(views: dict[str, Any]) -> None:
    stale = views["staleness"]
    assert stale["counts"] == [2, 2]  # version 1 of base 0: 0; version 2 of base 0: 1
    assert stale["weights"] == [1.0, 0.5]
    assert (stale["used"], stale["discarded"], stale["lost"]) == (4, 1, 1)


def test_who_is_heard_compares_used_samples_with_held_ones(views: dict[str, Any]) -> None:
    heard = views["heard"]
    assert heard["used"] == pytest.approx([2 * 10 / 70, 20 / 70, 30 / 70, 0, 0], abs=1e-5)
    assert heard["held"] == [0.05, 0.1, 0.15, 0.2, 0.5]
    assert heard["never"] == 2
    assert heard["label_used"] == pytest.approx([40 / 70, 30 / 70], abs=1e-5)
    assert heard["label_held"] == [0.5, 0.5]


def test_the_buffer_fills_with_uploads_and_empties_with_versions(views: dict[str, Any]) -> None:
    # In at 5, 9, 11, 14 (discarded at once), 15, 17; out at 9 (two), 14 and 15 (two).
    buffer = views["buffer"]
    assert list(zip(buffer["time"], buffer["fill"], strict=True)) == [
        (5.0, 1), (9.0, 2), (9.0, 1), (9.0, 0), (11.0, 1), (14.0, 2), (14.0, 1), (15.0, 2), (15.0, 1), (15.0, 0),
        (17.0, 1),
    ]  # fmt: skip
    assert buffer["wait"] == (4 + 0 + 4 + 0 + 0) / 5


def test_a_version_waits_for_its_last_upload(views: dict[str, Any]) -> None:
    waited = views["waited_for"]
    assert waited["devices"] == [[1, 4.0, 1], [2, 4.0, 1]]  # 9 - 5 and 15 - 11
    assert (waited["versions"], waited["seconds"]) == (2, 8.0)


def test_a_strip_without_room_merges_devices_and_times() -> None:
    strip = run_views(log(), FACTS, 20.0, room=0)["strip"]
    assert strip["cells"] == [5, 300] and strip["group"] == 1
    cells = np.frombuffer(zlib.decompress(base64.b64decode(strip["data"])), "u1").reshape(5, 300)
    seconds = 20.0 / 300
    for time, device, kind in (
        (0.5, 0, 0),
        (3.0, 0, TRAINING),
        (7.5, 0, FRESH_WAIT),
        (12.0, 2, STOPPING),
        (6.0, 3, GONE),
    ):
        cell = int(cells[device, int(time / seconds)])
        assert (KINDS[cell >> 4], cell & 15) == (KINDS[kind], 15)
    assert cells[3, int(13.0 / seconds)] & 15 == 0


def test_a_run_without_orders_or_facts_has_views_too() -> None:
    nothing = run_views(parse_records(b""), None, 5.0)
    assert nothing["heard"] is None and nothing["staleness"]["counts"] == []
    real = parse_records(record(Span(1, 1, 0, 0.0, 2.0, 9.0, 2, "uploaded", samples=7), USED, 1, nan))
    some = run_views(real, None, 9.0)
    assert some["devices"] == 2 and some["time"] == {
        "training": 7.0,
        "wasted": 0.0,
        "fresh": 0.0,
        "transfer": 2.0,
        "waiting": 9.0,
    }
