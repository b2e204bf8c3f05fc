"""The timeline: what a device did with an order, in the Chrome trace format that Perfetto reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from offbeat.results.rows import Span
from offbeat.results.timeline import Timeline, parts_of

ORDER = Span(
    device=3,
    ticket=7,
    base=2,
    sent=1.0,
    arrived=2.0,
    landed=10.0,
    slices=4,
    outcome="uploaded",
    trained_until=9.0,
    pauses=((4.0, 5.5),),
)
SECOND = Span(device=5, ticket=8, base=3, sent=0.5, arrived=1.0, landed=12.0, slices=1, outcome="lost", ended=4.0)


def written(path: Path, *, in_flight: list[Span] | None = None) -> list[dict[str, Any]]:
    timeline = Timeline(path)
    timeline.write(ORDER)
    timeline.mark(1, 10.0)
    timeline.mark(1, 11.0)
    timeline.mark(3, 11.5)
    timeline.finish(in_flight or [], 12.0)
    timeline.close()
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def test_an_order_is_download_training_fresh_model_training_and_upload() -> None:
    assert list(parts_of(ORDER)) == [
        ("download", 1.0, 2.0),
        ("training", 2.0, 4.0),
        ("fresh model", 4.0, 5.5),
        ("training", 5.5, 9.0),
        ("upload", 9.0, 10.0),
        ("lost, not yet noticed", 10.0, 10.0),
    ]


def test_of_a_real_device_the_time_on_the_way_and_the_training_are_known() -> None:
    assert list(parts_of(SECOND)) == [("transfer", 0.5, 1.0), ("training", 1.0, 4.0)]


def test_what_ended_before_it_was_noticed_is_shown_as_that() -> None:
    # It vanishes at 1.5, while it still downloads; the server notices at 6.
    vanished = Span(
        device=0,
        ticket=1,
        base=0,
        sent=0.0,
        arrived=2.0,
        landed=6.0,
        slices=0,
        outcome="lost",
        trained_until=1.5,
        ended=1.5,
    )
    shown = [part for part in parts_of(vanished) if part[1] < part[2]]
    assert shown == [("download", 0.0, 1.5), ("lost, not yet noticed", 1.5, 6.0)]


def test_every_event_keeps_the_rules_of_the_format(tmp_path: Path) -> None:
    """https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMhMt1BpKzbWnyM8Yh4 (Trace Event Format)"""
    for event in written(tmp_path / "timeline.json", in_flight=[SECOND]):
        assert isinstance(event["name"], str) and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        match event["ph"]:
            case "X":
                assert isinstance(event["ts"], int) and isinstance(event["dur"], int) and event["dur"] > 0
            case "i":
                assert isinstance(event["ts"], int) and event["s"] in ("g", "p", "t")
            case "M":
                keys = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}
                assert set(event["args"]) == {keys[event["name"]]}
            case other:
                raise AssertionError(f"an event of the kind {other!r}")


def test_times_are_microseconds_and_parts_lie_within_their_order(tmp_path: Path) -> None:
    events = [event for event in written(tmp_path / "timeline.json") if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in events} == {(0, 3)}
    assert [(event["name"], event["ts"], event["dur"]) for event in events] == [
        ("waiting", 0, 1_000_000),
        ("order (uploaded)", 1_000_000, 9_000_000),
        ("download", 1_000_000, 1_000_000),
        ("training", 2_000_000, 2_000_000),
        ("fresh model", 4_000_000, 1_500_000),
        ("training", 5_500_000, 3_500_000),
        ("upload", 9_000_000, 1_000_000),
        ("waiting", 10_000_000, 2_000_000),
    ]
    assert events[1]["args"] == {"ticket": 7, "base": 2, "slices": 4}


def test_versions_are_marks_of_the_server(tmp_path: Path) -> None:
    marks = [event for event in written(tmp_path / "timeline.json") if event["ph"] == "i"]
    assert [(mark["name"], mark["ts"], mark["pid"]) for mark in marks] == [
        ("version 1", 10_000_000, 1),
        ("versions 2 to 3", 11_500_000, 1),
    ]


def test_rows_are_named_with_the_speed_and_sorted_by_it(tmp_path: Path) -> None:
    flying = [
        Span(device=1, ticket=9, base=3, sent=2.0, arrived=3.0, landed=12.0, slices=0, outcome="in flight"),
    ]
    events = written(tmp_path / "timeline.json", in_flight=flying)
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    # 2 s and 3.5 s of training for 4 slices; device 1 has delivered nothing to tell its speed by.
    assert named == {(1, 0): "versions", (0, 3): "device 3: 1.38 s per slice", (0, 1): "device 1"}
    ranks = {e["tid"]: e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert ranks == {3: 0, 1: 1}
    assert [e["dur"] for e in events if e["name"] == "order (in flight)"] == [10_000_000]


def test_a_long_run_has_a_timeline_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.results.timeline.MOST_ORDERS", 1)
    events = written(tmp_path / "timeline.json", in_flight=[SECOND])
    assert {event["tid"] for event in events if event["ph"] == "X"} == {3}
    assert [event["name"] for event in events if event["ph"] == "i"] == ["version 1"]


def test_a_timeline_goes_on_where_it_was_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.json")
    first = Timeline(tmp_path / "cut.json")
    first.write(ORDER)
    first.mark(1, 10.0)
    position, state = first.position, json.loads(json.dumps(first.state))
    first.write(SECOND)
    first.close()
    state["devices"] = {int(device): tuple(each) for device, each in state["devices"].items()}
    second = Timeline(tmp_path / "cut.json", position, state)
    second.mark(1, 11.0)
    second.mark(3, 11.5)
    second.finish([], 12.0)
    second.close()
    assert json.loads((tmp_path / "cut.json").read_text()) == whole
