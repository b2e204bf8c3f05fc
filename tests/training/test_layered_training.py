"""Layer-wise training: partial gradients are the full ones, nothing beyond is computed, and cutting changes no bit."""

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
from offbeat.core.terms import AbsentClasses, Proximal
from offbeat.models import build, layout_of, vector_of
from offbeat.training.objective import backward
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

SEED = 5


class Whole:
    """Every device has all samples."""

    def samples(self, device: int) -> npt.NDArray[np.int64]:
        return np.arange(12)


class Skip(nn.Module):
    """Feed-forward with a connection around the middle layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        result: torch.Tensor = self.last(torch.tanh(self.middle(hidden)) + hidden)
        return result


class Grouped(nn.Module):
    """Says itself what its layers are."""

    layer_groups = (("lower", "norm"), ("upper",))

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.norm, self.upper = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.upper(torch.relu(self.norm(self.lower(x))))
        return result


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3))


MODELS = [dense, Skip, Grouped, dropping]


def data() -> tuple[Vector, npt.NDArray[np.int64]]:
    rng = np.random.default_rng(1)
    return rng.normal(size=(12, 6)).astype(np.float32), rng.integers(0, 3, 12)


def trainer_of(model: nn.Module) -> TorchTrainer:
    x, y = data()
    return TorchTrainer(model, x, y, Whole(), SEED)


def job_of(
    model: nn.Module, order: Order, last: int, first: int = 0, state: TrainingState | None = None
) -> TrainingJob:
    start = vector_of(model)
    return TrainingJob(
        device=0,
        ticket=3,
        order=order,
        first=first,
        last=last,
        state=state or TrainingState(parameters=start),
        anchor=start,
    )


def by_layer(model: nn.Module) -> list[list[torch.Tensor]]:
    tensors = dict(model.named_parameters())
    layout = layout_of(model)
    return [
        [tensors[entry.name] for entry in layout.entries if entry.layer == layer and entry.trained]
        for layer in range(layout.trained_layers)
    ]


@pytest.mark.parametrize("make", [dense, Skip])
def test_partial_gradients_equal_the_full_ones_on_the_delivered_layers(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    x, y = data()
    layers = by_layer(model)

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))

    full = torch.autograd.grad(loss(), [each for layer in layers for each in layer])
    for depth in range(len(layers) + 1):
        found = backward(loss(), layers, lambda done, depth=depth: done < depth)  # type: ignore[misc]
        assert len(found) == depth
        flat = [gradient for layer in reversed(found) for gradient in layer]
        for expected, gradient in zip(full[len(full) - len(flat) :], flat, strict=True):
            assert torch.equal(expected, gradient)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_nothing_beyond_the_reached_layer_is_computed() -> None:
    model = dense()
    computed: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_full_backward_pre_hook(lambda *_, name=name: computed.append(name))
    x, y = data()
    loss = functional.cross_entropy(model(torch.from_numpy(x).requires_grad_()), torch.from_numpy(y))
    asked: list[int] = []

    def two(done: int) -> bool:
        asked.append(done)
        return done < 2

    assert len(backward(loss, by_layer(model), two)) == 2
    assert computed == ["4", "2"]  # the backward pass of the first dense layer never began
    assert asked == [0, 1, 2]  # asked before the first layer and after each, so a clock can stop it between any two


def test_a_parameter_that_the_loss_does_not_reach_has_a_gradient_of_zero() -> None:
    model = dense()
    spare = nn.Parameter(torch.ones(2))
    layers = by_layer(model)
    layers[1].append(spare)
    x, y = data()
    loss = functional.cross_entropy(model(torch.from_numpy(x)), torch.from_numpy(y))
    found = backward(loss, layers, lambda done: done < 2)
    assert len(found) == 2
    assert torch.equal(found[1][-1], torch.zeros(2))


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_of_some_depth_is_the_full_step_on_those_layers_and_nothing_on_others(
    make: Callable[[], nn.Module], momentum: float
) -> None:
    torch.manual_seed(0)
    model = make()
    trainer, layout = trainer_of(model), layout_of(model)
    layers = layout.trained_layers
    order = Order(
        unit="layer",
        slices=layers,
        batch_size=5,
        learning_rate=0.1,
        momentum=momentum,
        weight_decay=0.01,
        terms=(Proximal(mu=0.1),),
    )
    full = trainer.train(job_of(model, order, layers))
    assert (full.steps, full.seen, full.start) == (1, 5, None)
    for depth in range(1, layers):
        part = trainer.train(job_of(model, order, depth))
        chosen = layout.mask(range(layers - depth, layers)).chosen
        assert np.array_equal(part.parameters[chosen], full.parameters[chosen])
        assert np.array_equal(part.parameters[~chosen], vector_of(model)[~chosen])
        assert (part.steps, part.seen) == (0, 5)


def test_a_step_is_sgd_on_the_first_samples_of_the_documented_stream() -> None:
    torch.manual_seed(0)
    model = dense()
    order = Order(unit="layer", slices=6, batch_size=5, learning_rate=0.1)
    work = trainer_of(model).train(job_of(model, order, 6))
    x, y = data()
    for step in range(2):
        batch = stream(SEED, "batches", 0, 3, step).permutation(np.arange(12))[:5]
        loss = functional.cross_entropy(model(torch.from_numpy(x[batch])), torch.from_numpy(y[batch]))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
    np.testing.assert_allclose(work.parameters, vector_of(model), rtol=1e-5, atol=1e-6)
    assert (work.steps, work.seen) == (2, 10)


@pytest.mark.parametrize("make", MODELS)
def test_cutting_a_run_anywhere_changes_no_bit(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make()
    trainer, layers = trainer_of(model), layout_of(model).trained_layers
    order = Order(unit="layer", slices=3 * layers, batch_size=5, learning_rate=0.1, momentum=0.9)
    end = 2 * layers + 1
    whole = trainer.train(job_of(model, order, end))
    for cut in range(1, end):
        before = trainer.train(job_of(model, order, cut))
        after = trainer.train(job_of(model, order, end, first=cut, state=before))
        assert np.array_equal(after.parameters, whole.parameters)
        assert after.momentum is not None and whole.momentum is not None
        assert np.array_equal(after.momentum, whole.momentum)
        assert (after.steps, after.seen, after.loss_sum) == (whole.steps, whole.seen, whole.loss_sum)


def test_layers_are_the_modules_with_parameters_unless_the_model_groups_them() -> None:
    assert layout_of(dense()).trained_layers == 3
    grouped = layout_of(Grouped())
    assert grouped.trained_layers == 2
    assert {entry.name: entry.layer for entry in grouped.entries}["norm.running_mean"] == 0
    model = Grouped()
    model.layer_groups = (("lower",), ("upper",))  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="must be in exactly one group, but is in 0"):
        layout_of(model)


def test_a_device_without_data_does_nothing_for_as_many_layers() -> None:
    class Nothing:
        def samples(self, device: int) -> npt.NDArray[np.int64]:
            return np.arange(0)

    model = build("mlp", (6,), 3, seed=0)
    trainer = TorchTrainer(model, *data(), Nothing(), SEED)
    order = Order(unit="layer", slices=6, batch_size=5)
    half = trainer.train(job_of(model, order, 2))
    assert np.array_equal(trainer.train(job_of(model, order, 5, 2, half)).parameters, vector_of(model))


def test_masked_loss_sees_absent_classes_as_zero_and_leaves_their_rows_alone() -> None:
    # One sample x = 1 of class 0; three classes, of which the device holds only class 0; logits z = w (no bias).
    # w = (0.5, 3, -3): with the absent logits at 0 the loss sees (0.5, 0, 0):
    #   p0 = e^0.5 / (e^0.5 + 2) = 1.648721 / 3.648721 = 0.451863,  gradient (p0 - 1, 0, 0) = (-0.548137, 0, 0)
    #   plus weight decay 0.1 w = 0.05 on row 0 only: row 0 <- 0.5 + 1.0 (0.548137 - 0.05) = 0.998137.
    class One:
        def samples(self, device: int) -> npt.NDArray[np.int64]:
            return np.arange(1)

    trainer = TorchTrainer(nn.Linear(1, 3, bias=False), np.ones((1, 1)), np.zeros(1, dtype=np.int64), One(), SEED)
    start = frozen([0.5, 3.0, -3.0])
    order = Order(learning_rate=1.0, weight_decay=0.1, terms=(AbsentClasses(),))
    for unit in ("epoch", "layer"):
        job = TrainingJob(
            device=0,
            ticket=0,
            order=replace(order, unit=unit),
            first=0,
            last=1,
            state=TrainingState(parameters=start),
            anchor=start,
        )
        assert trainer.train(job).parameters == pytest.approx([0.998137, 3.0, -3.0], abs=1e-6)
