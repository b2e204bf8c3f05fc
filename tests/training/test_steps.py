"""Orders in steps: the batches of epochs, cut at any step without changing a bit; durations and budgets by the step."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch import nn

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import LocalWork, Order
from offbeat.core.parameters import Vector
from offbeat.core.streams import stream
from offbeat.data.partition import Partition
from offbeat.experiment.schema import Experiment
from offbeat.fleet import ExponentialFleet, RatioFleet, Workload, ZipfFleet
from offbeat.fleet.speeds import FleetSettings
from offbeat.models import vector_of
from offbeat.policy import Action, Dispatch, Event, Finish, Policy, Uploaded, View
from offbeat.running.assembly import own_settings
from offbeat.testing.toy import toy_simulation
from offbeat.training.stacked import StackedTrainer
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

SIZES = (10, 3, 8)
PER_EPOCH = (3, 1, 2)
"""Steps per epoch with batches of 4: ceil(10 / 4), ceil(3 / 4), ceil(8 / 4)."""


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3))


def trainer_of(model: nn.Module) -> TorchTrainer:
    random = stream(5, "data")
    x = random.normal(size=(sum(SIZES), 6)).astype(np.float32)
    partition = Partition.of(np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1]))
    return TorchTrainer(model, x, random.integers(0, 3, sum(SIZES)), partition, seed=5)


def job(start: Vector, order: Order, first: int, last: int, state: TrainingState | None = None, **more: Any) -> Any:
    state = state or TrainingState(parameters=start)
    fields = {"device": 0, "ticket": 7} | more
    return TrainingJob(order=order, first=first, last=last, state=state, anchor=start, **fields)


def in_steps(**changes: Any) -> Order:
    usual: dict[str, Any] = {"slices": 7, "unit": "step", "batch_size": 4, "learning_rate": 0.1, "momentum": 0.9}
    return Order(**(usual | changes))


def same(one: TrainingState, other: TrainingState) -> bool:
    return (
        one.parameters.tobytes() == other.parameters.tobytes()
        and (one.steps, one.loss_sum, one.seen) == (other.steps, other.loss_sum, other.seen)
        and one.steps_into_slice == other.steps_into_slice == 0
    )


@pytest.mark.parametrize("device", range(3))
def test_the_steps_of_two_epochs_are_the_two_epochs_bit_for_bit(device: int) -> None:
    model, steps = dense(), 2 * PER_EPOCH[device]
    trainer, start = trainer_of(model), vector_of(model)
    epochs = trainer.train(job(start, in_steps(unit="epoch", slices=2), 0, 2, device=device))
    assert same(trainer.train(job(start, in_steps(slices=steps), 0, steps, device=device)), epochs)
    assert epochs.steps == steps


@pytest.mark.parametrize("model", [dense(), dropping()], ids=["dense", "dropout"])
@pytest.mark.parametrize("batch_size", [3, 4, None])
def test_cutting_an_order_at_any_step_changes_no_bit(model: nn.Module, batch_size: int | None) -> None:
    """7 steps of 4, 3 or 1 per epoch: the cuts fall within epochs and between them."""
    trainer, start, order = trainer_of(model), vector_of(model), in_steps(batch_size=batch_size)
    whole = trainer.train(job(start, order, 0, 7))
    assert whole.steps == 7
    for cut in range(1, 7):
        part = trainer.train(job(start, order, 0, cut))
        assert part.steps == cut
        assert same(trainer.train(job(start, order, cut, 7, part)), whole)


@pytest.mark.parametrize("asked", range(1, 8))
def test_a_step_that_is_cut_short_does_not_count_and_the_ones_before_it_do(asked: int) -> None:
    model = dense()
    trainer, start, order = trainer_of(model), vector_of(model), in_steps()
    questions: list[int] = []

    def proceed(done: int) -> bool:
        questions.append(done)
        return len(questions) < asked

    state, done = trainer.train_while(job(start, order, 0, 7), proceed)
    assert done == state.steps == asked - 1 and questions == list(range(asked))
    assert same(state, trainer.train(job(start, order, 0, done)) if done else TrainingState(parameters=start))


def test_a_stack_of_devices_takes_the_same_steps() -> None:
    """Jobs that begin and end within an epoch, on devices with 3, 1 and 2 steps in it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    trainer, start, order = trainer_of(model), vector_of(model), in_steps()
    jobs = [job(start, order, 2, 7, device=device, ticket=device) for device in range(3)]
    for each, stacked in zip(jobs, StackedTrainer(trainer).train_many(jobs), strict=True):
        alone = trainer.train(each)
        np.testing.assert_allclose(stacked.parameters, alone.parameters, rtol=1e-4, atol=1e-5)
        assert (stacked.steps, stacked.seen) == (alone.steps, alone.seen) and alone.steps == 5


