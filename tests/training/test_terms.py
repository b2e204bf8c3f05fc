"""Terms of the loss: gradients in closed form against autograd, values by hand, and what they remember."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from offbeat.core.orders import Order, RateSchedule
from offbeat.core.parameters import Vector
from offbeat.core.terms import Contrastive, Distillation, LinearQuadratic, OwnTerm, PastGradients, Proximal, Term
from offbeat.models import vector_of
from offbeat.models.flat import FlatModel
from offbeat.models.projection import with_projection
from offbeat.models.text_networks import TextTransformer
from offbeat.training.local_run import first_state, remember
from offbeat.training.optimisers import polyak_state
from offbeat.training.tasks import Batch
from offbeat.training.terms import ContrastiveTerm, LossTerm, TermContext, absent_classes, remembered, term_of
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState


def vector(seed: int, size: int) -> Vector:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def bound(term: Term, model: FlatModel, received: Vector, memory: dict[str, Any] | None = None) -> LossTerm:
    """The term as it is in a training of this model."""

    def frozen_copy(name: str, parameters: Vector) -> FlatModel:
        other = FlatModel(model.module)
        other.module.eval()
        other.load(parameters)
        return other

    made = term_of(term)
    made.context = TermContext(
        model=model,
        received=received,
        memory=memory or {},
        targets=lambda: np.zeros(1, dtype=np.int64),
        frozen_copy=frozen_copy,
    )
    made.begin()
    return made


@pytest.mark.parametrize("term", [Proximal(mu=0.3), LinearQuadratic(alpha=0.7)])
def test_gradients_in_closed_form_are_those_of_autograd(term: Term) -> None:
    model = FlatModel(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
    size = model.layout.size
    weights, received, linear = vector(1, size), vector(2, size), vector(3, size)
    model.load(weights)
    made = bound(term, model, received, {"linear-quadratic h": linear})
    zeros = tuple(torch.zeros_like(weight) for weight in model.weights)
    pulled = np.concatenate([each.numpy().ravel() for each in made.pull(zeros, model.weights, None)])
    w = torch.tensor(weights, dtype=torch.float64, requires_grad=True)
    distance = ((w - torch.tensor(received)) ** 2).sum() / 2
    if isinstance(term, Proximal):
        value = term.mu * distance
    else:
        assert isinstance(term, LinearQuadratic)
        value = term.alpha * distance - torch.dot(torch.tensor(linear, dtype=torch.float64), w)
    value.backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    assert pulled == pytest.approx(w.grad.numpy(), rel=1e-5, abs=1e-6)
    last = made.pull(zeros[2:], model.weights[2:], [2, 3])  # the last layer alone, as under a layer-wise deadline
    assert np.concatenate([each.numpy().ravel() for each in last]) == pytest.approx(pulled[8:])


def test_what_feddyn_remembers_by_hand() -> None:
    # h = 0 - 0.5 (3 - 1) = -1, then -1 - 0.5 (0 - 2) = 0.
    order, memory = Order(terms=(LinearQuadratic(alpha=0.5),)), dict[str, Any]()
    one, two, three = (np.array([value], dtype=np.float32) for value in (1.0, 2.0, 3.0))
    memory |= remembered(order, memory, one, three, 1.0)
    assert memory["linear-quadratic h"].tolist() == [-1.0]
    memory |= remembered(order, memory, two, np.zeros(1, dtype=np.float32), 1.0)
    assert memory["linear-quadratic h"].tolist() == [0.0]


def test_what_aso_fed_remembers_by_hand() -> None:
    # Three steps of rate 0.5 from 4 to 1: mean gradient (4 - 1) / 1.5 = 2 = v, h = 0.
    order, memory = Order(terms=(PastGradients(beta=0.25),)), dict[str, Any]()
    four, one = (np.array([value], dtype=np.float32) for value in (4.0, 1.0))
    memory |= remembered(order, memory, four, one, 1.5)
    assert (memory["past-gradients v"].tolist(), memory["past-gradients h"].tolist()) == ([2.0], [0.0])
    # The next one added h - v = -2 to its gradients and moved by 3 over rates of 1.5: its gradients were 2 + 2 = 4.
    memory |= remembered(order, memory, four, one, 1.5)
    # h = 0.25 * 0 + 0.75 * 2
    assert (memory["past-gradients v"].tolist(), memory["past-gradients h"].tolist()) == ([4.0], [1.5])


def test_the_mean_gradient_is_over_the_rates_of_all_steps() -> None:
    # Halved after every step: 1/2 + 1/4 + 1/8 = 7/8, and 7 over that is 8; without a schedule 7 / (3 1/2).
    schedule = RateSchedule(shape="exponential", over="steps", decay=0.5)
    seven, state = np.array([7.0], dtype=np.float32), TrainingState(parameters=np.zeros(1, dtype=np.float32), steps=3)
    for rates, mean in ((schedule, 8.0), (None, 14 / 3)):
        order, memory = Order(learning_rate=0.5, schedule=rates, terms=(PastGradients(beta=0.5),)), dict[str, Any]()
        remember(order, seven, state, memory)
        assert memory["past-gradients v"] == pytest.approx([mean])


def test_with_polyak_the_mean_gradient_is_over_the_step_sizes_that_were_taken() -> None:
    # Step sizes of 0.1, 0.2 and 0.4 brought 3 to 0.288: gradients of 6, 4.8 and 2.88, whose mean has these weights.
    order = Order(optimiser="polyak", learning_rate=0.025, keep_optimiser_state=True, terms=(PastGradients(beta=0.5),))
    three, memory = np.array([3.0], dtype=np.float32), dict[str, Any]()
    trained = np.array([0.288], dtype=np.float32)
    remember(order, three, TrainingState(parameters=trained, optimiser=polyak_state(0.5, 0.7), steps=3), memory)
    assert memory["past-gradients v"] == pytest.approx([(0.1 * 6 + 0.2 * 4.8 + 0.4 * 2.88) / 0.7])
    assert first_state(order, three, memory).optimiser == {"polyak bound": 0.5}, "the next order's sum starts at 0"


def test_absent_classes_are_those_that_no_target_is_of() -> None:
    model = FlatModel(nn.Linear(1, 4))
    assert absent_classes(model, np.array([2, 0, 2])).tolist() == [False, True, False, True]


def test_moon_remembers_the_model_that_was_trained() -> None:
    received, trained = (np.array([value], dtype=np.float32) for value in (1.0, 3.0))
    found = remembered(Order(terms=(Contrastive(),)), {}, received, trained, 1.0)
    assert found["contrastive last model"].tolist() == [3.0]


def test_past_gradients_of_some_parameters_are_theirs() -> None:
    model = FlatModel(nn.Linear(1, 1))
    v, h = (np.array(values, dtype=np.float32) for values in ([0.0, 0.0], [1.0, 5.0]))
    term = bound(PastGradients(beta=0.5), model, vector(1, 2), {"past-gradients v": v, "past-gradients h": h})
    # Only the bias, which is the second of the two: 10 + h - v = 10 + 5 - 0
    (found,) = term.pull((torch.full((1,), 10.0),), (model.weights[1],), [1])
    assert found.tolist() == [15.0]


def test_past_gradients_come_to_the_gradient_from_the_second_training_on() -> None:
    model = FlatModel(nn.Linear(1, 1, bias=False))
    gradient = (torch.full((1, 1), 10.0),)
    fresh = bound(PastGradients(beta=0.5), model, vector(1, 1), {})
    assert fresh.pull(gradient, model.weights, None)[0].item() == 10.0
    v, h = (np.array([value], dtype=np.float32) for value in (3.0, 1.0))
    again = bound(PastGradients(beta=0.5), model, vector(1, 1), {"past-gradients v": v, "past-gradients h": h})
    # 10 + h - v
    assert again.pull(gradient, model.weights, None)[0].item() == 8.0


@pytest.mark.parametrize("heat", [1.0, 3.0])
def test_distillation_by_hand(heat: float) -> None:
    # Teacher logits (T ln 3, 0) at temperature T: q = (3/4, 1/4); student (0, 0): p = (1/2, 1/2); weight 2, on both of
    # two samples: 2 T^2 (3/4 ln(3/4 / 1/2) + 1/4 ln(1/4 / 1/2)).
    model, teacher = FlatModel(nn.Linear(1, 2, bias=False)), np.array([heat * math.log(3), 0.0], dtype=np.float32)
    made = bound(Distillation(weight=2.0, temperature=heat), model, teacher)
    value = made.value(Batch(torch.ones(2, 1), torch.tensor([0, 1])), torch.zeros(2, 2))
    assert value is not None
    assert value.item() == pytest.approx(2 * heat**2 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5)))


def test_the_contrastive_term_by_hand() -> None:
    # The representation is what the head is given: w x. Local (1, 0), received (1, 0), last (0, 1):
    # cosines 1 and 0, temperature 0.5: -ln(e^2 / (e^2 + 1)).
    model = FlatModel(nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False)))
    head = [1.0, 0.0, 0.0, 1.0]
    local, last = (np.array([*first, *head], dtype=np.float32) for first in ([1.0, 0.0], [0.0, 1.0]))
    model.load(local)
    made = bound(Contrastive(mu=3.0, temperature=0.5), model, local, {"contrastive last model": last})
    batch = Batch(torch.ones(1, 1), torch.tensor([0]))
    value = made.value(batch, model.module(batch.x))
    assert value is not None
    assert value.item() == pytest.approx(3 * math.log1p(math.exp(-2)))
    made.end()
    first = bound(Contrastive(), model, local)
    assert first.value(batch, model.module(batch.x)) is None  # there is no model of last time


def test_the_representation_is_what_the_last_dense_layer_is_given() -> None:
    # Of a transformer it is the mean over the tokens, of a model with a projection head what comes out of that.
    plain, tokens = TextTransformer(9, 5, embedding=8), torch.ones(2, 4, dtype=torch.int64)
    for module, x, size in ((plain, tokens, 8), (with_projection(nn.Linear(3, 2), 6), torch.ones(2, 3), 6)):
        model = FlatModel(module)
        made = bound(Contrastive(), model, model.values(), {"contrastive last model": vector(1, model.layout.size)})
        assert isinstance(made, ContrastiveTerm)
        model.module(x)
        assert made._seen[0].shape == (2, size)
        made.end()
    assert absent_classes(FlatModel(plain), np.array([1, 3])).tolist() == [True, False, True, False, True]


class Everyone:
    def samples(self, device: int) -> Any:
        return np.arange(8)


class Shrinking(LossTerm):
    """scale times the mean square of the outputs; remembers how often it was used."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def value(self, batch: Batch, outputs: Any) -> torch.Tensor:
        value: torch.Tensor = self.scale * (outputs**2).mean()
        return value

    @classmethod
    def remember(cls, term: Any, memory: Any, received: Vector, trained: Vector, rates: float) -> dict[str, Vector]:
        return {"uses": memory.get("uses", np.zeros(1, dtype=np.float32)) + 1}


