"""ACE and ACED: every upload replaces its device's movement, and the model moves along the mean of all of them.

Chang, Yao, Krishnamurthy, Shelton, Chakraborty, Swami, Oymak, Roy-Chowdhury: *Mitigating Participation Imbalance Bias
in Asynchronous Federated Learning*, 2025 (arXiv 2511.19066). Restated: the rules are those of a description by others.

| paper | here |
|---|---|
| U_i, latest gradient of client i | `state.cache`, of device i, as a movement |
| eta, as a factor on the devices' own steps | `server_learning_rate` |
| tau_algo | `max_age` of ACED |

    at an upload of j:   U_j <- Delta_j
    ACE    w <- w + (eta / n) sum_i U_i                 over all n devices; 0 for those that have not reported
    ACED   w <- w + (eta / |A|) sum_{i in A} U_i        A: devices whose movement started at most tau_algo versions ago

ACE is PSURDG (`algorithms.delayed_gradients`) with a version per arrival instead of per iteration. A lost device keeps
its movement under ACE; under ACED it ages out. Server memory: one movement per device that has reported
(`algorithms.model_cache`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import ArrivalPolicy, Floats
from offbeat.algorithms.model_cache import CacheKind, ModelCache
from offbeat.core.messages import Action, Commit
from offbeat.core.orders import Update
from offbeat.core.parameters import by_block
from offbeat.core.policy import View
from offbeat.core.vectors import Sliceable


@dataclass
class AceState:
    """The latest movement of every device that counts, the version it started from, and their sum."""

    cache: ModelCache = field(default_factory=ModelCache)
    bases: dict[int, int] = field(default_factory=dict)
    total: Floats | None = None


class Ace(ArrivalPolicy):
    """Asynchronous: moves along the mean of all devices' latest movements at every upload (Chang et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Ace(concurrency=2, server_learning_rate=1.0), devices=2)
    >>> _ = session.move(4.0, 0.0, device=0)  # 1/2 [4, 0]
    >>> _ = session.move(0.0, 8.0, device=1)  # + 1/2 ([4, 0] + [0, 8])
    >>> session.parameters.tolist()
    [4.0, 4.0]
    """

    State = AceState
    Records = (ModelCache,)

    server_learning_rate: Annotated[float, Field(gt=0)] = 0.1
    """eta, a factor on the mean movement, which is applied at every upload: with 1 the model would move n times as
    far as in a synchronous round of n devices."""
    cache: CacheKind = "memory"
    """Where the devices' movements are kept: in memory, in memory with 8 bits each, or on disk."""

    about = About(
        name="ace",
        family="asynchronous",
        paper="Chang et al., 2025",
        provenance="restated",
        in_training="concurrency",
        search=SearchSpace(server_learning_rate=Range(0.1, 3.0, log=True, relative=True)),
        server_memory=ServerMemory(models=2, per_device=1),
    )

    def init(self, view: View) -> AceState:
        return AceState(cache=ModelCache(self.cache))

    def receive(self, update: Update, state: AceState, view: View) -> Iterator[Action]:
        now, device = view.parameters, update.device
        state.total = total = np.zeros(len(now)) if state.total is None else state.total
        change = state.cache.replace(update, view)
        state.bases[device] = update.base
        expired = self.expired(state, view)
        factor = self.server_learning_rate / self.divisor(state, view)

        def next_version(block: slice) -> Floats:
            _, old, new = change(block)
            total[block] += new
            total[block] -= old
            for movement in expired:
                total[block] -= movement[block]
            model: Floats = now[block] + factor * total[block]
            return model

        yield Commit(parameters=by_block(len(now), next_version), used=(update.ticket,))

    def expired(self, state: AceState, view: View) -> list[Sliceable]:
        """The movements that no longer count, which are forgotten."""
        return []

    def divisor(self, state: AceState, view: View) -> int:
        """The number of devices that the mean is over."""
        return view.devices


class Aced(Ace):
    """ACE without the devices whose latest movement is too old (Chang et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Aced(concurrency=2, max_age=1, server_learning_rate=1.0), devices=2)
    >>> _ = session.move(4.0, 0.0, device=0)  # alone: the whole [4, 0]
    >>> session.parameters.tolist()
    [4.0, 0.0]
    """

    max_age: Annotated[int, Field(ge=0)] | None = None
    """tau_algo, the most versions since a movement's base (default: the number of devices)."""

    about = About(
        name="aced",
        family="asynchronous",
        paper="Chang et al., 2025",
        provenance="restated",
        in_training="concurrency",
        search=Ace.about.search,
        server_memory=Ace.about.server_memory,
    )

    def expired(self, state: AceState, view: View) -> list[Sliceable]:
        limit = view.devices if self.max_age is None else self.max_age
        newest = max(state.bases.values())
        old = [each for each, base in state.bases.items() if view.version - base > limit and base < newest]
        for device in old:
            del state.bases[device]
        return [state.cache.pop(device) for device in old]

    def divisor(self, state: AceState, view: View) -> int:
        """The number of devices whose movement counts."""
        return len(state.cache)
