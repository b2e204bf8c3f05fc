"""The translator for stock client apps: `arrays` and `config` are sent, arrays and metrics come back.

The metrics of a reply are kept until its update is resolved: those of the updates used for a version are aggregated, by
a user's function or as Flower does it.
"""

import hashlib
from collections.abc import Callable, Mapping
from math import isfinite, nan
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from msgspec import Struct

from offbeat.core.errors import DeviceFault, InvalidInput, PolicyError
from offbeat.core.orders import KnownOutcome, Order, Outcome, Update
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.flower.protocol.codec import elements, one_line, pack
from offbeat.flower.protocol.messages import Begin, Greeting, UpdateReply
from offbeat.flower.server.reply_checks import Expected, has_not_moved_too_far
from offbeat.flower.strategy.needs import why_not_plain

# A model as one flat vector -------------------------------------------------------------------------------------------


Counts = Mapping[str, npt.NDArray[Any]]
"""The arrays of integers and booleans, by name, which are not part of the vector."""


class ModelArrays:
    """Names, shapes and types of a model's arrays, in the server's order; its floats are one flat vector."""

    __slots__ = ("_kinds", "counts", "layout", "parameters")

    def __init__(self, first: ArrayRecord) -> None:
        """Read the initial model; InvalidInput if it has unsupported arrays."""
        self._kinds = {name: (tuple(array.shape), np.dtype(array.dtype)) for name, array in first.items()}
        for name, (_, dtype) in self._kinds.items():
            if dtype.kind not in "fiub":
                raise InvalidInput(
                    f"initial_arrays[{name!r}] has dtype {dtype}: only floats, integers and booleans are supported"
                )
        mixed = [(name, shape, True) for name, (shape, dtype) in self._kinds.items() if dtype.kind == "f"]
        self.layout = Layout.of(mixed)
        if not self.layout.size:
            raise InvalidInput("initial_arrays has no array of floats: there is nothing to aggregate")
        try:
            self.parameters, self.counts = self.read(first)
        except DeviceFault as fault:
            raise InvalidInput(f"initial_arrays: {fault}") from None

    @property
    def digest(self) -> str:
        """Checksum of names, shapes and types, which a resumed run must have in common."""
        return hashlib.sha256(repr(list(self._kinds.items())).encode()).hexdigest()

    def record(self, parameters: Vector, counts: Counts) -> ArrayRecord:
        """The arrays that represent a model."""
        arrays: dict[str, Array] = {}
        for name, (shape, dtype) in self._kinds.items():
            own = counts[name] if name in counts else parameters[self.layout[name].span].reshape(shape)
            arrays[name] = Array(np.asarray(own, dtype=dtype))
        return ArrayRecord(arrays)

    def read(self, given: ArrayRecord, *, finite: bool = True) -> tuple[Vector, Counts]:
        """Read the arrays of a device; DeviceFault if names, shapes or types differ, or unless they are `finite`."""
        if given.keys() != self._kinds.keys():
            missing, more = sorted(self._kinds.keys() - given.keys()), sorted(given.keys() - self._kinds.keys())
            raise DeviceFault(f"wrong names of arrays: {_few(missing)} missing, {_few(more)} unknown")
        vector = np.empty(self.layout.size, dtype=np.float32)
        counts: dict[str, npt.NDArray[Any]] = {}
        for name, (shape, dtype) in self._kinds.items():
            array = given[name]
            if tuple(array.shape) != shape or array.dtype != str(dtype):
                raise DeviceFault(f"the array {name!r} is {tuple(array.shape)} {array.dtype}, not {shape} {dtype}")
            numbers = elements(array.data, shape, dtype)
            if dtype.kind != "f":
                counts[name] = numbers
                continue
            with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite, and is refused
                vector[self.layout[name].span] = numbers.ravel()
            if finite and not np.isfinite(vector[self.layout[name].span]).all():
                raise DeviceFault(f"the array {name!r} is not finite")
        return frozen(vector), counts


