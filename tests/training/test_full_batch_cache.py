"""Full-batch work is done once for all who would do the same, and changes no bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from offbeat import Experiment, run
from offbeat.core.orders import Order
from offbeat.core.parameters import frozen
from offbeat.data import Dataset, Partition
from offbeat.training import executor as executors
from offbeat.training.executor import FullBatchCache, StateCache
from offbeat.training.training_state import TrainingJob, TrainingState

FULL = Order(batch_size=None, learning_rate=0.1)
BASE, OTHER = frozen(np.zeros(4, dtype=np.float32)), frozen(np.ones(4, dtype=np.float32))


class Counting:
    """Counts what it is asked to train."""

    def __init__(self) -> None:
        self.jobs: list[TrainingJob] = []

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        self.jobs += jobs
        return [TrainingState(parameters=frozen(job.state.parameters + job.device + 1), steps=1) for job in jobs]


def job(device: int, ticket: int, base: Any = BASE, order: Order = FULL) -> TrainingJob:
    return TrainingJob(
        device=device, ticket=ticket, order=order, first=0, last=1, state=TrainingState(parameters=base), anchor=base
    )


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def cache() -> FullBatchCache:
    """Devices 0 and 1 have the same samples; device 2 has them in another order."""
    x, y = np.zeros((4, 1), dtype=np.float32), np.zeros(4, dtype=np.int64)
    dataset = Dataset(train_x=x, train_y=y, test_x=x, test_y=y, classes=1)
    partition = Partition.of([np.array([0, 1]), np.array([0, 1]), np.array([1, 0])])
    return FullBatchCache(dataset, partition, "mlp", StateCache())


def test_the_same_work_is_done_once_in_a_batch_and_after_it(cache: FullBatchCache, counting: Counting) -> None:
    first = cache.train([job(0, 1), job(1, 2)], counting.train)
    again = cache.train([job(1, 3, frozen(BASE.copy()))], counting.train)
    assert len(counting.jobs) == 1
    assert first[0] is first[1] is again[0]


@pytest.mark.parametrize(
    "different",
    [job(2, 2), job(0, 2, OTHER), job(0, 2, order=Order(batch_size=None, learning_rate=0.2))],
    ids=["order of samples", "base", "order"],
)
def test_other_work_is_done(cache: FullBatchCache, counting: Counting, different: TrainingJob) -> None:
    cache.train([job(0, 1), different], counting.train)
    cache.train([different], counting.train)
    assert len(counting.jobs) == 2


def test_mini_batches_and_work_that_goes_on_are_never_remembered(cache: FullBatchCache, counting: Counting) -> None:
    shuffled = job(0, 1, order=Order(batch_size=1))
    begun = TrainingJob(
        device=0, ticket=1, order=FULL, first=1, last=2, state=TrainingState(parameters=BASE, steps=1), anchor=BASE
    )
    for _ in range(2):
        cache.train([shuffled, begun], counting.train)
    assert len(counting.jobs) == 4


def test_what_was_not_asked_for_the_longest_is_forgotten() -> None:
    states = StateCache(limit=2 * BASE.nbytes)
    for key in (b"one", b"two"):
        states.put(key, TrainingState(parameters=BASE))
    assert states.get(b"one") is not None
    states.put(b"three", TrainingState(parameters=BASE))
    assert [states.get(key) is not None for key in (b"one", b"two", b"three")] == [True, False, True]


def a_run(repetition: int, states: StateCache, monkeypatch: pytest.MonkeyPatch, name: str = "psurdg") -> bytes:
    monkeypatch.setattr(executors, "SHARED", states)
    table = {
        "stop": {"time": 6.0},
        "data": {"name": "mnist5k", "devices": 4},
        "partition": {"name": "same", "samples": 150},
        "model": {"name": "cnn-small"},
        "local": {"epochs": 1, "batch_size": 0, "learning_rate": 0.1},
        "fleet": {"name": "bernoulli", "mean_delay": 1.0, "repetition": repetition},
        "algorithm": {"name": name},
        "evaluation": {"every_seconds": 6.0},
    }
    parameters = run(Experiment.parse(table)).parameters
    assert parameters is not None
    return parameters.tobytes()


def test_runs_share_gradients_and_end_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = StateCache()
    first = a_run(0, shared, monkeypatch)
    alone = shared.misses
    assert shared.hits > 0  # clients with the same samples
    assert alone <= 6  # one gradient per version at most
    hits = shared.hits
    assert a_run(0, shared, monkeypatch) == first
    assert shared.misses == alone  # a repeated run computes nothing
    second = a_run(1, shared, monkeypatch)
    assert shared.misses < alone + 6 and shared.hits > hits  # another one has the first model in common
    assert second != first
    forgetful = StateCache(limit=0)
    assert (a_run(0, forgetful, monkeypatch), a_run(1, forgetful, monkeypatch)) == (first, second)
    assert forgetful.hits == 0
