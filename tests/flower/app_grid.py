"""Client apps of Flower's that know nothing of offbeat, on a grid in this process with a virtual clock of its own."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity


def adding_app(steps: Mapping[int, float], samples: Mapping[int, float] | None = None) -> ClientApp:
    """A client app that adds a number of its node's own to every element, and evaluates to the mean of the model."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        node = context.node_id
        arrays = [array.numpy() for array in message.content.array_records["arrays"].values()]
        names = list(message.content.array_records["arrays"])
        moved = [array + np.asarray(steps.get(node, 1.0)).astype(array.dtype) for array in arrays]
        content = {
            "arrays": ArrayRecord({name: Array(np.asarray(array)) for name, array in zip(names, moved, strict=True)}),
            "metrics": MetricRecord({"train_loss": float(node), "num-examples": (samples or {}).get(node, 10)}),
        }
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        mean = np.mean([array.numpy().mean() for array in message.content.array_records["arrays"].values()])
        metrics = MetricRecord({"mean": float(mean), "num-examples": (samples or {}).get(context.node_id, 10)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@dataclass
class AppGrid:
    """Nodes 0, 1, ... each of which takes `delays[node]` seconds for a training and nothing for an evaluation.

    A node works on one message at a time. It keeps the contract of `offbeat.flower.server.transport`.
    """

    delays: dict[int, float]
    app: ClientApp
    joins: dict[int, float] = field(default_factory=dict)
    leaves: dict[int, float] = field(default_factory=dict)
    tamper: Callable[[int, Message, Message], Message | Error | None] | None = None
    sent: list[Message] = field(default_factory=list)
    time: float = 0.0

    def __post_init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # what Flower sets in its processes
        self._contexts = {
            node: Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={}, series_id=1)
            for node in self.delays
        }
        self._free = dict.fromkeys(self.delays, 0.0)
        self._answers: dict[str, tuple[float, int, Message]] = {}

    def now(self) -> float:
        return self.time

    def wait(self, seconds: float) -> None:
        changes = [at for at in (*self.joins.values(), *self.leaves.values()) if at > self.time]
        answers = [at for at, _, _ in self._answers.values() if at > self.time]
        until = min([self.time + seconds, *changes, *answers])
        assert until < inf, "nothing will ever happen"
        self.time = until

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.delays if self.joins.get(node, 0.0) <= self.time < self.leaves.get(node, inf)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._answered(message) for message in messages]

    def _answered(self, message: Message) -> str:
        self.sent.append(message)
        identity, node = f"message-{len(self.sent)}", message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = identity
        message.metadata.__dict__["_src_node_id"] = 1
        answer: Any
        try:
            answer = self.app(message, self._contexts[node])
        except Exception as error:  # as a node of Flower's does
            answer = Error(2, f"{type(error)}:<'{error}'>")
        if self.tamper is not None and isinstance(answer, Message):
            answer = self.tamper(node, message, answer)
        if isinstance(answer, Error):
            answer = Message(answer, reply_to=message)
        works = self.delays[node] if message.metadata.message_type.startswith("train") else 0.0
        self._free[node] = max(self.time, self._free[node]) + works
        if answer is not None:
            self._answers[identity] = (self._free[node], node, answer)
        return identity

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        there, wanted = set(self.get_node_ids()), set(message_ids)
        due = sorted(
            (at, int(identity.removeprefix("message-")), identity)
            for identity, (at, node, _) in self._answers.items()
            if identity in wanted and at <= self.time and node in there
        )
        return [self._answers.pop(identity)[2] for _, _, identity in due]
