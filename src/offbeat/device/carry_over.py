"""What a device takes over from one training to the next beside the algorithm's own memory: the optimiser's state,
running statistics that stay on the device, and what terms of the loss remember.
"""

import numpy as np

from offbeat.core.orders import Order
from offbeat.core.parameters import Vector
from offbeat.core.policy import Memory, ReadOnlyMemory
from offbeat.device.terms import remembered
from offbeat.device.training_state import TrainingState

OPTIMISER = "optimiser "
MOMENTUM = "momentum"
BUFFERS = "buffers"


def first_state(order: Order, parameters: Vector, memory: ReadOnlyMemory) -> TrainingState:
    """The state that a training begins with."""
    if not order.remembers or not memory:
        return TrainingState(parameters=parameters)
    momentum, buffers = memory.get(MOMENTUM), memory.get(BUFFERS)
    kept = {
        name.removeprefix(OPTIMISER): vector
        for name, vector in memory.items()
        if name.startswith(OPTIMISER) and isinstance(vector, np.ndarray)
    }
    keep = order.keep_optimiser_state
    return TrainingState(
        parameters=parameters,
        momentum=momentum if keep and isinstance(momentum, np.ndarray) else None,
        optimiser=kept if keep else {},
        buffers=buffers if order.buffers == "local" and isinstance(buffers, np.ndarray) else None,
    )


def remember(order: Order, received: Vector, state: TrainingState, memory: Memory) -> None:
    """Add to the memory what the device's next training will want to know of this one."""
    if order.keep_optimiser_state:
        if state.momentum is not None:
            memory[MOMENTUM] = state.momentum
        memory.update({OPTIMISER + name: vector for name, vector in state.optimiser.items()})
    if order.buffers == "local" and state.buffers is not None:
        memory[BUFFERS] = state.buffers
    memory.update(remembered(order, memory, received, state.parameters, _rates(order, max(state.steps, 1))))


def _rates(order: Order, steps: int) -> float:
    """The learning rates of so many steps, summed up."""
    if order.schedule is None:
        return order.learning_rate * steps
    return sum(order.schedule.rate(order.learning_rate, step) for step in range(steps))
