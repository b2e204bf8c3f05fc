"""Optimisers: one step by hand, the same bits however a training is cut, state that is kept, clipping."""

from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from offbeat import Experiment, run
from offbeat.core.errors import InvalidInput
from offbeat.core.orders import LocalWork, Order, RateSchedule
from offbeat.core.parameters import Vector
from offbeat.core.terms import Proximal
from offbeat.models import vector_of
from offbeat.models.flat import FlatModel
from offbeat.training.local_run import first_state, remember
from offbeat.training.optimisers import Polyak, clipped
from offbeat.training.tasks import Regression
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState


class Everyone:
    def samples(self, device: int) -> Any:
        return np.arange(12)


def trainer(model: nn.Module | None = None) -> TorchTrainer:
    random = np.random.default_rng(1)
    x, y = random.normal(size=(12, 3)).astype(np.float32), random.normal(size=(12, 1)).astype(np.float32)
    torch.manual_seed(0)
    network = model or nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return TorchTrainer(network, x, y, Everyone(), 0, task=Regression())


def job(order: Order, work: TrainingState, first: int, last: int, **others: Any) -> TrainingJob:
    return TrainingJob(
        device=0, ticket=1, order=order, first=first, last=last, state=work, anchor=work.parameters, **others
    )


def one_number(order: Order, start: float, received: float | None = None, last: int = 1) -> tuple[float, TrainingState]:
    """A model y = w x on one sample x = 1, y = 0: the loss is w^2 and its gradient 2 w."""

    class One:
        def samples(self, device: int) -> Any:
            return np.arange(1)

    model = nn.Linear(1, 1, bias=False)
    single = TorchTrainer(model, np.ones((1, 1)), np.zeros((1, 1), dtype=np.float32), One(), 0, task=Regression())
    vector: Vector = np.array([start], dtype=np.float32)
    anchor = vector if received is None else np.array([received], dtype=np.float32)
    made = TrainingJob(
        device=0, ticket=0, order=order, first=0, last=last, state=TrainingState(parameters=vector), anchor=anchor
    )
    state = single.train(made)
    return float(state.parameters[0]), state


def test_one_step_of_adam_by_hand() -> None:
    # g = 2 x 3 = 6: m = 0.1 x 6 = 0.6, v = 0.001 x 36 = 0.036; corrected m = 6, v = 36: w = 3 - 0.1 x 6 / (6 + 1e-8).
    moved, state = one_number(Order(optimiser="adam", learning_rate=0.1), 3.0)
    assert moved == pytest.approx(2.9, abs=1e-6)
    assert state.optimiser["exp_avg"] == pytest.approx([0.6])
    assert state.optimiser["exp_avg_sq"] == pytest.approx([0.036])
    assert state.optimiser["step"] == pytest.approx([1.0])


def test_one_step_of_adamw_by_hand() -> None:
    # The decay comes first and by itself: 3 (1 - 0.1 x 0.5) = 2.85, then the step of 0.1.
    assert one_number(Order(optimiser="adamw", learning_rate=0.1, weight_decay=0.5), 3.0)[0] == pytest.approx(2.75)


def test_one_step_of_rmsprop_by_hand() -> None:
    # v = 0.01 x 36 = 0.36: w = 3 - 0.1 x 6 / 0.6 = 2.
    assert one_number(Order(optimiser="rmsprop", learning_rate=0.1), 3.0)[0] == pytest.approx(2.0, abs=1e-6)


def test_a_gradient_is_shortened_before_the_decay() -> None:
    # g = 6, shortened to 2, plus the decay 0.5 x 3 = 1.5: w = 3 - 0.1 x 3.5.
    order = Order(learning_rate=0.1, weight_decay=0.5, clip_norm=2.0)
    assert one_number(order, 3.0)[0] == pytest.approx(2.65)
    assert one_number(Order(learning_rate=0.1, clip_norm=7.0), 3.0)[0] == pytest.approx(2.4)


def test_the_norm_is_that_of_all_gradients_together() -> None:
    long, short = (torch.tensor([3.0]), torch.tensor([4.0])), (torch.tensor([0.3]), torch.tensor([0.4]))
    assert [float(each) for each in clipped(long, 1.0)] == pytest.approx([0.6, 0.8])
    assert [float(each) for each in clipped(short, 1.0)] == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize(("name", "moved"), [("sgd", 3 - 0.1 * 2.0), ("torch.optim:SGD", 3 - 0.1 * 2.0)])
def test_the_gradient_of_loss_and_terms_is_shortened_together(name: str, moved: float) -> None:
    # g = 6 and a pull of 1 (3 - 2) = 1: 7 together, shortened to 2. Shortened before the pull it would be 3.
    order = Order(optimiser=name, learning_rate=0.1, clip_norm=2.0, terms=(Proximal(mu=1.0),))
    assert one_number(order, 3.0, received=2.0)[0] == pytest.approx(moved)


