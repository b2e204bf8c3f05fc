"""FedBuff: buffered asynchronous aggregation.

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: *Federated Learning with Buffered Asynchronous Aggregation*,
AISTATS 2022, Algorithm 1 and section 5 (staleness scaling).

| paper | here |
|---|---|
| K, buffer size | `buffer` |
| M_c, concurrency | `concurrency` |
| eta_g | `server_learning_rate` |
| Delta_i | update's parameters minus the version it started from (its own base) |
| s(tau) = 1 / sqrt(1 + tau) | `scale` |

    when K updates are in the buffer:   w <- w + eta_g / K  sum_k s(tau_k) Delta_k

`normaliser = "weights"` divides by `sum_k s(tau_k)` instead of K, the default of the authors' framework FLSim. Whenever
a device reports or is lost, a random idle device is ordered at once. A server optimiser may take the step
(`algorithms.server_optimisers`).

`variant = "plato"` is a different rule of the same name, shipped by the framework Plato and used in published
comparisons: deltas from the *current* model, no staleness scaling,

    w <- w + eta_g / K  sum_k (w_k - w)        the mean of the buffered models if eta_g = 1.

There a device whose update is in the buffer counts as in training: it gets its next order only after the aggregation. A
lost device is replaced at once by an idle one without an update in the buffer. If no device is left in training, the
buffer is aggregated although it is not full.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Annotated, Literal

from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.algorithms.server_optimisers import SERVER_SEARCH, ServerMoments, ServerOptimised
from offbeat.core.combining import Movement, mean_movement
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Dispatch, Event, Uploaded
from offbeat.core.orders import Update
from offbeat.core.policy import View


@dataclass
class FedBuffState:
    """The buffer, and the moments of the server optimiser."""

    updates: list[Update] = field(default_factory=list)
    moments: ServerMoments = field(default_factory=ServerMoments)


class FedBuff(ServerOptimised):
    """Buffered asynchronous: aggregates every K uploads, scaled by staleness (Nguyen et al. 2022).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedBuff(buffer=2, concurrency=2))
    >>> session.upload(4.0, 0.0).used, session.upload(0.0, 4.0).used
    ([], [1, 2])
    >>> session.parameters.tolist()  # ([4, 0] + [0, 4]) / 2
    [2.0, 2.0]
    """

    State = FedBuffState
    Records = (ServerMoments,)
    combines = True

    buffer: Annotated[int, Field(ge=1)] = 10
    """K, the uploads that make a version."""
    concurrency: Annotated[int, Field(ge=1)] = 20
    """Devices kept in training."""
    variant: Literal["paper", "plato"] = "paper"
    """The published rule, or Plato's: the mean of the buffered models; devices in the buffer count as in training."""
    normaliser: Literal["K", "weights"] = "K"
    """Divide the weighted sum by K (published) or by the sum of the weights."""

    about = About(
        name="fedbuff",
        family="buffered",
        paper="Nguyen et al., AISTATS 2022",
        provenance="published",
        in_training="concurrency",
        search=SearchSpace(SERVER_SEARCH, buffer=Range(2, 20, log=True)),
        sums_only=True,
        smoke={"algorithm": {"buffer": 5, "concurrency": 10}},
    )

    def check(self, devices: int) -> None:
        if self.concurrency > devices:
            raise InvalidInput(f"algorithm.concurrency = {self.concurrency}: there are only {devices} devices")
        if self.variant == "plato" and self.buffer > self.concurrency:
            raise InvalidInput(
                f"algorithm.buffer = {self.buffer} exceeds algorithm.concurrency = {self.concurrency}: "
                "the buffer could never fill"
            )

    def react(self, event: Event, state: FedBuffState, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            state.updates.append(event.update)
        if self.variant == "plato":
            yield from self.react_as_plato(state, view)
            return
        if len(state.updates) >= self.buffer:
            yield self.aggregate(state, view)
        for device in view.pick(self.concurrency - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order())

    def react_as_plato(self, state: FedBuffState, view: View) -> Iterator[Action]:
        """Plato's rule: a device with an update in the buffer counts as in training."""
        yield from self.fill(state.updates, view)  # replaces a lost device; an upload leaves no slot free
        if len(state.updates) >= self.buffer or (state.updates and not view.in_flight):
            yield self.aggregate(state, view)
            yield from self.fill(state.updates, view)

    def aggregate(self, state: FedBuffState, view: View) -> Commit:
        """The next version, from all updates in the buffer, which is empty afterwards."""
        updates, state.updates = state.updates, []
        return Commit(
            parameters=self.server_step(view.parameters, self.movement(updates, view), state.moments),
            used=tuple(update.ticket for update in updates),
        )

    def fill(self, waiting: Sequence[Update], view: View) -> Iterator[Action]:
        """Keep `concurrency` devices in training or `waiting` in the buffer."""
        for device in pick_others(self.concurrency - len(view.in_flight) - len(waiting), waiting, view):
            yield Dispatch(device=device, order=view.order())

    def movement(self, updates: Sequence[Update], view: View) -> Movement:
        """The mean movement of the buffered updates, which the server steps along."""
        if self.variant == "plato":
            return mean_movement(updates, [view.parameters] * len(updates), [1.0] * len(updates), len(updates), view)
        weights = [self.scale(view.version - update.base) for update in updates]
        divisor = len(updates) if self.normaliser == "K" else sum(weights)
        return mean_movement(updates, [update.base_parameters for update in updates], weights, divisor, view)

    def scale(self, staleness: int) -> float:
        """s(tau), the weight of an update of this staleness."""
        return 1 / sqrt(1 + staleness)

    @property
    def sums_suffice(self) -> bool:
        return self.variant == "paper"

    def weight_in_sum(self, update: Update, view: View) -> float:
        return self.scale(view.version - update.base)  # the version stays the same until the buffer is full

    def weight_at(self, staleness: int) -> float | None:
        """s(tau); Plato's rule has no staleness scaling."""
        return 1.0 if self.variant == "plato" else self.scale(staleness)


def pick_others(count: int, waiting: Sequence[Update], view: View) -> list[int]:
    """Up to `count` random idle devices that have no update in the buffer."""
    return view.pick(count, excluding={update.device for update in waiting})
