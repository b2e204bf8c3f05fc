"""When a device asks: the meta model against torch, its REINFORCE step, and the Q table by hand."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.algorithms.fedasmu.server import FedASMU
from offbeat.algorithms.fedasmu.slots import (
    HIDDEN,
    MOVES,
    Floats,
    MetaLearner,
    MetaModel,
    learned,
    middle,
    moved,
    next_move,
    no_table,
)
from offbeat.core.streams import stream
from offbeat.testing import ScriptedSession

STAY, ADD, MINUS = (MOVES.index(move) for move in (0, 1, -1))
UNTRAINED = {1: [1], 2: [1, 2], 3: [1, 2, 1], 4: [1, 2, 3, 2], 5: [1, 2, 3, 2, 1], 8: [1, 2, 3, 4, 5, 4, 3, 2]}
"""What an untrained model should give each slot, up to a factor: most to the one in the middle."""


def a_theta(seed: int = 0, scale: float = 1.0) -> Floats:
    return scale * MetaModel.initial(stream(seed, "theta"))


# The meta model ------------------------------------------------------------------------------------------------------


class TorchMetaModel(torch.nn.Module):
    """The same LSTM in torch: its own cell and layer, with the weights of a theta; torch's second bias is 0."""

    def __init__(self, theta: Floats, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs
        self.cell = torch.nn.LSTMCell(1, HIDDEN).double()
        self.out = torch.nn.Linear(HIDDEN, 1).double()
        part = {name: torch.tensor(value) for name, value in MetaModel.parts(theta).items()}
        with torch.no_grad():
            self.cell.weight_ih.copy_(part["from_input"][:, None])
            self.cell.weight_hh.copy_(part["from_hidden"])
            self.cell.bias_ih.copy_(part["bias"])
            self.cell.bias_hh.zero_()
            self.out.weight.copy_(part["out"][None])
            self.out.bias.copy_(part["out_bias"])

    def log_probability(self, slot: int) -> torch.Tensor:
        """Of "not yet" before every epoch up to the slot and "ask now" there; the last epoch takes the rest."""
        weights = UNTRAINED[self.epochs]
        hidden, cell = torch.zeros(1, HIDDEN).double(), torch.zeros(1, HIDDEN).double()
        total = torch.zeros(()).double()
        for epoch in range(1, min(slot, self.epochs - 1) + 1):
            fed = torch.tensor([[1.0 if epoch == 1 else 0.0]]).double()
            hidden, cell = self.cell(fed, (hidden, cell))
            odds = np.log(weights[epoch - 1] / sum(weights[epoch:]))
            logit = self.out(hidden).squeeze() + odds
            total = total + torch.nn.functional.logsigmoid(logit if epoch == slot else -logit)
        return total

    def score(self, slot: int) -> Floats:
        """The gradient of it in the order of theta."""
        log_probability = self.log_probability(slot)
        if not log_probability.requires_grad:  # one epoch: nothing was decided
            return np.zeros_like(a_theta())
        log_probability.backward()  # type: ignore[no-untyped-call]
        gradients = [
            parameter.grad
            for parameter in (
                self.cell.weight_ih,
                self.cell.weight_hh,
                self.cell.bias_ih,
                self.out.weight,
                self.out.bias,
            )
        ]
        return np.concatenate([gradient.numpy().ravel() for gradient in gradients if gradient is not None])


CASES = [(epochs, slot) for epochs in UNTRAINED for slot in range(1, epochs + 1)]


@pytest.mark.parametrize(("epochs", "slot"), CASES)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_probability_and_score_are_those_of_torch(epochs: int, slot: int, scale: float) -> None:
    theta = a_theta(slot, scale)
    torch_model = TorchMetaModel(theta, epochs)
    expected = torch_model.log_probability(slot).exp().item()
    assert MetaModel(epochs).probabilities(theta)[slot - 1] == pytest.approx(expected, rel=1e-10)
    assert MetaModel(epochs).score(theta, slot) == pytest.approx(torch_model.score(slot), rel=1e-8, abs=1e-12)


@given(epochs=st.integers(1, 12), seed=st.integers(0, 1000), scale=st.sampled_from([0.0, 1.0, 10.0, 100.0]))
@settings(max_examples=40, deadline=None)
def test_probabilities_sum_to_one_and_scores_to_nothing(epochs: int, seed: int, scale: float) -> None:
    model, theta = MetaModel(epochs), a_theta(seed, scale)
    probabilities = model.probabilities(theta)
    assert len(probabilities) == epochs
    assert (probabilities >= 0).all()
    assert probabilities.sum() == pytest.approx(1.0)
    # sum_l P(l) grad log P(l) = grad sum_l P(l) = grad 1 = 0
    mean = sum(p * model.score(theta, slot) for slot, p in enumerate(probabilities, 1) if p > 0)
    assert mean == pytest.approx(np.zeros_like(theta), abs=1e-6)


@pytest.mark.parametrize("epochs", UNTRAINED)
def test_a_model_of_zeros_favours_the_middle(epochs: int) -> None:
    weights = UNTRAINED[epochs]
    found = MetaModel(epochs).probabilities(a_theta(scale=0.0))
    assert found == pytest.approx([weight / sum(weights) for weight in weights])
    assert MetaModel(epochs).choose(a_theta(scale=0.0), 0.0, stream(0, "any")) == middle(epochs)


def test_the_most_probable_slot_is_chosen_or_any_with_probability_epsilon() -> None:
    model, theta, random = MetaModel(5), a_theta(), stream(0, "choices")
    best = 1 + int(np.argmax(model.probabilities(theta)))
    assert {model.choose(theta, 0.0, random) for _ in range(20)} == {best}
    assert {model.choose(theta, 1.0, random) for _ in range(100)} == {1, 2, 3, 4, 5}
    often = Counter(model.choose(theta, 0.5, random) for _ in range(2000))
    # The best: 1/2 + 1/2 * 1/5 = 0.6; every other: 1/2 * 1/5 = 0.1. Five standard deviations of 2000 draws: 0.055.
    assert often[best] / 2000 == pytest.approx(0.6, abs=0.055)
    assert all(often[slot] / 2000 == pytest.approx(0.1, abs=0.034) for slot in range(1, 6) if slot != best)


# Equation (7): REINFORCE ---------------------------------------------------------------------------------------------


def test_equation_7_a_step_up_the_score_by_reward_less_baseline() -> None:
    learner, model = MetaLearner(theta=a_theta()), MetaModel(4)
    first = learner.theta + 0.5 * TorchMetaModel(learner.theta, 4).score(2) * 1.8
    learner.learn(model, 2, 2.0, rate=0.5, memory=0.1)  # b = 0.9 * 0 + 0.1 * 2 = 0.2;  R - b = 1.8
    assert learner.baseline == pytest.approx(0.2)
    assert learner.theta == pytest.approx(first, rel=1e-9)
    second = first + 0.5 * TorchMetaModel(first, 4).score(4) * -1.08
    learner.learn(model, 4, -1.0, rate=0.5, memory=0.1)  # b = 0.9 * 0.2 - 0.1 = 0.08;  R - b = -1.08
    assert learner.baseline == pytest.approx(0.08)
    assert learner.theta == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize("reward", [3.0, -3.0])
def test_a_slot_becomes_likelier_by_a_reward_and_less_likely_by_a_loss(reward: float) -> None:
    model, learner = MetaModel(5), MetaLearner(theta=a_theta())
    before = model.probabilities(learner.theta)[1]
    learner.learn(model, 2, reward, rate=0.01, memory=0.1)
    assert (model.probabilities(learner.theta)[1] - before) * reward > 0


def test_a_constant_reward_teaches_less_and_less() -> None:
    model, learner = MetaModel(3), MetaLearner(theta=a_theta())
    for _ in range(200):
        learner.learn(model, 1, 5.0, rate=0.0, memory=0.1)
    # b = 5 (1 - 0.9^200), and 0.9^200 = 7.1e-10
    assert learner.baseline == pytest.approx(5.0, abs=1e-8)


@pytest.mark.parametrize("best", [1, 2, 3, 4])
def test_pretraining_shifts_probability_to_the_best_rewarded_slot(best: int) -> None:
    model, learner = MetaModel(4), MetaLearner(theta=a_theta())
    before = model.probabilities(learner.theta)[best - 1]
    learner.pretrain(model, [0.01 * (slot == best) for slot in range(1, 5)], 500)
    after = model.probabilities(learner.theta)[best - 1]
    assert after > before
    assert after > 0.5
    assert model.choose(learner.theta, 0.0, stream(0, "any")) == best
    assert learner.baseline == 0.0, "the baseline is of the rewards of this run"


def test_pretraining_does_not_depend_on_the_scale_of_the_rewards() -> None:
    thetas = []
    for history in ([0.1, 0.3, 0.2], [10.0, 30.0, 20.0], [5.1, 5.3, 5.2]):
        learner = MetaLearner(theta=a_theta())
        learner.pretrain(MetaModel(3), history, 100)
        thetas.append(learner.theta)
    assert thetas[1] == pytest.approx(thetas[0], rel=1e-6)
    assert thetas[2] == pytest.approx(thetas[0], rel=1e-6)


def test_from_a_history_without_differences_there_is_nothing_to_learn() -> None:
    learner = MetaLearner(theta=a_theta())
    learner.pretrain(MetaModel(4), [0.5] * 4, 50)
    assert learner.theta == pytest.approx(a_theta())


def a_session(epochs: int, **changes: Any) -> ScriptedSession:
    policy = FedASMU.model_validate({"cohort": 4, "max_in_flight": 4} | changes)
    return ScriptedSession(policy, devices=8, epochs=epochs)


def proposed(session: ScriptedSession) -> set[Any]:
    return {flight.order.arguments["slot"] for flight in session.in_flight.values()}


def test_with_a_history_the_first_orders_propose_its_best_slot() -> None:
    assert proposed(a_session(3, epsilon=0.0, history=[0.2, 0.0, 0.0], pretraining=300)) == {1}
    assert proposed(a_session(3, epsilon=0.0, history=[0.0, 0.0, 0.2], pretraining=300)) == {3}
    assert proposed(a_session(3, epsilon=0.0, history=[0.2, 0.0, 0.0], pretraining=0)) == proposed(
        a_session(3, epsilon=0.0)
    ), "no steps, nothing learned"


# Fixed slots ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slot", "of_epochs"),
    [
        # A slot l means: before epoch l. H1 asks after the first epoch, so before the second.
        ("first", {1: 1, 2: 2, 3: 2, 4: 2, 5: 2, 8: 2}),
        # H2: half-way through, with the shorter half first.
        ("middle", {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 8: 5}),
        # H3: in the last epoch but one.
        ("penultimate", {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 8: 7}),
    ],
)
def test_fixed_slots(slot: str, of_epochs: dict[int, int]) -> None:
    for epochs, expected in of_epochs.items():
        session = a_session(epochs, slot=slot)
        assert proposed(session) == {expected}, f"{epochs} epochs"
        assert all(flight.order.arguments["fixed"] for flight in session.in_flight.values())
        assert session.state.meta is None, "nothing to learn"


