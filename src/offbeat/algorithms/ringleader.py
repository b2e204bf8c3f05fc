"""Ringleader ASGD: asynchronous SGD in rounds to which every device contributes, however slow.

Maranjyan, Richtárik: *Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity under Data
Heterogeneity*, ICLR 2026. Restated: the rule is that of a description by others.

| paper | here |
|---|---|
| G_i, b_i: sum and number of gradients of worker i | `state.table[i]`, as movements |
| G_i+, b_i+, those for the next round | `state.following[i]` |
| gamma, as a factor on the devices' own steps | `server_learning_rate` |

    d = (1/n) sum_i G_i / b_i

    Phase 1   collect, without a version, until every device has b_i >= 1.
    Phase 2   w <- w + eta d once per device: at the end of phase 1, then at the first upload of every other device.
              Further uploads of a device that has had its turn count in the next round.
    The delay of a movement is at most 2n - 2 versions.

All devices train all the time. The paper's devices go on at the model they were given; here an order always carries the
current one, so that delays are shorter. The paper assumes that all devices are alive. Here a round waits for devices
that are in training: a lost device has had its turn, its movements stay in the mean until the round ends, and it takes
part again when it returns. n is the number of devices with movements in the table.

Server memory: two sums of movements per device (`algorithms.model_cache`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import Floats
from offbeat.algorithms.model_cache import ExactCacheKind, ModelCache
from offbeat.core.messages import Action, Commit, Dispatch, Event, Uploaded
from offbeat.core.orders import Update
from offbeat.core.parameters import blockwise, by_block
from offbeat.core.policy import Policy, View


@dataclass
class Movements:
    """The movements of one round: sums and counts by device, the sum of their means, and tickets not used yet."""

    sums: ModelCache = field(default_factory=ModelCache)
    counts: dict[int, int] = field(default_factory=dict)
    total: Floats | None = None
    """sum_i G_i / b_i."""
    unused: list[int] = field(default_factory=list)

    def add(self, update: Update, view: View) -> None:
        """Add a movement to those of its device."""
        device, model, base = update.device, update.parameters, update.base_parameters
        count, before = self.counts.get(device, 0), self.sums.read(device)
        own = before if isinstance(before, np.ndarray) else np.zeros(len(model)) if before is None else before[:].copy()
        self.total = total = np.zeros(len(model)) if self.total is None else self.total
        self.counts[device] = count + 1
        self.unused.append(update.ticket)

        def add_up(block: slice) -> None:
            before = own[block] / max(count, 1)
            own[block] += model[block] - base[block]
            total[block] += own[block] / (count + 1)
            total[block] -= before

        blockwise(len(model), add_up)
        self.sums.write(device, own, view)


@dataclass
class RingleaderState:
    """The tables of this round and of the next, and the devices that have had their turn."""

    table: Movements = field(default_factory=Movements)
    following: Movements = field(default_factory=Movements)
    stepping: bool = False
    """Whether the round is in phase 2."""
    served: set[int] = field(default_factory=set)


class Ringleader(Policy):
    """Asynchronous rounds with a step per device, along the mean of all devices (Maranjyan and Richtárik 2026).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Ringleader(server_learning_rate=1.0), devices=2)
    >>> session.move(4.0, 0.0, device=0).used  # waits for the other
    []
    >>> len(session.move(0.0, 4.0, device=1).used)
    2
    >>> session.parameters.tolist()
    [2.0, 2.0]
    """

    State = RingleaderState
    Records = (Movements, ModelCache)

    server_learning_rate: Annotated[float, Field(gt=0)] = 0.1
    """eta, a factor on the mean movement, which is applied once per device: with 1 the model would move n times as
    far as in a synchronous round of n devices."""
    cache: ExactCacheKind = "memory"
    """Where the sums of movements are kept."""

    about = About(
        name="ringleader",
        family="asynchronous",
        paper="Maranjyan and Richtárik, ICLR 2026",
        provenance="restated",
        trains_all_devices=True,
        search=SearchSpace(server_learning_rate=Range(0.1, 3.0, log=True, relative=True)),
        server_memory=ServerMemory(models=4, per_device=4),  # two tables in float64
    )

    def init(self, view: View) -> RingleaderState:
        return RingleaderState(table=Movements(ModelCache(self.cache)), following=Movements(ModelCache(self.cache)))

    def react(self, event: Event, state: RingleaderState, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            if event.device in state.served:
                state.following.add(event.update, view)
            else:
                state.table.add(event.update, view)
                if state.stepping:
                    yield self.step(state, view)
                    state.served.add(event.device)
        alive = {held.device for held in view.in_flight.values()}
        if isinstance(event, Uploaded):
            alive.add(event.device)  # which is about to be ordered again
        if state.stepping and alive <= state.served:
            state.table, state.following = state.following, Movements(ModelCache(self.cache))
            state.stepping, state.served = False, set()
        if not state.stepping and state.table.counts and alive <= state.table.counts.keys():
            yield self.step(state, view)
            state.stepping = True
            state.served = {event.device} if isinstance(event, Uploaded) else set()
        for device in view.pick(view.idle):
            yield Dispatch(device=device, order=view.order())

    def step(self, state: RingleaderState, view: View) -> Commit:
        """A step along d; all movements of the table are used now."""
        table, now = state.table, view.parameters
        assert table.total is not None
        total, factor = table.total, self.server_learning_rate / len(table.counts)
        used, table.unused = tuple(table.unused), []
        return Commit(parameters=by_block(len(now), lambda block: now[block] + factor * total[block]), used=used)
