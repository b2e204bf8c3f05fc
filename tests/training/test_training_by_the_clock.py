"""Training that a clock cuts short: what is left is what a shorter job would have made, to the bit."""

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace
from torch import nn

from offbeat.core.orders import Order
from offbeat.core.parameters import Vector
from offbeat.core.streams import stream
from offbeat.models import vector_of
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState


class Whole:
    def samples(self, device: int) -> npt.NDArray[np.int64]:
        return np.arange(12)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def trainer_of(model: nn.Module) -> TorchTrainer:
    random = stream(5, "data")
    x = random.normal(size=(12, 6)).astype(np.float32)
    return TorchTrainer(model, x, random.integers(0, 3, 12), Whole(), seed=5)


def job_of(model: nn.Module, order: Order) -> TrainingJob:
    start: Vector = vector_of(model)
    return TrainingJob(
        device=1, ticket=7, order=order, first=0, last=order.slices, state=TrainingState(parameters=start), anchor=start
    )


def same(one: TrainingState, other: TrainingState) -> bool:
    pairs = [(one.parameters, other.parameters), (one.momentum, other.momentum)]
    arrays = all((a is None and b is None) or np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
    return arrays and (one.steps, one.loss_sum, one.seen) == (other.steps, other.loss_sum, other.seen)


@pytest.mark.parametrize("asked", range(1, 10))
def test_an_epoch_that_is_cut_short_counts_as_not_begun(asked: int) -> None:
    """Three epochs of four batches: at the k-th question time is up, so (k - 1) // 4 epochs are done."""
    model = network()
    trainer, order = trainer_of(model), Order(slices=3, batch_size=3, learning_rate=0.1, momentum=0.9)
    questions: list[int] = []

    def proceed(done: int) -> bool:
        questions.append(done)
        return len(questions) < asked

    work, done = trainer.train_while(job_of(model, order), proceed)
    assert done == (asked - 1) // 4
    assert questions == [place // 4 for place in range(asked)]
    job = job_of(model, order)
    if done:
        assert same(work, trainer.train(replace(job, last=done)))
    else:
        assert np.array_equal(work.parameters, job.state.parameters) and work.steps == 0


@pytest.mark.parametrize("asked", range(1, 14))
def test_an_epoch_that_is_interrupted_goes_on_where_it_was(asked: int) -> None:
    """Three epochs of four batches, interrupted before a step, with nothing random in them: the same bits."""
    model = network()
    trainer, order = trainer_of(model), Order(slices=3, batch_size=3, learning_rate=0.1, momentum=0.9)
    job, questions = job_of(model, order), iter(range(1, 100))
    work, done = trainer.train_while(job, lambda _: next(questions) < asked, keep=True)
    assert (done, work.steps_into_slice, work.steps) == (*divmod(asked - 1, 4), asked - 1)
    assert same(work, trainer.train(replace(job, last=done, extra_steps=work.steps_into_slice)))
    assert same(trainer.train(replace(job, first=done, state=work)), trainer.train(job))


def test_what_follows_an_interruption_has_random_numbers_of_its_own() -> None:
    """Dropout of the second half is not that of the first again, and the same each time."""
    model = nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3))
    trainer, order = trainer_of(model), Order(slices=1, batch_size=3, learning_rate=0.1)
    job = job_of(model, order)
    half = trainer.train(replace(job, last=0, extra_steps=2))
    again = replace(job, state=half)
    assert half.steps_into_slice == half.steps == 2
    assert same(trainer.train(again), trainer.train(again))
    elsewhere = replace(job, state=replace(half, steps_into_slice=1, steps=2))
    assert not same(trainer.train(again), trainer.train(elsewhere))


@pytest.mark.parametrize("deep", range(7))
def test_a_backward_pass_stops_between_layers_when_time_is_up(deep: int) -> None:
    """Two steps through three layers: cut after `deep` layers it is the job of `deep` slices."""
    model = network()
    trainer = trainer_of(model)
    order = Order(unit="layer", slices=6, batch_size=4, learning_rate=0.1)
    whole = job_of(model, order)
    work, done = trainer.train_while(whole, lambda layers: layers < deep)
    assert done == deep
    assert same(work, trainer.train(replace(whole, last=deep)))


def test_a_narrow_model_stops_as_well() -> None:
    model = network()
    trainer = trainer_of(model)
    order = Order(unit="layer", slices=3, batch_size=4, learning_rate=0.1, width=0.5)
    whole = job_of(model, order)
    work, done = trainer.train_while(whole, lambda layers: layers < 2)
    assert done == 2 and same(work, trainer.train(replace(whole, last=2)))
