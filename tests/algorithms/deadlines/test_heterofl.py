"""HeteroFL: slices, scaler, widths and the element-wise mean, each by hand; bytes and time follow the width."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from offbeat.algorithms import HeteroFL
from offbeat.core.coverage import bytes_down, submodel, submodel_shapes
from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.parameters import Layout
from offbeat.fleet import ExponentialFleet, RatioFleet, Workload
from offbeat.models import build, layout_of, vector_of
from offbeat.testing import ScriptedSession
from offbeat.training.submodel import narrowed
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

# Two inputs, two hidden units, two classes: a.weight (2, 2), a.bias (2), b.weight (2, 2), b.bias (2).
LAYOUT = Layout.of(
    [("a.weight", (2, 2), True), ("a.bias", (2,), True), ("b.weight", (2, 2), True), ("b.bias", (2,), True)]
)


class Four:
    def samples(self, device: int) -> npt.NDArray[np.int64]:
        return np.arange(4)


def test_the_slices_of_a_dense_model_by_hand() -> None:
    # Width 1/2: hidden unit 0 only; both inputs and both outputs stay.
    #   a.weight rows 0: elements 0 1; a.bias 4; b.weight column 0: 6 and 8; b.bias both: 10 11.
    assert submodel_shapes(LAYOUT, 0.5) == ((1, 2), (1,), (2, 1), (2,))
    assert np.flatnonzero(submodel(LAYOUT, 0.5).chosen).tolist() == [0, 1, 4, 6, 8, 10, 11]
    assert bytes_down(Order(width=0.5), LAYOUT) == 28
    assert bytes_down(Order(), LAYOUT) == 48


def test_the_slices_of_a_convolutional_model() -> None:
    # cnn-small: 10 and 20 channels, 20 maps of 4x4 flattened, 50 units, 10 classes. Width 1/4: ceil of 2.5, 5, 12.5.
    layout = layout_of(build("cnn-small", (1, 28, 28), 10, seed=0))
    assert submodel_shapes(layout, 0.25) == (
        (3, 1, 5, 5),
        (3,),
        (5, 3, 5, 5),
        (5,),
        (13, 5 * 16),
        (13,),
        (10, 13),
        (10,),
    )


@pytest.mark.parametrize("model, shape", [("mlp", (1, 8, 8)), ("cnn-small", (1, 28, 28)), ("lenet5", (1, 28, 28))])
@pytest.mark.parametrize("width", [0.5, 0.25, 0.0625])
def test_a_submodel_runs_and_its_vector_is_the_masked_one(model: str, shape: tuple[int, ...], width: float) -> None:
    whole = build(model, shape, 10, seed=0)
    layout = layout_of(whole)
    narrow = narrowed(whole, layout, width)
    assert np.array_equal(vector_of(narrow), vector_of(whole)[submodel(layout, width).chosen])
    assert narrow(torch.zeros(2, *shape)).shape == (2, 10)


def test_the_scaler_divides_the_output_of_every_layer_but_the_last_in_training_only() -> None:
    # One path of weights 2 and 3, no bias: x = 1 gives 2, / 0.5 = 4, relu 4, 12 in training; 6 in evaluation.
    model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), (2.0, 3.0), strict=True):
            parameter.fill_(value)
    narrow = narrowed(model, layout_of(model), 0.5)
    assert narrow(torch.ones(1, 1)).item() == 12.0
    narrow.eval()
    assert narrow(torch.ones(1, 1)).item() == 6.0


def test_models_that_are_no_chain_are_refused() -> None:
    crossed = Layout.of([("a.weight", (4, 3), True), ("b.weight", (5, 3), True), ("c.weight", (2, 5), True)])
    with pytest.raises(InvalidInput, match=r"'b\.weight' has 3 inputs, which is no multiple of the 4 outputs"):
        submodel(crossed, 0.5)
    odd = Layout.of([("a.weight", (4, 3), True), ("b.scale", (3,), True), ("c.weight", (2, 4), True)])
    with pytest.raises(InvalidInput, match=r"'b\.scale' has 3 elements, but the layer before it 4 outputs"):
        submodel(odd, 0.5)


def test_training_a_submodel_moves_nothing_else_and_cutting_changes_no_bit() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    trainer = TorchTrainer(model, x, np.array([0, 1, 0, 1]), Four(), 0)
    start = vector_of(model)
    order = Order(unit="layer", slices=4, batch_size=3, learning_rate=0.5, momentum=0.9, width=0.5)

    def train(first: int, last: int, work: TrainingState) -> TrainingState:
        job = TrainingJob(device=0, ticket=1, order=order, first=first, last=last, state=work, anchor=start)
        return trainer.train(job)

    whole = train(0, 3, TrainingState(parameters=start))
    chosen = submodel(trainer.layout, 0.5).chosen
    assert np.array_equal(whole.parameters[~chosen], start[~chosen])
    assert (whole.parameters[chosen] != start[chosen]).all()
    halves = train(1, 3, train(0, 1, TrainingState(parameters=start)))
    assert np.array_equal(halves.parameters, whole.parameters)


def session_of(policy: HeteroFL) -> ScriptedSession:
    return ScriptedSession(
        policy,
        start=range(12),
        layout=LAYOUT,
        samples=[100] * 3,
        batch_size=10,
        speeds=[100.0, 10.0, 10.0],
        horizon=4.0,
    )


def test_widths_follow_from_speed_and_the_mean_is_over_holders_by_hand() -> None:
    # Rounds of 2 s, batch 10: device 0 does 20 layers on average, the others 2 with the whole model, 8 with half of it.
    # P(at least 2 of 2) = 1 - e^-2 (1 + 2) = 0.594 < 0.9; with half, 1 - e^-8 9 = 0.997.
    session = session_of(HeteroFL(rounds=2, confidence=0.9))
    orders = session.first.orders
    assert [assignment.order.width for assignment in orders] == [1.0, 0.5, 0.5]
    assert all(assignment.order.masks_absent_classes and not assignment.order.partial for assignment in orders)
    assert session.counters.bytes_down == 48 + 28 + 28
    # Device 0 adds 1 everywhere, device 1 adds 4 to its elements, but has no sample of class 1: row 1 of b (8, 9, 11)
    # comes back as it was. Device 2 does not finish.
    session.move(*[1.0] * 12, device=0)
    session.move(*[0.0 if element in (8, 9, 11) else 4.0 for element in range(12)], device=1)
    session.upload(device=2, slices=1)
    session.fire("deadline")
    # Held by both (0, 1, 4, 6, 10): + (1 + 4) / 2; by device 0 alone: + 1.
    expected = np.arange(12) + np.array([2.5, 2.5, 1, 1, 2.5, 1, 2.5, 1, 1, 1, 2.5, 1])
    np.testing.assert_allclose(session.parameters, expected)
    assert (session.counters.used, session.counters.discarded) == (2, 1)
    assert session.counters.bytes_up == 48 + 28  # who has not finished sends nothing


def test_a_narrow_layer_takes_the_square_of_its_width() -> None:
    # Whole models: 20, 2 and 2 layers on average. With half the width 2 / (1/2)^2 = 8: 1 - e^-8 9 = 0.997 >= 0.95.
    # (If it took half the time it would be 4: 1 - e^-4 5 = 0.908 < 0.95, and a quarter would have been chosen.)
    policy = HeteroFL(rounds=2, confidence=0.95)
    session = session_of(policy)
    assert [given.order.width for given in session.first.orders] == [1.0, 0.5, 0.5]
    assert policy.rates(2.0, session.state, session) == pytest.approx([20.0, 8.0, 8.0])


def test_elements_that_nobody_holds_keep_their_value() -> None:
    session = session_of(HeteroFL(rounds=2, widths=[0.5], masked_loss=False))
    session.upload(*[0.0] * 12, device=0)
    session.fire("deadline")
    assert session.parameters.tolist() == [0, 0, 2, 3, 0, 5, 0, 7, 0, 9, 0, 0]


def test_half_the_width_takes_a_quarter_of_the_time() -> None:
    workload = Workload(devices=2, samples=np.array([100, 50]), layers=4, flops_per_sample=0.0, seed=0)
    for fleet in (RatioFleet(), ExponentialFleet()):
        speeds = fleet.build(workload)
        for unit in ("epoch", "layer"):
            orders = [Order(slices=3, unit=unit, width=width) for width in (1.0, 0.5)]
            whole, half = (np.array(speeds.slice_seconds(1, 7, order)) for order in orders)
            np.testing.assert_allclose(half, whole / 4)


def test_the_last_layer_is_the_last_in_use_and_not_the_last_registered() -> None:
    shapes = [("head.weight", (3, 8), True), ("head.bias", (3,), True), ("body.weight", (8, 4), True)]
    layout = Layout.of([*shapes, ("body.bias", (8,), True)], groups=[["body"], ["head"]])
    assert submodel_shapes(layout, 0.5) == ((3, 4), (3,), (4, 4), (4,))
