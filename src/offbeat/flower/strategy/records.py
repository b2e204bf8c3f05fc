"""The translator between our driver and client apps of Flower's: `arrays` and `config` go out, arrays and metrics come.

What a reply says beside its arrays waits here until it is known which version the update went into: the metrics of
those are aggregated by a function of the user's, or as Flower does it.
"""

import hashlib
from collections.abc import Callable, Mapping
from math import isfinite
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
"""The arrays of integers and booleans by name, which travel beside the vector."""


class ModelArrays:
    """What the arrays of a model are: names, shapes and types, in the order in which the server has them."""

    def __init__(self, first: ArrayRecord) -> None:
        """The model that a run begins with; InvalidInput if it cannot be trained here."""
        self._kinds = {name: (tuple(array.shape), np.dtype(array.dtype)) for name, array in first.items()}
        for name, (_, dtype) in self._kinds.items():
            if dtype.kind not in "fiub":
                raise InvalidInput(f"initial_arrays[{name!r}] is of {dtype}: floats, integers and booleans can be sent")
        mixed = [(name, shape, True) for name, (shape, dtype) in self._kinds.items() if dtype.kind == "f"]
        self.layout = Layout.of(mixed)
        if not self.layout.size:
            raise InvalidInput("initial_arrays has no floating point numbers: there is nothing that could be mixed")
        try:
            self.parameters, self.counts = self.read(first)
        except DeviceFault as fault:
            raise InvalidInput(f"initial_arrays cannot be trained: {fault}") from None

    @property
    def digest(self) -> str:
        """Names, shapes and types in short: what a run that goes on must have in common with itself."""
        return hashlib.sha256(repr(list(self._kinds.items())).encode()).hexdigest()

    def record(self, parameters: Vector, counts: Counts) -> ArrayRecord:
        """The arrays as they are sent."""
        arrays: dict[str, Array] = {}
        for name, (shape, dtype) in self._kinds.items():
            own = counts[name] if name in counts else parameters[self.layout[name].span].reshape(shape)
            arrays[name] = Array(np.asarray(own, dtype=dtype))
        return ArrayRecord(arrays)

    def read(self, given: ArrayRecord) -> tuple[Vector, Counts]:
        """What came from a device, checked name by name; DeviceFault if it is not this model."""
        if given.keys() != self._kinds.keys():
            missing, more = sorted(self._kinds.keys() - given.keys()), sorted(given.keys() - self._kinds.keys())
            raise DeviceFault(f"the arrays have other names: {_few(missing)} missing, {_few(more)} not asked for")
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
            with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is refused
                vector[self.layout[name].span] = numbers.ravel()
            if not np.isfinite(vector[self.layout[name].span]).all():
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
"""The record of metrics that are no numbers, which only clients from before the message API have."""


class Keys(Struct, frozen=True, kw_only=True):
    """What records and figures are called in messages, as in Flower's own strategies."""

    arrays: str
    config: str
    weight: str
    train: str
    """The type of the messages that train, with the name of the app's function if it has one: "train.name"."""
    evaluate: str


class Evaluate(Struct, frozen=True, kw_only=True):
    """Evaluate this version; the model comes along."""

    version: int


class UnresolvedReply(Struct, kw_only=True, eq=False):
    """What an update brought beside the numbers that are mixed, until it is used or given up."""

    metrics: Metrics
    counts: Counts


