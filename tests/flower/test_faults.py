"""Whatever a device does, the run ends as it should, the model stays sound, and what happened can be seen.

What must be true of every run is checked by `faulty.outcome`; the same with real processes is in `tests/processes`.
"""

import io
import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty import BAD, NEVER, Change, Tampering, experiment, grid_for, run
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from msgspec.structs import asdict, replace

from offbeat.core.parameters import Vector
from offbeat.flower.protocol.codec import BODY, MODEL, pack
from offbeat.flower.protocol.messages import CheckIn, FreshRequest, Greeting, Merge, Refusal, UpdateReply


def raw(delivery: UpdateReply, data: bytes, shape: tuple[int, ...], dtype: str = "float32") -> RecordDict:
    """An upload whose array says one thing and holds another."""
    content = pack(delivery)
    content[MODEL] = ArrayRecord({"vector": Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=data)})
    return content


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def archive(parameters: Vector) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("bomb.npy", npy(np.zeros(10**6)))
    return file.getvalue()


def boastful(parameters: Vector) -> bytes:
    """A header that asks for four terabytes."""
    return npy(parameters).replace(f"({parameters.size},)".encode(), b"(10**12,)").replace(b"10**12", b"999999999999")


def text(json_text: str) -> RecordDict:
    return RecordDict({BODY: ConfigRecord({"json": json_text})})


def changed(delivery: UpdateReply, parameters: Vector, **details: Any) -> RecordDict:
    """An upload with a field that the codec's own types would not let through."""
    return pack_json({"type": "update"} | asdict(delivery) | details, parameters)


def pack_json(table: dict[str, Any], parameters: Vector) -> RecordDict:
    content = pack(Refusal(reason=""), parameters)
    content[BODY] = ConfigRecord({"json": json.dumps(table)})
    return content


