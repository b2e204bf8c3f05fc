"""FedASMU's slot selection, that is when a device requests the fresh model (sec. 4.3.1), Eq. (7) and (8).

Slot l in 1..E means a request before epoch l. Until a device's first merge the server's meta model proposes the slot:
an LSTM with a fully connected layer that decides before each epoch whether to request now. After that the device moves
its slot by its own Q table. Both choose epsilon-greedily.

    P(l)      = p_l (1 - p_{l-1}) ... (1 - p_1),  P(E) the rest: one request, at the latest before epoch E
    b         <- (1 - rho) b + rho R
    theta     <- theta + eta_RL grad log P(l*) (R - b)                                                            (7)
    H(l, a)   <- H(l, a) + phi (R + psi max_a' H(l', a') - H(l, a)),   l' = l + a within 1..E                     (8)

The paper does not give the LSTM's size, input or initialisation. Here it has `HIDDEN` cells, and its input is 1 before
the first epoch and 0 afterwards. Untrained it favours the middle slot: before the first epoch there is rarely a newer
model, so a device that started there would get no reward and never move. The gradient is written out, because
algorithms do not import torch, and a test checks it against autograd.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offbeat.core.parameters import Vector

HIDDEN = 8
MOVES = (0, 1, -1)
"""Stay, add, minus. Stay comes first, so that it wins a tie."""

PRETRAINING_RATE = 0.2

Floats = npt.NDArray[np.float64]


def middle(epochs: int) -> int:
    """The slot after half of the epochs, rounded down.

    >>> [middle(epochs) for epochs in (1, 2, 4, 5)]
    [1, 2, 3, 3]
    """
    return epochs // 2 + 1


def initial_log_odds(epochs: int) -> Floats:
    """The log odds of a request before epoch 1..E-1 with which the slots' probabilities peak in the middle.

    >>> [round(float(odds), 3) for odds in initial_log_odds(4)]  # weights 1 2 3 2: odds 1 / 7, 2 / 5, 3 / 2
    [-1.946, -0.916, 0.405]
    """
    weights = epochs - abs(np.arange(1.0, epochs + 1) - middle(epochs))
    weights -= weights.min() - 1.0
    later: Floats = weights.sum() - weights.cumsum()
    return np.log(weights[:-1] / later[:-1])


@dataclass(frozen=True)
class MetaModel:
    """The LSTM as a function of its flat parameters theta."""

    epochs: int

    SHAPES: ClassVar = {
        "from_input": (4 * HIDDEN,),
        "from_hidden": (4 * HIDDEN, HIDDEN),
        "bias": (4 * HIDDEN,),
        "out": (HIDDEN,),
        "out_bias": (1,),
    }
    """Rows of four gates, in the order input, forget, cell, output."""

    @classmethod
    def parts(cls, theta: Floats) -> dict[str, Floats]:
        """Named views into a flat vector."""
        ends = np.cumsum([np.prod(shape) for shape in cls.SHAPES.values()])
        pieces = np.split(theta, ends[:-1])
        return {name: piece.reshape(cls.SHAPES[name]) for name, piece in zip(cls.SHAPES, pieces, strict=True)}

    @classmethod
    def initial(cls, random: np.random.Generator) -> Floats:
        """Initial parameters, drawn uniformly, similar to torch's LSTM."""
        size = int(sum(np.prod(shape) for shape in cls.SHAPES.values()))
        bound = HIDDEN**-0.5
        return random.uniform(-bound, bound, size)

    def probabilities(self, theta: Floats) -> Floats:
        """P(l) for l = 1..E."""
        asks = np.append(self._asks(theta)[0], 1.0)
        not_before: Floats = np.cumprod(np.append(1.0, 1.0 - asks[:-1]))
        return asks * not_before

    def choose(self, theta: Floats, epsilon: float, random: np.random.Generator) -> int:
        """The most probable slot or, with probability epsilon, a random one."""
        if random.random() < epsilon:
            return int(random.integers(1, self.epochs + 1))
        return int(np.argmax(self.probabilities(theta))) + 1

    def score(self, theta: Floats, slot: int) -> Floats:
        """The gradient of log P(slot) with respect to theta."""
        weights = np.zeros(self.epochs)
        weights[slot - 1] = 1.0
        return self.weighted_score(theta, weights)

    def weighted_score(self, theta: Floats, weights: Floats) -> Floats:
        """sum_l weight_l grad log P(l), by backpropagation through time."""
        asks, steps = self._asks(theta)
        part, gradient = self.parts(theta), np.zeros_like(theta)
        from_here_on = np.cumsum(weights[::-1])[::-1]
        into = self.parts(gradient)
        hidden_error, cell_error = np.zeros(HIDDEN), np.zeros(HIDDEN)
        for epoch in range(self.epochs - 1, 0, -1):
            fed, before, cell_before, (enter, forget, new, leave), cell = steps[epoch - 1]
            error = weights[epoch - 1] - asks[epoch - 1] * from_here_on[epoch - 1]
            squashed = np.tanh(cell)
            into["out"] += error * leave * squashed
            into["out_bias"] += error
            hidden_error = hidden_error + error * part["out"]
            cell_error = cell_error + hidden_error * leave * (1.0 - squashed**2)
            gates = np.concatenate(
                [
                    cell_error * new * enter * (1.0 - enter),
                    cell_error * cell_before * forget * (1.0 - forget),
                    cell_error * enter * (1.0 - new**2),
                    hidden_error * squashed * leave * (1.0 - leave),
                ]
            )
            into["from_input"] += gates * fed
            into["from_hidden"] += np.outer(gates, before)
            into["bias"] += gates
            hidden_error = part["from_hidden"].T @ gates
            cell_error = cell_error * forget
        return gradient

    def _asks(self, theta: Floats) -> tuple[Floats, list[tuple[float, Floats, Floats, list[Floats], Floats]]]:
        """p_l for l = 1..E-1, and the intermediates of each step. Before epoch E there is no decision left."""
        part, steps, log_odds = self.parts(theta), [], initial_log_odds(self.epochs)
        hidden, cell, asks = np.zeros(HIDDEN), np.zeros(HIDDEN), np.zeros(self.epochs - 1)
        for epoch in range(1, self.epochs):
            before, cell_before, fed = hidden, cell, float(epoch == 1)
            sums = part["from_input"] * fed + part["from_hidden"] @ hidden + part["bias"]
            enter, forget, new, leave = np.split(sums, 4)
            enter, forget, new, leave = sigmoid(enter), sigmoid(forget), np.tanh(new), sigmoid(leave)
            cell = forget * cell + enter * new
            hidden = leave * np.tanh(cell)
            steps.append((fed, before, cell_before, [enter, forget, new, leave], cell))
            asks[epoch - 1] = sigmoid(part["out"] @ hidden + part["out_bias"] + log_odds[epoch - 1])[0]
        return asks, steps