def test_torch_s_optimisers_have_the_momentum_of_the_order_and_the_rate_of_each_step() -> None:
    # RMSprop, first step: v = 0.01 x 36 = 0.36, b = 6 / 0.6 = 10, w = 3 - 0.1 x 10 = 2. Second: g = 4,
    # v = 0.99 x 0.36 + 0.01 x 16 = 0.5164, b = 0.5 x 10 + 4 / 0.718610 = 10.566306; at half the rate w = 2 - 0.05 b.
    halved = RateSchedule(shape="exponential", over="steps", decay=0.5)
    order = Order(slices=2, optimiser="rmsprop", learning_rate=0.1, momentum=0.5, schedule=halved)
    assert one_number(order, 3.0, last=2)[0] == pytest.approx(2 - 0.05 * 10.566306, abs=1e-5)


def test_steps_of_polyak_by_hand() -> None:
    # f = w^2, g = 2 w: 2 f / g^2 = 1/2 brings w to 0 in one step. Until then the rate doubles from 4 x 0.025 = 0.1:
    # w = 3 (1 - 2 x 0.1) = 2.4, 2.4 (1 - 0.4) = 1.44, 1.44 (1 - 0.8) = 0.288. No bound exceeds 1/2.
    order = Order(optimiser="polyak", learning_rate=0.025, slices=4)
    by_hand = [(2.4, 0.2, 0.1), (1.44, 0.4, 0.3), (0.288, 0.5, 0.7), (0.0, 0.5, 1.2)]
    for steps, (weight, bound, rates) in enumerate(by_hand, start=1):
        moved, state = one_number(order, 3.0, last=steps)
        assert moved == pytest.approx(weight, abs=1e-6)
        assert (*state.optimiser["polyak bound"], *state.optimiser["polyak rates"]) == pytest.approx((bound, rates))
    assert one_number(replace(order, learning_rate=9.0), 3.0)[0] == pytest.approx(0.0, abs=1e-6)
    assert one_number(order, 0.0)[0] == 0.0  # no gradient


@pytest.mark.parametrize("rate", [0.033, 0.1, 0.3])
def test_long_epochs_on_few_devices_train_with_polyak_from_any_rate(rate: float) -> None:
    # Without the largest bound they ended in dead activations, at chance level.
    result = run(
        Experiment(
            stop={"updates": 48},
            seed=7,
            data={"name": "digits", "devices": 4},
            model="mlp",
            local={"epochs": 2, "optimiser": "polyak", "learning_rate": rate},
            algorithm="fedbuff",
        )
    )
    assert result.summary["final_accuracy"] > 0.8


def test_polyak_refuses_a_negative_loss() -> None:
    sgd = Polyak(
        Order(optimiser="polyak"),
        FlatModel(nn.Linear(1, 1)),
        TrainingState(parameters=np.zeros(2, dtype=np.float32)),
        None,
    )
    with pytest.raises(InvalidInput, match=r"needs losses of at least 0, and this batch's is -1\."):
        sgd.step(-1.0, (torch.ones(1, 1), torch.ones(1)), 0.1)


@pytest.mark.parametrize("more", [{"momentum": 0.9}, {"learning_rate_decay": 0.9}, {"schedule": "inverse"}])
def test_polyak_refuses_what_it_decides_itself(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="omit"):
        LocalWork(optimiser="polyak", **more)


ORDERS = [
    Order(slices=4, batch_size=5, optimiser="polyak", learning_rate=0.01),
    Order(slices=4, batch_size=5, optimiser="polyak", learning_rate=0.1, unit="layer"),
    Order(slices=4, batch_size=5, optimiser="adam", learning_rate=0.01),
    Order(slices=4, batch_size=5, optimiser="adamw", learning_rate=0.01, weight_decay=0.1, clip_norm=0.5),
    Order(slices=4, batch_size=5, optimiser="rmsprop", learning_rate=0.01, momentum=0.9),
    Order(slices=4, batch_size=5, optimiser="torch.optim:Adagrad", learning_rate=0.1),
    Order(slices=4, batch_size=5, learning_rate=0.1, schedule=RateSchedule(shape="cosine", decay=0.0, every=9)),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.optimiser)
