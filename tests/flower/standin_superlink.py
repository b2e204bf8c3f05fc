"""A SuperLink without processes, as a node sees it: real messages, real apps, real object trees, in memory."""

import hashlib
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from threading import Condition
from typing import Any

import numpy as np
import numpy.typing as npt
import tomli_w
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run, RunStatus
from flwr.supercore.task_identity import TaskIdentity

from offbeat.flower.launch.superlink import SuperLink
from offbeat.flower.node.connection import FleetConnection, NotRunning

RUN = 7
CLIENT = '''
import os
import signal
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from offbeat.flower.device.mailbox import current_mailbox

app = ClientApp()


@app.train("do")
def do(message, context):
    asked = message.content["ask"]
    count = int(context.state["count"]["n"]) + 1 if "count" in context.state else 1
    context.state["count"] = ConfigRecord({"n": count})
    said = {"count": count, "pid": os.getpid(), "device": context.node_config.get("partition-id", -1)}
    match asked["what"]:
        case "exit":
            exit(3)
        case "raise":
            raise ZeroDivisionError("by zero")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(3600)
        case "eat":
            eaten = []
            while True:
                eaten.append(bytearray(2**24))
        case "listen":
            other = current_mailbox().take(30.0)
            current_mailbox().reply(Message(RecordDict({"said": ConfigRecord({"heard": True})}), reply_to=other))
        case "keep":
            said["before"] = (current_mailbox().recall("a name") or b"nothing").decode()
            current_mailbox().keep("a name", str(asked["text"]).encode())
        case "forge":
            forge(message, str(asked["text"]))
        case "flood":
            flood()
        case "execute":  # a hostile app
            names = {"result": ""}
            exec(asked["text"], names)
            said["result"] = str(names["result"])
        case "open":
            said["secrets"] = steal(str(asked["text"]))
    return Message(RecordDict({"said": ConfigRecord(said)} | dict(message.content.array_records)), reply_to=message)


def flood():
    """Pieces of an answer without end."""
    from itertools import count
    from offbeat.flower.node.frames import Piece

    for number in count():
        current_mailbox().reply.__self__._frames.write(Piece(identity=str(number)), [bytes(10_000)])


def forge(message, what):
    """Answers that are none, past all that an app is meant to use, and then nothing."""
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from offbeat.flower.node.frames import Reply

    answer = Message(RecordDict({"said": ConfigRecord({})}), reply_to=message)
    if what == "another message":
        answer.metadata.__dict__["_reply_to_message_id"] = "another"
    answer.metadata.__dict__["_message_id"] = answer.object_id
    head, tree = message_to_proto(answer).SerializeToString(), get_object_tree(answer).SerializeToString()
    parts = {"nonsense": [b"nonsense", b""], "another message": [head, b""], "too little": [head, tree], "no parts": []}
    reply = Reply(reply_to=message.metadata.message_id, pieces=[], seconds=0.0)
    current_mailbox().reply.__self__._frames.write(reply, parts[what])
    time.sleep(3600)


def steal(path):
    """Every way that a process has to a file of its own user, and to the memory of the one that started it."""
    import ctypes
    import subprocess

    secret, found = b"BEGIN OPENSSH PRIVATE KEY", []
    nodes = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and commands(pid)]

    def attempt(name, way):
        try:
            if way():
                found.append(name)
        except (OSError, ValueError):
            pass

    def linked():
        os.link(path, "/dev/shm/offbeat-stolen")
        return True

    def traced(pid):
        return ctypes.CDLL(None).ptrace(16, pid, None, None) == 0

    attempt("file", lambda: secret in open(path, "rb").read())
    attempt("link", linked)
    attempt("other process", lambda: secret in subprocess.run(["cat", path], capture_output=True).stdout)
    attempt("own environment", lambda: path.encode() in open("/proc/self/environ", "rb").read())
    for pid in nodes:
        attempt("memory", lambda: open(f"/proc/{pid}/mem", "rb").seek(0) >= 0)
        attempt("descriptors", lambda: [open(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")])
        attempt("trace", lambda: traced(pid))
    return ",".join(found)


def commands(pid):
    try:
        return b"offbeat" in open(f"/proc/{pid}/cmdline", "rb").read() and int(pid) != os.getpid()
    except OSError:
        return False
'''


def with_model(model: npt.NDArray[np.float32]) -> RecordDict:
    """A message that asks for the model back."""
    return RecordDict({"ask": ConfigRecord({"what": "echo"}), "model": ArrayRecord({"v": Array(model)})})


def model_of(message: Message) -> npt.NDArray[Any]:
    return message.content.array_records["model"]["v"].numpy()


