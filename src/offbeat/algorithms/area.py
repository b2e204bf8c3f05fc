"""AREA: a buffer of changes of each device's model since its last upload.

Iakovidou, Kim: *Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under Arbitrary Delays*,
2024 (arXiv 2405.10123). Restated: the rule is that of a description by others.

| paper | here |
|---|---|
| y_i, client i's model at its last upload | `state.cache`, of device i; w_0 before the first |
| uploads per aggregation | `buffer` |
| n, all clients | `view.devices` |

    at the K-th upload:   w <- w + (1/n) sum_k (w_k - y_k),   y_k <- w_k

The divisor is n and not K: the model is w_0 plus the mean over all devices of what each has moved since. In the paper a
device keeps y_i and uploads the change; here the server keeps the copies, so that a device may lose its state. Server
memory: one model per device that has reported (`algorithms.model_cache`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import Buffer, BufferPolicy, Floats
from offbeat.algorithms.model_cache import ExactCacheKind, ModelCache
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector, by_block
from offbeat.core.policy import View


@dataclass
class AreaState(Buffer):
    """Adds the first model, and the last model of every device that has reported."""

    start: Vector | None = None
    cache: ModelCache = field(default_factory=ModelCache)


class Area(BufferPolicy):
    """Buffered asynchronous: averages what each device has changed since its last upload (Iakovidou and Kim 2024).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Area(buffer=1, concurrency=1), devices=2, present=[0])
    >>> _ = session.upload(4.0, 0.0)  # 1/2 ([4, 0] - w_0)
    >>> _ = session.upload(4.0, 8.0)  # + 1/2 ([4, 8] - [4, 0])
    >>> session.parameters.tolist()
    [2.0, 4.0]
    """

    State = AreaState
    Records = (ModelCache,)

    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """A factor on the mean change (published: 1)."""
    cache: ExactCacheKind = "memory"
    """Where the devices' models are kept."""

    about = About(
        name="area",
        family="buffered",
        paper="Iakovidou and Kim, 2024",
        provenance="restated",
        in_training="concurrency",
        search=SearchSpace(
            buffer=Range(2, 20, log=True), server_learning_rate=Range(0.3, 3.0, log=True, relative=True)
        ),
        server_memory=ServerMemory(models=1, per_device=1),
        smoke={"algorithm": {"buffer": 5, "concurrency": 10}},
    )

    def init(self, view: View) -> AreaState:
        return AreaState(start=view.parameters, cache=ModelCache(self.cache))

    def aggregate(self, updates: Sequence[Update], state: AreaState, view: View) -> Vector:
        assert state.start is not None
        now, start, terms = view.parameters, state.start, []
        for update in updates:
            before = state.cache.read(update.device)
            terms.append((update.parameters, start if before is None else before))
            state.cache.write(update.device, update.parameters, view)
        factor = self.server_learning_rate / view.devices

        def next_version(block: slice) -> Floats:
            total = np.zeros(block.stop - block.start)
            for model, before in terms:
                total += model[block] - before[block]
            result: Floats = now[block] + factor * total
            return result

        return by_block(len(now), next_version)