# Equation (8): the Q table -------------------------------------------------------------------------------------------


def test_equation_8_by_hand() -> None:
    rates = {"rate": 0.5, "discount": 0.9}
    table = no_table(3)
    table = learned(table, 2, ADD, 1.0, **rates)  # H(2, add) = 0.5 (1 + 0.9 * 0 - 0) = 0.5
    assert table[1, ADD] == pytest.approx(0.5)
    table = learned(table, 3, MINUS, 0.2, **rates)  # H(3, minus) = 0.5 (0.2 + 0.9 max(0, 0.5, 0)) = 0.325
    assert table[2, MINUS] == pytest.approx(0.325)
    table = learned(table, 2, ADD, -1.0, **rates)  # 0.5 + 0.5 (-1 + 0.9 * 0.325 - 0.5) = -0.10375
    assert table[1, ADD] == pytest.approx(-0.10375)
    table = learned(table, 3, ADD, 1.0, **rates)  # 3 + 1 is cut to 3: 0.5 (1 + 0.9 * 0.325) = 0.64625
    assert table[2, ADD] == pytest.approx(0.64625)
    table = learned(table, 1, MINUS, 0.4, **rates)  # 1 - 1 is cut to 1: 0.5 (0.4 + 0.9 * 0) = 0.2
    expected = np.zeros((3, 3))
    expected[0, MINUS], expected[1, ADD], expected[2, MINUS], expected[2, ADD] = 0.2, -0.10375, 0.325, 0.64625
    assert table == pytest.approx(expected)


