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

The paper has no losses. Here a device that is lost is no longer waited for; a round in which nobody reported makes no
version, and the next one begins. If fewer devices than `cohort` are idle, the round takes those that are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from offbeat.core.actions import Action, Commit, Dispatch
from offbeat.core.errors import InvalidInput
from offbeat.core.events import Event, Uploaded
from offbeat.core.orders import Update
from offbeat.core.parameters import weighted_mean
from offbeat.core.policy import Policy, View


@dataclass
class FedAvgState:
    """The updates of the running round. It runs while anything is in flight."""

    arrived: list[Update] = field(default_factory=list)


class FedAvg(Policy):
    """Synchronous rounds that wait for every device of the cohort (McMahan et al. 2017)."""

    State = FedAvgState
    in_training_setting = "cohort"

    cohort: Annotated[int, Field(ge=1)] = 10
    """Devices in a round."""
    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a device in the mean: its number of samples (published), or the same for all."""

    def check(self, devices: int) -> None:
        if self.cohort > devices:
            raise InvalidInput(f"algorithm.cohort = {self.cohort}: there are only {devices} devices")

    def react(self, event: Event, state: FedAvgState, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            state.arrived.append(event.update)
        if view.in_flight:
            return
        if state.arrived:
            models = [update.parameters for update in state.arrived]
            weights = [self.weight(update) for update in state.arrived]
            yield Commit(
                parameters=weighted_mean(models, weights), used=tuple(update.ticket for update in state.arrived)
            )
            state.arrived = []
        for device in view.pick(self.cohort):
            yield Dispatch(device=device, order=view.order())

    def weight(self, update: Update) -> float:
        return float(update.samples) if self.weighting == "samples" else 1.0
