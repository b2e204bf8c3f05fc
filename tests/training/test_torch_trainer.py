"""The sequential trainer: golden steps, PyTorch's own optimizer as the judge, and the same bits every time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.parameters import Vector, frozen
from offbeat.core.streams import stream
from offbeat.core.terms import Proximal
from offbeat.data.partition import Partition
from offbeat.models import build, vector_of
from offbeat.training.tasks import Classification
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

SEED = 3


def blocks(*sizes: int) -> Partition:
    """Device d has the d-th block of samples."""
    return Partition.of(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))


def data(count: int, *shape: int, classes: int = 3) -> tuple[Vector, npt.NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, classes, count)


def trainer_of(model: nn.Module, *shape: int, sizes: tuple[int, ...] = (14, 20)) -> TorchTrainer:
    x, y = data(sum(sizes), *shape)
    return TorchTrainer(model, frozen(x), y, blocks(*sizes), SEED)


def job_of(model: nn.Module, order: Order, first: int = 0, last: int = 1, device: int = 1) -> TrainingJob:
    start = vector_of(model)
    return TrainingJob(
        device=device,
        ticket=7,
        order=order,
        first=first,
        last=last,
        state=TrainingState(parameters=start),
        anchor=start,
    )


def loss_of(model: nn.Module, x: Vector, y: npt.NDArray[np.int64]) -> torch.Tensor:
    return functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def dense() -> nn.Module:
    return build("mlp", (5,), 3, seed=0)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


FULL = Order(slices=5, batch_size=6, learning_rate=0.1, momentum=0.9, weight_decay=0.01, terms=(Proximal(mu=0.1),))


def test_two_steps_by_hand_with_momentum_weight_decay_and_prox() -> None:
    # One sample x = 1 of class 0, logits z = (w0, w1), no bias, w = (0, 0), anchor (1, 1) = the order's base.
    # Softmax p = (1/2, 1/2): gradient of the loss (-1/2, 1/2); with decay 0.5 w = 0 and prox 0.1 (w - 1) = -0.1:
    #   v1 = (-0.6, 0.4),  w1 = 0 - 0.5 v1 = (0.3, -0.2).
    # Then p0 = 1 / (1 + exp(-0.5)) = 0.62245933: loss gradient (-0.37754067, 0.37754067);
    #   + decay (0.15, -0.1) + prox (-0.07, -0.12) = (-0.29754067, 0.15754067);
    #   v2 = 0.9 v1 + that = (-0.83754067, 0.51754067),  w2 = w1 - 0.5 v2 = (0.71877033, -0.45877033).
    trainer = TorchTrainer(nn.Linear(1, 2, bias=False), np.ones((1, 1)), np.zeros(1, dtype=np.int64), blocks(1), SEED)
    order = Order(batch_size=1, learning_rate=0.5, momentum=0.9, weight_decay=0.5, terms=(Proximal(mu=0.1),))
    job = TrainingJob(
        device=0,
        ticket=0,
        order=order,
        first=0,
        last=2,
        state=TrainingState(parameters=frozen([0, 0])),
        anchor=frozen([1, 1]),
    )
    work = trainer.train(job)
    assert work.parameters == pytest.approx([0.71877033, -0.45877033], abs=1e-6)
    assert work.momentum == pytest.approx([-0.83754067, 0.51754067], abs=1e-6)
    assert (work.steps, work.seen) == (2, 2)
    assert work.loss_sum == pytest.approx(-np.log(0.5) - np.log(0.62245933), abs=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_equals_torch_sgd_on_the_documented_batches(momentum: float, weight_decay: float) -> None:
    model = dense()
    trainer = trainer_of(model, 5)
    order = Order(slices=3, batch_size=6, learning_rate=0.1, momentum=momentum, weight_decay=weight_decay)
    work = trainer.train(job_of(model, order, 0, 3))

    x, y = data(34, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay)
    for k in range(3):
        samples = stream(SEED, "batches", 1, 7, k).permutation(np.arange(14, 34))
        for batch in np.split(samples, [6, 12, 18]):
            optimizer.zero_grad()
            backward(loss_of(model, x[batch], y[batch]))
            optimizer.step()
    np.testing.assert_allclose(work.parameters, vector_of(model), rtol=1e-5, atol=1e-6)
    assert (work.steps, work.seen) == (12, 60)


def test_a_full_batch_is_one_step_over_the_samples_as_they_stand() -> None:
    model = dense()
    order = Order(slices=2, batch_size=None, learning_rate=0.1)
    work = trainer_of(model, 5).train(job_of(model, order, 0, 2))
    x, y = data(34, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        backward(loss_of(model, x[14:], y[14:]))
        optimizer.step()
    np.testing.assert_allclose(work.parameters, vector_of(model), rtol=1e-5, atol=1e-6)
    assert work.steps == 2


def test_a_large_full_batch_is_taken_in_blocks_and_is_still_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dense()
    order = Order(slices=2, batch_size=None, learning_rate=0.1, momentum=0.5)
    whole = trainer_of(model, 5).train(job_of(model, order, 0, 2))
    monkeypatch.setattr("offbeat.training.trainer.BLOCK", 8)  # 20 samples: 8, 8 and 4
    blocks = trainer_of(model, 5)
    work = blocks.train(job_of(model, order, 0, 2))
    np.testing.assert_allclose(work.parameters, whole.parameters, rtol=1e-5, atol=1e-6)
    assert (work.steps, work.seen) == (whole.steps, whole.seen) == (2, 40)
    assert work.loss_sum == pytest.approx(whole.loss_sum, rel=1e-5)


def test_a_weighted_mean_is_never_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over blocks of weighted means is another number."""
    model, (x, y) = dense(), data(20, 5)
    order, task = Order(batch_size=None, learning_rate=0.1), Classification(class_weights=[1.0, 5.0, 0.1])

    def trained() -> bytes:
        trainer = TorchTrainer(model, x, y, blocks(20), SEED, task=task)
        return trainer.train(job_of(model, order, device=0)).parameters.tobytes()

    whole = trained()
    monkeypatch.setattr("offbeat.training.trainer.BLOCK", 8)
    assert trained() == whole


