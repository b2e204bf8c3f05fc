"""Partitioners of Flower Datasets divide our data. `Halves` has the interface that their documentation describes; the
real ones are tried too where flwr-datasets is installed."""

from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest

from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment

datasets = pytest.importorskip("datasets", reason="the extra offbeat[datasets] is not installed")


class Halves:
    """Sorted by a column and cut into equal parts; like theirs, it takes a table once and returns parts of it."""

    made: ClassVar[list[tuple[int, int | None]]] = []

    def __init__(self, num_partitions: int, partition_by: str, seed: int | None = 42) -> None:
        self.made.append((num_partitions, seed))
        self._number, self.partition_by, self.seed = num_partitions, partition_by, seed
        self._dataset: Any = None

    @property
    def dataset(self) -> Any:
        return self._dataset

    @dataset.setter
    def dataset(self, table: Any) -> None:
        assert isinstance(table, datasets.Dataset)
        if self._dataset is not None:
            raise ValueError("The dataset should be assigned only once to the partitioner.")
        self._dataset = table

    @property
    def num_partitions(self) -> int:
        return self._number

    def load_partition(self, partition_id: int) -> Any:
        return self._dataset.sort(self.partition_by).shard(self._number, partition_id, contiguous=True)


class Nothing(Halves):
    """Its second part is empty."""

    def load_partition(self, partition_id: int) -> Any:
        return self._dataset.select([] if partition_id else [0])


def experiment(**partition: Any) -> Experiment:
    return Experiment.parse({"stop": {"versions": 1}, "data": {"name": "digits", "devices": 5}, "partition": partition})


def resolvable(thing: type, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tests are imported in a way that gives their modules names of their own."""
    import sys
    from types import ModuleType

    module = ModuleType("partitioners_of_a_user")
    setattr(module, thing.__name__, thing)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return f"{module.__name__}:{thing.__name__}"


def test_a_partitioner_is_named_with_its_arguments_and_gets_devices_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = experiment(name=resolvable(Halves, monkeypatch), partition_by="label")
    dataset, partition = chosen.load_data()
    assert partition.devices == 5
    assert sorted(partition.indices.tolist()) == list(range(len(dataset.train_y)))
    labels = [dataset.train_y[partition.samples(device)] for device in range(5)]
    assert all(first.max() <= second.min() for first, second in pairwise(labels))
    chosen.changed({"seed": 7}).load_data()
    assert Halves.made[-1] == (5, 7)
    assert chosen.table()["partition"] == {"name": "partitioners_of_a_user:Halves", "partition_by": "label"}


def test_an_object_may_be_given_and_used_again() -> None:
    halves = Halves(num_partitions=5, partition_by="label")
    chosen = Experiment(stop={"versions": 1}, data={"name": "digits", "devices": 5}, partition=halves)
    first, again = chosen.load_data()[1], chosen.load_data()[1]
    np.testing.assert_array_equal(first.indices, again.indices)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "missing a required argument: 'partition_by'"),
        ({"partition_by": "label", "alpha": 1.0}, "unexpected keyword argument 'alpha'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        experiment(name=resolvable(Halves, monkeypatch), **arguments)


def test_what_cannot_divide_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    name = resolvable(Halves, monkeypatch)
    with pytest.raises(InvalidInput, match=r"the partitioner failed: .*colour"):
        experiment(name=name, partition_by="colour").load_data()
    with pytest.raises(InvalidInput, match=r"data\.devices = 5, but the partitioner .* makes 4 parts"):
        experiment(name=name, partition_by="label", num_partitions=4).load_data()
    with pytest.raises(InvalidInput, match="device 1 would hold no samples"):
        experiment(name=resolvable(Nothing, monkeypatch), partition_by="label").load_data()


def test_the_real_dirichlet_partitioner_divides_by_label() -> None:
    pytest.importorskip("flwr_datasets", reason="flwr-datasets is not installed")
    chosen = experiment(
        name="flwr_datasets.partitioner:DirichletPartitioner", partition_by="label", alpha=0.3, self_balancing=False
    )
    dataset, partition = chosen.load_data()
    assert sorted(partition.indices.tolist()) == list(range(len(dataset.train_y)))
    np.testing.assert_array_equal(chosen.load_data()[1].indices, partition.indices)
    other = chosen.changed({"seed": 1}).load_data()[1]
    assert other.sizes.tolist() != partition.sizes.tolist()
