"""SAFA: semi-asynchronous rounds with a cache of every device's model.

Wu, He, Lin, Mao, Maple, Jarvis: *SAFA: A Semi-Asynchronous Protocol for Fast Federated Learning with Low Overhead*,
IEEE Trans. Computers 2021, Algorithms 1 and 2, after a restatement of its authors' code.

| paper | here |
|---|---|
| C, share of clients picked in a round | `share` |
| tau, lag tolerance | `lag_tolerance` |
| w*_k, cache entry of client k | `state.cache`, of device k |
| T_lim, longest round | `round_seconds` |

All devices train all the time. A round collects uploads until `ceil(C m)` of them are from devices that were not
picked in the last round, until no device is in training, or until its time is up. Then (CFCFM) up to `ceil(C m)`
uploads are **picked**: first those of devices not picked last time, then the others, each in order of arrival. Picked
models replace their cache entries, and

    w <- sum_k n_k / n  cache_k        over all devices.

Uploads that were not picked replace their cache entries after that, and count from the next version on. All idle
devices get the new model. A device in training from a base more than `tau` versions old is deprecated: its training is
lost, it is sent the current model, and its cache entry becomes that model, once. An order cannot be withdrawn, so the
device is notified to stop after its epoch and its upload is discarded. It is sent the version that is current by then;
until then its cache entry stays.

Without `round_seconds` a round waits for all devices if too few of those not picked last time report. A device that is
away keeps its cache entry until it reports again.

Server memory: one model per device (`algorithms.model_cache`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated

from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.model_cache import ExactCacheKind, ModelCache
from offbeat.core.combining import mean_of_cache
from offbeat.core.messages import (
    Action,
    Commit,
    Discard,
    Dispatch,
    Event,
    SetTimer,
    Started,
    StopSoon,
    TimerFired,
    Uploaded,
)
from offbeat.core.orders import Update
from offbeat.core.policy import Policy, View


@dataclass
class SafaState:
    """The cache, and the state of the current round."""

    cache: ModelCache = field(default_factory=ModelCache)
    """The model of every device; the initial model until its first upload."""
    arrived: list[Update] = field(default_factory=list)
    """Uploads of the current round, in order of arrival."""
    picked: set[int] = field(default_factory=set)
    """Devices that were picked in the last round."""
    undrafted: dict[int, int] = field(default_factory=dict)
    """Tickets, by device, of cached uploads that count from the next version on."""
    deprecated: set[int] = field(default_factory=set)
    """Devices that were notified to stop and have not been sent a new model yet."""
    overdue: bool = False
    """Whether the round's time is up: it ends with the next upload."""


class Safa(Policy):
    """Semi-asynchronous rounds with lag tolerance and a cache of all devices' models (Wu et al. 2021).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Safa(share=0.5), samples=[1, 3])
    >>> _ = session.upload(4.0, 8.0, device=0)  # the quota is 1: the round ends
    >>> session.parameters.tolist()  # 1/4 [4, 8] + 3/4 [0, 0], the first model of device 1
    [1.0, 2.0]
    >>> session.bases  # device 1 still trains from version 0
    {1: 0, 0: 1}
    """

    notifies = True
    State = SafaState
    Records = (ModelCache,)
    combines = True

    share: Annotated[float, Field(gt=0, le=1)] = 0.1
    """C, the share of all devices that a round picks."""
    lag_tolerance: Annotated[int, Field(ge=1)] = 5
    """tau, the largest lag in versions; a device that lags more starts again."""
    round_seconds: Annotated[float, Field(gt=0)] | None = None
    """Longest duration of a round (default: unlimited)."""
    cache: ExactCacheKind = "memory"
    """Where the devices' models are kept."""

    about = About(
        name="safa",
        family="buffered",
        paper="Wu et al., IEEE Trans. Computers 2021",
        provenance="restated",
        in_training="share",
        trains_all_devices=True,
        search=SearchSpace(lag_tolerance=Range(2, 20, log=True)),
        local_differences=lambda policy, local: ["training that ends early when it is too far behind"],
        flower=None,
        server_memory=ServerMemory(per_device=1),
        smoke={"algorithm": {"share": 0.25}},
    )

    def init(self, view: View) -> SafaState:
        cache = ModelCache(self.cache)
        cache.vectors |= dict.fromkeys(range(view.devices), view.parameters)  # one vector, so in memory
        return SafaState(cache=cache)

    def react(self, event: Event, state: SafaState, view: View) -> Iterator[Action]:
        match event:
            case Started():
                yield from self.begin_round(view)
            case TimerFired(name=name) if name == self.timer(view):
                state.overdue = True
            case Uploaded(update=update) if self.is_deprecated(update.base, view):
                yield Discard(ticket=update.ticket, reason="deprecated")
            case Uploaded(update=update):
                state.arrived.append(update)
        if state.arrived and self.is_over(state, view):
            yield from self.end_round(state, view)
            yield from self.begin_round(view)
        waiting = {update.device for update in state.arrived}
        for device in view.pick(view.idle):
            if device not in waiting:
                if device in state.deprecated:
                    state.deprecated.remove(device)
                    state.cache.write(device, view.parameters, view)
                yield Dispatch(device=device, order=view.order())

    def begin_round(self, view: View) -> Iterator[Action]:
        """Set the timer that limits the round, if it has one."""
        if self.round_seconds is not None:
            yield SetTimer(name=self.timer(view), after=self.round_seconds)

    def is_over(self, state: SafaState, view: View) -> bool:
        """Whether the round ends now."""
        compensated = sum(update.device not in state.picked for update in state.arrived)
        return state.overdue or compensated >= self.quota(view) or not view.in_flight

    def end_round(self, state: SafaState, view: View) -> Iterator[Action]:
        """Pick uploads, aggregate the cache, and stop deprecated devices."""
        quota = self.quota(view)
        ranked = sorted(state.arrived, key=lambda update: update.device in state.picked)  # stable: then by arrival
        picked, rest = ranked[:quota], ranked[quota:]
        for update in picked:
            state.cache.write(update.device, update.parameters, view)
            if update.device in state.undrafted:
                yield Discard(ticket=state.undrafted.pop(update.device), reason="replaced before it counted")
        models = state.cache.vectors
        shares = [float(view.samples(device)) for device in models]
        used = (*state.undrafted.values(), *(update.ticket for update in picked))
        yield Commit(parameters=mean_of_cache(models.values(), models, shares, view), used=used)
        for update in rest:
            state.cache.write(update.device, update.parameters, view)
        state.undrafted = {update.device: update.ticket for update in rest}
        state.picked = {update.device for update in picked}
        state.arrived, state.overdue = [], False
        for held in list(view.in_flight.values()):
            if self.is_deprecated(held.base, view) and not held.notified:
                state.deprecated.add(held.device)
                yield StopSoon(device=held.device)

    def is_deprecated(self, base: int, view: View) -> bool:
        """Whether training from this base lags more than the tolerance."""
        return view.version - base > self.lag_tolerance

    def quota(self, view: View) -> int:
        """ceil(C m), the uploads that a round picks."""
        return max(1, ceil(round(self.share * view.devices, 9)))  # 0.07 of 100 is 7, not 8

    def timer(self, view: View) -> str:
        """The name of the round's own timer, so that one that fires after its round is ignored."""
        return f"round {view.version}"
