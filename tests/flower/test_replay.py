"""A record of a real run, replayed in the simulator, gives the same versions bit by bit, whatever has happened.

The runs are real in all but the processes and the clock (`loopback`), and every registered algorithm runs to its end.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from loopback import LoopbackGrid, deploy, run_config
from recorded import flat, recorded
from safetensors.numpy import load_file, save_file

from offbeat.algorithms import DEVICE_RULES, POLICIES
from offbeat.algorithms.sizes import settings_for
from offbeat.cli import main
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Commit, Dispatch, Event, FreshRequested, SendFresh, Uploaded
from offbeat.core.orders import Order, Progress
from offbeat.core.parameters import Vector
from offbeat.core.policy import Ask, DeviceRule, Fresh, Memory, Policy, Probe, ReadOnlyMemory, Step, Train, Upload, View
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import merge
from offbeat.flower.protocol.codec import MODEL, unpack
from offbeat.flower.protocol.messages import Begin, FromDevice, ToDevice, UpdateReply
from offbeat.running.directory import RunDirectory
from offbeat.running.driver import Driver
from offbeat.simulation.replay import Difference, replay

UNEVEN = {100: 0.4, 101: 1.1, 102: 2.3, 103: 4.7}
PROMPT = dict.fromkeys(UNEVEN, 0.1)
EPOCHS = 4


def experiment_of(algorithm: dict[str, Any], **changes: Any) -> Experiment:
    """Four devices with their own share of the digits."""
    table = {
        "seed": 3,
        "stop": {"versions": 6, "time": 300.0},
        "data": {"name": "digits", "devices": 4},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "model": {"name": "mlp"},
        "local": {
            "epochs": EPOCHS,
            "batch_size": 64,
            "momentum": 0.5,
            "weight_decay": 0.001,
            "learning_rate_decay": 0.9,
        },
        "algorithm": algorithm,
        "evaluation": {"every_versions": 100},
        "deployment": {"answer_seconds": 20.0, "rest_seconds": 1.0},
    }
    return Experiment.parse(merge(table, changes))


PACED: dict[str, Any] = {
    "stop": {"time": 18.0},
    "fleet": {"name": "exponential", "slowest": 20.0, "fastest": 100.0},
    "network": {"latency": 0.3},
    "deployment": {"paced": True},
}
"""Devices that take about a second for a layer of a batch, by waiting."""


SPECIAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedprox": ({"mu": 0.1}, {}),
    "feddyn": ({"scaling": "samples"}, {}),
    "fedbuff": ({"buffer": 2, "concurrency": 4}, {}),
    "fedasmu": ({"cohort": 4, "period": 1.0, "max_in_flight": 4}, {"stop": {"versions": 20}}),
    "fedssmu": ({"cohort": 4}, {"stop": {"versions": 20}}),
    "seafl": ({"buffer": 2, "concurrency": 4, "staleness_limit": 1}, {}),
    "seafl2": ({"buffer": 2, "concurrency": 4, "staleness_limit": 1}, {"deployment": {"leg_seconds": 1e-9}}),
    "port": ({"buffer": 2, "concurrency": 4, "staleness_limit": 1}, {"deployment": {"leg_seconds": 1e-9}}),
    "safa": ({"share": 0.5, "lag_tolerance": 1}, {"deployment": {"leg_seconds": 1e-9}}),
    "psurdg": ({"storage": "float16"}, {}),
    "adel": ({"rounds": 8, "local_steps": 2}, PACED | {"stop": {"time": 11.0}}),
    "salf": ({"rounds": 6}, PACED),
    "drop-stragglers": ({"rounds": 6}, PACED),
    "wait-stragglers": ({}, PACED),
    "heterofl": ({"rounds": 6}, PACED),
}
"""Settings and tables that an algorithm needs so that what is special about it happens in a short run."""


def settings_and_tables(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that keep three of the four devices in training, unless the algorithm needs others."""
    settings, tables = SPECIAL.get(name, ({}, {}))
    sized = settings_for(POLICIES[name], 3, devices=4, order_seconds=lambda: [1.0] * 4, given=settings)
    return sized | settings, tables


