"""A persistent Flower node: polls a SuperLink for messages, passes them to children, and uploads their replies.

It keeps polling while a child is busy, so that stop notices and fresh models reach the child during training. Every
message gets a reply: the app's, or an error that says what happened to the app.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from threading import Condition, Event
from typing import Any

from flwr.app import Error, Message
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from msgspec import Struct

from offbeat.core.errors import OffbeatError
from offbeat.flower.compat import (
    ErrorCode,
    ObjectTree,
    ProtoMessage,
    get_all_nested_objects,
    get_fused_config_from_fab,
    get_object_tree,
    iterate_object_tree,
    message_to_proto,
    remove_content_from_message,
)
from offbeat.flower.node.children import Child, ForkServer
from offbeat.flower.node.clocks import in_server_time
from offbeat.flower.node.connection import FleetConnection, NotRunning, SuperLinkAway, TurnedAway
from offbeat.flower.node.frames import (
    STATE,
    BrokenFrame,
    Deliver,
    FromChild,
    Keep,
    OpenApp,
    Piece,
    Recall,
    Recalled,
    Reply,
)
from offbeat.flower.node.storage import AppRefused, Installation, NodeStore

NodeConfig = dict[str, bool | float | int | str]
POLL_SHARE = 0.02
"""Polling interval as a fraction of the time since the last activity."""
LONGEST_PAUSE = 5.0
"""Longest backoff, in seconds, before retrying a SuperLink that does not answer."""
ATTEMPTS = 200
"""Attempts to upload a reply: about a quarter of an hour if the SuperLink is away."""
PIECE = 1000
"""Bytes counted for holding a piece, in addition to its content."""
RUNS = 4
"""Runs whose apps stay loaded; beyond that, the least recently used is unloaded."""


class Polling(Struct, frozen=True, kw_only=True):
    """Polling intervals of a node."""

    busy: float = 0.05
    """Polling interval while busy (seconds)."""
    work: float = 0.5
    """Longest polling interval while an app runs (seconds); it delays stop notices."""
    idle: float = 10.0
    """Longest polling interval when idle (seconds). A SuperLink handles at most about 1,000 nodes that poll every
    3 s."""

    def pause(self, quiet: float, at_work: bool) -> float:
        """The next polling interval after `quiet` seconds without activity.

        It grows, because a poll costs the SuperLink some milliseconds of CPU time.
        """
        longest = min(self.idle, self.work) if at_work else self.idle
        return max(self.busy, min(POLL_SHARE * quiet, longest))


class Unanswered(Struct, frozen=True, eq=False):
    """A message without a reply, and when it was received by this node's monotonic clock."""

    message: Message
    received: float


class WarmRun(Struct, kw_only=True, eq=False):
    """A run whose app is loaded on this node."""

    opening: OpenApp
    child: Child | None = None
    state: bytes | None = None
    """The state in the app's context, for the next child."""
    unanswered: dict[str, "Unanswered"] = {}
    pieces: dict[str, bytes] = {}
    """Pieces of replies that are not complete yet."""
    held: int = 0
    """Bytes of these pieces."""
    used: float = 0.0

    def hold(self, identity: str, piece: bytes) -> None:
        """Hold a piece until its reply is complete."""
        self.drop(identity)
        self.pieces[identity] = piece
        self.held += PIECE + len(piece)

    def drop(self, identity: str) -> bytes | None:
        """Remove a piece and return it; None if it has not arrived."""
        piece = self.pieces.pop(identity, None)
        if piece is not None:
            self.held -= PIECE + len(piece)
        return piece


class FinishedReply(Struct, kw_only=True, eq=False):
    """A reply that waits for upload."""

    run_id: int
    reply: bytes
    tree: bytes
    pieces: dict[str, bytes]
    seconds: float
    attempts: int = 0


