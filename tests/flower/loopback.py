"""A grid without processes: the real apps and the real codec, each node's reply after a delay of a virtual clock."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from offbeat.experiment.schema import Experiment
from offbeat.flower.device.app import experiment_client_app
from offbeat.flower.server.app import ServerParts, serve
from offbeat.running.assembly import ExperimentParts

Tamper = Callable[[int, Message, Message], Message | Error | None]
"""What becomes of a reply: (node, question, reply) -> another reply, an error, or None if it is lost."""


@dataclass
class LoopbackGrid:
    """Nodes 100, 101, ... with `partition-id` 0, 1, ...; `delays[k]` is how long node k takes to reply."""

    delays: dict[int, float]
    run_config: dict[str, Any]
    app: ClientApp = field(default_factory=experiment_client_app)
    joins: dict[int, float] = field(default_factory=dict)
    leaves: dict[int, float] = field(default_factory=dict)
    tamper: Tamper | None = None
    named: bool = True
    """Whether nodes say their `partition-id`."""
    names: dict[int, str] = field(default_factory=dict)
    """Names that nodes say."""
    now: float = 0.0
    spent: float = 0.0
    """What the node that is at work has slept: only a device with the clock below (`virtual`) sleeps here."""
    messages: int = 0

    def __post_init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # what Flower sets in its processes
        self._contexts = {node: self._context(node) for node in self.delays}
        self._answers: dict[str, tuple[float, int, Message]] = {}

    def _context(self, node: int) -> Context:
        config: UserConfig = {"partition-id": node - 100} if self.named else {}
        if node in self.names:
            config["name"] = self.names[node]
        return Context(
            run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config=self.run_config, series_id=1
        )

    # A clock

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def virtual(self) -> "LoopbackGrid":
        """With devices that go by this clock too: training takes no time but what their pace says."""
        self.app = experiment_client_app(clock=lambda: self.now + self.spent, sleep=self._work)
        return self

    def _work(self, seconds: float) -> None:
        self.spent += seconds

    # A grid

    def get_node_ids(self) -> Iterable[int]:
        return [
            node for node in self.delays if self.joins.get(node, 0.0) <= self.now < self.leaves.get(node, float("inf"))
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            self.messages += 1
            identity, node = f"message-{self.messages}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = identity
            message.metadata.__dict__["_src_node_id"] = 1
            self.spent = 0.0
            answer: Message | Error | None = self.app(message, self._contexts[node])
            assert isinstance(answer, Message)
            if self.tamper is not None:
                answer = self.tamper(node, message, answer)
            if isinstance(answer, Error):
                answer = Message(answer, reply_to=message)
            if answer is not None:
                self._answers[identity] = (self.now + self.spent + self.delays[node], node, answer)
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        there = set(self.get_node_ids())
        waiting = [(identity, *self._answers[identity]) for identity in message_ids if identity in self._answers]
        due = [identity for identity, at, node, _ in waiting if at <= self.now and node in there]
        return [self._answers.pop(identity)[2] for identity in due]


def server_parts(experiment: Experiment) -> ServerParts:
    """What the server of an experiment has beside it."""
    parts = ExperimentParts.of(experiment)
    return ServerParts(
        network=parts.network,
        test=(parts.dataset.test_x, parts.dataset.test_y),
        samples=parts.partition.sizes,
        parts=parts,
    )


def deploy(experiment: Experiment, grid: LoopbackGrid, out: Path, *, resume: bool = False) -> None:
    """A whole run on the loopback grid."""
    serve(grid, experiment, server_parts(experiment), out, resume=resume, clock=grid.clock, sleep=grid.sleep)  # type: ignore[arg-type]


def run_config(experiment: Experiment) -> dict[str, Any]:
    return {"experiment": json.dumps(experiment.table())}
