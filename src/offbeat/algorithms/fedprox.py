"""FedProx: FedAvg with a proximal term, which keeps what stragglers have done in time.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: *Federated Optimization in Heterogeneous Networks*, MLSys 2020,
Algorithm 2.

| paper | here |
|---|---|
| mu | `mu` |
| K devices a round | `cohort` |
| gamma_k-inexact solutions: as many epochs as a device can do | `round_seconds` |

A device minimises its own loss plus mu / 2 ||w - w_o||^2. With `round_seconds` it trains for so long at most, and what
it has done by then counts like the rest; the paper's simulation draws the number of epochs at random instead. An upload
without a single finished epoch is discarded.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from offbeat.algorithms.about import Range, SearchSpace, proximal_difference
from offbeat.algorithms.fedavg import FedAvg
from offbeat.core.orders import Order
from offbeat.core.policy import View
from offbeat.core.terms import Proximal


class FedProx(FedAvg):
    """FedAvg with a proximal term; stragglers deliver what they have done in time (Li et al. 2020).

    >>> from offbeat.testing import ScriptedSession
    >>> order = ScriptedSession(FedProx(cohort=1, mu=0.3, round_seconds=7.0)).first.orders[0].order
    >>> order.terms, order.budget
    ((Proximal(mu=0.3),), 7.0)
    """

    mu: Annotated[float, Field(ge=0)] = 0.01
    """The pull of local training towards the model it started from; the paper tunes it in 0.001 to 1. `local.prox`
    replaces it."""
    round_seconds: Annotated[float, Field(gt=0)] | None = None
    """Seconds of training after which a device uploads the epochs that it has done (default: all of them)."""

    about = replace(
        FedAvg.about,
        name="fedprox",
        paper="Li et al., MLSys 2020",
        provenance="authors' code",
        search=SearchSpace(FedAvg.about.search, mu=Range(0.001, 1.0, log=True)),
        local_differences=lambda policy, local: [
            *proximal_difference(policy.mu, local),
            *([f"training that ends after {policy.round_seconds:g} s"] if policy.round_seconds else []),
        ],
    )

    def order(self, device: int, view: View) -> Order:
        """The experiment's local work with the proximal term."""
        return view.order(terms=(Proximal(mu=self.mu),), budget=self.round_seconds)
