"""The driver of a run on client apps of Flower's: the server's own, with evaluation on the nodes beside it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any

from offbeat.core.session import Session
from offbeat.flower.server.driver import MOMENT, Deployment
from offbeat.flower.server.membership import Membership, poll_pause
from offbeat.flower.server.transport import OutgoingMessage, Transport
from offbeat.flower.strategy.evaluation import NodeEvaluation, ServerEvaluation
from offbeat.results.rows import Row
from offbeat.running.directory import RunRecord

LONGEST_WAIT = 3600.0
"""The most seconds that are waited at a time, for grids whose waits end by themselves when something happens."""


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
