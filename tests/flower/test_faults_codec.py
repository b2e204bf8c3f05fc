"""Any change to a valid reply is refused, or does not matter: nothing else can come of it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import asdict
from torch import nn

from offbeat.algorithms.fedasync import FedAsync
from offbeat.core.errors import DeviceFault
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Vector
from offbeat.core.record import RecordLine
from offbeat.core.session import Session
from offbeat.experiment.run_settings import DeploymentTable, EvaluationTable, Stop
from offbeat.flower.protocol.codec import BODY, MODEL, pack, unpack, vector
from offbeat.flower.protocol.messages import FromDevice, Greeting, UpdateReply
from offbeat.flower.server.driver import Deployment
from offbeat.flower.server.exchange import Backoff, Exchange
from offbeat.flower.server.membership import Membership, wait_for_devices
from offbeat.flower.server.transport import Incoming, Transport
from offbeat.flower.strategy.run import StrategyRun
from offbeat.models import layout_of, vector_of
from offbeat.running.directory import RunRecord
from offbeat.training.training_state import Evaluation

NETWORK = nn.Linear(2, 2)
BASE = vector_of(NETWORK)
UPLOAD: Vector = BASE + np.float32(1.0)
VALID = UpdateReply(ticket=1, leg=1, slices=1, steps=4, seconds=0.5, remembered=0, samples=7, loss=0.25)
TABLE = {"type": "update"} | asdict(VALID)
EXPECTED: Vector = np.float32(0.5) * BASE + np.float32(0.5) * UPLOAD
"""FedAsync mixes the first update, which is not stale, in with its weight alpha."""


@dataclass
class OneAnswer:
    """A grid with one node, which greets in order and replies to its first order with this."""

    answer: RecordDict
    now: float = 0.0
    sent: dict[str, Message] = field(default_factory=dict)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get_node_ids(self) -> Iterable[int]:
        return [100]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(len(self.sent))
            greets = not message.content.array_records
            content = pack(Greeting(device=0, samples=7, elements=BASE.size)) if greets else self.answer
            self.sent[str(len(self.sent))] = Message(content, reply_to=message)
        return [str(len(self.sent) - 1)]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.sent[identity] for identity in message_ids]


class Memo(RunRecord):
    """A record that nobody keeps."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))

    def open(self, position: int = 0) -> None:
        pass

    def write(self, line: RecordLine) -> None:
        msgspec.json.encode(line)


def judged(answer: RecordDict) -> tuple[str, Session]:
    """What becomes of a reply to the first order of a run, and the session after it."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    grid, said = OneAnswer(answer), list[str]()
    transport = Transport(grid, said.append)
    membership = Membership(1, model=BASE, batch_size=None)
    wait_for_devices(
        membership, transport, wanted=1, seconds=9.0, log=said.append, clock=lambda: grid.now, sleep=grid.sleep
    )
    session = Session(
        FedAsync(concurrency=1, alpha=0.5),
        parameters=BASE,
        layout=layout_of(NETWORK),
        samples=membership.samples,
        local=LocalWork(epochs=1),
        present=membership.present,
    )
    deployment = Deployment(
        session,
        transport,
        membership,
        lambda _: Evaluation(metrics={"accuracy": 0.0, "loss": 0.0}),
        seed=0,
        stop=Stop(time=60.0, versions=1),
        schedule=EvaluationTable(),
        record=Memo(),
        log=said.append,
        settings=DeploymentTable(),
        clock=lambda: grid.now,
        sleep=grid.sleep,
    )
    for _ in deployment:
        counters = session.counters
        if counters.refused:
            return "refused", session
        if counters.used:
            return "used", session
        if counters.lost or len(grid.sent) > 2:
            return "not a delivery", session
    raise AssertionError("the answer had no effect")


def content(body: str, array: Array) -> RecordDict:
    return RecordDict({BODY: ConfigRecord({"json": body}), MODEL: ArrayRecord({"vector": array})})


def check(answer: RecordDict) -> None:
    """Refused, or as good as the original."""
    verdict, session = judged(answer)
    if verdict == "used":
        np.testing.assert_array_equal(session.parameters, EXPECTED)
    else:
        np.testing.assert_array_equal(session.parameters, BASE)
        assert session.version == 0


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))


def test_the_original_is_used() -> None:
    verdict, session = judged(content(json.dumps(TABLE), Array(UPLOAD)))
    assert verdict == "used"
    np.testing.assert_array_equal(session.parameters, EXPECTED)


@given(
    st.dictionaries(st.sampled_from([*TABLE, "new", "device"]), VALUES, min_size=1), st.sets(st.sampled_from([*TABLE]))
)
@example({"type": "refusal", "reason": "no"}, set())
@example({"type": "check in"}, {"samples", "loss", "extras"})
@example({"seconds": float("inf")}, set())
@example({"loss": float("nan")}, set())
def test_any_change_of_the_fields(changes: dict[str, Any], missing: set[str]) -> None:
    table = {name: value for name, value in (TABLE | changes).items() if name not in missing}
    check(content(json.dumps(table), Array(UPLOAD)))


@given(st.data())
def test_any_change_of_the_text(data: st.DataObject) -> None:
    text = json.dumps(TABLE)
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, len(text)))
    between = data.draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
    check(content(text[:first] + between + text[last:], Array(UPLOAD)))


@given(st.data())
def test_any_change_of_the_header_of_the_parameters(data: st.DataObject) -> None:
    original = Array(UPLOAD).data
    header = len(original) - 4 * UPLOAD.size
    first = data.draw(st.integers(0, header))
    last = data.draw(st.integers(first, header))
    changed = original[:first] + data.draw(st.binary(max_size=30)) + original[last:]
    array = Array(dtype="float32", shape=UPLOAD.shape, stype="numpy.ndarray", data=changed)
    check(content(json.dumps(TABLE), array))


@given(
    st.lists(st.integers(-(2**62), 2**62), max_size=3) | st.just([UPLOAD.size]),
    st.sampled_from(["float32", "<f4", "float64", "object", "O", "V4", ""]) | st.text(max_size=9),
    st.binary(max_size=300),
)
def test_any_bytes_for_parameters(shape: list[int], dtype: str, data: bytes) -> None:
    check(content(json.dumps(TABLE), Array(dtype=dtype, shape=tuple(shape), stype="numpy.ndarray", data=data)))


@given(st.text(max_size=200))
def test_any_text_is_read_or_a_fault(text: str) -> None:
    try:
        unpack(RecordDict({BODY: ConfigRecord({"json": text})}), FromDevice)
    except DeviceFault as fault:
        assert len(str(fault)) < 500


@given(st.binary(min_size=len(Array(UPLOAD).data), max_size=len(Array(UPLOAD).data)))
def test_any_numbers_are_read_as_they_are(noise: bytes) -> None:
    """All bytes that may be numbers are; that they are finite, and not too far, is for others to check."""
    header = len(noise) - 4 * UPLOAD.size
    data = Array(UPLOAD).data[:header] + noise[header:]
    array = Array(dtype="float32", shape=UPLOAD.shape, stype="numpy.ndarray", data=data)
    assert vector(content("", array), UPLOAD.size).tobytes() == noise[header:]


@pytest.mark.parametrize("kind", [Deployment, StrategyRun, Exchange, Backoff, Membership, Transport, Incoming])
def test_a_misspelt_attribute_of_the_servers_state_is_an_error(kind: type[Any]) -> None:
    made = object.__new__(kind)
    with pytest.raises(AttributeError):
        made.misspelt = 1
