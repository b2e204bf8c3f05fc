"""FedAvg: synchronous rounds.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: *Communication-Efficient Learning of Deep Networks from Decentralized
Data*, AISTATS 2017, Algorithm 1.

| paper | here |
|---|---|
| C K, clients a round | `cohort` |
| E, B, eta | the experiment's `[local]` table |
| n_k | samples of device k |

Each round orders `cohort` random idle devices, waits for all of them and takes

    w <- sum_k n_k / n  w_k        over those that reported.

The paper assumes that no device is lost. Here a round stops waiting for a lost device, and a round without any upload
makes no version. If fewer than `cohort` devices are idle, the round takes those. A server optimiser may take the step
along the mean movement (`algorithms.server_optimisers`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About
from offbeat.algorithms.server_optimisers import SERVER_SEARCH, ServerMoments, ServerOptimised
from offbeat.core.combining import Floats, Movement, mean_model
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Discard, Dispatch, Event, Uploaded
from offbeat.core.orders import Order, Update
from offbeat.core.parameters import Vector
from offbeat.core.policy import View


@dataclass
class FedAvgState:
    """The updates of the current round, which lasts while any order is in flight."""

    arrived: list[Update] = field(default_factory=list)
    moments: ServerMoments = field(default_factory=ServerMoments)


class FedAvg(ServerOptimised):
    """Synchronous rounds that wait for every device of the cohort (McMahan et al. 2017).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedAvg(cohort=2), samples=[10, 30])
    >>> session.upload(4.0, 0.0, device=0).used  # the round waits for the other
    []
    >>> len(session.upload(0.0, 4.0, device=1).used)
    2
    >>> session.parameters.tolist()  # 1/4 [4, 0] + 3/4 [0, 4]
    [1.0, 3.0]
    """

    State = FedAvgState
    Records = (ServerMoments,)
    combines = True

    cohort: Annotated[int, Field(ge=1)] = 10
    """Devices in a round."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a device in the mean: its number of samples (published), or equal weights."""

    about = About(
        name="fedavg",
        family="synchronous",
        paper="McMahan et al., AISTATS 2017",
        provenance="published",
        in_training="cohort",
        search=SERVER_SEARCH,
        sums_only=True,
    )

    def check(self, devices: int) -> None:
        if self.cohort > devices:
            raise InvalidInput(f"algorithm.cohort = {self.cohort}: there are only {devices} devices")

    def react(self, event: Event, state: FedAvgState, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            if event.update.progress.slices:
                state.arrived.append(event.update)
            else:
                yield Discard(ticket=event.ticket, reason="nothing trained")
        if view.in_flight:
            return
        if state.arrived:
            mean = self.aggregate(state.arrived, state, view)
            if self.server_optimiser != "none" or self.server_learning_rate != 1.0:
                mean = self.server_step(view.parameters, _movement(view.parameters, mean), state.moments)
            yield Commit(parameters=mean, used=tuple(update.ticket for update in state.arrived))
            state.arrived = []
        for device in view.pick(self.cohort):
            yield Dispatch(device=device, order=self.order(device, view))

    def order(self, device: int, view: View) -> Order:
        """The order for one device of the cohort."""
        return view.order()

    def aggregate(self, updates: Sequence[Update], state: FedAvgState, view: View) -> Vector:
        """The mean of the uploaded models."""
        return mean_model(updates, [self.weight(update) for update in updates], view)

    def weight(self, update: Update) -> float:
        """The weight of an update in the mean, before normalisation."""
        return float(update.samples) if self.weighting == "samples" else 1.0

    @property
    def sums_suffice(self) -> bool:
        return type(self).aggregate is FedAvg.aggregate

    def weight_in_sum(self, update: Update, view: View) -> float:
        return self.weight(update) if update.progress.slices else 0.0


def _movement(before: Vector, after: Vector) -> Movement:
    def movement_of(block: slice) -> Floats:
        return after[block].astype(np.float64) - before[block]

    return movement_of
