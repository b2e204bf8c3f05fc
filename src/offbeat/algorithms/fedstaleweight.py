"""FedStaleWeight: a buffer in which stale updates, those of slow devices, count more.

Ma, Tu, Chen, Reddi: *FedStaleWeight: Buffered Asynchronous Federated Learning with Fair Aggregation via
Staleness Reweighting*, 2024 (arXiv 2406.02877). Restated: the weights are those of a description by others.

| paper | here |
|---|---|
| K, buffer size | `buffer` |
| eta_g | `server_learning_rate` |
| tau_k | `view.version - update.base` |

    w <- w + eta_g  sum_k p_k Delta_k,      p_k = (K tau_k + 1) / sum_j (K tau_j + 1)

An update of staleness tau stands for the tau versions in which its device was not heard.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.algorithms.arrivals import Buffer, BufferPolicy
from offbeat.core.combining import mean_movement
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, by_block
from offbeat.core.policy import View


class FedStaleWeight(BufferPolicy):
    """Buffered asynchronous: stale updates count more, so that slow devices are heard (Ma et al. 2024; restated).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedStaleWeight(buffer=2, concurrency=3))
    >>> _ = [session.move(4.0, 0.0, ticket=1), session.move(0.0, 4.0, ticket=2)]  # both fresh: 1/2 and 1/2
    >>> _ = [session.move(6.0, 0.0, ticket=3), session.move(0.0, 6.0, ticket=5)]  # staleness 1 and 0: 3/4 and 1/4
    >>> session.parameters.tolist()  # [2, 2] + 3/4 [6, 0] + 1/4 [0, 6]
    [6.5, 3.5]
    """

    State = Buffer
    combines = True

    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """eta_g, the learning rate of the server."""

    about = About(
        name="fedstaleweight",
        family="buffered",
        paper="Ma et al., 2024",
        provenance="restated",
        in_training="concurrency",
        search=SearchSpace(
            buffer=Range(2, 20, log=True), server_learning_rate=Range(0.3, 3.0, log=True, relative=True)
        ),
        sums_only=True,
        smoke={"algorithm": {"buffer": 5, "concurrency": 10}},
    )

    def aggregate(self, updates: Sequence[Update], state: Buffer, view: View) -> Vector:
        weights = [self.weight_at(view.version - update.base) for update in updates]
        bases = [update.base_parameters for update in updates]
        movement, now = mean_movement(updates, bases, weights, sum(weights), view), view.parameters
        rate = self.server_learning_rate
        return by_block(len(now), lambda block: now[block] + (rate * movement(block)).astype(np.float32))

    def weight_in_sum(self, update: Update, view: View) -> float:
        return self.weight_at(view.version - update.base)

    def weight_at(self, staleness: int) -> float:
        """K tau + 1, the weight before it is normalised."""
        return float(self.buffer * staleness + 1)
