"""CA²FL: a buffer calibrated by the last movement of every device.

Wang, Cao, Wu, Chen, Chen: *Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
Calibration*, ICLR 2024, Algorithm 2. Restated: the rule is that of two independent implementations that agree.

| paper | here |
|---|---|
| M, buffer size | `buffer` |
| h_i, cached update of client i | `state.cached[i]` |
| h, mean of the cache at the last aggregation | `state.mean` |
| eta | `server_learning_rate` |

    at an upload of i:   S <- S + Delta_i - h_i,   h_i <- Delta_i              (h_i = 0 before the first)
    at the K-th:         w <- w + eta (h + S / K),   h <- (1/n) sum_j h_j,   S <- 0

h changes by the sum of the changes of the cache over n, so that a version costs the same for any number of devices.

Server memory: one movement per device that has reported. `cache = "quantised"` keeps them in 8 bits, relative to the
largest element of each, a quarter of the memory; h is then the mean of the quantised movements, so that what rounding
takes from h it gives to S.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import Buffer, BufferPolicy, Floats
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, by_block
from offbeat.core.policy import View

LEVELS = 127
"""Steps of a quantised movement on either side of 0."""


@dataclass
class Ca2flState(Buffer):
    """Adds the cache: the movement of device i is `scales[i] * cached[i]`."""

    mean: Floats | None = None
    """h, the mean of the cache at the last aggregation; None: zero."""
    cached: dict[int, npt.NDArray[Any]] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)


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

    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """eta, the learning rate of the server."""
    cache: Literal["memory", "quantised"] = "memory"
    """How cached movements are kept: as they are (float32), or in 8 bits."""

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

    def aggregate(self, updates: Sequence[Update], state: Ca2flState, view: View) -> Vector:
        now, size = view.parameters, len(view.parameters)
        mean = np.zeros(size) if state.mean is None else state.mean
        fresh, changed = np.zeros(size), np.zeros(size)  # S, and the change of the cache
        for update in updates:
            delta, before = update.delta, self.recall(update.device, state)
            self.remember(update.device, delta, state)
            fresh += delta - before
            changed += self.recall(update.device, state) - before
        rate, share = self.server_learning_rate, 1 / len(updates)
        model = by_block(size, lambda block: now[block] + rate * (mean[block] + share * fresh[block]))
        state.mean = mean + changed / view.devices
        return model

    def remember(self, device: int, delta: Vector, state: Ca2flState) -> None:
        """h_i <- Delta_i."""
        state.scales[device], state.cached[device] = 1.0, delta
        if self.cache == "quantised":
            scale = float(np.abs(delta).max(initial=0.0)) / LEVELS or 1.0
            state.scales[device], state.cached[device] = scale, np.rint(delta / scale).astype(np.int8)

    def recall(self, device: int, state: Ca2flState) -> Any:
        """h_i, or 0 if the device has not reported."""
        return state.scales[device] * state.cached[device] if device in state.cached else 0.0