class WarmNode:
    """A node that keeps apps loaded between messages.

    `run` is called by one thread; callbacks of children come from others.
    """

    def __init__(
        self,
        connection: FleetConnection,
        fork_server: ForkServer,
        installation: Installation,
        store: NodeStore,
        *,
        config: NodeConfig,
        polling: Polling,
        log: Callable[[str], None],
        answer_seconds: float | None = None,
        answer_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.connection = connection
        self.contact = -1.0
        """When the SuperLink last answered; negative: not yet."""
        self._fork_server = fork_server
        self._installation = installation
        self._store = store
        self._config = config
        self._polling = polling
        self._log = log
        self._answer_seconds = answer_seconds
        self._answer_bytes = _half_of_memory() if answer_bytes is None else answer_bytes
        self._clock = clock
        self._runs: dict[int, WarmRun] = {}
        self._arrived: tuple[Message, ObjectTree] | None = None
        """A message being processed. The SuperLink delivers it once, so it is kept until that has succeeded."""
        self._outbox: deque[FinishedReply] = deque()
        self._news = Condition()
        self._active_at = clock()
        """Time of the last activity."""

    # The loop ---------------------------------------------------------------------------------------------------------

    def run(self, stop: Event) -> None:
        """Serve until `stop` is set. Raises only if the SuperLink refuses this node."""
        connected, pause = False, self._polling.busy
        while not stop.is_set():
            try:
                if not connected or self.connection.forgotten:
                    self._connect()
                    connected = True
                self._turn()
                pause = self._polling.busy
            except SuperLinkAway as error:
                if pause == self._polling.busy:
                    self._log(f"{error}; trying again")
                pause = min(2.0 * pause, LONGEST_PAUSE)
                stop.wait(pause)
            except TurnedAway as error:
                if not connected:
                    raise
                self._log(f"{error}; reconnecting")
                connected = False
        self._close()

    def _connect(self) -> None:
        before, node_id = self.connection.node_id, self.connection.open()
        self._log(f"connected to {self.connection.superlink.address} as node {node_id}")
        if node_id != before:  # messages to the previous node id need no reply any more
            for run_id in list(self._runs):
                self._forget(run_id)
            self._outbox.clear()
            self._arrived = None

    def _turn(self) -> None:
        """Upload replies that are ready, then fetch the next message, or wait for the polling interval."""
        while self._outbox:
            self._upload(self._outbox[0])
            self._outbox.popleft()
        self._arrived = self._arrived or self.connection.receive()
        self.contact = self._clock()
        if self._arrived is not None:
            self._active_at = self._clock()
            self._take(*self._arrived)
            self._arrived = None
            return
        self._end_overdue()
        with self._news:
            at_work = any(run.unanswered for run in self._runs.values())
            self._news.wait_for(lambda: self._outbox, self._polling.pause(self._clock() - self._active_at, at_work))

    def _close(self) -> None:
        for run in self._runs.values():
            self._end_child(run)
        self.connection.close()

    # Messages ---------------------------------------------------------------------------------------------------------

    def _take(self, message: Message, tree: ObjectTree) -> None:
        """Pass a message to the child of its run."""
        run_id, identity = message.metadata.run_id, message.metadata.message_id
        try:
            run = self._runs.get(run_id) or self._warm(run_id)
            run.used = self._clock()
            child = run.child or self._fork_server.child(run.opening, run.state, self._on_frame, self._on_end)
            run.child = child
            run.unanswered[identity] = asked = Unanswered(message, self._clock())
            self._forward(child, run_id, identity, tree)
            if (
                run.child is not child and run.unanswered.pop(identity, None) is not None
            ):  # it ended before the message was sent
                self._answer_error(asked, ErrorCode.CLIENT_APP_CRASHED, "the app's process is gone")
        except NotRunning as error:
            self._log(f"run {run_id} has ended: {error}")
            self._forget(run_id)
        except AppRefused as error:
            self._log(f"run {run_id}: {error}")
            self._answer_error(Unanswered(message, self._clock()), ErrorCode.INVALID_FAB, str(error))
        except (SuperLinkAway, TurnedAway):
            raise
        except OffbeatError as error:
            self._log(f"run {run_id}: {error}")
            if (found := self._runs.get(run_id)) is not None:
                found.unanswered.pop(identity, None)
            self._answer_error(Unanswered(message, self._clock()), ErrorCode.CLIENT_APP_CRASHED, str(error))

    def _forward(self, child: Child, run_id: int, message: str, tree: ObjectTree) -> None:
        """Fetch the pieces of a message and pass each to the child at once: the node never holds a whole model."""
        pieces = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
        for identity in pieces:
            while (content := self.connection.pull_object(run_id, identity)) is None:
                time.sleep(self._polling.busy)  # the sender is still uploading it
            child.tell(Piece(identity=identity), content)
        child.tell(Deliver(message=message, pieces=pieces))
        with suppress(SuperLinkAway):  # then it keeps the content for longer
            self.connection.confirm(run_id, message)

    def _warm(self, run_id: int) -> WarmRun:
        """Fetch, verify and unpack the app of a new run."""
        details = self.connection.run(run_id)
        app = self.connection.app(details)
        directory = self._installation.install(details, app)
        config: Any = get_fused_config_from_fab(app.content, details)
        opening = OpenApp(
            run_id=run_id,
            node_id=self.connection.node_id,
            series_id=details.series_id,
            node_config=self._config,
            run_config=config,
            app_id=details.fab_id,
            app_version=details.fab_version,
            app_hash=details.fab_hash,
            directory=str(directory),
        )
        self._log(f"run {run_id}: {details.fab_id} {details.fab_version}")
        unused = sorted((run.used, old) for old, run in self._runs.items() if not run.unanswered)
        for _, old in unused[: max(0, len(self._runs) - RUNS + 1)]:
            self._forget(old)
        run = self._runs[run_id] = WarmRun(opening=opening)
        return run

    def _upload(self, answer: FinishedReply) -> None:
        self._active_at = self._clock()
        try:
            self.connection.push(answer.reply, answer.tree, answer.pieces, answer.seconds)
        except NotRunning:
            self._forget(answer.run_id)
        except SuperLinkAway as error:
            answer.attempts += 1
            if answer.attempts < ATTEMPTS:
                raise
            self._log(f"run {answer.run_id}: reply dropped after {answer.attempts} attempts: {error}")

    def _answer_error(self, asked: Unanswered, code: int, reason: str) -> None:
        message = asked.message
        reply = Message(Error(code, reason), reply_to=message)
        in_server_time(reply, message, self._clock() - asked.received)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self._post(
            FinishedReply(
                run_id=message.metadata.run_id,
                reply=message_to_proto(remove_content_from_message(reply)).SerializeToString(),
                tree=get_object_tree(reply).SerializeToString(),
                pieces={identity: each.deflate() for identity, each in get_all_nested_objects(reply).items()},
                seconds=0.0,
            )
        )

    def _post(self, answer: FinishedReply) -> None:
        with self._news:
            self._outbox.append(answer)
            self._news.notify_all()

    # Children ---------------------------------------------------------------------------------------------------------

    def _on_frame(self, child: Child, body: FromChild, parts: list[bytes]) -> None:
        """Handle a frame of a child (called in the child's reading thread)."""
        run = self._run_of(child)
        if run is None:
            return
        match body:
            case Piece(identity=identity):
                run.hold(identity, parts[0])
                if run.held > self._answer_bytes:
                    self._log(f"run {run.opening.run_id}: the app's process sends more than this node has memory for")
                    raise BrokenFrame("too many pieces")  # ends reading, and so the child
            case Reply(reply_to=reply_to, pieces=pieces, seconds=seconds):
                found = {each: piece for each in pieces if (piece := run.drop(each)) is not None}
                asked, run_id = run.unanswered.get(reply_to), run.opening.run_id
                if asked is None:
                    return  # it has a reply already
                if not _answers(asked.message, parts[0], parts[1], found):
                    self._log(f"run {run_id}: the app's process sent an invalid reply")
                    child.kill()
                    return
                del run.unanswered[reply_to]
                self._post(FinishedReply(run_id=run_id, reply=parts[0], tree=parts[1], pieces=found, seconds=seconds))
            case Keep(name=name):
                if name == STATE:
                    run.state = parts[0]
                else:
                    self._store.keep(name, parts[0])
            case Recall(name=name):
                kept = self._store.recall(name)
                child.tell(Recalled(name=name), *([] if kept is None else [kept]))

    def _on_end(self, child: Child, why: str) -> None:
        """Reply with errors to the messages of a child that has ended (called in the fork server's thread)."""
        run = self._run_of(child)
        if run is None:
            return
        run.child = None
        run.pieces.clear()
        run.held = 0
        unanswered, run.unanswered = run.unanswered, {}
        self._log(f"run {run.opening.run_id}: the app's process is gone: {why}")
        for asked in unanswered.values():
            self._answer_error(asked, ErrorCode.CLIENT_APP_CRASHED, f"the app's process is gone: {why}")

    def _run_of(self, child: Child) -> WarmRun | None:
        return next((run for run in list(self._runs.values()) if run.child is child), None)

    def _end_overdue(self) -> None:
        """End children whose response timeout has passed.

        It counts from receipt on this node's monotonic clock: the clocks of node and SuperLink may differ by hours.
        """
        now = self._clock()
        for run in self._runs.values():
            for asked in list(run.unanswered.values()):
                lives, waited = asked.message.metadata.ttl, now - asked.received
                timeout = lives if self._answer_seconds is None else min(lives, self._answer_seconds)
                if run.child is not None and waited > timeout:
                    self._log(f"run {run.opening.run_id}: no reply from the app after {waited:.0f} s")
                    run.child.kill()
                    break

    def _forget(self, run_id: int) -> None:
        run = self._runs.pop(run_id, None)
        if run is not None:
            self._end_child(run)

    def _end_child(self, run: WarmRun) -> None:
        child, run.child = run.child, None
        if child is not None:
            child.kill()


def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _answers(asked: Message, reply: bytes, tree: bytes, pieces: Collection[str]) -> bool:
    """Whether this is a complete reply to the message. Bytes from an app's process are not trusted."""
    try:
        said = ProtoMessage.FromString(reply).metadata
        objects = {each.object_id for each in iterate_object_tree(ObjectTree.FromString(tree))}
    except DecodeError:
        return False
    meant = asked.metadata
    return (said.run_id, said.reply_to_message_id) == (meant.run_id, meant.message_id) and objects <= set(pieces)