@pytest.mark.parametrize("name", ["balanced", "oort", "pisces", "refl", "tifl"])
def test_a_replay_makes_the_same_choice_of_devices(name: str, tmp_path: Path) -> None:
    selection = {"name": name} | ({"choice": "adaptive", "interval": 2} if name == "tifl" else {})
    experiment = experiment_of({"name": "fedbuff", "buffer": 2, "concurrency": 2}, selection=selection)
    deploy(experiment, grid_for(experiment), tmp_path)
    orders = [line["device"] for line in found(record_of(tmp_path), "order")]
    assert len(set(orders)) > 1
    said = replay(tmp_path).summary  # raises at the first order that goes to another device
    assert said["replayed_orders"] == len(orders) and said["replayed_model"]


@pytest.mark.parametrize(
    ("name", "trust"),
    [
        ("fedbuff", {"combine": "centred-clipping", "clip": "auto", "repeats": 0.5, "most_samples_factor": 1.0}),
        ("fedasmu", {"clip": 0.01}),
        ("fedbuff", {"sums_only": True}),
    ],
)
def test_defences_work_on_the_second_driver_and_are_replayed(name: str, trust: dict[str, Any], tmp_path: Path) -> None:
    settings, changes = settings_and_tables(name)
    plain = experiment_of({"name": name} | settings, **changes)
    guarded = plain.changed({"trust": trust})
    for experiment, out in ((plain, tmp_path / "plain"), (guarded, tmp_path / "guarded")):
        deploy(experiment, grid_for(experiment), out)
    said = replay(tmp_path / "guarded").summary
    assert said["replayed_model"]
    first, other = (
        [each["sha256"] for each in found(record_of(tmp_path / out), "version")] for out in ("plain", "guarded")
    )
    assert (first == other) == ("sums_only" in trust)


def test_an_attack_is_refused_on_real_devices(tmp_path: Path) -> None:
    experiment = experiment_of({"name": "fedavg", "cohort": 2}, attack={"name": "scaling"})
    with pytest.raises(InvalidInput, match="attacks are simulated only"):
        deploy(experiment, grid_for(experiment), tmp_path)


class NoticeReceived:
    """What was said: tampers with nothing."""

    def __init__(self) -> None:
        self.begun: list[Begin] = []
        self.delivered: list[UpdateReply] = []

    def __call__(self, node: int, question: Message, answer: Message) -> Message:
        match unpack(question.content, ToDevice), unpack(answer.content, FromDevice):
            case Begin() as begin, said:
                self.begun.append(begin)
            case _, said:
                pass
        if isinstance(said, UpdateReply):
            self.delivered.append(said)
        return answer


def grid_for(experiment: Experiment, **how: Any) -> LoopbackGrid:
    paced = experiment.deployment.paced
    how.setdefault("delays", PROMPT if paced else UNEVEN)
    grid = LoopbackGrid(run_config=run_config(experiment), **how)
    return grid.virtual() if paced else grid


def record_of(out: Path) -> list[dict[str, Any]]:
    return recorded(out)


