"""Ringmaster ASGD and Rennala SGD: asynchronous SGD that is optimal in time, by ignoring what is too stale.

Maranjyan, Tyurin, Richtárik: *Ringmaster ASGD: The First Asynchronous SGD with Optimal Time Complexity*, ICML 2025,
after its authors' code. Tyurin, Richtárik: *Optimal Time Complexities of Parallel Stochastic Optimization Methods Under
a Fixed Computation Model*, NeurIPS 2023 (Rennala).

| paper | here |
|---|---|
| R, delay threshold | `threshold` |
| B, gradients at one point | `buffer` of Rennala |
| gamma, as a factor on the devices' own steps | `server_learning_rate` |
| delta_i, versions since device i started | `view.version - update.base` |

    Ringmaster   w <- w + eta Delta_i      if delta_i < R;  otherwise the upload is ignored
    stopping     a device whose delta_i reaches R is told to stop, and starts again from w
    Rennala      w <- w + eta mean of B movements from the current w;  others are ignored

`threshold = "sqrt"` needs no tuning: at version k the step is eta / (k + 1)^0.75 and R_k = max(1, floor(sqrt k)).

The papers keep every device in training; here `concurrency` of them, drawn at random. A lost device is replaced, so
that nothing waits for it.
"""

from collections.abc import Iterator, Sequence
from math import isqrt
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.algorithms.arrivals import ArrivalPolicy, Buffer, BufferPolicy
from offbeat.algorithms.delay_adaptive import Stateless
from offbeat.core.combining import mean_movement
from offbeat.core.messages import Action, Commit, Discard, StopSoon
from offbeat.core.orders import Order, Update
from offbeat.core.parameters import Vector, by_block, moved
from offbeat.core.policy import View


class Ringmaster(ArrivalPolicy):
    """Asynchronous: full steps, and updates of staleness R or more are ignored (Maranjyan et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Ringmaster(concurrency=2, threshold=1))
    >>> session.move(4.0, 0.0, ticket=1).used, session.move(0.0, 4.0, ticket=2).discarded  # ticket 2 is stale now
    ([1], [2])
    """

    State = Stateless

    threshold: Annotated[int, Field(ge=1)] | Literal["sqrt"] = 16
    """R, the staleness from which updates are ignored; "sqrt" grows with the version and shrinks the step."""
    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """eta, a factor on every movement."""

    about = About(
        name="ringmaster",
        family="asynchronous",
        paper="Maranjyan et al., ICML 2025",
        provenance="our reading",
        in_training="concurrency",
        in_proportion=("threshold",),
        search=SearchSpace(
            threshold=Range(1, 64, log=True), server_learning_rate=Range(0.1, 1.0, log=True, relative=True)
        ),
    )

    def receive(self, update: Update, state: Stateless, view: View) -> Iterator[Action]:
        version = view.version
        if version - update.base >= self.limit(version):
            yield Discard(ticket=update.ticket, reason="too stale")
            return
        model = moved(view.parameters, update.delta, self.rate(version))
        yield Commit(parameters=model, used=(update.ticket,))

    def limit(self, version: int) -> int:
        """R at this version."""
        return max(1, isqrt(version)) if self.threshold == "sqrt" else self.threshold

    def rate(self, version: int) -> float:
        """The factor on a movement that is applied at this version."""
        decay = (version + 1) ** -0.75 if self.threshold == "sqrt" else 1.0
        return float(self.server_learning_rate * decay)

    def weight_at(self, staleness: int) -> float | None:
        """1 below R, 0 from R on; None if R grows with the version."""
        return None if self.threshold == "sqrt" else float(staleness < self.threshold)


class RingmasterStop(Ringmaster):
    """Ringmaster that stops a device as soon as its update would be ignored (Maranjyan et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(RingmasterStop(concurrency=2, threshold=1))
    >>> session.move(4.0, 0.0, ticket=1).notified == [session.first.ordered[1]]
    True
    """

    notifies = True

    about = About(
        name="ringmaster-stop",
        family="asynchronous",
        paper="Maranjyan et al., ICML 2025",
        provenance="authors' code",
        in_training="concurrency",
        in_proportion=("threshold",),
        search=Ringmaster.about.search,
        local_differences=lambda policy, local: ["training that ends early at the staleness threshold"],
        flower=None,
    )

    def receive(self, update: Update, state: Stateless, view: View) -> Iterator[Action]:
        yield from super().receive(update, state, view)
        limit = self.limit(view.version)
        for held in list(view.in_flight.values()):
            if view.version - held.base >= limit and not held.notified:
                yield StopSoon(device=held.device)

    def order(self, device: int, state: Stateless, view: View) -> Order:
        return view.order(drops_unfinished=True)


class Rennala(BufferPolicy):
    """Buffered: B movements that all start from the current version make the next (Tyurin and Richtárik 2023).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Rennala(buffer=2, concurrency=3))
    >>> _ = session.move(4.0, 0.0, ticket=1), session.move(0.0, 4.0, ticket=2)
    >>> session.parameters.tolist(), session.move(9.0, 9.0, ticket=3).discarded  # ([4, 0] + [0, 4]) / 2; 3 is stale
    ([2.0, 2.0], [3])
    """

    State = Buffer
    combines = True

    server_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    """eta, a factor on the mean movement."""

    about = About(
        name="rennala",
        family="buffered",
        paper="Tyurin and Richtárik, NeurIPS 2023",
        provenance="authors' code",
        in_training="concurrency",
        search=SearchSpace(
            buffer=Range(2, 20, log=True), server_learning_rate=Range(0.3, 3.0, log=True, relative=True)
        ),
        sums_only=True,
        smoke={"algorithm": {"buffer": 5, "concurrency": 10}},
    )

    def receive(self, update: Update, state: Buffer, view: View) -> Iterator[Action]:
        if update.base == view.version:
            yield from super().receive(update, state, view)
        else:
            yield Discard(ticket=update.ticket, reason="from an older version")

    def aggregate(self, updates: Sequence[Update], state: Buffer, view: View) -> Vector:
        now, rate = view.parameters, self.server_learning_rate
        movement = mean_movement(updates, [now] * len(updates), [1.0] * len(updates), len(updates), view)
        return by_block(len(now), lambda block: now[block] + (rate * movement(block)).astype(np.float32))

    def weight_in_sum(self, update: Update, view: View) -> float:
        return self.weight_at(view.version - update.base)

    def weight_at(self, staleness: int) -> float:
        """1 for a movement from the current version, else 0."""
        return float(staleness == 0)
