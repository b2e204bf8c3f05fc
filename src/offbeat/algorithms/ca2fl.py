"""CA²FL: a buffer calibrated by the last movement of every device.

Wang, Cao, Wu, Chen, Chen: *Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
Calibration*, ICLR 2024, Algorithm 2. Restated: the rule is that of two independent implementations that agree.

| paper | here |
|---|---|
| M, buffer size | `buffer` |
| h_i, cached update of client i | `state.cache`, of device i |
| h, mean of the cache at the last aggregation | `state.mean` |
| eta | `server_learning_rate` |

    at an upload of i:   S <- S + Delta_i - h_i,   h_i <- Delta_i              (h_i = 0 before the first)
    at the K-th:         w <- w + eta (h + S / K),   h <- (1/n) sum_j h_j,   S <- 0

h changes by the sum of the changes of the cache over n, so that a version costs the same for any number of devices.

Server memory: one movement per device that has reported (`algorithms.model_cache`). With `cache = "quantised"` h is the
mean of the quantised movements, so that what rounding takes from h it gives to S.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import Buffer, BufferPolicy, Floats
from offbeat.algorithms.model_cache import CacheKind, ModelCache
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, by_block
from offbeat.core.policy import View


@dataclass
class Ca2flState(Buffer):
    """Adds the last movement of every device."""

    mean: Floats | None = None
    """h, the mean of the cache at the last aggregation; None: zero."""
    cache: ModelCache = field(default_factory=ModelCache)


class Ca2fl(BufferPolicy):
    """Buffered asynchronous, calibrated by every device's last movement (Wang et al. 2024; restated).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Ca2fl(buffer=1, concurrency=1), devices=2, present=[0])
    >>> _ = session.move(4.0, 0.0)  # h = 0, S = [4, 0]
    >>> session.parameters.tolist()
    [4.0, 0.0]
    >>> _ = session.move(0.0, 2.0)  # h = 1/2 [4, 0], S = [0, 2] - [4, 0]
    >>> session.parameters.tolist()
    [2.0, 2.0]
    """

    State = Ca2flState
    Records = (ModelCache,)

    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """eta, the learning rate of the server."""
    cache: CacheKind = "memory"
    """Where the devices' movements are kept: in memory, in memory with 8 bits each, or on disk."""

    about = About(
        name="ca2fl",
        family="buffered",
        paper="Wang et al., ICLR 2024",
        provenance="restated",
        in_training="concurrency",
        search=SearchSpace(
            buffer=Range(2, 20, log=True), server_learning_rate=Range(0.3, 3.0, log=True, relative=True)
        ),
        server_memory=ServerMemory(models=2, per_device=1),
        smoke={"algorithm": {"buffer": 5, "concurrency": 10}},
    )

    def init(self, view: View) -> Ca2flState:
        return Ca2flState(cache=ModelCache(self.cache))

    def aggregate(self, updates: Sequence[Update], state: Ca2flState, view: View) -> Vector:
        now, size, devices = view.parameters, len(view.parameters), view.devices
        state.mean = mean = np.zeros(size) if state.mean is None else state.mean
        changes = [state.cache.replace(update, view) for update in updates]
        rate, share = self.server_learning_rate, 1 / len(updates)
        exact = self.cache != "quantised"

        def next_version(block: slice) -> Floats:
            fresh = np.zeros(block.stop - block.start)  # S
            changed = fresh if exact else np.zeros(block.stop - block.start)  # the change of the cache
            for change in changes:
                delta, old, new = change(block)
                fresh += delta - old
                if not exact:
                    changed += new - old
            model: Floats = now[block] + rate * (mean[block] + share * fresh)
            mean[block] += changed / devices
            return model

        return by_block(size, next_version)
