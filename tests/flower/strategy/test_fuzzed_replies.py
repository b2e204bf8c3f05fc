"""Whatever a client app replies, one node cannot end the run or break its snapshot."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from app_grid import AppGrid, adding_app
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from offbeat.flower import Async, FedBuff
from offbeat.flower.strategy.records import WORDS
from offbeat.results.result import read_run

SCALARS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(), st.sampled_from([0, 1, 10, -1, 1e300, float("nan"), float("inf")])
)
ANYTHING: Any = st.one_of(SCALARS, st.booleans(), st.text(max_size=5), st.binary(max_size=5))
NAMES = st.sampled_from(["metrics", "arrays", "num-examples", WORDS, "offbeat", "offbeat-model", "train_loss", "a"])
GOOD = np.ones(3, np.float32)


@st.composite
def arrays(draw: Any) -> Array:
    array = Array(GOOD)
    data = draw(st.one_of(st.just(array.data), st.binary(max_size=40), st.just(array.data[:-2])))
    shape = draw(st.sampled_from([(3,), (2,), (), (3, 1), (2**40,), (-1,)]))
    dtype = draw(st.sampled_from(["float32", "float64", "int8", "object", "nonsense"]))
    return Array(dtype=dtype, shape=shape, stype=draw(st.sampled_from(["numpy.ndarray", "pickle"])), data=data)


def metrics(found: dict[str, Any]) -> MetricRecord:
    return MetricRecord(found)


def config(found: dict[str, Any]) -> ConfigRecord:
    return ConfigRecord(found)


NUMBERS: Any = st.one_of(SCALARS, st.lists(st.integers(0, 9), max_size=3))
RECORDS: Any = st.one_of(
    st.dictionaries(NAMES, NUMBERS, max_size=3).map(metrics),
    st.dictionaries(NAMES, ANYTHING, max_size=3).map(config),
    st.dictionaries(st.sampled_from(["w", "v"]), arrays(), max_size=2).map(ArrayRecord),
)
CONTENTS = st.dictionaries(NAMES, RECORDS, max_size=4)


def honest(**more: Any) -> dict[str, Any]:
    """A valid reply with some records replaced or added."""
    metrics = MetricRecord({"num-examples": 10, "train_loss": 1.0})
    return {"arrays": ArrayRecord({"w": Array(GOOD)}), "metrics": metrics} | more


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.one_of(CONTENTS, CONTENTS.map(lambda found: honest(**found))))
@example(content=honest(**{WORDS: ConfigRecord({"a": b"\0"})}))
@example(content=honest(**{WORDS: ConfigRecord({"num-examples": b"\0"})}))
@example(content=honest(**{WORDS: ConfigRecord({"a": [1, 2]})}))
@example(content=honest(metrics=MetricRecord({"num-examples": float("nan")})))
@example(content=honest(metrics=MetricRecord({"num-examples": [1, 2]})))
@example(content=honest(metrics=MetricRecord({"num-examples": 10, "train_loss": [1, 2]})))
@example(content=honest(metrics=MetricRecord({"num-examples": 10})))
def test_no_reply_of_one_node_ends_the_run_or_breaks_its_snapshot(tmp_path: Path, content: dict[str, Any]) -> None:
    def tamper(node: int, question: Message, answer: Message) -> Message:
        return Message(RecordDict(content), reply_to=question) if node == 2 else answer

    grid = AppGrid({0: 1.0, 1: 1.0, 2: 1.0}, adding_app({}), tamper=tamper)
    out = tmp_path / "run"
    strategy = Async(FedBuff(buffer=2), out=out, overwrite=True, checkpoint_seconds=1e-9)  # a checkpoint in every turn
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(3, np.float32))}), num_rounds=3)  # type: ignore[arg-type]
    assert read_run(out).summary["versions"] == 3


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_bytes_among_the_metrics_are_a_fault_of_their_node(kind: str, tmp_path: Path) -> None:
    def tamper(node: int, question: Message, answer: Message) -> Message:
        if node == 2 and question.metadata.message_type == kind:
            answer.content[WORDS] = ConfigRecord({"a": b"\0"})
        return answer

    grid = AppGrid({0: 1.0, 1: 1.0, 2: 1.0}, adding_app({}), tamper=tamper)
    strategy = Async(FedBuff(buffer=2), out=tmp_path / "run")
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(3, np.float32))}), num_rounds=3)  # type: ignore[arg-type]
    refused = read_run(tmp_path / "run").summary.get("refused_devices", {})
    assert list(refused) == (["2"] if kind == "train" else [])
