"""Delay-adaptive asynchronous SGD: full steps up to a delay of C, smaller ones beyond.

Mishchenko, Bach, Even, Woodworth: *Asynchronous SGD Beats Minibatch SGD Under Arbitrary Delays*, NeurIPS 2022, after
its authors' code. Koloskova, Stich, Jaggi: *Sharper Convergence Guarantees for Asynchronous SGD for Distributed and
Federated Learning*, NeurIPS 2022, Eq. (11).

| paper | here |
|---|---|
| gamma, as a factor on the devices' own steps | `server_learning_rate` |
| tau_C, active workers | `concurrency` |
| tau_t, delay | `view.version - update.base` |
| -gamma g | Delta, the update's parameters minus its own base |

    w <- w + eta min(1, C / max(1, tau)) Delta

Both papers shrink the step in this way, Koloskova et al. with the bound min(eta, 1 / (4 L tau)) in theory and
eta C / tau in practice. `beyond = "drop"` is their other choice: an update of delay above C is not used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from offbeat.algorithms.about import About, Choice, Range, SearchSpace
from offbeat.algorithms.arrivals import ArrivalPolicy
from offbeat.core.messages import Action, Commit, Discard
from offbeat.core.orders import Update
from offbeat.core.parameters import moved
from offbeat.core.policy import View


@dataclass
class Stateless:
    """The rule remembers nothing."""


class DelayAdaptive(ArrivalPolicy):
    """Asynchronous: steps shrink with delays above the number of devices in training (Mishchenko et al. 2022).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(DelayAdaptive(concurrency=1))
    >>> _ = session.move(4.0, 8.0)  # fresh: the whole movement
    >>> session.parameters.tolist()
    [4.0, 8.0]
    """

    State = Stateless

    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """eta, a factor on every movement."""
    beyond: Literal["shrink", "drop"] = "shrink"
    """What becomes of an update of delay above `concurrency`: a smaller step, or nothing."""

    about = About(
        name="delay-adaptive",
        family="asynchronous",
        paper="Mishchenko et al., NeurIPS 2022",
        provenance="authors' code",
        in_training="concurrency",
        search=SearchSpace(
            server_learning_rate=Range(0.1, 1.0, log=True, relative=True), beyond=Choice("shrink", "drop")
        ),
    )

    def receive(self, update: Update, state: Stateless, view: View) -> Iterator[Action]:
        weight = self.weight_at(view.version - update.base)
        if not weight:
            yield Discard(ticket=update.ticket, reason="too stale")
            return
        model = moved(view.parameters, update.delta, self.server_learning_rate * weight)
        yield Commit(parameters=model, used=(update.ticket,))

    def weight_at(self, staleness: int) -> float:
        """min(1, C / tau), or 0 for an update that is dropped."""
        if staleness <= self.concurrency:
            return 1.0
        return self.concurrency / staleness if self.beyond == "shrink" else 0.0