GARBAGE: dict[str, tuple[Change, str]] = {
    "wrong shape": (lambda d, v: pack(d, v[:-1]), "not (2778,) float32"),
    "two dimensions": (lambda d, v: raw(d, npy(v), (2, v.size // 2)), "not (2778,) float32"),
    "wrong type": (lambda d, v: raw(d, npy(v.astype(np.float64)), v.shape, "float64"), "float64, not"),
    "not a number": (lambda d, v: pack(d, np.where(np.arange(v.size) == 7, np.nan, v)), "not finite"),
    "infinite": (lambda d, v: pack(d, np.full_like(v, np.inf)), "not finite"),
    "oversized": (lambda d, v: raw(d, npy(np.zeros(5 * 10**6, np.float32)), v.shape), "20,000,128 bytes"),
    "another shape within": (lambda d, v: raw(d, npy(v.reshape(2, -1)), v.shape), "bytes with the header"),
    "another type within": (lambda d, v: raw(d, npy(v.view(np.int32)), v.shape), "bytes with the header"),
    "too few bytes": (lambda d, v: raw(d, npy(v)[:-1], v.shape), "bytes with the header"),
    "a header that boasts": (lambda d, v: raw(d, boastful(v), v.shape), "bytes with the header"),
    "a header that is code": (lambda d, v: raw(d, npy(v)[:10] + b"(" * 5000, v.shape), "cannot be read"),
    "an archive": (lambda d, v: raw(d, archive(v), v.shape), "cannot be read"),
    "a pickle": (
        lambda d, v: raw(d, npy(np.array([{"a": 1}] * 9, dtype=object)), v.shape),
        "bytes with the header (9,) object",
    ),
    "nothing": (lambda d, v: raw(d, b"", v.shape), "cannot be read"),
    "no parameters": (lambda d, v: pack(d), "no parameters"),
    "unknown ticket": (lambda d, v: pack(replace(d, ticket=999), v), "UpdateReply for ticket 999"),
    "wrong leg": (lambda d, v: pack(replace(d, leg=7), v), "leg 7: expected ticket"),
    "wrong samples": (lambda d, v: pack(replace(d, samples=10**6), v), "it claims 1000000 samples"),
    "too many slices": (lambda d, v: pack(replace(d, slices=2), v), "it claims 2 slices done"),
    "too far": (lambda d, v: pack(d, v + 1000), "above the bound 50"),
    "out of turn": (lambda d, v: pack(Greeting(device=3, samples=361, elements=v.size)), "Greeting for ticket -"),
    "another app": (lambda d, v: RecordDict({"theirs": ConfigRecord({"json": "{}"})}), "not a message of offbeat"),
    "empty": (lambda d, v: RecordDict(), "not a message of offbeat"),
    "a number for a text": (lambda d, v: RecordDict({BODY: ConfigRecord({"json": 3})}), "not a message of offbeat"),
    "huge text": (lambda d, v: text(" " * 10**6 + "{}"), "more than 65,536 characters"),
    "deeply nested": (lambda d, v: text("[" * 60_000), "cannot be read"),
    "deeply nested in a field": (lambda d, v: text('{"type":"update","x":' + "[" * 60_000), "cannot be read"),
    "not JSON": (lambda d, v: text("\x00\x1b[2Jnonsense"), "cannot be read"),
    "unknown kind": (lambda d, v: text('{"type":"pwn"}'), "cannot be read"),
    "negative ticket": (lambda d, v: changed(d, v, ticket=-1), "cannot be read"),
    "a text for a ticket": (lambda d, v: changed(d, v, ticket="1"), "cannot be read"),
    "endless seconds": (lambda d, v: changed(d, v, seconds=1e300), "cannot be read"),
    "lists for extras": (lambda d, v: changed(d, v, extras={"slot": [1]}), "cannot be read"),
    "a merge of what was not sent": (
        lambda d, v: pack(replace(d, merges=[Merge(version=1, slices=0, step=1)]), v),
        "it claims to have merged",
    ),
    "uncalled-for extras": (
        lambda d, v: changed(d, v, extras={"weight": 1e9}),
        "the rule 'plain' does not allow these extras",
    ),
}


@pytest.mark.parametrize("fault", GARBAGE)
def test_garbage_is_refused_and_its_device_tried_again(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, why = GARBAGE[fault]
    setting = experiment(deployment={"norm_bound": 50.0} if fault == "too far" else {})
    found = run(tmp_path, grid_for(setting, tamper=Tampering(change)), setting)
    assert found.summary["stopped_by"] == "updates"
    assert found.summary["updates_refused"] == found.summary["updates_lost"] == 1
    assert len(found.faults) == 1 and why in found.faults[0] and found.faults[0].startswith("refused: ")
    assert f"device 3: {found.faults[0]}\n" in capsys.readouterr().out
    [lost] = found.of("Lost")
    assert lost["device"] == 3 and found.of("Ready", device=3)[0]["at"] >= lost["at"] + 1.0
    assert all(device["delivered"] >= 1 for device in found.devices)
    assert [device["refused"] for device in found.devices] == [0, 0, 0, 1]


def test_a_device_that_never_does_right_rests_longer_each_time(tmp_path: Path) -> None:
    setting = experiment(stop={"updates": 30})
    found = run(tmp_path, grid_for(setting, tamper=Tampering(lambda d, v: pack(d), times=NEVER)), setting)
    lost = [line["at"] for line in found.of("Lost", device=3)]
    ready = [line["at"] for line in found.of("Ready", device=3)]
    rests = [later - sooner for sooner, later in zip(lost, ready, strict=False)]
    assert np.allclose(rests, [1.0, 2.0, 4.0][: len(rests)], atol=0.11) and len(rests) >= 2
    assert found.devices[3]["used"] == 0 and found.summary["updates_used"] == 30


def test_an_upload_that_is_sent_again_is_not_used_again(tmp_path: Path) -> None:
    """Devices 2 and 3 both reply to their second order with what device 3 replied to its first."""
    setting, uploads, seen = experiment(), list[RecordDict](), Counter[int]()

    def tamper(node: int, question: Message, answer: Message) -> Message:
        if MODEL not in answer.content.array_records or node not in (102, BAD):
            return answer
        seen[node] += 1
        if node == BAD:
            uploads.append(answer.content)
        return Message(uploads[0], reply_to=question) if seen[node] == 2 else answer

    found = run(tmp_path, grid_for(setting, tamper=tamper), setting)
    assert found.summary["stopped_by"] == "updates" and found.summary["updates_refused"] == 2
    assert all("expected ticket" in why for why in found.faults)
    assert all(device["used"] >= 1 for device in found.devices)


def test_device_rules_say_only_what_their_policy_understands(tmp_path: Path) -> None:
    """FedASMU learns from what uploads tell of a merge: a stranger's words do not end the run."""
    told: list[dict[str, Any]] = [
        {"slot": 1},
        {"slot": 99, "first": True, "reward": 0.0, "beta": 0.5, "gamma": 1.0, "upsilon": 1.0},
        {"slot": 1, "first": True, "reward": 0.0, "beta": 0.5, "gamma": 1e300, "upsilon": 1.0},
        {"slot": 1, "first": "yes", "reward": 0.0, "beta": 0.5, "gamma": 1.0, "upsilon": 1.0},
        {"slot": 1, "first": True, "reward": None, "beta": 0.5, "gamma": 1.0, "upsilon": 1.0},  # not finite: as it is
    ]
    setting = experiment(
        algorithm={"name": "fedasmu", "cohort": 4, "max_in_flight": 4, "period": 1.0},
        stop={"updates": 40},
        deployment={"rest_seconds": 0.1},
    )
    tampering = Tampering(lambda d, v: changed(d, v, extras=told[tampering.done - 1]), times=len(told))
    found = run(tmp_path, grid_for(setting, tamper=tampering), setting)
    assert found.summary["stopped_by"] == "updates" and found.summary["updates_refused"] == len(told) - 1
    assert all("does not allow these extras" in why for why in found.faults)


# Devices that do not answer ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Error(code=2, reason="ClientApp raised"), "Flower error 2: ClientApp raised"),
        (Error(code=3, reason="Message Unavailable"), "Flower error 3: Message Unavailable"),
        (Error(code=5, reason="Node Unavailable"), "Flower error 5: Node Unavailable"),
        (Error(code=0, reason="\x1b[2J\r\n" + "x" * 10**5), "Flower error 0:  [2J  " + "x" * 100),
        (pack(Refusal(reason="no power\noffbeat: ended")), "the device says: no power offbeat: ended"),
    ],
)
def test_an_error_in_the_place_of_a_reply(
    error: Error | RecordDict, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = experiment()
    found = run(tmp_path, grid_for(setting, tamper=Tampering(lambda d, v: error)), setting)
    assert found.summary["stopped_by"] == "updates"
    assert found.summary["updates_lost"] == 1 and found.summary["updates_refused"] == 0
    assert len(found.faults) == 1 and found.faults[0].startswith(why) and len(found.faults[0]) < 600
    assert all(line.startswith("offbeat: ") for line in capsys.readouterr().out.splitlines())
    assert all(device["delivered"] >= 1 for device in found.devices)


def test_no_reply_at_all(tmp_path: Path) -> None:
    setting = experiment(stop={"updates": 30})
    found = run(tmp_path, grid_for(setting, tamper=Tampering(lambda d, v: None)), setting)
    assert found.summary["stopped_by"] == "updates" and found.faults == ["no reply within 5 s"]
    assert found.devices[3]["orders"] == found.devices[3]["lost"] == 1, "a node that may still be at work is left alone"


def test_a_late_reply_is_refused_and_its_device_is_free_again(tmp_path: Path) -> None:
    setting = experiment(stop={"updates": 30})
    grid = grid_for(setting)

    orders = Counter[int]()

    def tamper(node: int, question: Message, answer: Message) -> Message:
        orders[node] += MODEL in question.content.array_records
        grid.delays[BAD] = 8.0 if orders[BAD] == 1 else 0.5
        return answer

    grid.tamper = tamper
    found = run(tmp_path, grid, setting)
    [first, *later] = found.of("order", device=3)
    assert found.faults == [
        "no reply within 5 s",
        f"refused: the reply for ticket {first['ticket']} came after its deadline",
    ]
    assert found.summary["updates_refused"] == found.summary["updates_lost"] == 1
    assert later[0]["at"] >= 8.0 and found.devices[3]["delivered"] >= 1


@pytest.mark.parametrize("kind", [CheckIn, FreshRequest])
@pytest.mark.parametrize("algorithm", [{"name": "fedasync", "concurrency": 4}, {"name": "fedavg", "cohort": 4}])
def test_a_device_that_never_comes_to_an_end(
    kind: type[CheckIn | FreshRequest], algorithm: dict[str, Any], tmp_path: Path
) -> None:
    """Its legs are counted, so that not even an algorithm that waits for all devices waits for ever."""
    setting = experiment(algorithm=algorithm, stop={"versions": 3 if algorithm["name"] == "fedavg" else 12})
    progress: dict[str, Any] = {}

    def tamper(node: int, question: Message, answer: Message) -> Message:
        asked = json.loads(str(question.content.config_records[BODY]["json"]))
        if node != BAD or asked["type"] == "hello":
            return answer
        progress.update(ticket=asked["ticket"], leg=asked.get("leg", 0) + 1)
        return Message(pack(kind(**progress, slices=0, steps=0, seconds=0.0, remembered=0)), reply_to=question)

    found = run(tmp_path, grid_for(setting, tamper=tamper), setting)
    assert found.summary["stopped_by"] == "versions"
    assert "refused: no update of 1 slices after 5 legs" in found.faults
    assert found.devices[3]["used"] == 0
