"""What asynchronous algorithms share: a number of devices in training, and an order for every free place.

`ArrivalPolicy` reacts to one upload at a time, `BufferPolicy` to every K-th. A lost device is replaced at once by a
random idle one, so neither waits for anything but uploads.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Dispatch, Event, Uploaded
from offbeat.core.orders import Order, Update
from offbeat.core.parameters import Vector
from offbeat.core.policy import Policy, View

Floats = npt.NDArray[np.float64]


def local_steps(view: View) -> int:
    """Optimiser steps of an order of the `[local]` table, on a device with the mean number of samples."""
    local = view.local
    mean = max(1, ceil(sum(map(view.samples, range(view.devices))) / view.devices))
    return local.steps or local.epochs * ceil(mean / (local.batch_size or mean))


class ArrivalPolicy(Policy):
    """Base of policies that keep `concurrency` devices in training and answer every upload at once."""

    concurrency: Annotated[int, Field(ge=1)] = 10
    """Devices kept in training."""

    def check(self, devices: int) -> None:
        if self.concurrency > devices:
            raise InvalidInput(f"algorithm.concurrency = {self.concurrency}: there are only {devices} devices")

    def react(self, event: Event, state: Any, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            yield from self.receive(event.update, state, view)
        for device in view.pick(self.concurrency - len(view.in_flight)):
            yield Dispatch(device=device, order=self.order(device, state, view))

    @abstractmethod
    def receive(self, update: Update, state: Any, view: View) -> Iterator[Action]:
        """Use, keep or discard an upload."""

    def order(self, device: int, state: Any, view: View) -> Order:
        """The order for a device."""
        return view.order()


@dataclass
class Buffer:
    """The uploads since the last version."""

    updates: list[Update] = field(default_factory=list)


class BufferPolicy(ArrivalPolicy):
    """Base of policies that make a version from every `buffer` uploads."""

    buffer: Annotated[int, Field(ge=1)] = 10
    """K, the uploads that make a version."""
    concurrency: Annotated[int, Field(ge=1)] = 20
    """Devices kept in training."""

    def receive(self, update: Update, state: Any, view: View) -> Iterator[Action]:
        state.updates.append(update)
        if len(state.updates) >= self.buffer:
            updates, state.updates = state.updates, []
            model = self.aggregate(updates, state, view)
            yield Commit(parameters=model, used=tuple(each.ticket for each in updates))

    @abstractmethod
    def aggregate(self, updates: Sequence[Update], state: Any, view: View) -> Vector:
        """The next version, from the uploads in the buffer."""
