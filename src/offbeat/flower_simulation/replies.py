"""What stands in a reply: its metrics, and what Flower's own strategies could not use."""

from collections.abc import Iterable, Mapping

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


def mean_metrics(replies: Iterable[Message]) -> Row:
    """The means of the metrics that all of these replies have, weighed by their numbers of examples."""
    found = [(_metrics(reply), examples_of(reply)) for reply in replies if reply.has_content()]
    names = [name for name in found[0][0] if all(name in metrics for metrics, _ in found)] if found else []
    weights = [1.0 if weight is None else weight for _, weight in found]
    total = sum(weights)
    if not total:
        return {}
    sums = {name: sum(w * metrics[name] for w, (metrics, _) in zip(weights, found, strict=True)) for name in names}
    return {name: value / total for name, value in sums.items() if name not in EXAMPLES}


def reply_mistake(message: Message, reply: Message, first: Mapping[str, str]) -> str:
    """What Flower's own strategies cannot use of a reply to a training or an evaluation, in a sentence; else nothing.

    `first` is the type of each array of the first model: Flower's averages are not always of the same.
    """
    kind, content = message.metadata.message_type, reply.content
    if kind not in ("train", "evaluate") or any(name.startswith(("fitres", "evaluateres")) for name in content):
        return ""
    metrics = list(content.metric_records.values())
    if len(metrics) == 1 and EXAMPLES[0] not in metrics[0]:
        return f"its reply has no {EXAMPLES[0]!r} among its metrics, by which most strategies weigh replies"
    sent, back = message.content.array_records, content.array_records
    if kind == "train" and len(sent) == len(back) == 1:
        return _difference(next(iter(sent.values())), next(iter(back.values())), first)
    return ""


def _difference(sent: ArrayRecord, back: ArrayRecord, first: Mapping[str, str]) -> str:
    if sent.keys() != back.keys():
        return "its arrays have other names than those that it was sent"
    for name, array in back.items():
        theirs = sent[name]
        if tuple(array.shape) != tuple(theirs.shape) or array.dtype not in (theirs.dtype, first.get(name)):
            return (
                f"its array {name!r} is {array.dtype} of shape {tuple(array.shape)}, and was sent as {theirs.dtype} of "
                f"shape {tuple(theirs.shape)}"
            )
    return ""
