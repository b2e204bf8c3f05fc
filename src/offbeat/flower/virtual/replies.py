"""What stands in a reply: its metrics, and what Flower's own strategies could not use."""

from collections.abc import Mapping, Sequence

from flwr.app import ArrayRecord, Message

from offbeat.results.rows import Row

EXAMPLES = ("num-examples", "num_examples")
"""What Flower weighs replies by, and how older examples write it."""


def numbers_in(record: Mapping[str, object]) -> Row:
    """The plain numbers among some metrics; lists and texts are left out."""
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
    """What the reply says of the number of examples; None if it says nothing."""
    metrics = _metrics(reply)
    return next((metrics[name] for name in EXAMPLES if name in metrics), None)


def weighed_metrics(reply: Message) -> tuple[Row, float]:
    """The metrics of a reply, and what they weigh: its number of examples, or 1 if it does not say."""
    examples = examples_of(reply)
    return _metrics(reply), 1.0 if examples is None else examples


def mean_metrics(found: Sequence[tuple[Row, float]]) -> Row:
    """The weighted means of the metrics that all of these have.

    >>> mean_metrics([({"loss": 1.0, "num-examples": 1}, 1.0), ({"loss": 2.0, "num-examples": 3}, 3.0)])
    {'loss': 1.75}
    """
    total = sum(weight for _, weight in found)
    shared = [name for name in found[0][0] if all(name in metrics for metrics, _ in found)] if total else []
    sums = {name: sum(weight * metrics[name] for metrics, weight in found) for name in shared if name not in EXAMPLES}
    return {name: value / total for name, value in sums.items()}


def reply_mistake(message: Message, reply: Message, first: Mapping[str, str], weight: str | None) -> str:
    """What Flower's own strategies cannot use of a reply to a training or an evaluation, in a sentence; else nothing.

    `first` is the type of each array of the first model: Flower's averages are not always of the same. `weight` is what
    the app's strategy weighs replies by, if it has a strategy.
    """
    kind, content = message.metadata.message_type, reply.content
    if kind not in ("train", "evaluate") or any(name.startswith(("fitres", "evaluateres")) for name in content):
        return ""
    metrics = list(content.metric_records.values())
    if weight is not None and len(metrics) == 1 and weight not in metrics[0]:
        return f"its reply has no {weight!r} among its metrics, by which the strategy weighs replies"
    sent, back = message.content.array_records, content.array_records
    if kind == "train" and len(sent) == len(back) == 1:
        return _difference(next(iter(sent.values())), next(iter(back.values())), first)
    return ""


def _difference(sent: ArrayRecord, back: ArrayRecord, first: Mapping[str, str]) -> str:
    if sent.keys() != back.keys():
        return "its arrays have other names than those that it was sent"
    for name, array in back.items():
        theirs = sent[name]
        if array.dtype == theirs.dtype == "uint8" and len(array.shape) == len(theirs.shape) == 1:
            continue  # bytes, such as trees that have been added to, which may be more or fewer
        if tuple(array.shape) != tuple(theirs.shape) or array.dtype not in (theirs.dtype, first.get(name)):
            return (
                f"its array {name!r} is {array.dtype} of shape {tuple(array.shape)}, and was sent as {theirs.dtype} of "
                f"shape {tuple(theirs.shape)}"
            )
    return ""
