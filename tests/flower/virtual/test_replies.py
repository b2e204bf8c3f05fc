"""What is wrong with a reply, as far as that can be said without knowing the strategy."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from offbeat.flower.virtual.clients import identify
from offbeat.flower.virtual.replies import reply_mistake


def mistake(sent: object, back: object, *, weight: str | None = "num-examples") -> str:
    identify(1)
    message = Message(RecordDict({"arrays": ArrayRecord({"0": Array(np.asarray(sent))})}), 7, "train")
    arrays, metrics = ArrayRecord({"0": Array(np.asarray(back))}), MetricRecord({"num-examples": 1})
    return reply_mistake(message, Message(RecordDict({"a": arrays, "m": metrics}), reply_to=message), {}, weight)


def test_numbers_keep_their_shape_and_bytes_need_not() -> None:
    assert mistake([1.0, 2.0], [3.0, 4.0]) == ""
    assert "and shape (1,), but was sent with type float64 and shape (2,)" in mistake([1.0, 2.0], [3.0])
    trees = [
        np.frombuffer(text, dtype=np.uint8) for text in (b"", b"[1, 2]")
    ]  # as Flower's XGBoost strategies send them
    assert mistake(trees[0], trees[1]) == mistake(trees[1], trees[0]) == ""


@pytest.mark.parametrize(("weight", "said"), [(None, ""), ("num-examples", ""), ("weight", "has no metric 'weight'")])
def test_only_what_the_strategy_weighs_by_is_missed(weight: str | None, said: str) -> None:
    found = mistake([1.0], [2.0], weight=weight)
    assert said in found and bool(said) == bool(found)