def found(record: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    return [line for line in record if line["what"] == what]


@pytest.mark.parametrize("name", POLICIES)
def test_every_algorithm_runs_on_the_second_driver_and_its_replay_gives_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    settings, changes = settings_and_tables(name)
    experiment, heard = experiment_of({"name": name} | settings, **changes), NoticeReceived()
    deploy(experiment, grid_for(experiment, tamper=heard), tmp_path)
    summary, record = json.loads((tmp_path / "summary.json").read_text()), record_of(tmp_path)
    assert summary["stopped_by"] in ("versions", "time budget")
    said = replay(tmp_path).summary
    assert said["replayed_versions"] == len(found(record, "version")) == summary["versions"]
    assert said["replayed_orders"] == len(found(record, "order"))
    assert said["replayed_model"]
    assert something_happened(name, record, heard)


@pytest.mark.parametrize("name", ["fedbuff", "seafl2", "fedasmu"])
def test_orders_in_steps_are_replayed_to_the_same_bits(name: str, tmp_path: Path) -> None:
    """Seven steps, which are more than an epoch on small devices and less on large ones; seafl2 stops some of them."""
    settings, changes = settings_and_tables(name)
    table = experiment_of({"name": name} | settings, **changes).table()
    del table["local"]["epochs"]
    experiment = Experiment.parse(merge(table, {"local": {"steps": 7}}))
    deploy(experiment, grid_for(experiment), tmp_path)
    uploads = found(record_of(tmp_path), "Uploaded")
    assert all(upload["steps"] == upload["slices"] for upload in uploads)
    assert any(upload["slices"] < 7 for upload in uploads) == (name == "seafl2")
    assert replay(tmp_path).summary["replayed_model"]


def something_happened(name: str, record: list[dict[str, Any]], heard: NoticeReceived) -> bool:
    """Whether the run had in it what is special about the algorithm."""
    uploads, layers = found(record, "Uploaded"), 3
    match name:
        case "fedasmu" | "fedssmu":  # devices that merged before, and learned from it, merge again
            merged = {line["ticket"] for line in found(record, "answer") if line["newer"]}
            return sum(1 for upload in uploads if upload["remembered"] and upload["ticket"] in merged) > 3
        case "seafl2" | "port":  # told to stop, and stopped early
            told = {line["ticket"] for line in found(record, "notice")}
            return any(upload["ticket"] in told and upload["slices"] < EPOCHS for upload in uploads)
        case "adel" | "salf":  # cut between two layers
            return len({upload["slices"] % layers for upload in uploads}) == layers
        case "heterofl":
            return len({begin.order.width for begin in heard.begun}) > 1
        case "drop-stragglers":  # cut, and nothing to show for it
            return any(upload["slices"] < layers for upload in uploads)
    return bool(uploads)


# Trouble ------------------------------------------------------------------------------------------------------------


class Trouble:
    """Device 1 once uploads what is not finite, and one reply of device 2 never comes: not of their first orders."""

    def __init__(self) -> None:
        self.spoilt = self.swallowed = 0
        """The tickets."""

    def __call__(self, node: int, question: Message, answer: Message) -> Message | None:
        said = unpack(answer.content, FromDevice)
        ticket = getattr(said, "ticket", 0)
        if node == 101 and isinstance(said, UpdateReply) and ticket > 4 and not self.spoilt:
            self.spoilt = ticket
            parameters = answer.content.array_records[MODEL]["vector"].numpy()
            answer.content[MODEL] = ArrayRecord({"vector": Array(np.full_like(parameters, np.nan))})
        if node == 102 and ticket > 4 and not self.swallowed:
            self.swallowed = ticket
            return None
        return answer


@pytest.mark.parametrize("name", ["fedasmu", "seafl2"])
def test_a_run_with_losses_refusals_and_late_joiners_is_replayed(name: str, tmp_path: Path) -> None:
    settings, changes = settings_and_tables(name)
    more = {"stop": {"versions": 24}, "deployment": {"start_with": 3, "answer_seconds": 6.0}}
    experiment = experiment_of({"name": name} | settings, **merge(changes, more))
    trouble, delays = Trouble(), dict.fromkeys(UNEVEN, 0.7)
    grid = grid_for(experiment, tamper=trouble, joins={103: 4.0}, leaves={100: 12.0}, delays=delays)
    deploy(experiment, grid, tmp_path)
    record = record_of(tmp_path)
    why = " ".join(line["why"] for line in found(record, "fault"))
    assert all(what in why for what in ("not finite", "no reply within", "its node is gone"))
    assert {trouble.spoilt, trouble.swallowed} <= {line["ticket"] for line in found(record, "Lost")}
    assert found(record, "run")[0]["present"] == [0, 1, 2]
    assert [line["device"] for line in found(record, "joined")] == [3]
    assert {line["device"] for line in found(record, "Ready")} == {1, 3}
    assert replay(tmp_path).summary["replayed_versions"] == 24


class Killed(Exception):
    """The server's process is gone."""


@pytest.mark.parametrize("devices", ["the same", "new"])
def test_a_run_that_was_killed_and_resumed_is_replayed(
    devices: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To Flower the resumed run is a new one, whose devices remember nothing; but they might."""
    settings, changes = settings_and_tables("fedasmu")
    often: dict[str, Any] = {"execution": {"checkpoint_seconds": 1e-9}}
    if devices == "the same":  # the state of a selection is resumed too
        often["selection"] = {"name": "oort"}
    experiment = experiment_of({"name": "fedasmu"} | settings, **merge(changes, often))
    checkpoint, last = RunDirectory.checkpoint, 7.0

    def rarely(directory: RunDirectory, driver: Driver, *more: Any) -> None:
        if driver.now < last:
            checkpoint(directory, driver, *more)

    class Mortal(LoopbackGrid):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.now > 13.0:
                raise Killed

    grid = Mortal(delays=UNEVEN, run_config=run_config(experiment))
    monkeypatch.setattr(RunDirectory, "checkpoint", rarely)
    with pytest.raises(Killed):
        deploy(experiment, grid, tmp_path)
    before = record_of(tmp_path)
    assert not (tmp_path / "summary.json").exists()
    assert replay(tmp_path).summary["replayed_versions"] == found(before, "version")[-1]["version"]

    second = grid_for(experiment)
    if devices == "the same":
        second._contexts = grid._contexts
    deploy(experiment, second, tmp_path, resume=True)
    record = record_of(tmp_path)
    cut = record.index(found(record, "resumed")[0])
    assert record[:cut] == before[:cut]
    assert found(before[cut:], "Uploaded"), "nothing was lost with the server"
    assert found(record[cut:], "Lost"), "nothing was in flight"
    learned = {upload["device"] for upload in found(record[:cut], "Uploaded")}
    first = {upload["device"]: upload["remembered"] for upload in reversed(found(record[cut:], "Uploaded"))}
    assert any(first[device] for device in learned) == (devices == "the same")
    assert any(upload["remembered"] for upload in found(record[cut:], "Uploaded"))
    assert replay(tmp_path).summary["replayed_versions"] == 20


# A rule of one's own --------------------------------------------------------------------------------------------------


class Restless(DeviceRule):
    """Wants two more epochs whenever it is asked, asks after the second, and goes along a gradient after it."""

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        if progress.slices == 2 and not fresh_answers:
            return Ask()
        remaining = order.slices - progress.slices
        return Train(min(2, remaining)) if remaining else Upload()

    def merge(self, local: Vector, fresh: Fresh, base: int, order: Order, memory: Memory, probe: Probe) -> Vector:
        return local - np.float32(0.1) * probe(local)[1]


class Nothing:
    """No state."""


class Eager(Policy):
    """Takes every upload as the next version."""

    State = Nothing

    def react(self, event: Event, state: Nothing, view: View) -> Iterator[Any]:
        if isinstance(event, Uploaded):
            yield Commit(parameters=event.update.parameters, used=(event.ticket,))
        if isinstance(event, FreshRequested):
            yield SendFresh(device=event.device)
        for device in sorted(view.pick(view.idle)):
            yield Dispatch(device=device, order=view.order(rule="restless"))


def test_a_stretch_of_training_is_one_stretch_however_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge draws its batch by the number of stretches before it: 1, though the device may check in twice."""
    monkeypatch.setitem(DEVICE_RULES, "restless", Restless())
    monkeypatch.setitem(POLICIES, "eager", Eager)
    experiment = experiment_of({"name": "eager"})
    deploy(experiment, grid_for(experiment), tmp_path)
    assert any(line["newer"] for line in found(record_of(tmp_path), "answer"))
    assert replay(tmp_path).summary["replayed_versions"] == 6


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    experiment = experiment_of({"name": "fedbuff", "buffer": 2, "concurrency": 4}, stop={"versions": 3})
    deploy(experiment, grid_for(experiment), out)
    return out


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_the_command_says_what_was_compared(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["offbeat", "replay", str(copy)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "3 versions match the record bit for bit." in said
    assert "The final parameters match model.safetensors." in said
    change(copy, "version", sha256="0" * 64)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "offbeat: line 10 of the record" in capsys.readouterr().err


def change(directory: Path, what: str, number: int = 0, **details: Any) -> int:
    """Change a line of a record, the so-manyth of its kind; its number in the file."""
    file = directory / "record.jsonl"
    record = [json.loads(line) for line in file.read_text().splitlines()]
    place = [place for place, line in enumerate(record) if flat(line)["what"] == what][number]
    line = record[place]
    for key, value in details.items():
        holders = (line.get("event", {}).get("progress", {}), line.get("event", {}), line)
        next(each for each in holders if key in each)[key] = value
    file.write_text("".join(json.dumps(each) + "\n" for each in record))
    return place + 1


@pytest.mark.parametrize(
    ("what", "details", "sentence"),
    [
        ("version", {"sha256": "0" * 64}, "version 1 has different parameters"),
        ("version", {"version": 2}, "the record has version (version 2, sha256"),
        ("order", {"device": 9}, "the record has order (device 9, ticket 1, base 0), the replay has order (device"),
        ("Uploaded", {"slices": EPOCHS - 1}, "version 1 has different parameters"),
        ("Uploaded", {"ticket": 99}, "ticket 99 is not in flight"),
        ("Uploaded", {"device": 9}, "device 9: Uploaded for ticket"),
    ],
)
def test_the_first_difference_is_told_in_a_sentence(
    what: str, details: dict[str, Any], sentence: str, copy: Path
) -> None:
    change(copy, what, **details)
    with pytest.raises(Difference, match=r"^line [0-9]+ of the record, at [0-9.]+ s: ") as caught:
        replay(copy)
    assert sentence in str(caught.value)


def test_a_record_that_was_cut_or_another_model_is_a_difference(copy: Path) -> None:
    model = load_file(copy / "model.safetensors")
    name = next(iter(model))
    save_file(model | {name: model[name] + 1}, copy / "model.safetensors")
    with pytest.raises(Difference, match=r"model\.safetensors holds a different model"):
        replay(copy)
    record = (copy / "record.jsonl").read_text().splitlines(keepends=True)
    last = max(number for number, line in enumerate(record) if '"version"' in line)
    (copy / "record.jsonl").write_text("".join(record[:last]))
    with pytest.raises(Difference, match=r"^the record ends, but the replay continues with version"):
        replay(copy)


def test_what_cannot_be_replayed_is_said(copy: Path) -> None:
    change(copy, "run", samples=[1, 2, 3, 4])
    with pytest.raises(InvalidInput, match="the sizes of its devices' data differ from 'digits'"):
        replay(copy)
    change(copy, "run", own_data=True)
    with pytest.raises(InvalidInput, match="trained on their own data, which is not here"):
        replay(copy)
    first = (copy / "record.jsonl").read_text().splitlines(keepends=True)[0]
    (copy / "record.jsonl").write_text(first + '{"at": \n')
    with pytest.raises(InvalidInput, match="line 2, cannot be read"):
        replay(copy)
    (copy / "record.jsonl").write_text(first + '{"what": "gossip", "at": 1.0}\n')
    with pytest.raises(InvalidInput, match="line 2, cannot be read: Invalid value 'gossip'"):
        replay(copy)
    change(copy, "run", format=99)
    with pytest.raises(InvalidInput, match="has format 99, but this version of offbeat reads only format 3"):
        replay(copy)
    (copy / "record.jsonl").write_text('{"at": 0.0, "what": "run", "samples": []}\n')
    with pytest.raises(InvalidInput, match="has format 1, but this version of offbeat reads only format 3"):
        replay(copy)
    (copy / "record.jsonl").unlink()
    with pytest.raises(InvalidInput, match="holds no real run"):
        replay(copy)