def test_a_model_that_mixes_its_samples_is_never_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = normed()
    order = Order(batch_size=None, learning_rate=0.1)
    whole = trainer_of(model, 5).train(job_of(model, order))
    monkeypatch.setattr("offbeat.training.trainer.BLOCK", 8)
    assert trainer_of(model, 5).train(job_of(model, order)).parameters.tobytes() == whole.parameters.tobytes()


def test_prox_pulls_to_the_anchor_as_a_loss_term_would() -> None:
    model, order = dense(), Order(slices=2, batch_size=None, learning_rate=0.1, terms=(Proximal(mu=0.5),))
    job = replace(job_of(model, order, 0, 2), anchor=frozen(np.ones(vector_of(model).size)))
    work = trainer_of(model, 5).train(job)
    x, y = data(34, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        distance = sum(((p - 1) ** 2).sum() for p in model.parameters())
        backward(loss_of(model, x[14:], y[14:]) + 0.25 * distance)
        optimizer.step()
    np.testing.assert_allclose(work.parameters, vector_of(model), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [dense, dropping, normed])
def test_a_run_in_two_jobs_equals_the_run_in_one_to_the_bit(make: Callable[[], nn.Module]) -> None:
    model = make()
    trainer = trainer_of(model, 5)
    whole = trainer.train(job_of(model, FULL, 0, 5))
    half = trainer.train(job_of(model, FULL, 0, 2))
    trainer.train(job_of(model, FULL, 0, 1, device=0))  # another device's work in between
    rest = trainer.train(replace(job_of(model, FULL, 2, 5), state=half))
    assert np.array_equal(whole.parameters, rest.parameters)
    assert whole.momentum is not None
    assert rest.momentum is not None
    assert np.array_equal(whole.momentum, rest.momentum)
    assert (whole.steps, whole.seen, whole.loss_sum) == (rest.steps, rest.seen, rest.loss_sum)


@pytest.mark.parametrize("name", ["mlp", "lenet5", "cnn-small"])
def test_another_trainer_gives_the_same_bits_and_other_tickets_give_others(name: str) -> None:
    model = build(name, (1, 16, 16), 3, seed=0)
    job = job_of(model, Order(batch_size=6, learning_rate=0.1))
    one, two = (trainer_of(model, 1, 16, 16).train(job) for _ in range(2))
    assert np.array_equal(one.parameters, two.parameters)
    other = trainer_of(model, 1, 16, 16).train(replace(job, ticket=8))
    assert not np.array_equal(one.parameters, other.parameters)


@pytest.mark.parametrize("name", ["mlp", "lenet5"])
def test_where_the_data_lie_in_memory_changes_no_bit(name: str) -> None:
    model = build(name, (1, 16, 16), 3, seed=0)
    x, y = data(34, 1, 16, 16)
    job = job_of(model, FULL, 0, 2)
    results = []
    for shift in range(4):
        memory = np.empty(x.size + shift, dtype=np.float32)
        memory[shift:] = x.ravel()
        start = np.empty(job.anchor.size + shift, dtype=np.float32)[shift:]
        start[:] = job.anchor
        trainer = TorchTrainer(model, memory[shift:].reshape(x.shape), y, blocks(14, 20), SEED)
        results.append(trainer.train(replace(job, state=TrainingState(parameters=start))).parameters)
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_convolutions_agree_with_torch_sgd_whatever_the_memory_format() -> None:
    model = build("lenet5", (1, 16, 16), 3, seed=0)
    work = trainer_of(model, 1, 16, 16).train(job_of(model, Order(batch_size=None, learning_rate=0.1)))
    x, y = data(34, 1, 16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(loss_of(model, x[14:], y[14:]))
    optimizer.step()
    np.testing.assert_allclose(work.parameters, vector_of(model), rtol=1e-4, atol=1e-6)


def test_a_model_that_views_its_feature_maps_trains_too() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.pool, self.dense = nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.Linear(36, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.dense(self.pool(self.convolution(x)).view(-1, 36))
            return result

    model = Viewing()
    work = trainer_of(model, 1, 8, 8).train(job_of(model, Order(batch_size=6)))
    assert work.steps == 4


def test_nothing_that_was_handed_in_is_written_to_and_nothing_handed_out_is_shared() -> None:
    model = dense()
    trainer = trainer_of(model, 5)
    job = job_of(model, FULL)
    start = job.state.parameters.copy()
    first = trainer.train(job)
    kept, kept_momentum = first.parameters.copy(), np.array(first.momentum)
    trainer.train(replace(job, state=first, first=1, last=3))
    assert np.array_equal(job.state.parameters, start)
    assert np.array_equal(job.anchor, start)
    assert np.array_equal(vector_of(model), start)
    assert np.array_equal(first.parameters, kept)
    assert np.array_equal(np.array(first.momentum), kept_momentum)
    assert not first.parameters.flags.writeable


def test_dropout_depends_on_device_ticket_and_slice_and_leaves_the_global_generator_alone() -> None:
    model = dropping()
    trainer, order = trainer_of(model, 5), Order(batch_size=None, learning_rate=0.1)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = trainer.train(job_of(model, order))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(2)
    assert np.array_equal(one.parameters, trainer.train(job_of(model, order)).parameters)
    assert not np.array_equal(one.parameters, trainer.train(replace(job_of(model, order), ticket=8)).parameters)
    assert not np.array_equal(one.parameters, trainer.train(job_of(model, order, 1, 2)).parameters)


def test_running_statistics_come_back_updated_and_are_not_trained() -> None:
    model = normed()
    trainer = trainer_of(model, 5)
    work = trainer.train(job_of(model, replace(FULL, batch_size=None)))
    x, _ = data(34, 5)
    hidden = model[0](torch.from_numpy(x[14:])).detach().numpy()  # type: ignore[index]
    mean = work.parameters[trainer.layout["1.running_mean"].span]
    np.testing.assert_allclose(mean, 0.1 * hidden.mean(0), rtol=1e-4, atol=1e-6)
    assert work.momentum is not None
    assert work.momentum.size == trainer.layout.trained_size < trainer.layout.size


def test_the_count_of_batches_starts_afresh_in_every_job() -> None:
    model = nn.Sequential(nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 3))  # averages over the batches counted
    trainer = trainer_of(model, 5)
    job = job_of(model, Order(batch_size=6))
    assert np.array_equal(trainer.train(job).parameters, trainer.train(job).parameters)


def test_frozen_parameters_stay_where_they_are() -> None:
    model = dense()
    model[1].weight.requires_grad_(False)  # type: ignore[index]
    trainer = trainer_of(model, 5)
    job = job_of(model, FULL, 0, 2)
    span = trainer.layout["1.weight"].span
    after = trainer.train(job).parameters
    assert np.array_equal(after[span], job.state.parameters[span])
    assert not np.array_equal(after, job.state.parameters)


def test_a_device_without_samples_changes_nothing() -> None:
    model = dense()
    job = job_of(model, FULL, 0, 2, device=0)
    work = trainer_of(model, 5, sizes=(0, 4)).train(job)
    assert np.array_equal(work.parameters, job.state.parameters)
    assert work.steps == 0
    assert np.isnan(work.loss)


def test_a_batch_of_one_sample_that_batch_normalisation_cannot_take_is_named() -> None:
    model = normed()
    with pytest.raises(InvalidInput, match=r"batch of one sample: change local\.batch_size"):
        trainer_of(model, 5, sizes=(13, 20)).train(job_of(model, Order(batch_size=6), device=0))


def test_evaluation_is_the_exact_mean_over_batches_in_evaluation_mode() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    trainer = trainer_of(model, 5)
    x, y = data(1300, 5)
    result = trainer.evaluate(vector_of(model), frozen(x), y)
    model.eval()
    assert result.accuracy == (model(torch.tensor(x)).argmax(1).numpy() == y).mean()
    assert result.loss == pytest.approx(loss_of(model, x.copy(), y).item(), rel=1e-5)
    assert trainer.model.training


def test_loss_and_gradient_are_those_of_the_documented_probe() -> None:
    model = dense()
    model[1].bias.requires_grad_(False)  # type: ignore[index]
    trainer = trainer_of(model, 5)
    loss, gradient = trainer.loss_and_gradient(vector_of(model), device=1, ticket=7, k=2, batch_size=6)
    x, y = data(34, 5)
    chosen = stream(SEED, "probe", 1, 7, 2).choice(np.arange(14, 34), 6, replace=False)
    expected = loss_of(model, x[chosen], y[chosen])
    backward(expected)
    assert loss == pytest.approx(expected.item())
    for entry in trainer.layout.entries:
        part = gradient[entry.span].reshape(entry.shape)
        if entry.trained:
            reference = model.get_parameter(entry.name).grad
            assert reference is not None
            np.testing.assert_allclose(part, reference.numpy(), rtol=1e-5, atol=1e-7)
        else:
            assert not part.any()


@pytest.mark.parametrize("terms", [(), (Proximal(mu=0.1),)], ids=["plain", "proximal"])
@pytest.mark.parametrize("batch_size", [6, None])
def test_squared_losses_are_those_of_single_samples(batch_size: int | None, terms: tuple[Proximal, ...]) -> None:
    model = dense()
    trainer = trainer_of(model, 5)
    order = Order(slices=2, batch_size=batch_size, learning_rate=1e-12, terms=terms, squared_loss=True)
    state = trainer.train(job_of(model, order, last=2))
    x, y = data(34, 5)
    outputs = model(torch.from_numpy(x[14:]))  # device 1 has the last 20 samples; the model does not move
    losses = functional.cross_entropy(outputs, torch.from_numpy(y[14:]), reduction="none").detach()
    assert state.squared_loss == pytest.approx(float((losses**2).mean()), rel=1e-5)
    assert state.loss == pytest.approx(float(losses.mean()), rel=1e-5)
    plain = trainer.train(job_of(model, replace(order, squared_loss=False), last=2))
    assert plain.parameters.tobytes() == state.parameters.tobytes() and plain.squared_sum == 0.0
    first = trainer.train(job_of(model, order))
    rest = trainer.train(replace(job_of(model, order, first=1, last=2), state=first))
    assert rest.squared_sum == state.squared_sum
