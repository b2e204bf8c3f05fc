"""The stacked trainer against the sequential one: the same batches, the same steps, sums in another order."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order, RateSchedule
from offbeat.core.parameters import frozen
from offbeat.core.terms import Distillation, Proximal
from offbeat.data.partition import Partition
from offbeat.data.transforms import Flip, InputPipeline, Standardisation
from offbeat.models import build, vector_of
from offbeat.training import batches, stacked
from offbeat.training.stacked import StackedTrainer, can_stack, is_plain, stacking_pays
from offbeat.training.stacked_chains import stackable
from offbeat.training.tasks import Classification
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

SIZES = (40, 7, 64, 33, 1, 50)


def blocks(*sizes: int) -> Partition:
    """Device d has the d-th block of samples."""
    return Partition.of(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))


def trainer_of(model: nn.Module, sizes: tuple[int, ...] = SIZES) -> TorchTrainer:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(sum(sizes), 1, 4, 4)).astype(np.float32)
    return TorchTrainer(model, frozen(x), rng.integers(0, 3, sum(sizes)), blocks(*sizes), seed=3)


def jobs_of(model: nn.Module, order: Order, devices: int = len(SIZES), last: int = 3) -> list[TrainingJob]:
    start = vector_of(model)
    work = TrainingState(parameters=start)
    return [
        TrainingJob(
            device=device, ticket=10 + device, order=order, first=0, last=last, state=work, anchor=frozen(0.9 * start)
        )
        for device in range(devices)
    ]


def assert_agree(one: TrainingState, other: TrainingState) -> None:
    np.testing.assert_allclose(one.parameters, other.parameters, rtol=1e-4, atol=1e-5)
    assert (one.steps, one.seen) == (other.steps, other.seen)
    assert one.loss_sum == pytest.approx(other.loss_sum, rel=1e-4)
    assert one.squared_sum == pytest.approx(other.squared_sum, rel=1e-4)
    assert (one.momentum is None) == (other.momentum is None)
    if one.momentum is not None and other.momentum is not None:
        np.testing.assert_allclose(one.momentum, other.momentum, rtol=1e-3, atol=1e-5)
    assert one.optimiser.keys() == other.optimiser.keys()
    for name, vector in one.optimiser.items():
        np.testing.assert_allclose(vector, other.optimiser[name], rtol=1e-3)


def assert_equals_sequential(model: nn.Module, jobs: list[TrainingJob]) -> None:
    trainer = trainer_of(model)
    together = StackedTrainer(trainer).train_many(jobs)
    for job, work in zip(jobs, together, strict=True):
        assert_agree(work, trainer.train(job))


def mlp() -> nn.Module:
    return build("mlp", (1, 4, 4), 3, seed=0)


def logistic() -> nn.Module:
    return build("logistic", (1, 4, 4), 3, seed=0)


def odd_chain() -> nn.Module:
    """Activations of every kind and in odd places, one module used twice, a layer without bias."""
    shared = nn.Tanh()
    dense = nn.Linear(16, 8, bias=False)
    return nn.Sequential(
        nn.Flatten(), shared, dense, nn.Sigmoid(), nn.Identity(), nn.Linear(8, 6), shared, nn.Linear(6, 3), nn.ReLU()
    )


def convolutions() -> nn.Module:
    """Two convolutions, one dilated and without bias, normalisation by groups, all kinds of pooling."""
    layers = [
        nn.Conv2d(1, 4, 2, padding=1),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(4, 6, 2, dilation=2, groups=2, bias=False),
        nn.AvgPool2d(1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(*layers).apply(
            lambda layer: layer.reset_parameters() if hasattr(layer, "reset_parameters") else None  # type: ignore[operator]
        )


PLAIN = Order(batch_size=16, learning_rate=0.1)


@pytest.mark.parametrize("make", [logistic, mlp, odd_chain, convolutions])
@pytest.mark.parametrize(
    "order",
    [
        PLAIN,
        replace(PLAIN, momentum=0.9),
        replace(PLAIN, weight_decay=0.05, terms=(Proximal(mu=0.3),)),
        replace(PLAIN, momentum=0.9, weight_decay=0.05, terms=(Proximal(mu=0.3),)),
        replace(PLAIN, batch_size=None),
        replace(PLAIN, batch_size=100),
        replace(PLAIN, optimiser="polyak", learning_rate=0.01),
        replace(PLAIN, optimiser="polyak", learning_rate=0.01, weight_decay=0.05, terms=(Proximal(mu=0.3),)),
    ],
)
def test_ragged_clients_train_as_they_do_alone(make: Callable[[], nn.Module], order: Order) -> None:
    model = make()
    assert_equals_sequential(model, jobs_of(model, order))


def test_jobs_may_differ_in_everything_and_keep_their_order() -> None:
    model = mlp()
    orders = [
        replace(PLAIN, learning_rate=0.02),
        replace(PLAIN, momentum=0.5),
        replace(PLAIN, terms=(Proximal(mu=1.0),)),
        replace(PLAIN, weight_decay=0.1, batch_size=8),
        replace(PLAIN, momentum=0.9, terms=(Proximal(mu=0.1),)),
        replace(PLAIN, optimiser="polyak"),
    ]
    lasts = [1, 4, 2, 3, 1, 2]
    jobs = [
        replace(job, order=order, last=last)
        for job, order, last in zip(jobs_of(model, PLAIN), orders, lasts, strict=True)
    ]
    assert_equals_sequential(model, jobs)


@pytest.mark.parametrize("more", [{"momentum": 0.9}, {"optimiser": "polyak", "learning_rate": 0.001}])
def test_a_run_goes_on_from_where_it_paused(more: dict[str, Any]) -> None:
    model = mlp()
    trainer = trainer_of(model)
    jobs = jobs_of(model, replace(PLAIN, **more), last=4)
    together = StackedTrainer(trainer)
    halves = together.train_many([replace(job, last=2) for job in jobs])
    rests = together.train_many([replace(job, first=2, state=half) for job, half in zip(jobs, halves, strict=True)])
    for job, rest in zip(jobs, rests, strict=True):
        assert_agree(rest, trainer.train(job))


def test_it_does_not_matter_who_else_is_in_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    together = StackedTrainer(trainer_of(model))
    jobs = jobs_of(model, PLAIN)
    everyone = together.train_many(jobs)
    alone = [together.train_many([job])[0] for job in jobs]
    monkeypatch.setattr(stacked, "MOST_CLIENTS", 2)
    pairs = together.train_many(jobs)
    monkeypatch.setattr(stacked, "MOST_BYTES", 1)
    one_by_one = together.train_many(jobs)
    for states in (alone, pairs, one_by_one):
        for one, other in zip(everyone, states, strict=True):
            assert_agree(one, other)


def test_the_same_stack_gives_the_same_bits() -> None:
    model = mlp()
    one, two = (StackedTrainer(trainer_of(model)).train_many(jobs_of(model, PLAIN)) for _ in range(2))
    for first, second in zip(one, two, strict=True):
        assert np.array_equal(first.parameters, second.parameters)


def test_nothing_that_was_handed_in_is_written_to_and_what_is_handed_out_is_frozen() -> None:
    model = mlp()
    jobs = jobs_of(model, replace(PLAIN, momentum=0.9, terms=(Proximal(mu=0.1),)))
    start, anchor = jobs[0].state.parameters.copy(), jobs[0].anchor.copy()
    states = StackedTrainer(trainer_of(model)).train_many(jobs)
    assert np.array_equal(jobs[0].state.parameters, start)
    assert np.array_equal(jobs[0].anchor, anchor)
    assert not any(work.parameters.flags.writeable for work in states)


def test_devices_without_samples_and_empty_lists_change_nothing() -> None:
    model = mlp()
    together = StackedTrainer(trainer_of(model, sizes=(0, 5, 0)))
    assert together.train_many([]) == []
    jobs = jobs_of(model, PLAIN, devices=3)
    states = together.train_many(jobs)
    assert [work.steps for work in states] == [0, 3, 0]
    assert np.array_equal(states[0].parameters, jobs[0].state.parameters)
    assert together.train_many(jobs[:1])[0].seen == 0


def test_layer_slices_are_refused() -> None:
    model = mlp()
    with pytest.raises(InvalidInput, match="only orders for whole models"):
        StackedTrainer(trainer_of(model)).train_many(jobs_of(model, replace(PLAIN, unit="layer")))


def frozen_chain() -> nn.Module:
    chain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    chain[0].weight.requires_grad_(False)
    return chain


def tied_chain() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


def test_dense_chains_can_be_stacked() -> None:
    assert all(stackable(make()) for make in (logistic, mlp, odd_chain))


@pytest.mark.parametrize("name", ["lenet5", "cnn", "cnn-small", "alexnet"])
def test_so_can_chains_with_convolutions(name: str) -> None:
    shape = (3, 32, 32) if name == "alexnet" else (1, 28, 28)
    assert stackable(build(name, shape, 10, seed=0))


@pytest.mark.parametrize(
    "model",
    [
        build("resnet20", (3, 32, 32), 10, seed=0),
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten()),
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 3)),
        nn.Sequential(nn.Conv2d(1, 2, 2, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(50, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 2)),
        nn.Sequential(nn.MaxPool2d(2), nn.Linear(2, 2)),
        nn.Linear(4, 2),
        nn.Sequential(nn.Flatten()),
        nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)),
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Linear(4, 2), nn.Flatten()),
        nn.Sequential(nn.Flatten(start_dim=0), nn.Linear(4, 2)),
        frozen_chain(),
        tied_chain(),
    ],
)
def test_other_models_cannot_be_stacked(model: nn.Module) -> None:
    assert not stackable(model)


@pytest.mark.parametrize(
    "other",
    [
        {"task": Classification(label_smoothing=0.1)},
        {"task": Classification(class_weights=[1.0, 2.0, 3.0])},
        {"precision": "bfloat16"},
        {"pipeline": InputPipeline(transforms=(Flip(),))},
    ],
)
def test_only_the_plain_loss_on_plain_batches_is_stacked(other: dict[str, Any]) -> None:
    x, y = np.zeros((4, 1, 4, 4), dtype=np.float32), np.arange(4) % 3
    assert can_stack(TorchTrainer(mlp(), x, y, blocks(4), seed=3))
    assert not can_stack(TorchTrainer(mlp(), x, y, blocks(4), seed=3, **other))


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "layer"},
        {"width": 0.5},
        {"optimiser": "adam"},
        {"optimiser": "polyak"},  # with momentum
        {"clip_norm": 1.0},
        {"schedule": RateSchedule()},
        {"terms": (Distillation(),)},
    ],
)
def test_only_plain_orders_are_stacked(change: dict[str, Any]) -> None:
    plain = Order(momentum=0.9, weight_decay=0.1, terms=(Proximal(mu=1.0),))
    assert is_plain(plain)
    assert not is_plain(replace(plain, **change))


def test_a_model_that_cannot_be_stacked_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"nn\.Sequential of dense layers"):
        StackedTrainer(trainer_of(nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Dropout(0.5))))


@pytest.mark.parametrize("make", [mlp, convolutions])
def test_what_lies_elsewhere_than_on_the_processor_gives_the_same_bits(
    make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a graphics processor, taken on this one."""
    model = make()
    jobs = jobs_of(model, Order(batch_size=4, learning_rate=0.2, momentum=0.5))
    here = StackedTrainer(trainer_of(model)).train_many(jobs)
    monkeypatch.setattr(batches, "on_processor", lambda torch_device: False)
    there = StackedTrainer(trainer_of(model)).train_many(jobs)
    for one, other in zip(here, there, strict=True):
        assert one.parameters.tobytes() == other.parameters.tobytes()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_pixels_that_are_kept_as_bytes_train_stacked_as_numbers_do(
    elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, random = convolutions(), np.random.default_rng(0)
    pixels, y = random.integers(0, 256, (sum(SIZES), 1, 4, 4), dtype=np.uint8), random.integers(0, 3, sum(SIZES))
    norm = Standardisation(mean=(0.4,), std=(0.2,))
    numbers = TorchTrainer(model, norm(pixels), y, blocks(*SIZES), seed=3)
    monkeypatch.setattr(batches, "on_processor", lambda torch_device: not elsewhere)
    kept = TorchTrainer(model, pixels, y, blocks(*SIZES), seed=3, pipeline=InputPipeline(standardisation=norm))
    jobs = jobs_of(model, PLAIN)
    for one, other in zip(*(StackedTrainer(each).train_many(jobs) for each in (numbers, kept)), strict=True):
        assert one.parameters.tobytes() == other.parameters.tobytes()


def test_stacking_pays_but_for_large_batches_of_convolutions_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, convolutional = trainer_of(mlp()), trainer_of(convolutions())
    assert all(stacking_pays(dense, size) for size in (1, 8, 9, 600, None))
    assert [stacking_pays(convolutional, size) for size in (1, 8, 9, None)] == [True, True, False, False]
    monkeypatch.setattr(stacked, "on_processor", lambda torch_device: False)
    assert stacking_pays(convolutional, None)


def test_squared_losses_agree() -> None:
    model = mlp()
    jobs = jobs_of(model, Order(slices=3, batch_size=8, learning_rate=0.1, squared_loss=True))
    assert_equals_sequential(model, jobs)
    assert all(state.squared_sum > 0 for state in StackedTrainer(trainer_of(model)).train_many(jobs))
