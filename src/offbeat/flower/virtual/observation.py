"""Collects an unmodified app's metrics with their virtual times, the versions of its model, and its final arrays.

Flower's strategies report these in a few functions, which are wrapped while the app runs: `Strategy.start` and the
functions that it calls (`evaluate_fn`, `aggregate_train`, `aggregate_evaluate`), and `History` in strategies before the
message API. For an app that uses neither, the metrics in its replies are averaged.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from inspect import signature
from typing import Any

from flwr.app import ArrayRecord, Message
from flwr.server import History, LegacyContext, Server
from flwr.serverapp.strategy import Strategy

from offbeat.core.policy import Policy
from offbeat.flower.virtual.engine import MessageEngine
from offbeat.flower.virtual.replies import EXAMPLES, mean_metrics, numbers_in, weighted_metrics
from offbeat.results.metric import TargetMetric
from offbeat.results.rows import COMMON_COLUMNS, Row
from offbeat.running.driver import counted_columns

CENTRAL, CLIENTS, TRAINING, REPLIES = "central", "clients", "training", "replies"
"""Sources of metrics, the preferred first."""
KINDS = {CENTRAL: "", CLIENTS: "clients_", TRAINING: "training_", REPLIES: "replies_"}
"""Sources of metrics, with the prefix for a name that another source has taken."""
GOOD = ("acc", "f1", "auc", "precision", "recall", "score", "bleu", "r2", "iou", "dice", "map")
BAD = ("loss", "perplexity", "error", "mse", "mae", "rmse")


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
        self._model: int | None = None
        self._evaluations: list[Callable[..., Any]] = []
        """Wrapped evaluation functions."""
        self._reported = False
        """Whether a strategy or a history reports metrics, so that replies are not averaged."""
        self._by_version = False
        """Whether reported rounds are versions, as with our own strategies."""
        self._newest = 0
        """The newest version that was reported."""
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
        self._found.setdefault(kind, {}).update(metrics)
        if not is_version:
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
        if arrays is None:
            self._engine.version += 1
            self._model = None
            return
        model = hash(tuple((name, hash(array.data)) for name, array in arrays.items()))
        if self._model is not None and model != self._model:
            self._engine.version += 1
        self._model = model

    def sent(self, messages: list[Message]) -> None:
        """Note the model in the training messages that the server sends."""
        for message in messages:
            if message.metadata.message_type.partition(".")[0] == "train" and message.has_content():
                records = list(message.content.array_records.values())
                if records:
                    self.saw_model(records[0])

    def received(self, replies: list[Message]) -> None:
        """Average the metrics in the replies of a version, unless a strategy or a history reports metrics."""
        if self._reported:
            return
        version = f"version {self._engine.version}"
        if version != self._round:
            self._replies.clear()
        for reply in replies:
            if reply.has_content():
                self._replies.setdefault(reply.metadata.message_type, []).append(weighted_metrics(reply))
        for found in self._replies.values():
            self.note(version, REPLIES, mean_metrics(found))

    # Rows -------------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the current round as a row, if it has the target metric."""
        found, self._found, self._round = self._found, {}, None
        row: Row = {}
        for kind, before in KINDS.items():
            for name, value in found.get(kind, {}).items():
                # a row has these columns already
                own = name if name not in COMMON_COLUMNS else f"app_{name}"
                row[own if own not in row else before + own] = value
        if not row:
            return
        if self.metric is None:
            self.metric = _chosen(row)
        name = self.metric.name
        if name in row:
            self._write(self._when | {name: row[name]} | row | self._state)

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
            self._central = evaluate is not None
            self._reported = self._central or not self._by_version
            if self._by_version and evaluate is None:
                self._watch_versions(strategy)
            strategy.aggregate_train = self._watched_training(strategy.aggregate_train)  # type: ignore[method-assign]
            strategy.aggregate_evaluate = self._watched_clients(  # type: ignore[method-assign]
                strategy.aggregate_evaluate
            )
            try:
                result = start(*given.args, **given.kwargs)
            finally:
                del strategy.aggregate_train, strategy.aggregate_evaluate
                self.flush()  # the next start counts its rounds from 1
            self.arrays = getattr(result, "arrays", None) or self.arrays
            return result

        return watched

    def _watch_versions(self, strategy: Any) -> None:
        """Wrap `evaluated`, with which our own strategies report what nodes measured of a version."""
        original = strategy.evaluated

        def evaluated(version: int, metrics: Any) -> None:
            self.note(version, CLIENTS, numbers_in(metrics))
            original(version, metrics)

        self._reported = strategy.settings.fraction_evaluate > 0.0
        strategy.evaluated = evaluated

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
            if arrays is not None:
                self.saw_model(arrays)
                self.arrays = arrays
            if metrics is not None:
                self.note(server_round, TRAINING, numbers_in(metrics))
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
            self._reported = True
            add(history, server_round, *args, **kwargs)
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