def _few(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown or "none"


# Messages -------------------------------------------------------------------------------------------------------------


Aggregate = Callable[[list[RecordDict], str], MetricRecord]
Metrics = dict[str, Any]
"""A MetricRecord as plain data."""
MOST_SAMPLES = 2**40
WORDS = "offbeat-words"
"""The record of metrics that are not numbers, which only clients that `fit` have."""


class Keys(Struct, frozen=True, kw_only=True):
    """Keys and types of messages, as in Flower's own strategies."""

    arrays: str
    config: str
    weight: str
    train: str
    """The type of training messages: "train", or "train.name" for a named function."""
    evaluate: str
    loss: str = ""
    """The metric with the training loss; empty if no selection reads it."""


class Evaluate(Struct, frozen=True, kw_only=True):
    """Ask a node to evaluate this version. The model comes along."""

    version: int


class UnresolvedReply(Struct, kw_only=True, eq=False):
    """What came with an update in addition to its vector, until it is resolved."""

    metrics: Metrics
    counts: Counts
    message: str = ""
    """The id of the message that it replies to."""


OnResolved = Callable[[str, bool, int], Any]
"""Called with the id of a training message: whether the update in the reply to it was used, and the version then."""


class FlowerRecords:
    """A `Translator` for stock client apps."""

    __slots__ = (
        "_aggregate",
        "_evaluate_config",
        "_log",
        "_metrics",
        "_on_resolved",
        "_replies",
        "_sent",
        "_train_config",
        "_used",
        "counts",
        "keys",
        "model",
    )

    def __init__(
        self,
        model: ModelArrays,
        keys: Keys,
        *,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        aggregate: Aggregate,
        log: Callable[[str], None],
        on_resolved: OnResolved = lambda message, used, version: None,
    ) -> None:
        self.model = model
        self.keys = keys
        self.counts = model.counts
        """The arrays of the current version that are not floats."""
        self._metrics: dict[int, Metrics] = {}
        self._train_config = train_config
        self._evaluate_config = evaluate_config
        self._aggregate = aggregate
        self._log = log
        self._on_resolved = on_resolved
        self._replies: dict[int, UnresolvedReply] = {}
        """What came with updates that are not resolved, by ticket."""
        self._used: tuple[int, list[Metrics]] = (0, [])
        """The current version, and the metrics of the updates used for it so far."""
        self._sent: tuple[Vector | None, ArrayRecord | None] = (None, None)

    # Messages to nodes ------------------------------------------------------------------------------------------------

    def packed(self, body: Any, vector: Vector | None) -> tuple[RecordDict, str]:
        """The content of a message and its type. `server-round` counts from 1, as in Flower."""
        assert vector is not None and isinstance(body, Begin | Evaluate)
        if isinstance(body, Evaluate):
            kind, config = self.keys.evaluate, {**self._evaluate_config, "server-round": body.version}
        else:
            kind = self.keys.train
            config = {**self._train_config, **_asked(body.order), "server-round": body.base + 1}
        arrays = self.arrays(vector)
        return RecordDict({self.keys.arrays: arrays, self.keys.config: ConfigRecord(config)}), kind

    def arrays(self, parameters: Vector) -> ArrayRecord:
        """A version as Flower's record, made once for all nodes."""
        if self._sent[0] is not parameters:
            self._sent = (parameters, self.model.record(parameters, self.counts))
        assert self._sent[1] is not None
        return self._sent[1]

    def unpacked(self, content: RecordDict) -> RecordDict:
        """Return the content unchanged."""
        return content

    def greeting(self) -> RecordDict:
        """The greeting of every node: nodes are not asked, and their samples are known only from replies."""
        return pack(Greeting(device=None, samples=1, elements=self.model.layout.size))

    # Replies ----------------------------------------------------------------------------------------------------------

    def reply(self, content: RecordDict, expected: Expected) -> UpdateReply:
        """A reply is always the update of the whole order."""
        sent = expected.sent
        return UpdateReply(
            ticket=sent.ticket,
            leg=sent.leg,
            slices=expected.in_flight.order.slices,
            steps=0,
            seconds=max(0.0, expected.now - sent.at),
            remembered=0,
            samples=weight_of(content, self.keys.weight),
            loss=None,
        )

    def update(self, body: UpdateReply, content: RecordDict, expected: Expected) -> Update:
        """The update in a reply, if its arrays are those of the model."""
        if len(content.array_records) != 1:
            raise DeviceFault(f"the reply has {len(content.array_records)} ArrayRecords instead of one")
        (arrays,) = content.array_records.values()
        parameters, counts = self.model.read(arrays, finite=expected.limits.finite)
        has_not_moved_too_far(parameters, expected)
        metrics = metrics_of(content)
        self._replies[body.ticket] = UnresolvedReply(metrics=metrics, counts=counts, message=expected.sent.identity)
        outcome = Outcome(parameters=parameters, loss=loss_in(metrics, self.keys.loss) if self.keys.loss else nan)
        return expected.in_flight.update(body.samples, expected.pending.progress, KnownOutcome(outcome), None)

    def resolved(self, ticket: int, used: bool, version: int) -> None:
        """An update went into this version, or was given up."""
        reply = self._replies.pop(ticket)
        self._on_resolved(reply.message, used, version)
        if not used:
            return
        if version != self._used[0]:
            self.metrics()  # those of the version before, which is complete
            self._used = (version, [])
        self._used[1].append(reply.metrics)
        self.counts = reply.counts
        self._sent = (None, None)

    def holds(self, ticket: int) -> bool:
        """Whether the update for this ticket was read and is not resolved yet."""
        return ticket in self._replies

    def metrics(self) -> dict[int, Metrics]:
        """The aggregated metrics of the updates used for each version."""
        version, used = self._used
        if used:
            self._used = (version, [])
            if (found := aggregated(used, self._aggregate, self.keys.weight, self._log)) is not None:
                self._metrics[version] = found
        return self._metrics

    # Snapshots ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> Any:
        """Plain data that `restore` takes."""
        replies = {ticket: (reply.metrics, dict(reply.counts)) for ticket, reply in self._replies.items()}
        return {"counts": dict(self.counts), "metrics": self._metrics, "replies": replies, "used": self._used}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self.counts, self._metrics, self._used = saved["counts"], saved["metrics"], saved["used"]
        self._replies = {
            ticket: UnresolvedReply(metrics=metrics, counts=counts)
            for ticket, (metrics, counts) in saved["replies"].items()
        }


def aggregated(metrics: list[Metrics], aggregate: Aggregate, weight: str, log: Callable[[str], None]) -> Metrics | None:
    """Aggregate the metrics of some devices; None, and a line in the log, if that fails."""
    try:
        return dict(aggregate([metric_records(each) for each in metrics], weight))
    except Exception as error:  # devices may measure different things, and the user's function may fail on them
        why = one_line(f"{type(error).__name__}: {error}")
    names = [name for name in metrics[0] if all(isinstance(each.get(name), int | float) for each in metrics)]
    left_out = sorted({name for each in metrics for name in each} - set(names))
    log(f"cannot aggregate metrics: {why}; trying without {', '.join(left_out) or 'any change'}")
    try:
        return dict(aggregate([metric_records({name: each[name] for name in names}) for each in metrics], weight))
    except Exception as error:
        log(one_line(f"cannot aggregate metrics: {type(error).__name__}: {error}"))
        return None


def metrics_of(content: RecordDict) -> Metrics:
    """The metrics of a reply."""
    if len(content.metric_records) != 1:
        raise DeviceFault(f"the reply has {len(content.metric_records)} MetricRecords instead of one")
    (record,) = content.metric_records.values()
    words = dict(content.config_records.get(WORDS, {}))
    if not all(isinstance(value, str | bool) for value in words.values()):
        raise DeviceFault(f"the record {WORDS!r} has values that are neither text nor true or false")
    return dict(record) | words


def loss_in(metrics: Metrics, key: str) -> float:
    """The training loss in a reply, which the selection reads."""
    loss = metrics.get(key)
    if isinstance(loss, bool) or not isinstance(loss, int | float):
        raise DeviceFault(f"the reply has no number {key!r}, the training loss that the selection reads (loss_key)")
    return float(loss)


def metric_records(metrics: Metrics) -> RecordDict:
    """Metrics as the content of a message; those that are not numbers in a second record."""
    words: Metrics = {name: value for name, value in metrics.items() if isinstance(value, str | bool)}
    content = RecordDict({"metrics": MetricRecord({name: metrics[name] for name in metrics if name not in words})})
    if words:
        content[WORDS] = ConfigRecord(words)
    return content


def weight_of(content: RecordDict, key: str) -> int:
    """The number of samples of a reply."""
    metrics = metrics_of(content)
    if key not in metrics:
        raise DeviceFault(f"the reply has no metric {key!r}, its number of samples")
    value = metrics[key]
    whole = isinstance(value, int | float) and isfinite(value) and value == int(value)
    if not whole or not 1 <= value <= MOST_SAMPLES:
        raise DeviceFault(f"{key!r} is {value!r}: it must be an integer, at least 1")
    return int(value)


def _asked(order: Order) -> Mapping[str, float]:
    """The part of an order that the config carries: the proximal term, as Flower's FedProx sends it."""
    if (why := why_not_plain([order])) is not None:
        raise PolicyError(f"the policy {why}, which a stock Flower client app cannot do")
    return {"proximal-mu": order.prox} if order.prox else {}


def as_records(metrics: Mapping[int, Metrics]) -> dict[int, MetricRecord]:
    """Metrics by version, as in Flower's Result."""
    return {version: MetricRecord(each) for version, each in metrics.items()}
