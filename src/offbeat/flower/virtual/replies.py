"""Metrics in replies, and mistakes in replies that Flower's strategies cannot use."""

from collections.abc import Mapping, Sequence

from flwr.app import ArrayRecord, Message

from offbeat.results.rows import Row

EXAMPLES = ("num-examples", "num_examples")
"""The metric that Flower weights replies by, and its spelling in older examples."""


def numbers_in(record: Mapping[str, object]) -> Row:
    """The scalar numbers among the metrics, without lists and strings."""
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _metrics(reply: Message) -> Row:
    return {
        name: value for record in reply.content.metric_records.values() for name, value in numbers_in(record).items()
    }


def examples_of(reply: Message) -> float | None:
    """The number of examples in the reply; None if it has none."""
    metrics = _metrics(reply)
    return next((metrics[name] for name in EXAMPLES if name in metrics), None)


def weighted_metrics(reply: Message) -> tuple[Row, float]:
    """The metrics of a reply and their weight: its number of examples, or 1 if it has none."""
    examples = examples_of(reply)
    return _metrics(reply), 1.0 if examples is None else examples


def mean_metrics(found: Sequence[tuple[Row, float]]) -> Row:
    """The weighted means of the metrics that all replies share.

    >>> mean_metrics([({"loss": 1.0, "num-examples": 1}, 1.0), ({"loss": 2.0, "num-examples": 3}, 3.0)])
    {'loss': 1.75}
    """
    total = sum(weight for _, weight in found)
    shared = [name for name in found[0][0] if all(name in metrics for metrics, _ in found)] if total else []
    sums = {name: sum(weight * metrics[name] for metrics, weight in found) for name in shared if name not in EXAMPLES}
    return {name: value / total for name, value in sums.items()}


def reply_mistake(message: Message, reply: Message, first: Mapping[str, str], weight: str | None) -> str:
    """Describe why Flower's strategies cannot use a reply to a training or evaluation message; empty if they can.

    `first` has the data type of each array of the first model, which Flower's averages may change. `weight` is the
    metric that the app's strategy weights replies by, if it has a strategy.
    """
    kind, content = message.metadata.message_type, reply.content
    if kind not in ("train", "evaluate") or any(name.startswith(("fitres", "evaluateres")) for name in content):
        return ""
    metrics = list(content.metric_records.values())
    if weight is not None and len(metrics) == 1 and weight not in metrics[0]:
        return f"its reply has no metric {weight!r}, by which the strategy weights replies"
    sent, back = message.content.array_records, content.array_records
    if kind == "train" and len(sent) == len(back) == 1:
        return _difference(next(iter(sent.values())), next(iter(back.values())), first)
    return ""


def _difference(sent: ArrayRecord, back: ArrayRecord, first: Mapping[str, str]) -> str:
    if sent.keys() != back.keys():
        return "the arrays in its reply have other names than those that were sent"
    for name, array in back.items():
        theirs = sent[name]
        if array.dtype == theirs.dtype == "uint8" and len(array.shape) == len(theirs.shape) == 1:
            continue  # bytes, such as boosted trees, whose number may change
        if tuple(array.shape) != tuple(theirs.shape) or array.dtype not in (theirs.dtype, first.get(name)):
            return (
                f"array {name!r} in its reply has type {array.dtype} and shape {tuple(array.shape)}, but was sent with "
                f"type {theirs.dtype} and shape {tuple(theirs.shape)}"
            )
    return ""
