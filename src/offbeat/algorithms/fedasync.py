"""FedAsync: every upload is mixed into the model at once, the less the staler it is.

Xie, Koyejo, Gupta: *Asynchronous Federated Optimization*, OPT 2020 (arXiv 1903.03934), Algorithm 1 and section 5.2.

| paper | here |
|---|---|
| alpha | `alpha` |
| s(t - tau) | `staleness`: "constant", "polynomial" with a = `exponent`, "hinge" with a = `slope`, b = `grace` |
| rho | `prox` |
| t - tau | current version minus the update's base |

    alpha_t = alpha s(t - tau)
    w       <- (1 - alpha_t) w + alpha_t w_k
    s       =  1  |  (t - tau + 1)^-a  |  1 if t - tau <= b else 1 / (a (t - tau - b) + 1)

alpha_t is made anew from `alpha` for every update (it does not compound), and the hinge has its `+ 1`: code in use
differs in both. The paper's server triggers tasks from a scheduler thread; here `concurrency` devices are kept in
flight, drawn at random from the idle ones. `max_staleness` (not in the paper) discards what is staler.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.core.actions import Action, Commit, Discard, Dispatch
from offbeat.core.errors import InvalidInput
from offbeat.core.events import Event, Uploaded
from offbeat.core.policy import Policy, View


@dataclass
class FedAsyncState:
    """FedAsync remembers nothing but the model."""


class FedAsync(Policy):
    """Asynchronous: mixes each upload at once with a weight that falls with staleness (Xie et al. 2020)."""

    State = FedAsyncState

    concurrency: Annotated[int, Field(ge=1)] = 10
    """Devices kept in training."""
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.6
    """Mixing weight of a fresh update."""
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial"
    """How the weight falls with staleness."""
    exponent: Annotated[float, Field(ge=0)] = 0.5
    """a of the polynomial."""
    slope: Annotated[float, Field(ge=0)] = 10.0
    """a of the hinge."""
    grace: Annotated[int, Field(ge=0)] = 4
    """b of the hinge: up to this staleness the weight is full."""
    prox: Annotated[float, Field(ge=0)] = 0.005
    """rho, the pull of local training towards the model it started from; 0 for none. `local.prox` replaces it."""
    max_staleness: Annotated[int, Field(ge=0)] | None = None
    """Discard updates that are staler than this."""

    def check(self, devices: int) -> None:
        if self.concurrency > devices:
            raise InvalidInput(f"algorithm.concurrency = {self.concurrency}: there are only {devices} devices")

    def react(self, event: Event, state: FedAsyncState, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            update = event.update
            staleness = view.version - update.base
            if self.max_staleness is not None and staleness > self.max_staleness:
                yield Discard(ticket=update.ticket, reason="too stale")
            else:
                alpha = np.float32(self.alpha * self.scale(staleness))
                mixed = (1 - alpha) * view.parameters + alpha * update.parameters
                yield Commit(parameters=mixed, used=(update.ticket,))
        prox = self.prox if view.training.prox is None else view.training.prox
        for device in view.pick(self.concurrency - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order(prox=prox))

    def scale(self, staleness: int) -> float:
        """s(t - tau), section 5.2."""
        match self.staleness:
            case "constant":
                return 1.0
            case "polynomial":
                return float((staleness + 1) ** -self.exponent)
            case "hinge":
                return 1.0 if staleness <= self.grace else 1 / (self.slope * (staleness - self.grace) + 1)