def sigmoid(x: Floats) -> Floats:
    """The logistic function 1 / (1 + exp(-x)), in a form that cannot overflow."""
    return (1.0 + np.tanh(x / 2.0)) / 2.0


@dataclass
class MetaLearner:
    """Parameters and baseline of the meta model, trained by REINFORCE."""

    theta: Floats
    baseline: float = 0.0

    def learn(self, model: MetaModel, slot: int, reward: float, *, rate: float, memory: float) -> None:
        """Eq. (7), after the update of the baseline, as in lines 14 and 15 of Algorithm 2."""
        self.baseline = (1.0 - memory) * self.baseline + memory * reward
        self.theta = self.theta + rate * model.score(self.theta, slot) * (reward - self.baseline)

    def pretrain(self, model: MetaModel, history: Sequence[float], steps: int) -> None:
        """Train on the mean reward of each slot in an earlier run.

        The rewards of all slots are known, so this takes the expected step of Eq. (7). Rewards are standardised, so
        that the result does not depend on the scale of the loss.
        """
        rewards = np.asarray(history) - np.mean(history)
        rewards /= rewards.std() or 1.0
        for _ in range(steps):
            expected = model.weighted_score(self.theta, model.probabilities(self.theta) * rewards)
            self.theta = self.theta + PRETRAINING_RATE * expected


def no_table(epochs: int) -> Vector:
    """H before the first reward: one row per slot, one column per move in `MOVES`."""
    return np.zeros((epochs, len(MOVES)), dtype=np.float32)


def next_move(table: Vector, slot: int, epsilon: float, draw: float) -> int:
    """The index in `MOVES` of the move to take from a slot. A `draw` in [0, 1) below epsilon selects a random move.

    >>> next_move(no_table(5), 3, epsilon=0.1, draw=0.5), next_move(no_table(5), 3, epsilon=0.3, draw=0.29)
    (0, 2)
    """
    if draw < epsilon:
        return min(floor(draw / epsilon * len(MOVES)), len(MOVES) - 1)
    return int(np.argmax(table[slot - 1]))


def moved(slot: int, move: int, epochs: int) -> int:
    """The slot after a move, within 1..E."""
    return min(max(slot + MOVES[move], 1), epochs)


def learned(table: Vector, slot: int, move: int, reward: float, *, rate: float, discount: float) -> Vector:
    """Eq. (8): the table after the reward for a move from this slot."""
    following = moved(slot, move, len(table))
    changed = table.copy()
    changed[slot - 1, move] += rate * (reward + discount * table[following - 1].max() - table[slot - 1, move])
    return changed