def test_the_table_before_a_reward_is_left_as_it_was() -> None:
    table = no_table(2)
    learned(table, 1, STAY, 1.0, rate=0.5, discount=0.9)
    assert not table.any()


def test_a_rate_of_one_without_discount_keeps_the_last_reward() -> None:
    table = learned(no_table(2), 1, STAY, 1.0, rate=1.0, discount=0.0)
    assert learned(table, 1, STAY, 0.25, rate=1.0, discount=0.0)[0, STAY] == 0.25


@pytest.mark.parametrize(
    ("slot", "move", "to"),
    [(1, ADD, 2), (1, STAY, 1), (1, MINUS, 1), (2, ADD, 3), (2, MINUS, 1), (3, ADD, 3), (3, MINUS, 2)],
)
def test_moves_stay_within_the_epochs(slot: int, move: int, to: int) -> None:
    assert moved(slot, move, 3) == to


def test_the_best_move_is_taken_and_without_a_preference_the_device_stays() -> None:
    table = no_table(3)
    assert next_move(table, 2, 0.0, 0.0) == STAY
    table[1] = [0.1, 0.0, 0.3]
    assert next_move(table, 2, 0.0, 0.0) == MINUS
    table[1, ADD] = 0.4
    assert next_move(table, 2, 0.2, 0.2) == ADD, "at epsilon luck is over"
    assert next_move(table, 1, 0.2, 0.9) == STAY, "another slot has another row"


