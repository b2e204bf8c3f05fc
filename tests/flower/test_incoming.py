"""Replies are taken one by one: a broken or unfinished one costs no honest one anything."""

from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from offbeat.flower.server.transport import NOT_READ, Incoming, SentMessage, Transport


class RuntimeApi:
    """The server's half of a SuperLink: it hands out each reply once."""

    def __init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 7, 1
        self.answers: dict[str, Message] = {}
        self.objects: dict[str, bytes] = {}
        self.late: set[str] = set()
        """Objects that were announced and are not there yet."""
        self.pulled: list[str] = []
        self.confirmed: list[str] = []
        self.copies = 1

    def answer(self, question: str, text: str, *, bytes: int = 0) -> list[str]:
        """Let a reply come in; its objects, from the outside in."""
        message = Message(RecordDict({"said": ConfigRecord({"text": text})}), 1, "train.offbeat")
        if bytes:
            message.content["ballast"] = ArrayRecord({"zeros": Array(np.arange(bytes // 8))})
        message.metadata.__dict__["_src_node_id"] = 103
        message.metadata.__dict__["_reply_to_message_id"] = question
        message.metadata.__dict__["_message_id"] = message.object_id
        self.answers[question] = message
        objects = {identity: each.deflate() for identity, each in get_all_nested_objects(message).items()}
        self.objects |= objects
        return list(objects)

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        found = [self.answers.pop(each) for each in request.message_ids if each in self.answers]
        found *= self.copies
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(each) for each in found],
            message_object_trees=[get_object_tree(each) for each in found],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        identity = request.object_id
        self.pulled.append(identity)
        content = b"" if identity in self.late else self.objects.get(identity, b"")
        return PullObjectResponse(
            object_found=identity in self.objects, object_available=bool(content), object_content=content
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def api() -> RuntimeApi:
    return RuntimeApi()


@pytest.fixture
def grid(api: RuntimeApi) -> Any:
    return SimpleNamespace(_runtime_client=api, node=Node(node_id=1), run=SimpleNamespace(run_id=7))


def texts(arrived: list[Any]) -> dict[str, str]:
    return {
        question: each if isinstance(each, str) else str(each.content.config_records["said"]["text"])
        for question, each in arrived
    }


def test_replies_come_one_by_one_and_are_confirmed(api: RuntimeApi, grid: Any) -> None:
    incoming = Incoming(grid)
    assert incoming.fetch(dict.fromkeys(["a", "b"], 10**6)) == []
    api.answer("b", "two")
    assert texts(incoming.fetch(dict.fromkeys(["a", "b"], 10**6))) == {"b": "two"}
    assert len(api.confirmed) == 1
    api.answer("a", "one")
    assert texts(incoming.fetch(dict.fromkeys(["a"], 10**6))) == {"a": "one"}


def test_a_reply_that_cannot_be_taken_apart_costs_only_itself(api: RuntimeApi, grid: Any) -> None:
    api.answer("a", "one")
    broken = api.answer("b", "nonsense")
    api.answer("c", "three")
    api.objects[broken[0]] = b"\xff\x00 this is nothing of Flower's"
    found = texts(Incoming(grid).fetch(dict.fromkeys(["a", "b", "c"], 10**6)))
    assert (found["a"], found["c"]) == ("one", "three")
    assert found["b"].startswith("its reply cannot be decoded: ")


def test_a_reply_that_lacks_an_object_costs_only_itself(api: RuntimeApi, grid: Any) -> None:
    del api.objects[api.answer("a", "one")[-1]]
    api.answer("b", "two")
    assert texts(Incoming(grid).fetch(dict.fromkeys(["a", "b"], 10**6))) == {
        "a": "its reply cannot be decoded: ValueError: an object is missing",
        "b": "two",
    }


def test_a_reply_that_is_still_being_handed_in_keeps_nobody_waiting(api: RuntimeApi, grid: Any) -> None:
    incoming, slow = Incoming(grid), api.answer("a", "one")
    api.answer("b", "two")
    api.late = {slow[0]}
    assert texts(incoming.fetch(dict.fromkeys(["a", "b"], 10**6))) == {"b": "two"}
    assert incoming.fetch(dict.fromkeys(["a"], 10**6)) == []
    before = list(api.pulled)
    api.late.clear()
    assert texts(incoming.fetch(dict.fromkeys(["a"], 10**6))) == {"a": "one"}
    assert not set(api.pulled[len(before) :]) & {each for each in before if each != slow[0]}, "nothing is fetched twice"


def test_an_unfinished_reply_to_an_order_that_was_given_up_is_forgotten(api: RuntimeApi, grid: Any) -> None:
    incoming = Incoming(grid)
    api.late = set(api.answer("a", "one"))
    assert incoming.fetch(dict.fromkeys(["a"], 10**6)) == incoming.fetch(dict.fromkeys(["b"], 10**6)) == []
    api.late.clear()
    assert incoming.fetch(dict.fromkeys(["b"], 10**6)) == [] and not incoming._partial


def test_the_transport_reports_a_broken_reply_as_the_fault_of_its_device(api: RuntimeApi, grid: Any) -> None:
    transport = Transport(grid, print)
    transport.waiting = {"a": SentMessage(node=1, at=0.0, deadline=9.0, device=4)}
    api.objects[api.answer("a", "one")[0]] = b"nothing"
    (received,) = transport.poll()
    assert received.sent.device == 4 and received.content is None
    assert received.error.startswith("its reply cannot be decoded: ")
    assert not transport.waiting


def test_a_reply_above_the_expected_size_is_not_downloaded_further(api: RuntimeApi, grid: Any) -> None:
    """40 MB beside a model of 4 kB: Flower cuts an array into objects of 5 MB, and the first is one too many."""
    said: list[str] = []
    transport = Transport(grid, said.append)
    transport.waiting = {each: SentMessage(node=1, at=0.0, deadline=9.0, device=4) for each in "ab"}
    transport._largest = 4000
    api.answer("a", "flood", bytes=40 * 10**6)
    api.answer("b", "honest", bytes=4000)
    flooded, honest = sorted(transport.poll(), key=lambda each: each.content is not None)
    assert flooded.error == "its reply cannot be decoded: it has more than 1,052,976 bytes"
    assert honest.content is not None and len(api.confirmed) == 2
    assert sum(len(api.objects[each]) for each in api.pulled) < 6 * 10**6, "it stops at the first object"


def test_a_reply_to_an_order_that_was_given_up_is_dropped_unread(api: RuntimeApi, grid: Any) -> None:
    transport = Transport(grid, print)
    transport.waiting = {"a": SentMessage(node=1, at=0.0, deadline=9.0, device=4, given_up=True)}
    api.answer("a", "late", bytes=10**6)
    (received,) = transport.poll()
    assert received.content is None and received.error == NOT_READ
    assert not api.pulled and len(api.confirmed) == 1 and not transport.waiting


def test_duplicates_are_dropped_unread_and_counted_per_node(api: RuntimeApi, grid: Any) -> None:
    said: list[str] = []
    transport = Transport(grid, said.append)
    transport.waiting = {"a": SentMessage(node=1, at=0.0, deadline=9.0, device=4)}
    api.answer("a", "one")
    api.copies = 124
    assert len(transport.poll()) == 1
    assert transport.ignored == {103: 123} and len(api.pulled) == len(set(api.pulled))
    assert said == [
        f"node 103: ignored {count} to unknown or already answered messages"
        for count in ("1 reply", "10 replies", "100 replies")
    ]


def test_a_response_is_refused_by_its_header_before_its_body_is_read(grid: Any) -> None:
    read: list[int] = []

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            read.append(1)
            yield b"x" * 10**6

    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-length": str(400 * 10**6)}, stream=Body())

    http, incoming = httpx.Client(transport=httpx.MockTransport(respond)), Incoming(grid)
    client = SimpleNamespace(_client=http)
    for _ in range(2):
        with pytest.raises(Exception, match=r"^$") as caught, incoming._limited(client, 10**6):
            http.post("http://127.0.0.1/pull")
        assert type(caught.value).__name__ == "_TooLarge" and not read
    assert len(http.event_hooks["response"]) == 1
