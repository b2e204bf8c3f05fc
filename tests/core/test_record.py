"""The record of a run: its one schema, as JSON and back."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.core.messages import (
    Assignment,
    Effect,
    Event,
    FreshModel,
    FreshRequested,
    Left,
    Lost,
    Ready,
    Resolved,
    Started,
    StopNotice,
    TimerFired,
    TimerSet,
    Uploaded,
)
from offbeat.core.orders import KnownOutcome, Order, Outcome, Progress, Update
from offbeat.core.record import FORMAT, FaultLine, RunLine, effect_line, event_line, read_record
from offbeat.running.directory import RunRecord

MODEL = np.zeros(2, dtype=np.float32)
PROGRESS = Progress(slices=3, steps=6, seconds=1.5)
UPDATE = Update(
    device=1,
    ticket=7,
    base=2,
    base_parameters=MODEL,
    samples=5,
    progress=PROGRESS,
    outcome=KnownOutcome(Outcome(parameters=MODEL)),
)
FIRST = RunLine(
    at=0.0,
    format=FORMAT,
    samples=[5, 6],
    present=[0],
    own_data=False,
    speeds=[1.0, 2.0],
    communication=[0.5, 0.5],
    random_layers=True,
)
FIGURES = {"device": 1, "ticket": 7, "progress": {"slices": 3, "steps": 6, "seconds": 1.5}}
EVENTS: list[tuple[Event, dict[str, Any]]] = [
    (Started(), {"type": "Started"}),
    (Ready(device=1), {"type": "Ready", "device": 1}),
    (Left(device=1), {"type": "Left", "device": 1}),
    (Uploaded(device=1, ticket=7, update=UPDATE), {"type": "Uploaded"} | FIGURES),
    (FreshRequested(device=1, ticket=7, progress=PROGRESS), {"type": "FreshRequested"} | FIGURES),
    (Lost(device=1, ticket=7, reason="late"), {"type": "Lost", "device": 1, "ticket": 7, "reason": "late"}),
    (TimerFired(name="round"), {"type": "TimerFired", "name": "round"}),
]
EFFECTS: list[tuple[Effect, dict[str, Any] | None]] = [
    (
        Assignment(device=1, ticket=7, order=Order(), base=2, parameters=MODEL),
        {"what": "order", "device": 1, "ticket": 7, "base": 2},
    ),
    (
        FreshModel(device=1, ticket=7, version=4, parameters=None),
        {"what": "answer", "device": 1, "ticket": 7, "base": 4, "newer": False},
    ),
    (StopNotice(device=1, ticket=7), {"what": "notice", "device": 1, "ticket": 7}),
    (Resolved(tickets=(7,), used=True), None),
    (TimerSet(name="round", at=2.0), None),
]


def written(path: Path, *lines: Any) -> str:
    record = RunRecord(path / "record.jsonl")
    record.open()
    for line in lines:
        record.write(line)
    record.close()
    return (path / "record.jsonl").read_text()


@pytest.mark.parametrize(("event", "expected"), EVENTS, ids=lambda each: type(each).__name__)
def test_an_event_is_recorded_as_it_is_but_for_the_numbers_of_an_update(
    event: Event, expected: dict[str, Any], tmp_path: Path
) -> None:
    line = event_line(event, at=2.5, remembered=4)
    text = written(tmp_path, FIRST, line)
    assert json.loads(text.splitlines()[1]) == {
        "what": "event",
        "at": 2.5,
        "event": expected,
        "remembered": 4,
        "norm": None,
    }
    assert read_record(text, "it") == (FIRST, [FIRST, line])


@pytest.mark.parametrize(("effect", "expected"), EFFECTS, ids=lambda each: type(each).__name__)
def test_what_the_session_asks_of_devices_is_a_line(
    effect: Effect, expected: dict[str, Any] | None, tmp_path: Path
) -> None:
    line = effect_line(effect, at=2.5)
    if expected is None:
        assert line is None
        return
    assert json.loads(written(tmp_path, FIRST, line).splitlines()[1]) == expected | {"at": 2.5}


def test_what_the_server_knew_of_its_devices_comes_back() -> None:
    forecast = FIRST.forecast
    assert forecast is not None
    assert (forecast.speeds.tolist(), forecast.communication.tolist()) == ([1.0, 2.0], [0.5, 0.5])
    assert forecast.random_layers


def test_half_a_line_at_the_end_is_left_out(tmp_path: Path) -> None:
    text = written(tmp_path, FIRST, FaultLine(at=1.0, device=0, why="late"))
    assert len(read_record(text[:-3], "it")[1]) == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty or not the record of a run"),
        ("[]\n", "is empty or not the record of a run"),
        ('{"at": 0.0, "what": "Started"}\n', "is empty or not the record of a run"),
        ('{"at": 0.0, "what": "run"}\n', "has format 1, but this version of offbeat reads only format 3"),
        ('{"at": 0.0, "what": "run", "format": 2}\n', "has format 2, but this version of offbeat reads only format 3"),
        ('{"at": 0.0, "what": "run", "format": 3}\n', "line 1, cannot be read"),
    ],
)
def test_what_is_not_a_record_of_this_schema_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        read_record(text, "record.jsonl")
