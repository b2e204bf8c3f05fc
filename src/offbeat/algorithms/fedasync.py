"""FedAsync: mixes every upload into the model at once, with a weight that falls with staleness.

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

alpha_t is computed from `alpha` for every update, and the hinge has its `+ 1`; some implementations differ in both.
`compounding = true` is Plato's weight, for comparison only:

    alpha_t = alpha_{t-1} s(t - tau),   alpha_0 = alpha

which falls towards 0 and never rises. With `staleness = "constant"` both are alpha.

The paper's server triggers tasks from a scheduler thread; here `concurrency` devices are kept in training, drawn at
random from the idle ones. `max_staleness` (not in the paper) discards staler updates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from offbeat.algorithms.about import About, Choice, Range, SearchSpace, proximal_difference
from offbeat.core.combining import single_movement
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Discard, Dispatch, Event, Uploaded
from offbeat.core.parameters import mixture, moved
from offbeat.core.policy import Policy, View
from offbeat.core.terms import Proximal


@dataclass
class FedAsyncState:
    """The factor that a compounding weight has shrunk to; the published rule has no state."""

    shrunk: float = 1.0
    """Product of s(t - tau) over all updates so far, if the weight compounds."""


class FedAsync(Policy):
    """Asynchronous: mixes each upload at once with a weight that falls with staleness (Xie et al. 2020).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedAsync(concurrency=2, alpha=0.5, exponent=1.0))
    >>> _ = session.upload(4.0, 0.0, ticket=1)  # fresh: 1/2 [0, 0] + 1/2 [4, 0] = [2, 0]
    >>> _ = session.upload(0.0, 8.0, ticket=2)  # staleness 1, alpha 1/2 * 1/2: 3/4 [2, 0] + 1/4 [0, 8]
    >>> session.version, session.parameters.tolist()
    (2, [1.5, 2.0])
    """

    State = FedAsyncState
    mixes = True

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
    """b of the hinge: the staleness up to which the weight is not reduced."""
    compounding: bool = False
    """Whether each s(t - tau) also shrinks the weights of all later updates, as in Plato (published: no)."""
    prox: Annotated[float, Field(ge=0)] = 0.005
    """rho, the proximal weight of local training; 0 for none. `local.prox` replaces it."""
    max_staleness: Annotated[int, Field(ge=0)] | None = None
    """Discard staler updates (default: none)."""

    about = About(
        name="fedasync",
        family="asynchronous",
        paper="Xie et al., OPT 2020",
        provenance="restated",
        in_training="concurrency",
        search=SearchSpace(
            alpha=Range(0.1, 1.0, log=True),
            staleness=Choice("constant", "polynomial", "hinge"),
            exponent=Range(0.0, 1.0),
            prox=Range(0.0005, 0.1, log=True),
        ),
        local_differences=lambda policy, local: proximal_difference(policy.prox, local),
    )

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
                scale = self.scale(staleness)
                if self.compounding:
                    scale = state.shrunk = state.shrunk * scale
                share = self.alpha * scale
                if view.combiner is None:
                    mixed = mixture(view.parameters, update.parameters, share)
                else:
                    mixed = moved(view.parameters, single_movement(update, view), share)
                yield Commit(parameters=mixed, used=(update.ticket,))
        terms = (Proximal(mu=self.prox),) if self.prox else ()
        for device in view.pick(self.concurrency - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order(terms=terms))

    def weight_at(self, staleness: int) -> float | None:
        """s(t - tau); None if weights compound, as they then depend on all earlier updates."""
        if self.compounding:
            return None
        return 0.0 if self.max_staleness is not None and staleness > self.max_staleness else self.scale(staleness)

    def scale(self, staleness: int) -> float:
        """s(t - tau), section 5.2."""
        match self.staleness:
            case "constant":
                return 1.0
            case "polynomial":
                return float((staleness + 1) ** -self.exponent)
            case "hinge":
                return 1.0 if staleness <= self.grace else 1 / (self.slope * (staleness - self.grace) + 1)