def test_cutting_a_training_changes_no_bit(order: Order) -> None:
    learner = trainer()
    start = TrainingState(parameters=vector_of(learner.model))
    whole = learner.train(job(order, start, 0, 4))
    half = learner.train(job(order, learner.train(job(order, start, 0, 1)), 1, 4))
    assert whole.parameters.tobytes() == half.parameters.tobytes()
    assert {name: vector.tobytes() for name, vector in whole.optimiser.items()} == {
        name: vector.tobytes() for name, vector in half.optimiser.items()
    }


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_it_is_the_training_that_torch_does(name: str) -> None:
    learner = trainer()
    order = Order(slices=3, batch_size=5, optimiser=name, learning_rate=0.01)
    state = learner.train(job(order, TrainingState(parameters=vector_of(learner.model)), 0, 3))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimiser = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[name](model.parameters(), lr=0.01)
    x, y = torch.from_numpy(learner.batches.x), torch.from_numpy(learner.batches.y)
    for k in range(3):
        for chosen in np.split(learner.batches.order(0, 1, k, 5), [5, 10]):
            optimiser.zero_grad()
            nn.functional.mse_loss(model(x[chosen]), y[chosen]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    assert state.parameters == pytest.approx(vector_of(model), rel=1e-5, abs=1e-6)


def test_with_a_schedule_over_steps_each_step_has_its_rate() -> None:
    # g = 2 w, rates 0.1 and 0.05: w = 3 (1 - 0.2) (1 - 0.1).
    schedule = RateSchedule(shape="exponential", over="steps", decay=0.5)
    _, state = one_number(Order(slices=1, learning_rate=0.1, schedule=schedule), 3.0)
    single = one_number(Order(learning_rate=0.05), float(state.parameters[0]))
    assert state.parameters[0] == pytest.approx(2.4)
    assert single[0] == pytest.approx(2.16)


@pytest.mark.parametrize("cut", [None, 2, 3])
def test_a_schedule_over_steps_counts_whole_passes_through_the_layers(cut: int | None) -> None:
    """Two layers, three passes: slices 0-1 have the rate 0.1, slices 2-3 0.05, slices 4-5 0.025."""
    schedule = RateSchedule(shape="exponential", over="steps", decay=0.5)
    order = Order(slices=6, unit="layer", batch_size=5, learning_rate=0.1, schedule=schedule)
    learner = trainer()
    start = TrainingState(parameters=vector_of(learner.model))
    expected = start.parameters
    for number, rate in enumerate((0.1, 0.05, 0.025)):
        plain = Order(slices=6, unit="layer", batch_size=5, learning_rate=rate)
        state = TrainingState(parameters=expected, steps=number)
        expected = learner.train(job(plain, state, 2 * number, 2 * number + 2)).parameters
    state = start if cut is None else learner.train(job(order, start, 0, cut))
    scheduled = learner.train(job(order, state, cut or 0, 6))
    assert scheduled.steps == 3
    assert scheduled.parameters == pytest.approx(expected, rel=1e-6)


def test_a_layer_goes_on_from_its_own_count_of_steps() -> None:
    """Adam's first step is as long as the rate, whatever the gradient; a later one is not."""
    learner = trainer()
    order = Order(slices=4, unit="layer", batch_size=5, optimiser="adam", learning_rate=0.01)
    shallow = learner.train(job(order, TrainingState(parameters=vector_of(learner.model)), 0, 1))
    fresh = TrainingState(parameters=shallow.parameters, optimiser=shallow.optimiser)
    state = learner.train(job(order, fresh, 0, 2))
    assert state.optimiser["step"].tolist() == [1, 1, 2, 2]
    moved = np.abs(state.parameters - shallow.parameters)
    assert moved[:16] == pytest.approx(0.01, rel=1e-3)
    assert not np.allclose(moved[16:], 0.01, rtol=1e-3)


def test_layers_that_a_step_does_not_reach_keep_parameters_and_state() -> None:
    learner = trainer()
    order = Order(slices=4, unit="layer", batch_size=5, optimiser="adam", learning_rate=0.01)
    start = TrainingState(parameters=vector_of(learner.model))
    state = learner.train(job(order, start, 0, 1))  # one layer of two: the last
    assert np.array_equal(state.parameters[:16], start.parameters[:16])
    assert not np.array_equal(state.parameters[16:], start.parameters[16:])
    assert state.optimiser["step"].tolist() == [0, 0, 1, 1]
    whole, cut = learner.train(job(order, start, 0, 4)), learner.train(job(order, state, 1, 4))
    assert whole.parameters.tobytes() == cut.parameters.tobytes()


@pytest.mark.parametrize("order", [ORDERS[0], ORDERS[2], Order(batch_size=5, learning_rate=0.1, momentum=0.9)])
def test_state_that_is_kept_is_where_the_next_training_begins(order: Order) -> None:
    learner, memory = trainer(), dict[str, Any]()
    kept = replace(order, slices=1, keep_optimiser_state=True)
    start = TrainingState(parameters=vector_of(learner.model))
    state = learner.train(job(kept, start, 0, 1))
    remember(kept, start.parameters, state, memory)
    again = first_state(kept, state.parameters, memory)
    assert (again.steps, again.seen) == (0, 0)
    assert again.parameters is state.parameters
    for others in ({}, {"buffers": "local"}):  # an order that has no use for the memory, and one that has another
        forgotten = first_state(replace(kept, keep_optimiser_state=False, **others), state.parameters, memory)
        assert (forgotten.momentum, dict(forgotten.optimiser)) == (None, {})
    on = learner.train(job(kept, again, 0, 1)).parameters
    anew = learner.train(job(kept, forgotten, 0, 1)).parameters
    assert on.tobytes() != anew.tobytes()
