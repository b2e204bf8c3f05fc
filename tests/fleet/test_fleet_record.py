"""A fleet from the record of a real run: speeds, links and availability are those that the run had."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import LoopbackGrid, deploy, run_config

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.record import FORMAT
from offbeat.experiment.schema import Experiment
from offbeat.fleet.record import RecordFleet
from offbeat.fleet.workload import Workload
from offbeat.running.assembly import ExperimentParts

DELAYS = {100: 0.2, 101: 1.0, 102: 3.0, 103: 0.6}
UNKNOWN = {"speeds": None, "communication": None, "random_layers": None}
FIRST = {
    "what": "run",
    "at": 0.0,
    "format": FORMAT,
    "samples": [10, 20],
    "present": [0, 1],
    "own_data": False,
} | UNKNOWN


def experiment(**tables: Any) -> Experiment:
    plain: dict[str, Any] = {
        "stop": {"updates": 16},
        "data": {"name": "digits", "devices": 4},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "model": "logistic",
        "local": {"epochs": 2},
        "fleet": {"name": "ratio", "ratio": 7.0, "cost": "samples"},
        "algorithm": {"name": "fedasync", "concurrency": 4},
        "deployment": {"paced": True},
    }
    return Experiment.parse(plain | tables)


def workload(samples: list[int]) -> Workload:
    return Workload(devices=len(samples), samples=np.array(samples), layers=1, flops_per_sample=0.0, seed=3)


def written(path: Path, *lines: dict[str, Any], **first: Any) -> RecordFleet:
    path.write_text("".join(json.dumps(line) + "\n" for line in (FIRST | first, *lines)))
    return RecordFleet(path=str(path))


def order(at: float, device: int, ticket: int) -> dict[str, Any]:
    return {"what": "order", "at": at, "device": device, "ticket": ticket, "base": 0}


def upload(at: float, device: int, ticket: int, seconds: float, slices: int = 2, steps: int = 6) -> dict[str, Any]:
    progress = {"slices": slices, "steps": steps, "seconds": seconds}
    return event(at, "Uploaded", device=device, ticket=ticket, progress=progress)


def event(at: float, type: str, **fields: Any) -> dict[str, Any]:
    return {"what": "event", "at": at, "event": {"type": type, **fields}}


@pytest.fixture(scope="module")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run whose devices keep the pace of their fleet, and whose messages take so and so long."""
    out = tmp_path_factory.mktemp("real") / "run"
    deploy(experiment(), LoopbackGrid(delays=DELAYS, run_config=run_config(experiment())).virtual(), out)
    return out


def test_the_speeds_of_a_real_run_are_recovered_from_its_record(real_run: Path) -> None:
    wanted = ExperimentParts.of(experiment()).fleet()
    found = ExperimentParts.of(experiment(fleet={"name": "record", "path": str(real_run)})).fleet()
    for device in range(4):
        plain = Order(slices=2)
        ours, theirs = (each.speeds.slice_seconds(device, 0, plain) for each in (found, wanted))
        assert ours == pytest.approx(theirs)
    assert found.availability.present(5.0).all()


def test_so_are_its_links_up_to_how_often_the_server_looks(real_run: Path) -> None:
    found = ExperimentParts.of(experiment(fleet={"name": "record", "path": str(real_run)})).fleet()
    for device, delay in enumerate(DELAYS.values()):
        round_trip = found.links.down_seconds(device, 10**6) + found.links.up_seconds(device, 10**6)
        assert delay <= round_trip < delay + 0.6


def test_seconds_of_an_epoch_are_the_median_and_go_with_the_samples(tmp_path: Path) -> None:
    """Device 0: 2, 3 and 9 s for two epochs over 10 samples, so 1.5 s an epoch. With 40 samples: 6 s."""
    lines = [order(0, 0, 1), upload(2, 0, 1, 2.0), order(2, 0, 2), upload(5, 0, 2, 3.0), order(5, 0, 3)]
    fleet = written(tmp_path / "record.jsonl", *lines, upload(14, 0, 3, 9.0), order(0, 1, 4), upload(9, 1, 4, 4.0))
    speeds = fleet.build(workload([40, 20]))
    assert list(speeds.slice_seconds(0, 1, Order(slices=1))) == [6.0]
    assert list(speeds.slice_seconds(1, 1, Order(slices=1))) == [2.0]
    latency = speeds.measured_links["latency"]
    assert isinstance(latency, np.ndarray) and latency.tolist() == [0.0, 2.5]  # 9 s - 4 s, there and back


def test_seconds_of_steps_become_those_of_an_epoch(tmp_path: Path) -> None:
    """10 samples in batches of 4 are 3 steps: 8 s for 6 of them are 4 s for an epoch; 20 samples are 5: 10 s."""
    fleet = written(
        tmp_path / "r.jsonl",
        order(0.0, 0, 1) | {"batch": 4},
        upload(10.0, 0, 1, 8.0, slices=6, steps=6),
        order(0.0, 1, 2) | {"batch": 4},
        upload(13.0, 1, 2, 12.0, slices=6, steps=6),
    )
    speeds = fleet.build(workload([10, 20]))
    assert [speeds.slice_seconds(device, 1, Order(slices=1))[0] for device in (0, 1)] == pytest.approx([4.0, 10.0])


