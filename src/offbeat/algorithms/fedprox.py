"""FedProx: FedAvg with a proximal term, and partial work from stragglers.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: *Federated Optimization in Heterogeneous Networks*, MLSys 2020,
Algorithm 2.

| paper | here |
|---|---|
| mu | `mu` |
| K devices a round | `cohort` |
| gamma_k-inexact solutions: as many epochs as a device can do | `round_seconds` |

A device minimises its own loss plus mu / 2 ||w - w_o||^2. With `round_seconds` it stops training after that time and
uploads the epochs it has finished; the paper's simulation draws their number at random instead. An upload without a
finished epoch is discarded.
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
    """FedAvg with a proximal term; stragglers upload the epochs they have finished (Li et al. 2020).

    >>> from offbeat.testing import ScriptedSession
    >>> order = ScriptedSession(FedProx(cohort=1, mu=0.3, round_seconds=7.0)).first.orders[0].order
    >>> order.terms, order.budget
    ((Proximal(mu=0.3),), 7.0)
    """

    mu: Annotated[float, Field(ge=0)] = 0.01
    """Proximal weight; tuned from 0.001 to 1 in the paper. `local.prox` replaces it."""
    round_seconds: Annotated[float, Field(gt=0)] | None = None
    """Seconds of training after which a device uploads its finished epochs (default: it trains all of them)."""

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
        """The experiment's local training with the proximal term."""
        return view.order(terms=(Proximal(mu=self.mu),), budget=self.round_seconds)