def test_with_probability_epsilon_the_move_is_any() -> None:
    table = no_table(3)
    table[1, ADD] = 1.0
    often = Counter(next_move(table, 2, 0.3, (number + 0.5) / 3000) for number in range(3000))
    # 0.7 + 0.3 / 3 = 0.8 of all luck leads to the best move, 0.1 to each of the others.
    assert often == {ADD: 2400, STAY: 300, MINUS: 300}


@given(
    draw=st.floats(0.0, 1.0, exclude_max=True),
    epsilon=st.floats(0.0, 1.0),
    slot=st.integers(1, 5),
    values=st.lists(st.floats(-10, 10, width=32), min_size=15, max_size=15),
)
def test_every_luck_leads_to_a_move(draw: float, epsilon: float, slot: int, values: list[float]) -> None:
    table = np.array(values, dtype=np.float32).reshape(5, 3)
    move = next_move(table, slot, epsilon, draw)
    assert move in (STAY, ADD, MINUS)
    assert 1 <= moved(slot, move, 5) <= 5
    assert draw < epsilon or table[slot - 1, move] == table[slot - 1].max()


def test_the_table_finds_the_best_slot() -> None:
    """A device that is rewarded for slot 4 of 5 only, and starts at 1, comes to ask before epoch 4 and stays there."""
    table, slot, random = no_table(5), 1, stream(0, "life")
    for _ in range(3000):
        move = next_move(table, slot, 0.3, random.random())
        to = moved(slot, move, 5)
        table = learned(table, slot, move, 1.0 if to == 4 else 0.0, rate=0.2, discount=0.9)
        slot = to
    for start in (1, 2, 3, 4, 5):
        slot = start
        for _ in range(4):
            slot = moved(slot, next_move(table, slot, 0.0, 0.5), 5)
        assert slot == 4