def test_time_in_which_a_device_waited_for_an_answer_is_not_put_down_to_its_link(tmp_path: Path) -> None:
    progress = {"slices": 1, "steps": 3, "seconds": 1.0}
    asked = event(3.0, "FreshRequested", device=0, ticket=1, progress=progress)
    lines = [order(0, 0, 1), asked, upload(60, 0, 1, 2.0), order(60, 0, 2), upload(63, 0, 2, 2.0)]
    latency = written(tmp_path / "r", *lines).build(workload([10, 20])).measured_links["latency"]
    assert isinstance(latency, np.ndarray) and latency[0] == 0.5


def test_a_device_is_away_from_its_loss_until_it_is_ready_again(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        order(0, 0, 1),
        upload(2, 0, 1, 2.0),
        event(5.0, "Lost", device=1, ticket=2, reason="no answer"),
        event(8.0, "Ready", device=1),
        event(10.0, "Left", device=0),
        event(20.0, "TimerFired", name="x"),
    ]
    there = written(tmp_path / "r", *lines).build(workload([10, 20])).measured_availability
    assert there is not None
    states = {at: there.present(at).tolist() for at in (0.0, 4.9, 5.0, 8.0, 10.0, 19.9, 20.0, 25.0)}
    assert states == {
        0.0: [True, True],
        4.9: [True, True],
        5.0: [True, False],
        8.0: [True, True],
        10.0: [False, True],
        19.9: [False, True],
        20.0: [True, True],  # the record begins anew
        25.0: [True, False],
    }
    assert there.next_change(0, 10.0) == 20.0


def test_a_device_that_never_delivered_is_as_slow_as_the_slowest(tmp_path: Path) -> None:
    """Device 0 takes 0.1 s for each of its samples, and 1 s for a message; device 1 takes 0.05 s and 2 s."""
    lines = [order(0, 0, 1), upload(4, 0, 1, 2.0), order(0, 1, 2), upload(6, 1, 2, 2.0)]
    fleet = written(tmp_path / "r", *lines, samples=[10, 20, 40], present=[0, 1, 2])
    speeds = fleet.build(workload([10, 20, 40]))
    assert [speeds.slice_seconds(device, 1, Order(slices=1))[0] for device in range(3)] == [1.0, 1.0, 4.0]
    latency = speeds.measured_links["latency"]
    assert isinstance(latency, np.ndarray) and latency.tolist() == [1.0, 2.0, 2.0]


def test_a_device_that_joined_later_was_away_before_and_has_the_samples_it_came_with(tmp_path: Path) -> None:
    """An epoch over its 5 samples took 1 s, one over 20 takes 4 s. One step an epoch is an epoch, not a layer."""
    joined = {"what": "joined", "at": 3.0, "device": 1, "samples": 5}
    lines = [joined, event(3.0, "Ready", device=1), order(3, 1, 1), upload(5, 1, 1, 2.0, steps=2)]
    speeds = written(tmp_path / "r", *lines, present=[0]).build(workload([10, 20]))
    assert list(speeds.slice_seconds(1, 1, Order(slices=1))) == [4.0]
    there = speeds.measured_availability
    assert there is not None and [there.present(at).tolist() for at in (0.0, 2.9, 3.0, 5.0)] == [
        [True, False],
        [True, False],
        [True, True],
        [True, False],
    ]


def test_clocks_that_disagree_make_no_negative_latency(tmp_path: Path) -> None:
    latency = written(tmp_path / "r", order(0, 0, 1), upload(4, 0, 1, 5.0)).build(workload([10, 20])).measured_links
    assert np.asarray(latency["latency"]).tolist() == [0.0, 0.0]


def test_other_numbers_of_devices_draw_from_those_of_the_record(tmp_path: Path) -> None:
    lines = [order(0, 0, 1), upload(4, 0, 1, 2.0), order(0, 1, 2), upload(9, 1, 2, 8.0)]
    speeds = written(tmp_path / "r", *lines).build(workload([1] * 30))
    seconds = {speeds.slice_seconds(device, 1, Order(slices=1))[0] for device in range(30)}
    assert seconds == {0.1, 0.2}
    lines += [order(0, 2, 3), upload(9, 2, 3, 16.0)]
    for seed in range(5):  # of more devices than are needed none is drawn twice
        fewer = written(tmp_path / "r", *lines, samples=[10, 20, 20], present=[0, 1, 2])
        drawn = fewer.build(replace(workload([1, 1]), seed=seed))
        assert drawn.slice_seconds(0, 1, Order(slices=1)) != drawn.slice_seconds(1, 1, Order(slices=1))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not the record of a run"),
        ('{"what": "Started", "at": 0.0}\n', "not the record of a run"),
        ("what?\n", "not the record of a run"),
        (json.dumps(FIRST) + "\nwhat?\n", "line 2, cannot be read"),
        (json.dumps(FIRST) + "\n", "has no upload"),
        (json.dumps(FIRST) + "\n" + json.dumps(upload(3, 0, 1, 1.0, slices=4, steps=1)) + "\n", "layer by layer"),
    ],
)
def test_what_is_no_record_of_speeds_is_refused_in_a_sentence(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "record.jsonl").write_text(text)
    with pytest.raises(InvalidInput, match=rf"^fleet\.path: .*{why}"):
        RecordFleet(path=str(tmp_path)).build(workload([10, 20]))
    with pytest.raises(InvalidInput, match="does not exist"):
        RecordFleet(path=str(tmp_path / "none")).build(workload([10, 20]))
