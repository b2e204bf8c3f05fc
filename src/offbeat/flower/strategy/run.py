"""The driver of a run on stock client apps: that of `flower.server`, and the evaluation of versions.

A version is evaluated by a user's function on the server, and on some of the nodes while training goes on. Only the end
of the run waits for evaluations. A node that has not replied to its last evaluation gets no other one; a version for
which no node is free is not evaluated on the nodes.
"""

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
"""Longest wait in seconds on a grid whose waits end when something happens."""


# Evaluation -----------------------------------------------------------------------------------------------------------


class Evaluators(Struct, frozen=True, kw_only=True):
    """How many nodes evaluate a version, their timeout, and how their metrics are aggregated."""

    share: float
    """The share of the connected nodes that evaluate; 0: none."""
    least: int
    seconds: float
    weight: str
    aggregate: Aggregate
    evaluated: Callable[[int, Metrics], None] = lambda version, metrics: None
    """Called with the aggregated metrics of a version."""

    def number(self, nodes: int) -> int:
        """The number of nodes that evaluate, of `nodes` connected ones."""
        return min(nodes, max(int(nodes * self.share), self.least)) if self.share else 0


class ServerEvaluation:
    """The user's `evaluate_fn` as the driver's evaluator, with its metrics by version."""

    __slots__ = ("_function", "_records", "_session", "_target_metric", "metrics")

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
        """Evaluate the current version; return its metrics that are numbers."""
        version = self._session.version
        found = None if self._function is None else self._function(version, self._records.arrays(parameters))
        if found is None:
            return Evaluation(metrics={})
        self.metrics[version] = dict(found)
        if self._target_metric is not None and self._target_metric not in found:
            raise InvalidInput(
                f"target_metric = {self._target_metric!r}: evaluate_fn returns {', '.join(map(repr, found))}"
            )
        figures = {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
        return Evaluation(metrics={name: value for name, value in figures.items() if name not in RUN_COLUMNS})


class NodeEvaluation:
    """The evaluations of a run on its nodes. The ticket of a message is the version that it evaluates."""

    __slots__ = ("_evaluators", "_log", "_random", "_replies", "_transport", "metrics")

    def __init__(self, transport: Transport, evaluators: Evaluators, seed: int, log: Callable[[str], None]) -> None:
        self.metrics: dict[int, Metrics] = {}
        """The aggregated metrics, by version."""
        self._transport = transport
        self._evaluators = evaluators
        self._random = stream(seed, "nodes that evaluate")
        self._log = log
        self._replies: dict[int, list[Metrics]] = {}
        """The metrics received so far, by version, while replies are awaited."""

    @property
    def waiting(self) -> bool:
        """Whether a reply may still come in time."""
        return bool(self._replies)

    @property
    def next_deadline(self) -> float:
        """The earliest deadline of an evaluation; infinite if there is none."""
        return self._transport.next_deadline()

    def begin(self, version: int, parameters: Vector, nodes: Iterable[int], now: float) -> None:
        """Send a version to some of these nodes, drawn at random from those that are free."""
        there = sorted(nodes)
        busy = {sent.node for sent in self._transport.waiting.values()}
        free = [node for node in there if node not in busy]
        wanted = min(len(free), self._evaluators.number(len(there)))
        if not wanted:
            return
        self._replies[version] = []
        for position in sorted(self._random.choice(len(free), size=wanted, replace=False).tolist()):
            deadline = now + self._evaluators.seconds
            sent = SentMessage(node=free[position], at=now, deadline=deadline, ticket=version)
            self._transport.send(sent, Evaluate(version=version), parameters)

    def collect(self, online: Iterable[int], now: float) -> None:
        """Read replies, give up overdue ones, and aggregate the metrics of versions for which none is awaited."""
        for arrived in self._transport.poll():
            version, node = arrived.sent.ticket, arrived.sent.node
            if version not in self._replies or arrived.sent.given_up:
                continue
            try:
                if arrived.content is None:
                    raise DeviceFault(arrived.error)
                weight_of(arrived.content, self._evaluators.weight)
                self._replies[version].append(metrics_of(arrived.content))
            except DeviceFault as fault:
                self._log(one_line(f"node {node} did not evaluate version {version}: {fault}"))
        for sent in self._transport.give_up_overdue(now):
            self._log(f"node {sent.node} did not evaluate version {sent.ticket} within {now - sent.at:.0f} s")
        there = set(online)
        for node in {sent.node for sent in self._transport.waiting.values()} - there:
            self._transport.drop(node)
        open_versions = {sent.ticket for sent in self._transport.waiting.values() if not sent.given_up}
        for version in [version for version in self._replies if version not in open_versions]:
            replies = self._replies.pop(version)
            evaluators = self._evaluators
            found = aggregated(replies, evaluators.aggregate, evaluators.weight, self._log) if replies else None
            if found is not None:
                self.metrics[version] = found
                evaluators.evaluated(version, found)

    def snapshot(self) -> Any:
        """The metrics so far. Evaluations in progress are lost when a run is resumed."""
        return {"metrics": self.metrics, "random": dict(self._random.bit_generator.state)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self.metrics, self._random.bit_generator.state = saved["metrics"], saved["random"]


# The driver -----------------------------------------------------------------------------------------------------------


class ConnectedNodes(Membership):
    """Every connected node is a device, as long as there are free numbers."""

    __slots__ = ()

    def greetings(self, nodes: Iterable[int], busy: Callable[[int], bool], now: float) -> list[OutgoingMessage]:
        """The greetings of new nodes, as long as there are free numbers."""
        new = sorted(node for node in nodes if node not in self.device_of)
        return super().greetings(new[: self.devices - len(self.node_of)], busy, now)


class StrategyRun(Deployment):
    """A run whose versions are also evaluated on the nodes. It ends after the last evaluation."""

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
        """`wakes`: a wait ends when a reply arrives or a node connects or disconnects, so it may be long."""
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
        """Seconds until an evaluation is overdue or it is time to poll. Which nodes are persistent is not known."""
        due = self.evaluation.next_deadline - self.now
        if self._wakes:
            self._saw_nodes = -inf  # the wait also ends when a node connects or disconnects
            return min(due, LONGEST_WAIT)
        return min(due, poll_pause(self.now - self._stirred))

    def snapshot(self) -> dict[str, Any]:
        """The snapshot of the driver, with the metrics of both evaluations."""
        measured = {"evaluation": self.evaluation.snapshot(), "server_metrics": self.server_evaluation.metrics}
        return super().snapshot() | measured

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        super().restore(saved)
        self.evaluation.restore(saved["evaluation"])
        self.server_evaluation.metrics = saved["server_metrics"]
