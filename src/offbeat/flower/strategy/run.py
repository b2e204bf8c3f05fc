"""The driver of a run on client apps of Flower's: the server's own, with evaluation on the nodes beside it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from msgspec import Struct

from offbeat.core.errors import DeviceFault, InvalidInput
from offbeat.core.parameters import Vector
from offbeat.core.session import Session
from offbeat.core.streams import stream
from offbeat.flower.protocol.codec import one_line
from offbeat.flower.server.driver import MOMENT, Deployment
from offbeat.flower.server.membership import Membership, poll_pause
from offbeat.flower.server.transport import OutgoingMessage, SentMessage, Transport
from offbeat.flower.strategy.records import (
    Aggregate,
    Evaluate,
    FlowerRecords,
    Metrics,
    aggregated,
    metrics_of,
    weight_of,
)
from offbeat.results.rows import RUN_COLUMNS, Row
from offbeat.running.directory import RunRecord
from offbeat.training.training_state import Evaluation

LONGEST_WAIT = 3600.0
"""The most seconds that are waited at a time, for grids whose waits end by themselves when something happens."""


# Evaluation -----------------------------------------------------------------------------------------------------------


class Evaluators(Struct, frozen=True, kw_only=True):
    """How many nodes evaluate a version, how long they are waited for, and what is made of their answers."""

    share: float
    """The share of the connected nodes that evaluate; 0: nobody does."""
    least: int
    seconds: float
    weight: str
    aggregate: Aggregate
    evaluated: Callable[[int, Metrics], None] = lambda version, metrics: None
    """Called with what the evaluations of a version come to."""

    def number(self, nodes: int) -> int:
        """How many of so many nodes evaluate."""
        return min(nodes, max(int(nodes * self.share), self.least)) if self.share else 0


class ServerEvaluation:
    """The user's `evaluate_fn` as the driver's evaluator; what it returned, by version."""

    def __init__(
        self,
        function: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        session: Session,
        records: FlowerRecords,
        target_metric: str | None,
    ) -> None:
        self.metrics: dict[int, Metrics] = {}
        self._function = function
        self._session = session
        self._records = records
        self._target_metric = target_metric

    def __call__(self, parameters: Vector) -> Evaluation:
        """The figures of the present version that a row of metrics can have."""
        version = self._session.version
        found = None if self._function is None else self._function(version, self._records.arrays(parameters))
        if found is None:
            return Evaluation(metrics={})
        self.metrics[version] = dict(found)
        if self._target_metric is not None and self._target_metric not in found:
            raise InvalidInput(
                f"target_metric = {self._target_metric!r}: evaluate_fn measures {', '.join(map(repr, found))}"
            )
        figures = {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
        return Evaluation(metrics={name: value for name, value in figures.items() if name not in RUN_COLUMNS})


class NodeEvaluation:
    """All evaluations of a run. A ticket stands for a version here."""

    def __init__(self, transport: Transport, evaluators: Evaluators, seed: int, log: Callable[[str], None]) -> None:
        self.metrics: dict[int, Metrics] = {}
        """The metrics of each version that was evaluated on nodes."""
        self._transport = transport
        self._evaluators = evaluators
        self._random = stream(seed, "nodes that evaluate")
        self._log = log
        self._answers: dict[int, list[Metrics]] = {}
        """The answers so far, by version, for versions whose evaluation is not complete."""

    @property
    def waiting(self) -> bool:
        """Whether an answer may still come in time."""
        return bool(self._answers)

    @property
    def next_deadline(self) -> float:
        """When the next node is given up; infinite if none will be."""
        return self._transport.next_deadline()

    def begin(self, version: int, parameters: Vector, nodes: Iterable[int], now: float) -> None:
        """Send a version to some of these nodes."""
        there = sorted(nodes)
        busy = {sent.node for sent in self._transport.waiting.values()}
        free = [node for node in there if node not in busy]
        wanted = min(len(free), self._evaluators.number(len(there)))
        if not wanted:
            return
        self._answers[version] = []
        for place in sorted(self._random.choice(len(free), size=wanted, replace=False).tolist()):
            deadline = now + self._evaluators.seconds
            sent = SentMessage(node=free[place], at=now, deadline=deadline, ticket=version)
            self._transport.send(sent, Evaluate(version=version), parameters)

    def collect(self, online: Iterable[int], now: float) -> None:
        """Take in what has come, give up what will not, and put together what is complete."""
        for arrived in self._transport.poll():
            version, node = arrived.sent.ticket, arrived.sent.node
            if version not in self._answers or arrived.sent.given_up:
                continue
            try:
                if arrived.content is None:
                    raise DeviceFault(arrived.error)
                weight_of(arrived.content, self._evaluators.weight)
                self._answers[version].append(metrics_of(arrived.content))
            except DeviceFault as fault:
                self._log(one_line(f"node {node} did not evaluate version {version}: {fault}"))
        for sent in self._transport.give_up_overdue(now):
            self._log(f"node {sent.node} did not evaluate version {sent.ticket} within {now - sent.at:.0f} s")
        there = set(online)
        for node in {sent.node for sent in self._transport.waiting.values()} - there:
            self._transport.drop(node)
        open_versions = {sent.ticket for sent in self._transport.waiting.values() if not sent.given_up}
        for version in [version for version in self._answers if version not in open_versions]:
            answers = self._answers.pop(version)
            evaluators = self._evaluators
            found = aggregated(answers, evaluators.aggregate, evaluators.weight, self._log) if answers else None
            if found is not None:
                self.metrics[version] = found
                evaluators.evaluated(version, found)

    def snapshot(self) -> Any:
        """What was measured; evaluations under way are lost when a run goes on."""
        return {"metrics": self.metrics, "random": dict(self._random.bit_generator.state)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self.metrics, self._random.bit_generator.state = saved["metrics"], saved["random"]


# The driver -----------------------------------------------------------------------------------------------------------


class ConnectedNodes(Membership):
    """Every node that is connected is a device, as long as there are numbers left."""

    __slots__ = ()

    def greetings(self, nodes: Iterable[int], busy: Callable[[int], bool], now: float) -> list[OutgoingMessage]:
        """The greetings of new nodes, as long as there are numbers left."""
        new = sorted(node for node in nodes if node not in self.device_of)
        return super().greetings(new[: self.devices - len(self.node_of)], busy, now)


class StrategyRun(Deployment):
    """A run whose versions are also evaluated on the nodes. It has ended when the last evaluation has."""

    __slots__ = ("_wakes", "evaluation", "record", "server_evaluation")

    def __init__(
        self,
        session: Session,
        transport: Transport,
        membership: Membership,
        on_server: ServerEvaluation,
        *,
        evaluation: NodeEvaluation,
        record: RunRecord,
        wakes: bool,
        **settings: Any,
    ) -> None:
        """`wakes` says that waiting ends by itself when an answer comes or a node comes or goes, so it may be long."""
        super().__init__(session, transport, membership, on_server, record=record, **settings)
        self._wakes = wakes
        self.record = record
        self.evaluation = evaluation
        self.server_evaluation = on_server

    def __iter__(self) -> Iterator[Row | None]:
        for row in super().__iter__():
            self._evaluate_on_nodes(row)
            yield row
        while self.evaluation.waiting:
            self.now = self._time()
            self.evaluation.collect(self._transport.nodes(), self.now)
            if self.evaluation.waiting:
                self._sleep(max(MOMENT, self._longest_pause()))
            yield None

    def _evaluate_on_nodes(self, row: Row | None) -> None:
        if self.evaluation.waiting:
            self.evaluation.collect(self._membership.device_of, self.now)
        if row is not None and self.session.version:
            self.evaluation.begin(self.session.version, self.session.parameters, self._membership.device_of, self.now)

    def _longest_pause(self) -> float:
        """Until an evaluation is overdue, or it is time to look again: nobody knows which nodes are warm."""
        due = self.evaluation.next_deadline - self.now
        if self._wakes:
            self._saw_nodes = -inf  # the wait also ends when a node connects or disconnects
            return min(due, LONGEST_WAIT)
        return min(due, poll_pause(self.now - self._stirred))

    def snapshot(self) -> dict[str, Any]:
        """The snapshot of the driver, with what was measured on the nodes."""
        measured = {"evaluation": self.evaluation.snapshot(), "server_metrics": self.server_evaluation.metrics}
        return super().snapshot() | measured

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        super().restore(saved)
        self.evaluation.restore(saved["evaluation"])
        self.server_evaluation.metrics = saved["server_metrics"]
