"""FedStale and FedVARP: synchronous rounds that add the last movements of the devices that do not take part.

Rodio, Neglia: *FedStale: Leveraging Stale Client Updates in Federated Learning*, ECAI 2024, after its authors' code.
Jhunjhunwala, Sharma, Nagarkatti, Joshi: *FedVARP: Tackling the Variance Due to Partial Client Participation in
Federated Learning*, UAI 2022.

| paper | here |
|---|---|
| S, the clients of a round | the cohort, without those that were lost |
| p_i | device i's share of the samples |
| q_i, participation of client i | `participation` |
| h_i, latest movement of client i | `state.cache`, of device i; 0 before the first |
| beta | `beta` |

    w <- w + eta [ sum_S (p_i/q_i) Delta_i + beta ( sum_{not S} p_i h_i + sum_S (p_i - p_i/q_i) h_i ) ]
    h_i <- Delta_i for i in S

beta = 0 is FedAvg with unbiased weights, beta = 1 is FedVARP, and FedStale lies between. `participation = "estimated"`
is the share of the rounds so far in which device i has reported, this round included; `"uniform"` is cohort / n.

Server memory: one movement per device that has reported (`algorithms.model_cache`). A round stops waiting for a lost
device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import Floats
from offbeat.algorithms.model_cache import CacheKind, ModelCache
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Dispatch, Event, Uploaded
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, by_block
from offbeat.core.policy import Policy, View


@dataclass
class FedStaleState:
    """The current round, and the movements and rounds of every device that has reported."""

    samples: int
    """Total samples of all devices."""
    arrived: list[Update] = field(default_factory=list)
    cache: ModelCache = field(default_factory=ModelCache)
    total: Floats | None = None
    """sum_i p_i h_i over all devices; None: zero."""
    rounds: int = 0
    reports: dict[int, int] = field(default_factory=dict)
    """Rounds in which each device has reported."""


class FedStale(Policy):
    """Synchronous rounds with the last movements of absent devices (Rodio and Neglia 2024).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedStale(cohort=1, beta=0.5, participation="uniform"), devices=2, present=[0])
    >>> _ = session.move(4.0, 0.0)  # p = q = 1/2: the whole [4, 0]
    >>> _ = session.move(0.0, 4.0)  # [0, 4] + 1/2 (1/2 - 1) [4, 0]
    >>> session.parameters.tolist()
    [3.0, 4.0]
    """

    State = FedStaleState
    Records = (ModelCache,)

    cohort: Annotated[int, Field(ge=1)] = 10
    """Devices in a round."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of earlier movements."""
    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """eta, the learning rate of the server."""
    cache: CacheKind = "memory"
    """Where the devices' movements are kept: in memory, in memory with 8 bits each, or on disk."""
    participation: Literal["estimated", "uniform"] = "estimated"
    """q_i: the share of the rounds in which the device has reported, or the cohort's share of the devices."""

    about = About(
        name="fedstale",
        family="synchronous",
        paper="Rodio and Neglia, ECAI 2024",
        provenance="authors' code",
        in_training="cohort",
        search=SearchSpace(beta=Range(0.0, 1.0), server_learning_rate=Range(0.3, 3.0, log=True, relative=True)),
        server_memory=ServerMemory(models=2, per_device=1),
    )

    def check(self, devices: int) -> None:
        if self.cohort > devices:
            raise InvalidInput(f"algorithm.cohort = {self.cohort}: there are only {devices} devices")

    def init(self, view: View) -> FedStaleState:
        samples = sum(map(view.samples, range(view.devices)))
        return FedStaleState(samples=samples, cache=ModelCache(self.cache))

    def react(self, event: Event, state: FedStaleState, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            state.arrived.append(event.update)
        if view.in_flight:
            return
        if state.arrived:
            updates, state.arrived = state.arrived, []
            yield Commit(
                parameters=self.aggregate(updates, state, view), used=tuple(update.ticket for update in updates)
            )
        for device in view.pick(self.cohort):
            yield Dispatch(device=device, order=view.order())

    def aggregate(self, updates: Sequence[Update], state: FedStaleState, view: View) -> Vector:
        """The next version, from the movements of this round and the earlier ones."""
        now, beta, terms = view.parameters, self.beta, []
        state.rounds += 1
        for update in updates:
            device = update.device
            state.reports[device] = state.reports.get(device, 0) + 1
            p = update.samples / state.samples
            terms.append((p, p / self.participates(device, state, view), state.cache.replace(update, view)))
        state.total = total = np.zeros(len(now)) if state.total is None else state.total
        rate = self.server_learning_rate

        def next_version(block: slice) -> Floats:
            movement = beta * total[block]  # sum over all devices of p_i h_i; those of S are corrected below
            for p, weight, change in terms:
                delta, old, new = change(block)
                movement += weight * (delta - beta * old)
                total[block] += p * (new - old)
            model: Floats = now[block] + rate * movement
            return model

        return by_block(len(now), next_version)

    def participates(self, device: int, state: FedStaleState, view: View) -> float:
        """q_i, the participation of a device that has reported in this round."""
        return self.cohort / view.devices if self.participation == "uniform" else state.reports[device] / state.rounds


class FedVarp(FedStale):
    """FedStale with beta = 1 and uniform participation (Jhunjhunwala et al. 2022).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedVarp(cohort=1), devices=2, present=[0])
    >>> _ = session.move(4.0, 0.0), session.move(0.0, 4.0)  # [4, 0], then [0, 4] + (1/2 - 1) [4, 0]
    >>> session.parameters.tolist()
    [2.0, 4.0]
    """

    beta: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Weight of earlier movements."""
    participation: Literal["estimated", "uniform"] = "uniform"
    """q_i: the share of the rounds in which the device has reported, or the cohort's share of the devices."""

    about = About(
        name="fedvarp",
        family="synchronous",
        paper="Jhunjhunwala et al., UAI 2022",
        provenance="authors' code",
        in_training="cohort",
        search=SearchSpace(server_learning_rate=Range(0.3, 3.0, log=True, relative=True)),
        server_memory=FedStale.about.server_memory,
    )
