"""MOON: FedAvg with a model-contrastive term in the local loss.

Li, He, Song: *Model-Contrastive Federated Learning*, CVPR 2021, Algorithm 1 and Eq. (3).

| paper | here |
|---|---|
| mu | `mu` |
| tau, the temperature | `temperature` |
| z, z_glob, z_prev | input of the last layer in the local, the received and the device's previous model |

    loss = cross-entropy - mu log( exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)) )

The term pulls a device's representation towards the received model's and away from that of its previous model. The
paper's networks have a projection head of 256 outputs before the last layer, for all algorithms: `[model]
projection = 256`; our default is no head. A device's first training has no previous model and no such term. The authors
ran CIFAR-10 with mu = 5.
"""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from offbeat.algorithms.about import Range, SearchSpace
from offbeat.algorithms.fedavg import FedAvg
from offbeat.core.orders import Order
from offbeat.core.policy import View
from offbeat.core.terms import Contrastive


class Moon(FedAvg):
    """FedAvg with a model-contrastive term in the local loss (Li et al. 2021).

    >>> from offbeat.testing import ScriptedSession
    >>> ScriptedSession(Moon(cohort=1, mu=5.0)).first.orders[0].order.terms
    (Contrastive(mu=5.0, temperature=0.5),)
    """

    mu: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the contrastive term; tuned from 0.1 to 10 in the paper."""
    temperature: Annotated[float, Field(gt=0)] = 0.5
    """tau, the temperature of the contrastive term."""

    about = replace(
        FedAvg.about,
        name="moon",
        paper="Li et al., CVPR 2021",
        provenance="authors' code",
        search=SearchSpace(FedAvg.about.search, mu=Range(0.1, 10.0, log=True), temperature=Range(0.1, 1.0)),
        local_differences=lambda policy, local: (
            [f"a contrastive term in the local loss (mu = {policy.mu:g}, temperature = {policy.temperature:g})"]
            if policy.mu
            else []
        ),
        flower=None,
    )

    def order(self, device: int, view: View) -> Order:
        """The experiment's local training with the contrastive term."""
        return view.order(terms=(Contrastive(mu=self.mu, temperature=self.temperature),))
