"""The driver of a run on stock client apps: that of `flower.server`, and the evaluation of versions.

A version is evaluated by a user's function on the server, and by a panel of nodes while training goes on. The panel is
drawn once, so that versions are evaluated by the same nodes as long as these are connected. It evaluates one version at
a time, and then the newest. The last version is always evaluated; only the end of the run waits for that.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from flwr.app import ArrayRecord, MetricRecord
from msgspec import Struct

from offbeat.core.errors import DeviceFault, InvalidInput
from offbeat.core.parameters import Vector
from offbeat.core.session import Session
from offbeat.core.streams import stream
from offbeat.flower.protocol.codec import fault_boundary, one_line
from offbeat.flower.server.driver import MOMENT, Deployment
from offbeat.flower.server.membership import Membership, poll_pause
from offbeat.flower.server.transport import OutgoingMessage, ReceivedReply, SentMessage, Transport
from offbeat.flower.strategy.records import (
    Aggregate,
    Evaluate,
    FlowerRecords,
    Metrics,
    aggregated,
    metrics_of,
    weight_of,
)
from offbeat.results.rows import RUN_COLUMNS, Row, evaluator_columns
from offbeat.running.directory import RunRecord
from offbeat.training.training_state import Evaluation

STOPPED = "on_version"
"""Why a run ended that a hook has stopped."""
LONGEST_WAIT = 3600.0
"""Longest wait in seconds on a grid whose waits end when something happens."""


# Evaluation -----------------------------------------------------------------------------------------------------------


def numbers_in(metrics: Mapping[str, Any]) -> Row:
    """The metrics that a row can hold: single numbers whose names are not columns of every row."""
    figures = {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
    return {name: value for name, value in figures.items() if name not in RUN_COLUMNS}


class Evaluators(Struct, frozen=True, kw_only=True):
    """How many nodes evaluate a version, their timeout, and how their metrics are aggregated."""

    share: float
    """The share of the connected nodes that evaluate; 0: none."""
    least: int
    seconds: float
    weight: str
    aggregate: Aggregate

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

    @property
    def central(self) -> bool:
        """Whether there is such a function."""
        return self._function is not None

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
        return Evaluation(metrics=numbers_in(found))


class VersionReport(Struct, kw_only=True):
    """What is known of a version: when it was made, from what, and its metrics."""

    version: int
    row: Row
    """Counts of the run when the version was made."""
    train: Metrics | None = None
    """Aggregated metrics of the updates used for it."""
    server: Metrics | None = None
    """What `evaluate_fn` returned."""
    clients: Metrics | None = None
    """Aggregated metrics of the nodes that evaluated it."""
    evaluators: dict[int, int] = {}
    """Number of samples of each node that evaluated it."""


@dataclass
class OpenEvaluation:
    """A version that nodes are evaluating."""

    report: VersionReport
    parameters: Vector
    replies: dict[int, Metrics] = field(default_factory=dict)
    """The metrics received so far, by node."""


class NodeEvaluation:
    """The evaluations of a run by its panel of nodes. The ticket of a message is the version that it evaluates."""

    __slots__ = ("_evaluators", "_log", "_open", "_panel", "_random", "_transport", "_waiting", "metrics")

    def __init__(self, transport: Transport, evaluators: Evaluators, seed: int, log: Callable[[str], None]) -> None:
        self.metrics: dict[int, Metrics] = {}
        """The aggregated metrics, by version."""
        self._transport = transport
        self._evaluators = evaluators
        self._random = stream(seed, "nodes that evaluate")
        self._log = log
        self._panel: list[int] = []
        """The nodes that evaluate, the first drawn first."""
        self._open: OpenEvaluation | None = None
        self._waiting: OpenEvaluation | None = None
        """The newest version that is due, until the panel is free."""

    @property
    def evaluates(self) -> bool:
        """Whether nodes evaluate versions at all."""
        return self._evaluators.share > 0.0

    @property
    def waiting(self) -> bool:
        """Whether a reply may still come in time."""
        return self._open is not None

    @property
    def next_deadline(self) -> float:
        """The earliest deadline of an evaluation; infinite if there is none."""
        return self._transport.next_deadline()

    def due(self, report: VersionReport, parameters: Vector) -> None:
        """Have the panel evaluate this version as soon as it is free; a version that waits is dropped for it."""
        if self.evaluates:
            self._waiting = OpenEvaluation(report, parameters)

    def begin(self, nodes: Iterable[int], now: float) -> None:
        """Send the version that is due to the panel, if it has evaluated the one before."""
        if self._waiting is None or self._open is not None:
            return
        chosen = self._chosen(sorted(nodes))
        if not chosen:
            return
        self._open, self._waiting = self._waiting, None
        version = self._open.report.version
        for node in sorted(chosen):
            sent = SentMessage(node=node, at=now, deadline=now + self._evaluators.seconds, ticket=version)
            self._transport.send(sent, Evaluate(version=version), self._open.parameters)

    def _chosen(self, there: list[int]) -> list[int]:
        """The first members of the panel that are connected, with new ones drawn if they are too few."""
        wanted = self._evaluators.number(len(there))
        if missing := wanted - len(set(self._panel) & set(there)):
            others = [node for node in there if node not in self._panel]
            places = self._random.permutation(len(others))[: max(0, missing)]
            self._panel += [others[place] for place in places]
        silent = {sent.node for sent in self._transport.waiting.values()}
        connected = [node for node in self._panel if node in there][:wanted]
        return [node for node in connected if node not in silent]

    def collect(self, online: Iterable[int], now: float) -> VersionReport | None:
        """Read replies and give up overdue ones; return the version whose evaluation is complete, if there is one."""
        for arrived in self._transport.poll():
            version, node = arrived.sent.ticket, arrived.sent.node
            if self._open is None or version != self._open.report.version or arrived.sent.given_up:
                continue
            try:
                if arrived.content is None:
                    raise DeviceFault(arrived.error)
                with fault_boundary():
                    self._open.report.evaluators[node] = weight_of(arrived.content, self._evaluators.weight)
                    self._open.replies[node] = metrics_of(arrived.content)
            except DeviceFault as fault:
                self._log(one_line(f"node {node} did not evaluate version {version}: {fault}"))
        for sent in self._transport.give_up_overdue(now):
            self._log(f"node {sent.node} did not evaluate version {sent.ticket} within {now - sent.at:.0f} s")
        there = set(online)
        for node in {sent.node for sent in self._transport.waiting.values()} - there:
            self._transport.drop(node)
        if self._open is None or any(not sent.given_up for sent in self._transport.waiting.values()):
            return None
        done, self._open = self._open, None
        replies = [done.replies[node] for node in sorted(done.replies)]
        evaluators = self._evaluators
        found = aggregated(replies, evaluators.aggregate, evaluators.weight, self._log) if replies else None
        if found is not None:
            self.metrics[done.report.version] = done.report.clients = found
        return done.report

    def snapshot(self) -> Any:
        """The metrics so far and the panel. An evaluation in progress is lost when a run is resumed."""
        return {"metrics": self.metrics, "panel": self._panel, "random": dict(self._random.bit_generator.state)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self.metrics, self._panel, self._random.bit_generator.state = saved["metrics"], saved["panel"], saved["random"]


# The driver -----------------------------------------------------------------------------------------------------------


class ConnectedNodes(Membership):
    """Every connected node is a device, as long as there are free numbers."""

    __slots__ = ()

    def greetings(self, nodes: Iterable[int], busy: Callable[[int], bool], now: float) -> list[OutgoingMessage]:
        """The greetings of new nodes, as long as there are free numbers."""
        new = sorted(node for node in nodes if node not in self.device_of)
        return super().greetings(new[: self.devices - len(self.node_of)], busy, now)


class Hooks(Protocol):
    """What a strategy is told of its run."""

    def made(self, report: VersionReport, parameters: Vector) -> bool:
        """A version was made, and evaluated by `evaluate_fn` if that was due; whether the run is to stop."""
        ...

    def measured(self, report: VersionReport) -> bool:
        """Nodes have evaluated a version; whether the run is to stop."""
        ...

    def resolved(self, message: str, used: bool, version: int) -> None:
        """The update in the reply to this message was used for this version, or discarded, or refused."""
        ...


class StrategyRun(Deployment):
    """A run whose versions are also evaluated on the nodes. It ends after the last evaluation.

    If only nodes evaluate, the rows of metrics are those of the versions that they have evaluated.
    """

    __slots__ = (
        "_due",
        "_hooks",
        "_records",
        "_seen_version",
        "_wakes",
        "evaluation",
        "record",
        "server_evaluation",
    )

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
        translator: FlowerRecords,
        hooks: Hooks,
        **settings: Any,
    ) -> None:
        """`wakes`: a wait ends when a reply arrives or a node connects or disconnects, so it may be long."""
        super().__init__(session, transport, membership, on_server, record=record, translator=translator, **settings)
        self._wakes = wakes
        self._hooks = hooks
        self._records = translator
        self._seen_version = self._due = 0
        """The last version that the hooks were told of, and the last one that was to be evaluated by nodes."""
        self.record = record
        self.evaluation = evaluation
        self.server_evaluation = on_server

    def __iter__(self) -> Iterator[Row | None]:
        self._seen_version, rows, last = self.session.version, 0, None
        for row in super().__iter__():
            if self.unsaved:  # a private version, of which nobody may hear before it is saved
                yield None
                continue
            last = row or last
            found = self._turn_of_evaluation(row, self._membership.device_of)
            rows += found is not None
            yield found
        while self._has_more():
            self.now = self._time()
            found = self._turn_of_evaluation(None, self._transport.nodes())
            rows += found is not None
            if self.evaluation.waiting:
                self._sleep(max(MOMENT, self._longest_pause()))
            yield found
        if not rows and last is not None:
            yield last

    def _receive(self, reply: ReceivedReply) -> None:
        super()._receive(reply)
        if not self._records.holds(reply.sent.ticket):
            self._hooks.resolved(reply.sent.identity, False, self.session.version)

    def _refuse(self, device: int, ticket: int, fault: DeviceFault) -> None:
        super()._refuse(device, ticket, fault)
        if self._records.holds(ticket):  # the session has refused its update
            self._records.resolved(ticket, False, self.session.version)

    def _has_more(self) -> bool:
        """Whether an evaluation is open, or one of the last version can begin."""
        self.evaluation.begin(self._transport.nodes(), self.now)
        return self.evaluation.waiting

    def _turn_of_evaluation(self, row: Row | None, nodes: Iterable[int]) -> Row | None:
        """Tell the hooks of a new version, have it evaluated, and return the row that is complete, if there is one."""
        version = self.session.version
        new, self._seen_version = version != self._seen_version, version
        report = VersionReport(version=version, row=row or {}, train=self._records.metrics().get(version))
        if row is not None:
            report.server = self.server_evaluation.metrics.get(version)
        if new and self._hooks.made(report, self.session.parameters):
            self.reason = self.reason or STOPPED
        if row is not None and version not in (0, self._due):
            self._due = version
            self.evaluation.due(report, self.session.parameters)
        done = self.evaluation.collect(nodes, self.now) if self.evaluation.waiting else None
        if done is not None and self._hooks.measured(done):
            self.reason = self.reason or STOPPED
        self.evaluation.begin(nodes, self.now)
        if self.server_evaluation.central or not self.evaluation.evaluates:
            return row
        if done is None or done.clients is None:
            return None
        return done.row | numbers_in(done.clients) | evaluator_columns(done.evaluators)

    def _log_row(self, row: Row) -> None:
        """Say nothing: the strategy writes the log."""

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
