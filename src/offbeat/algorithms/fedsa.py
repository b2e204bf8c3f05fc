"""FedSA: asynchronous, with fewer local epochs for stale devices and late in the run. Our reading.

Chen, Mao, Ma: *FedSA: A Staleness-Aware Asynchronous Federated Learning Algorithm with Non-IID Data*, Future Generation
Computer Systems 120, 2021. We did not have the paper: these rules are our interpretation of descriptions by others, and
results under this name are results of this interpretation.

| idea | here |
|---|---|
| many local epochs first | E = `local.epochs` |
| fewer in the convergence phase | E = `local.epochs` x `convergence_share`, from `convergence_version` on |
| a device's epochs fall with its staleness | b = `epochs_exponent`, s_i the staleness of its last update |
| the mixing weight falls with staleness | a = `exponent` |

    E_i     = max(1, round(E * (s_i + 1)^-b))         E the epochs of the phase
    alpha_t = alpha (s + 1)^-a
    w       <- (1 - alpha_t) w + alpha_t w_i

Both exponents at 0 and `convergence_share` at 1 make it FedAsync with a constant weight and no proximal term.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Dispatch, Event, Uploaded
from offbeat.core.parameters import mixture
from offbeat.core.policy import Policy, View


@dataclass
class FedSAState:
    """The staleness of each device's last update."""

    staleness: dict[int, int] = field(default_factory=dict)


class FedSA(Policy):
    """Asynchronous with fewer local epochs for staler devices (after Chen et al. 2021; our reading).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedSA(concurrency=2, alpha=0.5, exponent=1.0))
    >>> _ = session.upload(4.0, 0.0), session.upload(6.0, 8.0)  # 1/2 [4, 0], then 3/4 [2, 0] + 1/4 [6, 8]
    >>> session.parameters.tolist()
    [3.0, 2.0]
    """

    State = FedSAState

    concurrency: Annotated[int, Field(ge=1)] = 10
    """Devices kept in training."""
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.6
    """Mixing weight of a fresh update."""
    exponent: Annotated[float, Field(ge=0)] = 0.5
    """a, the exponent by which the mixing weight falls with staleness."""
    epochs_exponent: Annotated[float, Field(ge=0)] = 0.25
    """b, the exponent by which a device's epochs fall with the staleness of its last update."""
    convergence_version: Annotated[int, Field(ge=0)] = 300
    """First version of the convergence phase."""
    convergence_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of `local.epochs` in the convergence phase."""

    about = About(
        name="fedsa",
        family="asynchronous",
        paper="Chen et al., FGCS 2021",
        provenance="our reading",
        in_training="concurrency",
        search=SearchSpace(alpha=Range(0.1, 1.0, log=True), exponent=Range(0.0, 1.0), epochs_exponent=Range(0.0, 0.5)),
        local_differences=lambda policy, local: [
            f"fewer epochs on devices with stale updates, and from version {policy.convergence_version} on",
        ],
        flower=None,
    )

    def check(self, devices: int) -> None:
        if self.concurrency > devices:
            raise InvalidInput(f"algorithm.concurrency = {self.concurrency}: there are only {devices} devices")

    def react(self, event: Event, state: FedSAState, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            update = event.update
            staleness = state.staleness[update.device] = view.version - update.base
            alpha = self.alpha * self.weight_at(staleness)
            mixed = mixture(view.parameters, update.parameters, alpha)
            yield Commit(parameters=mixed, used=(update.ticket,))
        for device in view.pick(self.concurrency - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order(slices=self.epochs(device, state, view)))

    def weight_at(self, staleness: int) -> float:
        """The factor by which staleness reduces the mixing weight."""
        return float((staleness + 1) ** -self.exponent)

    def epochs(self, device: int, state: FedSAState, view: View) -> int:
        """E_i, the epochs that a device is ordered to train."""
        share = self.convergence_share if view.version >= self.convergence_version else 1.0
        staleness = state.staleness.get(device, 0)
        return max(1, round(view.local.slices * share * float((staleness + 1) ** -self.epochs_exponent)))
