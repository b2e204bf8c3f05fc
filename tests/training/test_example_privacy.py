"""Example-level privacy: the private gradient by hand, what it refuses, and that no example moves it further than C."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import offbeat
from offbeat.core.errors import InvalidInput
from offbeat.models.flat import FlatModel
from offbeat.training.example_privacy import clipped_sum, private_gradients
from offbeat.training.tasks import Batch, Classification


def linear() -> FlatModel:
    """Two inputs, two classes, weights of zero: the logits are 0 and both classes equally likely."""
    layer = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(layer.weight)
    return FlatModel(nn.Sequential(layer))


def test_the_private_gradient_by_hand() -> None:
    # The gradient of example (x, y) is (p - onehot(y)) x^T with p = 1/2. x = (3, 4), y = 0: [[-1.5, -2], [1.5, 2]],
    # norm sqrt(12.5). x = (0.6, 0.8), y = 1: [[0.3, 0.4], [-0.3, -0.4]], norm sqrt(0.5), below the clip of 1.
    batch = Batch(x=torch.tensor([[3.0, 4.0], [0.6, 0.8]]), y=torch.tensor([0, 1]))
    noise = np.array([1.0, 0.0, -1.0, 0.0], dtype=np.float32)
    (found,) = private_gradients(
        linear(), Classification(), batch, clip=1.0, multiplier=2.0, divisor=4, noise=lambda size: noise
    )
    first = np.array([-1.5, -2.0, 1.5, 2.0]) / np.sqrt(12.5)
    expected = (first + np.array([0.3, 0.4, -0.3, -0.4]) + 2.0 * noise) / 4
    assert np.allclose(found.ravel().numpy(), expected, atol=1e-6)


def test_without_clip_and_noise_it_is_the_gradient_of_the_batch() -> None:
    torch.manual_seed(0)
    model = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    batch = Batch(x=torch.randn(70, 3), y=torch.randint(0, 2, (70,)))  # more than a chunk
    mean, _ = Classification().loss(model.module, batch)
    usual = torch.autograd.grad(mean, model.parameters)
    found = private_gradients(
        model, Classification(), batch, clip=1e9, multiplier=0.0, divisor=70, noise=lambda size: np.zeros(size, "f4")
    )
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(usual, found, strict=True))


rows = st.lists(st.one_of(st.floats(-1e150, 1e150), st.sampled_from([np.nan, np.inf])), min_size=2, max_size=2)


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=4), st.floats(1e-3, 1e3))
def test_no_example_changes_the_sum_by_more_than_the_clip(given_rows: list[list[float]], clip: float) -> None:
    everyone = torch.tensor(given_rows, dtype=torch.float64)
    whole = clipped_sum(everyone, clip)
    for left_out in range(len(everyone)):
        without = torch.cat([everyone[:left_out], everyone[left_out + 1 :]])
        rest = clipped_sum(without, clip) if len(without) else torch.zeros(2, dtype=torch.float64)
        assert float((whole - rest).norm()) <= clip * (1 + 1e-9)


def test_a_run_counts_every_order_and_hides_the_training_loss() -> None:
    privacy = {"level": "example", "noise_multiplier": 1.0, "clip": 1.0, "most_updates": 2}
    experiment = offbeat.Experiment(
        stop={"versions": 3},
        data={"name": "digits", "devices": 4},
        model="mlp",
        local={"epochs": 2},
        algorithm={"name": "fedavg", "cohort": 2},
        privacy=privacy,
    )
    runs = [offbeat.run(experiment) for _ in range(2)]
    one, other = (run.tensors or {} for run in runs)
    assert one and all(np.array_equal(one[name], other[name]) for name in one)
    summary = runs[0].summary["privacy"]
    most = max(int(number) for number in summary["devices_by_contributions"])
    assert most <= 2 and summary["epochs"] == 2
    assert summary["epsilon"] == pytest.approx(experiment.privacy.epsilon(most, 2))  # each epoch is a participation
    rho = most * 2 / 2
    assert summary["epsilon"] == pytest.approx(rho + 2 * np.sqrt(rho * np.log(1e5)))


def test_a_model_that_mixes_examples_is_refused_before_the_run() -> None:
    experiment = offbeat.Experiment(
        stop={"versions": 1},
        data={"name": "digits", "devices": 4},
        model="resnet20",
        algorithm={"name": "fedavg", "cohort": 2},
        privacy={"level": "example", "noise_multiplier": 1.0},
    )
    with pytest.raises(InvalidInput, match="may mix examples"):
        offbeat.run(experiment)
