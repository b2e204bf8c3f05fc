"""The child process: runs the app of one run on message after message, as long as the run lasts.

It does what `flwr-clientapp` does for a single message. A message that arrives while the app is busy waits in the
mailbox, which the app may read.
"""

import os
import socket
import time
import traceback
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from offbeat.flower.compat import (
    ErrorCode,
    ProtoRecordDict,
    TaskIdentity,
    get_all_nested_objects,
    get_load_client_app_fn,
    get_object_tree,
    inflate_object_from_contents,
    message_to_proto,
    no_object_id_recompute,
    recorddict_from_proto,
    recorddict_to_proto,
    remove_content_from_message,
)
from offbeat.flower.device.mailbox import Mailbox, open_mailbox
from offbeat.flower.node.clocks import in_server_time
from offbeat.flower.node.frames import (
    STATE,
    BrokenFrame,
    Deliver,
    FrameSocket,
    Keep,
    OpenApp,
    Piece,
    Recall,
    Recalled,
    Reply,
    ToChild,
    Warm,
)

RECALL_SECONDS = 30.0


def main(connection: socket.socket) -> int:
    """Serve until the node closes the connection; returns the exit code."""
    frames: FrameSocket[Any] = FrameSocket(connection, ToChild)
    opening, parts = frames.read() or (None, [])
    if not isinstance(opening, OpenApp):
        return 0
    AppProcess(frames, opening, parts[0] if parts else None).serve()
    return 0


class AppProcess:
    """The app, its context, and the messages for it."""

    def __init__(
        self,
        frames: FrameSocket[Any],
        opening: OpenApp,
        state: bytes | None,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._frames = frames
        self._leave = leave
        self._opening = opening
        self._state = state or b""
        self._began = 0.0
        self._recalled: bytes | None = None
        self._answered = Event()
        self._delivered: dict[str, tuple[Message, float]] = {}
        """Messages without content that have no reply yet, and when they arrived."""
        self.mailbox = Mailbox(self.answer, self._keep, self._recall)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, opening.run_id, opening.node_id
        self.context = Context(
            run_id=opening.run_id,
            node_id=opening.node_id,
            node_config=dict(opening.node_config),
            state=recorddict_from_proto(ProtoRecordDict.FromString(state)) if state else RecordDict(),
            run_config=dict(opening.run_config),
            series_id=opening.series_id,
        )

    def serve(self) -> None:
        """Load the app and reply to messages one after another."""
        Thread(target=self._listen, daemon=True).start()
        open_mailbox(self.mailbox)
        try:
            app: ClientApp | None = self._load()
        except Exception:  # the app's modules may raise anything when imported
            app = None
            traceback.print_exc()
        self._frames.write(Warm())
        while (message := self.mailbox.take(None)) is not None:
            self._began = time.monotonic()
            self.answer(self._run(app, message))
            self._keep_state()

    def _load(self) -> ClientApp:
        opening = self._opening
        load = get_load_client_app_fn(default_app_ref="", app_path=opening.directory, multi_app=True)
        return load(opening.app_id, opening.app_version, opening.app_hash)

    def _run(self, app: ClientApp | None, message: Message) -> Message:
        """The app's reply, or its error in the form that `flwr-clientapp` sends."""
        if app is None:
            reason = "An exception was raised when attempting to load `ClientApp`"
            return Message(Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, reason), reply_to=message)
        try:
            return app(message, self.context)
        except Exception as error:  # raised by the app
            traceback.print_exc()
            reason = f"{type(error)}:<'{error}'>"
            if isinstance(error, PermissionError):
                reason += " (see --readable, --writable and --network of `offbeat node`)"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    def answer(self, reply: Message) -> None:
        """Send a reply to the node, piece by piece."""
        asked, received = self._delivered.pop(reply.metadata.reply_to_message_id, (None, 0.0))
        if asked is not None:
            in_server_time(reply, asked, time.monotonic() - received)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            tree, objects = get_object_tree(reply), get_all_nested_objects(reply)
            head = message_to_proto(remove_content_from_message(reply)).SerializeToString()
            for identity, each in objects.items():
                self._frames.write(Piece(identity=identity), [each.deflate()])
        body = Reply(
            reply_to=reply.metadata.reply_to_message_id,
            pieces=list(objects),
            seconds=time.monotonic() - self._began,
        )
        self._frames.write(body, [head, tree.SerializeToString()])

    # Stored by the node -----------------------------------------------------------------------------------------------

    def _keep_state(self) -> None:
        """Store the app's state in the node, so that the next child of this run can continue if this one ends."""
        state = recorddict_to_proto(self.context.state).SerializeToString(deterministic=True)
        if state != self._state:
            self._state = state
            self._keep(STATE, state)

    def _keep(self, name: str, content: bytes) -> None:
        self._frames.write(Keep(name=name), [content])

    def _recall(self, name: str) -> bytes | None:
        self._answered.clear()
        self._frames.write(Recall(name=name))
        return self._recalled if self._answered.wait(RECALL_SECONDS) else None

    # The reading thread -----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        pieces: dict[str, bytes] = {}
        try:
            while (frame := self._frames.read()) is not None:
                body, parts = frame
                match body:
                    case Piece(identity=identity):
                        pieces[identity] = parts[0]
                    case Deliver(message=identity, pieces=wanted):
                        self._deliver(identity, {each: pieces.pop(each) for each in wanted})
                    case Recalled():
                        self._recalled = parts[0] if parts else None
                        self._answered.set()
        except (BrokenFrame, OSError):
            pass
        self._leave(0)  # the node has ended, or has closed the connection

    def _deliver(self, identity: str, contents: dict[str, bytes]) -> None:
        message = inflate_object_from_contents(identity, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = identity  # it is not part of the deflated message
        self._delivered[identity] = remove_content_from_message(message), time.monotonic()
        self.mailbox.put(message)
