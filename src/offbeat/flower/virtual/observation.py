"""Collects an unmodified app's metrics with their virtual times, the versions of its model, and its final arrays.

Flower's strategies report these in a few functions, which are wrapped while the app runs: `Strategy.start` and the
functions that it calls (`evaluate_fn`, `aggregate_train`, `aggregate_evaluate`), and `History` in strategies before the
message API. An app that uses neither can call `offbeat.flower.report`; else the metrics in its replies are averaged.

Our own strategies say which updates they used or discarded. Those of Flower's use all updates of a round that gives a
model. In a loop of the app's own, an update that was fetched counts as used for the next model.

The time of a row is that at which its version was made: evaluating it takes devices some time, which does not count. If
devices measured the target metric, the row says how many, and on how many samples.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from inspect import signature
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.server import History, LegacyContext, Server
from flwr.serverapp.strategy import Strategy

from offbeat.core.parameters import Vector
from offbeat.core.policy import Policy
from offbeat.flower.reporting import listening
from offbeat.flower.strategy.run import VersionReport
from offbeat.flower.virtual.engine import MessageEngine
from offbeat.flower.virtual.replies import EXAMPLES, mean_metrics, numbers_in, weighted_metrics
from offbeat.results.metric import TargetMetric
from offbeat.results.rows import COMMON_COLUMNS, EVALUATOR_COLUMNS, Row, evaluator_columns
from offbeat.running.driver import counted_columns

CENTRAL, CLIENTS, TRAINING, REPLIES = "central", "clients", "training", "replies"
"""Sources of metrics, the preferred first."""
KINDS = {CENTRAL: "", CLIENTS: "clients_", TRAINING: "training_", REPLIES: "replies_"}
"""Sources of metrics, with the prefix for a name that another source has taken."""
CATEGORIES = {CLIENTS: "evaluate", TRAINING: "train"}
"""Sources of metrics, with the category of the messages whose replies they come from."""
TAKEN = (*COMMON_COLUMNS, *EVALUATOR_COLUMNS)
COUNTED = ("updates_used", "updates_discarded", "updates_lost", "mean_staleness", "max_staleness", "in_flight")
"""Columns that our own strategies count themselves: to them a reply that they refuse is a lost update."""
GOOD = ("acc", "f1", "auc", "precision", "recall", "score", "bleu", "r2", "iou", "dice", "map")
BAD = ("loss", "perplexity", "error", "mse", "mae", "rmse")


def counted(row: Row) -> Row:
    """What our own strategies have counted, if the row has it."""
    return {name: row[name] for name in COUNTED if name in row}


def direction_of(name: str) -> str | None:
    """Guess from a metric's name whether higher (max) or lower (min) values are better; None if unclear.

    >>> direction_of("eval_acc"), direction_of("centralized_loss"), direction_of("epsilon")
    ('max', 'min', None)
    """
    plain = name.lower()
    if any(word in plain for word in BAD):
        return "min"
    return "max" if any(word in plain for word in GOOD) else None


class Observation:
    """Collects the metrics of a round, and writes them as a row when the next round begins."""

    def __init__(self, engine: MessageEngine, write: Callable[[Row], None], metric: TargetMetric | None = None) -> None:
        self.metric = metric
        """The target metric; None until the first row chooses it."""
        self.strategy = ""
        """Name of the app's strategy; empty if it uses none."""
        self.arrays: ArrayRecord | None = None
        """The final arrays, if the app's strategy reports them."""
        self._engine = engine
        self._write = write
        self._round: int | str | None = None
        self._when: Row = {}
        self._state: Row = {}
        self._found: dict[str, Row] = {}
        self._replies: dict[str, list[tuple[Row, float]]] = {}
        """Metrics and weights in the replies of this version, by message type."""
        self._incoming: dict[str, dict[int, float]] = {}
        """Number of samples of each node whose reply came since the last report, by category of message."""
        self._measured_by: dict[str, dict[int, float]] = {}
        """Number of samples of each node that a source's metrics come from."""
        self._made: dict[int, tuple[Row, Row]] = {}
        """When versions of our own strategies were made, and the counts then, until nodes have evaluated them."""
        self._used_before = 0
        """Updates used when the server's model changed last."""
        self._model: int | None = None
        self._evaluations: list[Callable[..., Any]] = []
        """Wrapped evaluation functions."""
        self._reports = 0
        self._reported = False
        """Whether a strategy or a history reports metrics, so that replies are not averaged."""
        self._by_version = False
        """Whether reported rounds are versions, as with our own strategies."""
        self._newest = 0
        """The newest version that was reported."""
        self._in_rounds = False
        """Whether a strategy of Flower's is running, which uses or drops the updates of a round together."""
        self._central = False
        """Whether the server evaluates versions, so that its metrics decide when a row is written."""

    # Reports ----------------------------------------------------------------------------------------------------------

    def note(self, round_: int | str, kind: str, metrics: Row) -> None:
        """Add metrics of a round, reported now."""
        is_version = self._by_version and isinstance(round_, int)
        if is_version and self._is_late(int(round_), kind):
            return
        if round_ != self._round:
            self.flush()
            self._round = round_
        made = TRAINING in self._found
        self._found.setdefault(kind, {}).update(metrics)
        if (category := CATEGORIES.get(kind)) in self._incoming:
            self._measured_by[kind] = self._incoming.pop(category)
        if not is_version:
            if not made:  # later reports of a round do not change when its version was made
                self._when, self._state = self._now(), self._work()
        elif (
            kind == CENTRAL or not self._central
        ):  # later reports of clients do not change when a version was evaluated
            self._newest = int(round_)
            self._engine.version = max(self._engine.version, self._newest)
            self._when, self._state = self._now() | {"version": self._newest}, self._work()

    def _is_late(self, version: int, kind: str) -> bool:
        """Whether a report comes after a newer version was reported, or after the version's row was written."""
        return version < self._newest or (kind == CLIENTS and self._central and version != self._round)

    def saw_model(self, arrays: ArrayRecord | None) -> None:
        """Count a new version if the server's arrays differ from the last ones; None: they do."""
        model = None if arrays is None else hash(tuple((name, hash(array.data)) for name, array in arrays.items()))
        if model is None or (self._model is not None and model != self._model):
            self._resolve_taken()
            self._engine.version += 1
            self._used_before = self._engine.counters.used
        self._model = model

    def _resolve_taken(self, used: bool = True) -> None:
        """Count the updates that the app has taken as used for the next version, or as discarded."""
        engine = self._engine
        for name in list(engine.taken):
            engine.resolve(name, used, engine.version + 1)

    def finish(self) -> None:
        """Write the last row, and count the version made of updates that came after the last message."""
        self.flush()
        if self._by_version:  # what the policy has not resolved stays so
            return
        self._resolve_taken()
        if not self.strategy and self._engine.counters.used > self._used_before:
            self._engine.version += 1

    def sent(self, messages: list[Message]) -> None:
        """Note the model in the training messages that the server sends."""
        for message in messages:
            if message.metadata.message_type.partition(".")[0] == "train" and message.has_content():
                records = list(message.content.array_records.values())
                if self._by_version:
                    rounds = [config.get("server-round", 1) for config in message.content.config_records.values()]
                    self._engine.version = max(self._engine.version, *(int(str(each)) - 1 for each in rounds), 0)
                elif records:
                    self.saw_model(records[0])
                if not self._reported and "evaluate" in self._incoming and "train" not in self._incoming:
                    self.flush()  # a model that was evaluated before its training

    def received(self, replies: list[Message]) -> None:
        """Average the metrics in the replies of a version, unless a strategy or a history reports metrics."""
        if not self._by_version and not self._in_rounds:
            self._resolve_taken()
        version = f"version {self._engine.version}"
        if not self._reported and version != self._round:
            self.flush()
            self._round = version
        for reply in replies:
            if reply.has_content():
                kind, (metrics, weight) = reply.metadata.message_type, weighted_metrics(reply)
                self._incoming.setdefault(kind.partition(".")[0], {})[reply.metadata.src_node_id] = weight
                if not self._reported:
                    self._replies.setdefault(kind, []).append((metrics, weight))
        for found in self._replies.values():
            self.note(version, REPLIES, mean_metrics(found))
        if self._replies:
            trained, evaluated = self._incoming.get("train", {}), self._incoming.get("evaluate", {})
            self._measured_by[REPLIES] = dict(evaluated or trained)
            self._when["version"] += bool(trained)  # the version that these updates are used for

    def report(self, metrics: Mapping[str, object], version: int | None) -> None:
        """Add metrics that the app reports."""
        if not self._reported:  # what replies say is no longer of interest
            self._reported, self._found, self._replies = True, {}, {}
        self._reports += 1
        self.note(f"report {self._reports}" if version is None else version, CENTRAL, numbers_in(metrics))
        if version is not None:
            self._when["version"] = version

    # Rows -------------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the current round as a row, if it has the target metric."""
        found, self._found, self._round = self._found, {}, None
        measured_by, self._measured_by = self._measured_by, {}
        if self._replies:
            self._replies, self._incoming = {}, {}
        row: Row = {}
        sources: dict[str, str] = {}
        for kind, before in KINDS.items():
            for name, value in found.get(kind, {}).items():
                own = name if name not in TAKEN else f"app_{name}"
                own = own if own not in row else before + own
                row[own], sources[own] = value, kind
        if not row:
            return
        if self.metric is None:
            self.metric = _chosen(row)
        name = self.metric.name
        if name in row:
            nodes = measured_by.get(sources[name])
            self._write(
                self._when | {name: row[name]} | row | self._state | (evaluator_columns(nodes) if nodes else {})
            )

    def last_row(self) -> Row:
        """The only row of an app that reports no metrics: the number of its replies."""
        self.metric = TargetMetric("replies", "max")
        return self._now() | {"replies": self._engine.counters.used} | self._work()

    def _now(self) -> Row:
        return {"time": self._engine.now, "version": self._engine.version}

    def _work(self) -> Row:
        engine, accounts = self._engine, self._engine.accounts
        return counted_columns(
            engine.counters, in_flight=engine.training, busy=accounts.busy_seconds, wasted=accounts.wasted_seconds
        )

    # Wrapped functions ------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wrap the functions of Flower's strategies, servers and histories."""
        patches: list[tuple[Any, str, Callable[..., Any]]] = [
            (kind, "start", self._watched_start) for kind in _subclasses(Strategy) if "start" in vars(kind)
        ]
        patches += [(History, name, partial(self._watched_add, name)) for name in vars(History) if "add_" in name]
        patches += [(kind, "fit", self._watched_server) for kind in _subclasses(Server) if "fit" in vars(kind)]
        patches += [(LegacyContext, "__init__", self._watched_server)]
        before = [vars(owner)[name] for owner, name, _ in patches]

        def adopt(kind: type[Any], /, **_: Any) -> None:
            """Wrap a strategy class that the app defines while it runs."""
            if "start" in vars(kind):
                setattr(kind, "start", self._watched_start(vars(kind)["start"]))  # noqa: B010

        for (owner, name, watched), original in zip(patches, before, strict=True):
            setattr(owner, name, watched(original))
        setattr(Strategy, "__init_subclass__", classmethod(adopt))  # noqa: B010  (mypy knows no other way)
        try:
            with listening(self.report):
                yield
        finally:
            delattr(Strategy, "__init_subclass__")
            for (owner, name, _), original in zip(patches, before, strict=True):
                setattr(owner, name, original)

    def _watched_start(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(start)
        def watched(strategy: Strategy, *args: Any, **kwargs: Any) -> Any:
            given = signature(start).bind(strategy, *args, **kwargs)
            evaluate = given.arguments.get("evaluate_fn")
            if evaluate is not None:
                given.arguments["evaluate_fn"] = self._watched_evaluation(evaluate)
                self._reported = True
            if "aggregate_train" in vars(strategy):  # wrapped already: one start has called another
                return start(*given.args, **given.kwargs)
            self.strategy = _name_of(strategy)
            self._engine.weight = getattr(strategy, "weighted_by_key", EXAMPLES[0])
            self._by_version = isinstance(getattr(strategy, "policy", None), Policy)
            self._in_rounds = not self._by_version
            self._central = evaluate is not None
            self._reported = True
            if self._by_version:
                self._watch_versions(strategy)
            strategy.aggregate_train = self._watched_training(strategy.aggregate_train)  # type: ignore[method-assign]
            strategy.aggregate_evaluate = self._watched_clients(  # type: ignore[method-assign]
                strategy.aggregate_evaluate
            )
            try:
                result = start(*given.args, **given.kwargs)
            finally:
                del strategy.aggregate_train, strategy.aggregate_evaluate
                self._in_rounds = False
                self.flush()  # the next start counts its rounds from 1
            self.arrays = getattr(result, "arrays", None) or self.arrays
            return result

        return watched

    def _watch_versions(self, strategy: Any) -> None:
        """Wrap the functions in which our own strategies are told of a new version and of its evaluation by nodes."""
        made, measured, resolved = strategy.made, strategy.measured, strategy.resolved
        by_nodes = strategy.settings.fraction_evaluate > 0.0

        def watched_made(report: VersionReport, parameters: Vector) -> bool:
            self._engine.version = report.version
            if self._central and report.version == self._round:
                self._found[TRAINING] = numbers_in(report.train or {})
                self._state |= counted(report.row)
            elif by_nodes:  # a version that is not due to be evaluated may turn out to be the last
                self._made[report.version] = self._now(), self._work()
            elif report.row:  # no version is evaluated: the metrics of its updates are all there is
                self.note(report.version, TRAINING, numbers_in(report.train or {}))
                self._state |= counted(report.row)
            return bool(made(report, parameters))

        def watched_measured(report: VersionReport) -> bool:
            if self._central:
                self.note(report.version, CLIENTS, numbers_in(report.clients or {}))
            elif report.clients is not None:
                self.flush()
                self._when, state = self._made[report.version]
                self._state = state | counted(report.row)
                self._made = {version: made for version, made in self._made.items() if version > report.version}
                self._found = {CLIENTS: numbers_in(report.clients), TRAINING: numbers_in(report.train or {})}
                self._measured_by = {CLIENTS: dict(report.evaluators)}
                self.flush()
            return bool(measured(report))

        def watched_resolved(message: str, used: bool, version: int) -> None:
            self._engine.version = max(self._engine.version, version)
            self._engine.resolve(message, used, version)
            resolved(message, used, version)

        strategy.made, strategy.measured, strategy.resolved = watched_made, watched_measured, watched_resolved

    def _watched_evaluation(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        if evaluate in self._evaluations:  # one start has passed it to another
            return evaluate

        @wraps(evaluate)
        def watched(server_round: int, arrays: ArrayRecord) -> Any:
            self.saw_model(arrays)
            self.arrays = arrays
            metrics = evaluate(server_round, arrays)
            if metrics is not None:
                self.note(server_round, CENTRAL, numbers_in(metrics))
            return metrics

        self._evaluations.append(watched)
        return watched

    def _watched_training(self, aggregate: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(aggregate)
        def watched(server_round: int, *args: Any, **kwargs: Any) -> Any:
            arrays, metrics = found = aggregate(server_round, *args, **kwargs)
            self._resolve_taken(arrays is not None)
            if arrays is not None:
                self.saw_model(arrays)
                self.arrays = arrays
            if arrays is not None or metrics is not None:
                self.note(server_round, TRAINING, numbers_in(metrics or {}))
            return found

        return watched

    def _watched_clients(self, aggregate: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(aggregate)
        def watched(server_round: int, *args: Any, **kwargs: Any) -> Any:
            metrics = aggregate(server_round, *args, **kwargs)
            if metrics is not None:
                self.note(server_round, CLIENTS, numbers_in(metrics))
            return metrics

        return watched

    def _watched_server(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Note the strategy of a server from before the message API; its metrics come from `History`."""

        @wraps(function)
        def watched(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if function.__name__ == "fit":
                self.strategy = _name_of(owner if hasattr(owner, "policy") else owner.strategy)
            found = function(owner, *args, **kwargs)
            self.strategy = _name_of(owner if hasattr(owner, "policy") else owner.strategy)
            return found

        return watched

    def _watched_add(self, name: str, add: Callable[..., Any]) -> Callable[..., Any]:
        kind = CENTRAL if "_centralized" in name else TRAINING if name.endswith("_fit") else CLIENTS

        @wraps(add)
        def watched(history: History, server_round: int, *args: Any, **kwargs: Any) -> None:
            add(history, server_round, *args, **kwargs)
            if self._by_version:  # our own server: its strategy reports
                return
            self._reported = True
            (value,) = (*args, *kwargs.values())
            if kind == TRAINING:
                self.saw_model(None)
            self.note(server_round, kind, {"loss": float(value)} if "_loss_" in name else numbers_in(value))

        return watched


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _subclasses(each)


def _name_of(strategy: Any) -> str:
    """Name of a strategy in tables: its policy's class if it is one of ours, else its own class, in lower case."""
    policy = getattr(strategy, "policy", None)
    return type(strategy if policy is None else policy).__name__.lower()


def _chosen(row: Row) -> TargetMetric:
    """The first metric of which higher is better, else the first whose direction is known, else the first."""
    names = list(row)
    better = [name for name in names if direction_of(name) == "max"]
    known = better or [name for name in names if direction_of(name) is not None] or names
    return TargetMetric(known[0], "max" if direction_of(known[0]) in ("max", None) else "min")
