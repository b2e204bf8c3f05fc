"""What an app says of its model, seen from outside: metrics at their virtual times, versions, the final arrays.

Flower's strategies say it in a few places, which are watched while the app runs: `Strategy.start` and what it calls
(`evaluate_fn`, `aggregate_train`, `aggregate_evaluate`), and `History` of the strategies before the message API. Of an
app that uses neither, the metrics in the replies that it gets are averaged.
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
from offbeat.flower.virtual.replies import EXAMPLES, mean_metrics, numbers_in, weighed_metrics
from offbeat.results.metric import TargetMetric
from offbeat.results.rows import Row

CENTRAL, CLIENTS, TRAINING, REPLIES = "central", "clients", "training", "replies"
"""Where metrics come from, the most telling first."""
KINDS = {CENTRAL: "", CLIENTS: "clients_", TRAINING: "training_", REPLIES: "replies_"}
"""The metrics of a round, and what is put before a name that another kind has taken."""
GOOD = ("acc", "f1", "auc", "precision", "recall", "score", "bleu", "r2", "iou", "dice", "map")
BAD = ("loss", "perplexity", "error", "mse", "mae", "rmse")
TAKEN = (
    "time",
    "version",
    "updates_used",
    "updates_discarded",
    "updates_lost",
    "mean_staleness",
    "max_staleness",
    "bytes_up",
    "bytes_down",
    "in_flight",
    "busy_seconds",
    "wasted_seconds",
)
"""Columns of every row, which no metric of an app may have as its name."""


def direction_of(name: str) -> str | None:
    """Whether a higher or a lower value of a metric of this name is better; None if the name does not tell.

    >>> direction_of("eval_acc"), direction_of("centralized_loss"), direction_of("epsilon")
    ('max', 'min', None)
    """
    plain = name.lower()
    if any(word in plain for word in BAD):
        return "min"
    return "max" if any(word in plain for word in GOOD) else None


class Observation:
    """Collects what a round is said to have come to, and makes a row of it when the next one is spoken of."""

    def __init__(self, engine: MessageEngine, write: Callable[[Row], None], metric: TargetMetric | None = None) -> None:
        self.metric = metric
        """The metric that rows are about; None until the first."""
        self.strategy = ""
        """The name of the strategy, if there is one."""
        self.arrays: ArrayRecord | None = None
        """The final arrays, if the app's strategy has said them."""
        self._engine = engine
        self._write = write
        self._round: int | str | None = None
        self._when: Row = {}
        self._state: Row = {}
        self._found: dict[str, Row] = {}
        self._replies: dict[str, list[tuple[Row, float]]] = {}
        """What the replies to messages of each type said, since there is this version."""
        self._model: int | None = None
        self._evaluations: list[Callable[..., Any]] = []
        """Functions of the app's that are watched."""
        self._spoken = False
        """Whether a strategy or a history speaks for the app, so that replies need not be looked at."""
        self._by_version = False
        """Whether the rounds that are spoken of are versions: so it is if the strategy is one of ours."""
        self._newest = 0
        """The newest version that was spoken of."""
        self._central = False
        """Whether versions are evaluated on the server, so that rows are about that."""

    # What is said ----------------------------------------------------------------------------------------------------

    def note(self, round_: int | str, kind: str, metrics: Row) -> None:
        """A round is said to have come to these metrics, now."""
        is_version = self._by_version and isinstance(round_, int)
        if is_version and self._is_late(int(round_), kind):
            return
        if round_ != self._round:
            self.flush()
            self._round = round_
        self._found.setdefault(kind, {}).update(metrics)
        if not is_version:
            self._when, self._state = self._now(), self._work()
        elif kind == CENTRAL or not self._central:  # what clients say later does not make a version known later
            self._newest = int(round_)
            self._engine.version = max(self._engine.version, self._newest)
            self._when, self._state = self._now() | {"version": self._newest}, self._work()

    def _is_late(self, version: int, kind: str) -> bool:
        """Clients may be late with a version when a newer one is known already, or when its row is written."""
        return version < self._newest or (kind == CLIENTS and self._central and version != self._round)

    def saw_model(self, arrays: ArrayRecord | None) -> None:
        """The server has these arrays now; None: others than before."""
        if arrays is None:
            self._engine.version += 1
            self._model = None
            return
        model = hash(tuple((name, hash(array.data)) for name, array in arrays.items()))
        if self._model is not None and model != self._model:
            self._engine.version += 1
        self._model = model

    def sent(self, messages: list[Message]) -> None:
        """The server sends these messages: the arrays of a training are a version of its model."""
        for message in messages:
            if message.metadata.message_type.partition(".")[0] == "train" and message.has_content():
                records = list(message.content.array_records.values())
                if records:
                    self.saw_model(records[0])

    def received(self, replies: list[Message]) -> None:
        """The app was given these replies; what a version's replies say is averaged if nobody else speaks."""
        if self._spoken:
            return
        version = f"version {self._engine.version}"
        if version != self._round:
            self._replies.clear()
        for reply in replies:
            if reply.has_content():
                self._replies.setdefault(reply.metadata.message_type, []).append(weighed_metrics(reply))
        for found in self._replies.values():
            self.note(version, REPLIES, mean_metrics(found))

    # Rows ------------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make a row of the round so far, if it has the metric that the run is about."""
        found, self._found, self._round = self._found, {}, None
        row: Row = {}
        for kind, before in KINDS.items():
            for name, value in found.get(kind, {}).items():
                own = name if name not in TAKEN else f"app_{name}"
                row[own if own not in row else before + own] = value
        if not row:
            return
        if self.metric is None:
            self.metric = _chosen(row)
        name = self.metric.name
        if name in row:
            self._write(self._when | {name: row[name]} | row | self._state)

    def last_row(self) -> Row:
        """A row without metrics of the app's own, for one that has none."""
        self.metric = TargetMetric("replies", "max")
        return self._now() | {"replies": self._engine.counters.used} | self._work()

    def _now(self) -> Row:
        return {"time": self._engine.now, "version": self._engine.version}

    def _work(self) -> Row:
        engine, counters = self._engine, self._engine.counters
        return {
            "updates_used": counters.used,
            "updates_discarded": counters.discarded,
            "updates_lost": counters.lost,
            "mean_staleness": counters.staleness_sum / counters.used if counters.used else 0.0,
            "max_staleness": counters.staleness_max,
            "bytes_up": counters.bytes_up,
            "bytes_down": counters.bytes_down,
            "in_flight": engine.training,
            "busy_seconds": engine.accounts.busy_seconds,
            "wasted_seconds": engine.accounts.wasted_seconds,
        }

    # Where it is said ------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Flower's strategies and histories are watched."""
        places: list[tuple[Any, str, Callable[..., Any]]] = [
            (kind, "start", self._watched_start) for kind in _subclasses(Strategy) if "start" in vars(kind)
        ]
        places += [(History, name, partial(self._watched_add, name)) for name in vars(History) if "add_" in name]
        places += [(kind, "fit", self._watched_server) for kind in _subclasses(Server) if "fit" in vars(kind)]
        places += [(LegacyContext, "__init__", self._watched_server)]
        before = [vars(owner)[name] for owner, name, _ in places]

        def adopt(kind: type[Any], /, **_: Any) -> None:
            """A strategy that the app defines only while it runs is watched as well."""
            if "start" in vars(kind):
                setattr(kind, "start", self._watched_start(vars(kind)["start"]))  # noqa: B010

        for (owner, name, watched), usual in zip(places, before, strict=True):
            setattr(owner, name, watched(usual))
        setattr(Strategy, "__init_subclass__", classmethod(adopt))  # noqa: B010  (mypy knows no other way)
        try:
            yield
        finally:
            delattr(Strategy, "__init_subclass__")
            for (owner, name, _), usual in zip(places, before, strict=True):
                setattr(owner, name, usual)

    def _watched_start(self, start: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(start)
        def watched(strategy: Strategy, *args: Any, **kwargs: Any) -> Any:
            given = signature(start).bind(strategy, *args, **kwargs)
            evaluate = given.arguments.get("evaluate_fn")
            if evaluate is not None:
                given.arguments["evaluate_fn"] = self._watched_evaluation(evaluate)
                self._spoken = True
            if "aggregate_train" in vars(strategy):  # it is watched already: start was called by a start
                return start(*given.args, **given.kwargs)
            self.strategy = _name_of(strategy)
            self._engine.weight = getattr(strategy, "weighted_by_key", EXAMPLES[0])
            self._by_version = isinstance(getattr(strategy, "policy", None), Policy)
            self._central = evaluate is not None
            self._spoken = self._central or not self._by_version
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
                self.flush()  # another start counts its rounds from 1 again
            self.arrays = getattr(result, "arrays", None) or self.arrays
            return result

        return watched

    def _watch_versions(self, strategy: Any) -> None:
        """What the nodes measure of a version is said by a method of our own strategies, if they are asked at all."""
        usual = strategy.evaluated

        def evaluated(version: int, metrics: Any) -> None:
            self.note(version, CLIENTS, numbers_in(metrics))
            usual(version, metrics)

        self._spoken = strategy.settings.fraction_evaluate > 0.0
        strategy.evaluated = evaluated

    def _watched_evaluation(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        if evaluate in self._evaluations:  # one start has handed it on to another
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
        """Note the name of the strategy, which is all that is seen of servers from before the message API."""

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
            self._spoken = True
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
    """What tables call a strategy: that of its policy, if it is one of ours, or else the name of its class."""
    policy = getattr(strategy, "policy", None)
    return type(strategy if policy is None else policy).__name__.lower()


def _chosen(row: Row) -> TargetMetric:
    """The first metric that an accuracy is likely to be, or else the first whose direction is known, or the first."""
    names = list(row)
    better = [name for name in names if direction_of(name) == "max"]
    known = better or [name for name in names if direction_of(name) is not None] or names
    return TargetMetric(known[0], "max" if direction_of(known[0]) in ("max", None) else "min")