class FlowerRecords:
    """A `Translator` for one run."""

    def __init__(
        self,
        model: ModelArrays,
        keys: Keys,
        *,
        train_config: ConfigRecord,
        evaluate_config: ConfigRecord,
        aggregate: Aggregate,
        log: Callable[[str], None],
    ) -> None:
        self.model = model
        self.keys = keys
        self.counts = model.counts
        """The integers of the present version."""
        self._metrics: dict[int, Metrics] = {}
        self._train_config = train_config
        self._evaluate_config = evaluate_config
        self._aggregate = aggregate
        self._log = log
        self._replies: dict[int, UnresolvedReply] = {}
        """What updates brought, by ticket, while they are neither used nor given up."""
        self._used: tuple[int, list[Metrics]] = (0, [])
        """The present version, and the metrics of the updates that made it so far."""
        self._sent: tuple[Vector | None, ArrayRecord | None] = (None, None)

    # What goes out ------------------------------------------------------------------------------------------------

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
        """A version as Flower's record; the same one for all who are sent it."""
        if self._sent[0] is not parameters:
            self._sent = (parameters, self.model.record(parameters, self.counts))
        assert self._sent[1] is not None
        return self._sent[1]

    def unpacked(self, content: RecordDict) -> RecordDict:
        """As it is: it is read when it is known what it answers."""
        return content

    def greeting(self) -> RecordDict:
        """Nobody is asked: a node that is connected takes part, and how many samples it has is seen later."""
        return pack(Greeting(device=None, samples=1, elements=self.model.layout.size))

    # What comes in ------------------------------------------------------------------------------------------------

    def reply(self, content: RecordDict, expected: Expected) -> UpdateReply:
        """A reply is always a delivery, of all that was ordered."""
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
        """What was delivered, if it is the model that was sent."""
        if len(content.array_records) != 1:
            raise DeviceFault(f"the reply has {len(content.array_records)} ArrayRecords, not exactly one")
        (arrays,) = content.array_records.values()
        parameters, counts = self.model.read(arrays)
        has_not_moved_too_far(parameters, expected)
        self._replies[body.ticket] = UnresolvedReply(metrics=metrics_of(content), counts=counts)
        outcome = KnownOutcome(Outcome(parameters=parameters))
        return expected.in_flight.update(body.samples, expected.pending.progress, outcome, None)

    def resolved(self, ticket: int, used: bool, version: int) -> None:
        """An update went into this version, or was given up."""
        reply = self._replies.pop(ticket)
        if not used:
            return
        if version != self._used[0]:
            self.metrics()  # of the version before, which is complete
            self._used = (version, [])
        self._used[1].append(reply.metrics)
        self.counts = reply.counts
        self._sent = (None, None)

    def metrics(self) -> dict[int, Metrics]:
        """The aggregated metrics of the updates that made each version."""
        version, used = self._used
        if used:
            self._used = (version, [])
            if (found := aggregated(used, self._aggregate, self.keys.weight, self._log)) is not None:
                self._metrics[version] = found
        return self._metrics

    # Snapshots ----------------------------------------------------------------------------------------------------

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
    """What the metrics of some devices come to; None, and a line in the log, if they do not go together."""
    contents = [metric_records(each) for each in metrics]
    try:
        return dict(aggregate(contents, weight))
    except Exception as error:  # devices need not agree in what they measure, nor a user's function with them
        log(one_line(f"metrics could not be aggregated: {type(error).__name__}: {error}"))
        return None


def metrics_of(content: RecordDict) -> Metrics:
    """The metrics of a reply."""
    if len(content.metric_records) != 1:
        raise DeviceFault(f"the reply has {len(content.metric_records)} MetricRecords, not exactly one")
    (record,) = content.metric_records.values()
    return dict(record) | dict(content.config_records.get(WORDS, {}))


def metric_records(metrics: Metrics) -> RecordDict:
    """Metrics as the content of a message, in two records if some of them are no numbers."""
    words: Metrics = {name: value for name, value in metrics.items() if isinstance(value, str | bool)}
    content = RecordDict({"metrics": MetricRecord({name: metrics[name] for name in metrics if name not in words})})
    if words:
        content[WORDS] = ConfigRecord(words)
    return content


def weight_of(content: RecordDict, key: str) -> int:
    """How many samples a reply speaks for."""
    metrics = metrics_of(content)
    if key not in metrics:
        raise DeviceFault(f"its metrics have no {key!r}, which every reply must have: the number of its samples")
    value = metrics[key]
    whole = isinstance(value, int | float) and isfinite(value) and value == int(value)
    if not whole or not 1 <= value <= MOST_SAMPLES:
        raise DeviceFault(f"{key!r} is {value!r}: it must be a whole number of samples, at least 1")
    return int(value)


def _asked(order: Order) -> Mapping[str, float]:
    """What the config says of an order: the proximal term, as Flower's FedProx has it, and nothing else."""
    if (why := why_not_plain([order])) is not None:
        raise PolicyError(f"the policy {why}, which no client app of Flower's can do")
    return {"proximal-mu": order.prox} if order.prox else {}


def as_records(metrics: Mapping[int, Metrics]) -> dict[int, MetricRecord]:
    """Metrics by version, as Flower's result has them."""
    return {version: MetricRecord(each) for version, each in metrics.items()}