def test_a_term_of_ones_own_is_part_of_the_loss_and_has_a_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    module = ModuleType("own_terms")
    module.Shrinking = Shrinking  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_terms", module)
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x = vector(4, 24).reshape(8, 3)
    learner = TorchTrainer(model, x, np.arange(8) % 2, Everyone(), 0)
    start = TrainingState(parameters=vector_of(model))

    def after(scale: float) -> TrainingState:
        order = Order(slices=5, batch_size=4, terms=(OwnTerm(name="own_terms:Shrinking", settings={"scale": scale}),))
        job = TrainingJob(device=0, ticket=0, order=order, first=0, last=5, state=start, anchor=start.parameters)
        return learner.train(job)

    plain, strong = after(0.0), after(5.0)

    def size(state: TrainingState) -> float:
        weight, bias = state.parameters[:6].reshape(2, 3), state.parameters[6:]
        return float(np.abs(x @ weight.T + bias).mean())

    assert size(strong) < size(plain)
    assert strong.loss != plain.loss  # the loss that is reported is the task's, of models that went other ways
    memory: dict[str, Any] = {}
    order = Order(terms=(OwnTerm(name="own_terms:Shrinking", settings={"scale": 1.0}),))
    for _ in range(2):
        remember(order, start.parameters, strong, memory)
    assert memory["uses"].tolist() == [2.0]