def app_folder(folder: Path, client: str = CLIENT) -> Path:
    """A Flower project whose ClientApp does what it is told."""
    app = {
        "publisher": "somebody",
        "fab-format-version": 1,
        "flwr-version-target": "1.41.0",
        "components": {"serverapp": "told.server:app", "clientapp": "told.client:app"},
        "config": {"colour": "blue"},
    }
    project = {
        "name": "told",
        "version": "1.0.0",
        "description": "An app that does what it is told",
        "license": {"file": "LICENSE"},
        "dependencies": ["flwr>=1.41.0,<2"],
    }
    (folder / "told").mkdir(parents=True)
    (folder / "told" / "__init__.py").touch()
    (folder / "told" / "client.py").write_text(client)
    (folder / "told" / "server.py").write_text("from flwr.serverapp import ServerApp\n\napp = ServerApp()\n")
    (folder / "LICENSE").write_text("None.\n")
    (folder / "pyproject.toml").write_text(tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}))
    return folder


def run_of(content: bytes, run_id: int = RUN) -> Run:
    return Run(
        run_id=run_id,
        fab_id="somebody/told",
        fab_version="1.0.0",
        fab_hash=hashlib.sha256(content).hexdigest(),
        override_config={"colour": "red"},
        pending_at="",
        starting_at="",
        running_at="",
        finished_at="",
        status=RunStatus("running", "", ""),
        flwr_aid="",
        federation_id="",
        primary_task_id=None,
        bytes_sent=0,
        bytes_recv=0,
        clientapp_runtime=0.0,
    )


class StandinConnection(FleetConnection):
    """A connection to nobody: the test is the server's half."""

    def __init__(self, folder: Path) -> None:
        self.superlink = SuperLink(address="127.0.0.1:1", insecure=True)
        self.node_id = 0
        self.forgotten = False
        self.content = build_fab_from_disk(folder)
        self.running = True
        self.opened = 0
        self.away: Exception | None = None
        self._waiting: deque[tuple[Message, ObjectTree]] = deque()
        self._sent: dict[str, Metadata] = {}
        self._objects: dict[str, bytes] = {}
        self._replies: dict[str, list[Message]] = {}
        self._changed = Condition()
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1

    def open(self) -> int:
        self._check()
        self.opened += 1
        self.forgotten = False
        self.node_id = 40 + self.opened
        return self.node_id

    def close(self) -> None:
        self.node_id = 0

    def _check(self) -> None:
        if self.away is not None:
            raise self.away

    def run(self, run_id: int) -> Run:
        return run_of(self.content, run_id)

    def app(self, run: Run) -> Fab:
        return Fab(run.fab_hash, self.content, {})

    def receive(self) -> tuple[Message, ObjectTree] | None:
        self._check()
        return self._waiting.popleft() if self._waiting else None

    def pull_object(self, run_id: int, identity: str) -> bytes | None:
        return self._objects[identity]

    def confirm(self, run_id: int, message_id: str) -> None:
        self._check()

    def push(self, reply: bytes, tree: bytes, objects: dict[str, bytes], seconds: float) -> None:
        self._check()
        if not self.running:
            raise NotRunning("the run is over")
        head = message_from_proto(ProtoMessage.FromString(reply))
        asked = self._sent[head.metadata.reply_to_message_id]
        assert 0 <= head.metadata.ttl <= asked.created_at + asked.ttl - head.metadata.created_at + 0.1, "its lifetime"
        found = inflate_object_from_contents(head.metadata.message_id, dict(objects))
        assert isinstance(found, Message)
        assert {each.object_id for each in iterate_object_tree(ObjectTree.FromString(tree))} == set(objects)
        with self._changed:
            self._replies.setdefault(head.metadata.reply_to_message_id, []).append(found)
            self._changed.notify_all()

    # What the test does

    def send(self, what: str, *, run_id: int = RUN, ttl: float = 600.0, **more: Any) -> str:
        content = RecordDict({"ask": ConfigRecord({"what": what, **more})})
        return self.send_content(content, run_id=run_id, ttl=ttl)

    def send_content(self, content: RecordDict, *, run_id: int = RUN, ttl: float = 600.0) -> str:
        message = Message(content, 41, "train.do", ttl=ttl)
        message.metadata.__dict__["_run_id"] = run_id
        message.metadata.__dict__["_created_at"] = datetime.now(UTC).timestamp()  # the clock of the SuperLink is right
        identity = message.object_id
        message.metadata.__dict__["_message_id"] = identity
        with no_object_id_recompute():
            objects = {each: found.deflate() for each, found in get_all_nested_objects(message).items()}
            tree = get_object_tree(message)
        self._sent[identity] = message.metadata
        self._objects.update(objects)
        self._waiting.append((message, tree))
        return identity

    def reply(self, identity: str, seconds: float = 60.0) -> Message:
        """The answer to a message; there must be one, and only one."""
        with self._changed:
            assert self._changed.wait_for(lambda: identity in self._replies, seconds), "no answer"
        (reply,) = self._replies[identity]
        return reply

    def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """What the app says to this."""
        return self.answered(self.send(what, **more))

    def answered(self, identity: str) -> dict[str, Any]:
        return dict(self.reply(identity).content.config_records["said"])

    def error(self, what: str, **more: Any) -> tuple[int, str]:
        """The error that is the answer to this."""
        error = self.reply(self.send(what, **more)).error
        return error.code, str(error.reason)
