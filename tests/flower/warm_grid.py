"""A grid of warm nodes without processes: each node is a thread with a mailbox, and the clock is the real one."""

import time
from collections.abc import Iterable
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from loopback import LoopbackGrid, run_config, server_parts

from offbeat.experiment.schema import Experiment
from offbeat.flower.device.app import experiment_client_app
from offbeat.flower.device.mailbox import Mailbox, open_mailbox
from offbeat.flower.protocol.codec import unpack
from offbeat.flower.protocol.messages import ToDevice
from offbeat.flower.server.app import serve


class WarmThread:
    """A warm node: takes messages one at a time, but for those that its app takes itself."""

    def __init__(self, number: int, config: dict[str, Any], kept: dict[str, bytes]) -> None:
        self.answers: dict[str, Message] = {}
        self._lock = Lock()
        self.mailbox = Mailbox(self._answer, kept.__setitem__, kept.get)
        context = Context(
            run_id=1,
            node_id=number,
            node_config={"partition-id": number - 100},
            state=RecordDict(),
            run_config=config,
            series_id=1,
        )
        Thread(target=self._serve, args=(context,), daemon=True).start()

    def _serve(self, context: Context) -> None:
        open_mailbox(self.mailbox)
        app = experiment_client_app()
        while (message := self.mailbox.take(None)) is not None:
            self._answer(app(message, context))

    def _answer(self, reply: Message) -> None:
        with self._lock:
            self.answers[reply.metadata.reply_to_message_id] = reply

    def taken(self, identities: set[str]) -> list[Message]:
        with self._lock:
            return [self.answers.pop(each) for each in identities & set(self.answers)]


class WarmGrid:
    """Nodes 100, 101, ... are warm; those of another grid, which has their numbers, only reply."""

    def __init__(self, warm: int, config: dict[str, Any], stock: LoopbackGrid | None = None) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.kept: dict[int, dict[str, bytes]] = {number: {} for number in range(100, 100 + warm)}
        self.nodes = {number: WarmThread(number, config, self.kept[number]) for number in self.kept}
        self.stock = stock
        self.sent: list[tuple[int, Any]] = []

    def get_node_ids(self) -> Iterable[int]:
        return [*self.nodes, *([] if self.stock is None else self.stock.get_node_ids())]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities: list[str] = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.sent.append((node, unpack(message.content, ToDevice)))
            if node not in self.nodes:
                assert self.stock is not None
                identities += self.stock.push_messages([message])
                continue
            identity = f"warm-{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = identity
            self.nodes[node].mailbox.put(message)
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        found = [message for node in self.nodes.values() for message in node.taken(wanted)]
        if self.stock is not None:
            self.stock.now = time.monotonic()
            found += self.stock.pull_messages(each for each in wanted if not each.startswith("warm-"))
        return found

    def kinds(self, node: int) -> list[str]:
        """What a node was sent, by name."""
        return [type(body).__name__ for number, body in self.sent if number == node]


def deploy_warm(experiment: Experiment, grid: WarmGrid, out: Path, *, resume: bool = False) -> None:
    """A whole run on these nodes."""
    serve(grid, experiment, server_parts(experiment), out, resume=resume)  # type: ignore[arg-type]


def warm_grid(experiment: Experiment, warm: int, stock: int = 0) -> WarmGrid:
    """So many warm nodes, and then so many that only reply."""
    others = None
    if stock:
        delays = dict.fromkeys(range(100 + warm, 100 + warm + stock), 0.05)
        others = LoopbackGrid(delays, run_config(experiment))
        others.now = time.monotonic()
    return WarmGrid(warm, run_config(experiment), others)