# Settings -------------------------------------------------------------------------------------------------------------


def test_local_steps_replace_epochs_in_orders_and_files() -> None:
    local = LocalWork(steps=50)
    assert (local.order(0).unit, local.order(0).slices) == ("step", 50)
    assert "epochs" not in local.model_dump() and LocalWork(**local.model_dump(exclude_none=True)) == local
    assert (LocalWork().order(0).unit, LocalWork().order(0).slices) == ("epoch", 5)
    with pytest.raises(InvalidInput, match=r"local\.epochs = 2 and local\.steps = 50: give one of them"):
        LocalWork(steps=50, epochs=2)
    table: dict[str, Any] = {"stop": {"versions": 1}, "local": {"steps": 3}, "devices": {"1": {"steps": 9}}}
    experiment = Experiment.parse(table)
    assert Experiment.parse(experiment.table()).table() == experiment.table()
    assert own_settings(experiment, 4, None)[1].steps == 9
    assert Experiment.parse({"stop": {"versions": 1}}).changed({"local": {"steps": 3}}).local.slices == 3
    assert experiment.changed({"local": {"epochs": 2}}).local.unit == "epoch"
    wrong = Experiment.parse(table | {"devices": {"1": {"epochs": 9}}})
    with pytest.raises(InvalidInput, match=r"devices\.1\.epochs = 9: \[local\] counts in steps"):
        own_settings(wrong, 4, None)


# Durations ------------------------------------------------------------------------------------------------------------


def workload() -> Workload:
    samples: npt.NDArray[np.int64] = np.array([100, 30])
    return Workload(devices=2, samples=samples, layers=2, flops_per_sample=0.0, seed=1)


@pytest.mark.parametrize("fleet", [RatioFleet(ratio=1.0, epoch_seconds=6.0), ZipfFleet(epoch_seconds=6.0)])
def test_the_steps_of_an_epoch_take_as_long_as_the_epoch(fleet: FleetSettings) -> None:
    """Device 0: 100 samples in batches of 32 are 4 steps, so that 8 steps are 2 epochs; device 1: 1 step each."""
    speeds = fleet.build(workload())
    steps = speeds.slice_seconds(0, 1, Order(unit="step", slices=9, batch_size=32))
    epochs = speeds.slice_seconds(0, 1, Order(slices=3, batch_size=32))
    assert len(steps) == 9
    assert [sum(steps[:4]), sum(steps[4:8]), 4 * steps[8]] == pytest.approx(list(epochs))
    assert list(speeds.slice_seconds(1, 1, Order(unit="step", slices=2, batch_size=32))) == list(
        speeds.slice_seconds(1, 1, Order(slices=2, batch_size=32))
    )


def test_a_random_step_takes_the_mean_time_of_its_layers() -> None:
    """25 samples through each of 2 layers at 50 a second take 1 s on average."""
    speeds = ExponentialFleet(speeds=[50.0, 50.0]).build(workload())
    seconds = speeds.slice_seconds(0, 1, Order(unit="step", slices=4000, batch_size=25))
    assert np.mean(seconds) == pytest.approx(1.0, abs=0.05)


@dataclass
class Found:
    done: list[tuple[int, int, float]] = field(default_factory=list)


class Budgeted(Policy):
    """One order of nine steps, four per epoch, with a time budget."""

    State = Found

    def react(self, event: Event, state: Found, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            done = event.update.progress
            state.done.append((done.slices, done.steps, done.seconds))
            yield Finish(reason="done")
        else:
            batch_size = -(-view.samples(0) // 4)
            yield Dispatch(device=0, order=view.order(unit="step", slices=9, batch_size=batch_size, budget=5.0))


def test_a_simulated_device_uploads_the_steps_that_it_has_done_when_its_time_is_up() -> None:
    """Steps of 6 s / 4 = 1.5 s: three are done after 5 s, and the device uploads then."""
    fleet = RatioFleet(ratio=1.0, epoch_seconds=6.0)
    simulation = toy_simulation(Budgeted(), troubled=False, devices=1, speeds=fleet)
    list(simulation)
    assert simulation.session.state.done == [(3, 3, 5.0)]
    assert simulation.accounts.busy_seconds == 5.0
