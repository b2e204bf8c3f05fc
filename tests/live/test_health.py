"""Alarms in words, from records made by hand."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from offbeat import Experiment
from offbeat.live.health import alarms, facts, resume_command
from offbeat.results.index import GroupEntry, RunEntry, State
from offbeat.results.metric import TargetMetric, summarise
from offbeat.results.orders import IN_FLIGHT, RECEIVED, USED, Records, parse_records, record
from offbeat.results.result import Result
from offbeat.results.rows import Row, Span


def entry(state: State = "running", **more: Any) -> RunEntry:
    given: dict[str, Any] = {
        "path": Path("runs/one"), "state": state, "algorithm": "fedbuff", "seed": 0, "data": "digits", "real": False,
        "time": 50.0, "versions": 3, "progress": 0.5, "metric": TargetMetric(), "value": 0.5, "target": None,
        "listed": (0.6, 0.9), "stopped_by": "", "began": 1.0, "changed": time.time(),
    }  # fmt: skip
    return RunEntry(**(given | more))


def result(*losses: float) -> Result:
    rows: list[Row] = [
        {"time": 10.0 * k, "version": k, "accuracy": 0.1 * k, "loss": loss, "in_flight": 1.0}
        for k, loss in enumerate(losses)
    ]
    experiment = Experiment.parse(
        {
            "stop": {"time": 100.0},
            "data": {"name": "digits", "devices": 9},
            "model": {"name": "logistic"},
            "algorithm": {"name": "fedbuff", "buffer": 3, "concurrency": 4},
        }
    )
    summary = summarise(rows, algorithm="fedbuff", seed=0, targets=[0.6], reason="not finished", wall_seconds=0.0)
    return Result(rows=rows, summary=summary, experiment=experiment)


def span(device: int, ticket: int, sent: float, landed: float) -> Span:
    return Span(device, ticket, 0, sent, sent, landed, 1, "uploaded")


def log(*more: bytes) -> Records:
    """Device 7 takes 4 s per order, and there is a version every 10 s up to 30 s."""
    used = [record(span(7, k, 10.0 * k - 4.0, 10.0 * k), USED, k, 10.0 * k) for k in (1, 2, 3)]
    return np.concatenate([parse_records(each) for each in (*used, *more)])


def live(now: float, **more: Any) -> dict[str, Any]:
    return {"time": now, "written": time.time()} | more


def test_a_device_is_silent_after_three_times_its_usual_time() -> None:
    flying = record(span(7, 9, 30.0, 35.0), IN_FLIGHT)
    fine = result(1.0, 0.9)
    assert alarms(fine, log(flying), live(42.0), entry()) == []  # 12 s: three times
    told = alarms(fine, log(flying), live(44.0), entry())
    assert told == ["device 7 silent for 3.5x its usual time (14.0 s instead of 4.00 s)"]
    stranger = record(span(3, 9, 0.0, 35.0), IN_FLIGHT)  # its usual time is not known
    assert alarms(fine, log(stranger), live(44.0), entry()) == []
    many = [record(span(7, 9 + k, 0.0, 35.0), IN_FLIGHT) for k in range(5)]
    assert alarms(fine, log(*many), live(40.0), entry())[-1] == "2 more devices are silent"


def test_a_buffer_is_starved_after_three_times_the_usual_time_between_versions() -> None:
    waiting = record(span(2, 9, 30.0, 35.0), RECEIVED)
    told = alarms(result(1.0, 0.9), log(waiting), live(90.0), entry())
    assert told == ["buffer starved: waiting for 2 uploads for 60.0 s (usually 10.0 s between versions)"]
    assert alarms(result(1.0, 0.9), log(waiting), live(59.0), entry()) == []


def test_a_loss_diverges_that_rises_three_times_to_one_and_a_half_times_its_minimum() -> None:
    assert alarms(result(1.0, 0.5, 0.6, 0.7, 0.8), log(), live(31.0), entry()) == [
        "loss diverging: 0.8 after a minimum of 0.5"
    ]
    assert alarms(result(1.0, 0.5, 0.6, 0.7, 0.74), log(), live(31.0), entry()) == []
    assert alarms(result(1.0, float("nan")), log(), live(31.0), entry()) == ["loss diverging: it is not finite"]


def test_a_process_without_a_sign_of_life_and_a_failed_run_are_reported() -> None:
    told = alarms(result(1.0), log(), live(31.0, written=time.time() - 100), entry())
    assert told[0].startswith("no sign of life for 100 s") or told[0].startswith("no sign of life for 10")
    assert alarms(result(1.0), log(), {}, entry("failed", stopped_by="ValueError: no")) == ["failed: ValueError: no"]
    assert alarms(result(1.0), log(), {}, entry("interrupted")) == []


def test_the_header_tells_state_times_target_and_how_to_resume() -> None:
    rows = result(1.0, 0.9, 0.8, 0.7).rows  # accuracy rises by 0.1 every 10 s
    told = dict(facts(entry(), live(50.0, version=4, wall_seconds=30.0, progress=0.6, in_flight=4), rows))
    assert told["state"] == "running, 60%"
    assert (told["virtual time"], told["versions"], told["orders in flight"]) == ("50 s", "4", "4")
    assert told["target"] == "60 % accuracy at about 60 s at this pace"
    assert told["time left"] == "about 20 s"  # 30 s for 60 %
    assert "resume" not in told
    reached = dict(facts(entry("interrupted", target=(0.6, 42.0)), {}, rows))
    assert reached["target"] == "60 % accuracy after 42 s"
    assert reached["resume"] == "offbeat run runs/one/config.toml --out runs/one --resume"


def test_a_group_tells_how_many_runs_are_finished() -> None:
    runs = (entry("finished", progress=1.0), entry("running", progress=0.5))
    group = GroupEntry(path=Path("runs"), kind="comparison", state="interrupted", runs=runs)
    told = dict(facts(group, {}, []))
    assert (told["state"], told["runs"]) == ("interrupted, 75%", "1 of 2 finished")
    assert resume_command(group) == "repeat the command that started it with --resume"
