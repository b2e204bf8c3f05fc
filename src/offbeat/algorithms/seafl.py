"""SEAFL, SEAFL² and PORT: buffered aggregation with a bound on staleness and weights from staleness and similarity.

Islam, Panta, Xu, Yuan, Chen, Tzeng: *SEAFL: Enhancing Efficiency in Semi-Asynchronous Federated Learning through
Adaptive Aggregation and Selective Training*, Algorithms 1 and 2, Eq. (4)-(8). Su, Li: *How Asynchronous can Federated
Learning Be?* (PORT), IWQoS 2022, as its authors' framework Plato has it (`port_server.py`).

| paper | here |
|---|---|
| K, buffer size | `buffer` |
| M, devices in training | `concurrency` |
| beta, staleness limit | `staleness_limit` (inf: none) |
| alpha, mu | `staleness_weight`, `similarity_weight` |
| theta (vartheta), server mixing | `mixing` |
| Delta_k, S_k = t - t_k | update's movement from its own base; current version minus its base |

When K updates are in the buffer **and** no device in training is at the staleness limit:

    gamma_k = alpha beta / (S_k + beta)                     (4)
    s_k     = mu (cos(Delta_k, w) + 1) / 2                  (5)
    p_k     ~ |D_k| (gamma_k + s_k), normalised to one      (6)
    w_new   = sum_k p_k w_k                                 (7)
    w       <- (1 - theta) w + theta w_new                  (8)

and as many devices as reported are ordered. SEAFL² notifies devices that reach the limit: they finish their epoch and
upload what they have, which is weighted like any other update. PORT does the same, and adds weighted movements:
w <- w + sum_k p_k Delta_k. Its similarity has two readings: with the last step w_v - w_{v-1} whatever the base, and
cosine 1 for updates of staleness 0 and 1 (`similarity = "last-step"`, the default, as in Plato, the framework of its
authors), or with the movement w_v - w_o of the global model since the update's base (`"movement"`). Its authors used
K = 15 and M = 30; the defaults here are SEAFL's, 10 and 20.

`on_notice = "last-finished"` (SEAFL², PORT) is Plato's behaviour: a notified device uploads its last finished epoch at
once and discards the unfinished one; in its first epoch it finishes that. It avoids the wait for the end of an epoch,
which is long where a few devices are very slow.

`aggregate = "deltas"` (not published) gives SEAFL the rule w <- w + theta sum_k p_k Delta_k. It isolates the cost of
(7), which averages stale *models*.

Departures. Algorithm 1's `flag <= K` counts one too many: we wait for K. Its last line orders the devices that
reported; its first line, and Plato, draw devices at random: `replace = "random"` is our default, "same" the other
reading (then only the first M devices ever train). A fresh update has no global movement to compare with: its cosine is
1. A lost device is replaced, and no aggregation waits for it; if no device is left in training, the buffer is
aggregated although it is not full.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import isinf, sqrt
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.fedbuff import pick_others
from offbeat.core.combining import mean_delta, mean_model
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Dispatch, Event, StopSoon, Uploaded
from offbeat.core.orders import Order, Update
from offbeat.core.parameters import Floats, LazyDifference, Vector, dots, mixture, moved
from offbeat.core.policy import Policy, View


@dataclass
class SeaflState:
    """The buffer, and counts over all aggregated updates."""

    buffer: list[Update] = field(default_factory=list)
    updates: int = 0
    epochs: int = 0
    partial: int = 0
    last_step: Vector | None = None
    """Movement of the last aggregation; only kept for `similarity = "last-step"`."""


class Seafl(Policy):
    """Buffered; bounds staleness by waiting; weights from staleness and similarity (Islam et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Seafl(buffer=2, concurrency=2, mixing=0.5), samples=[10, 30])
    >>> _ = session.upload(4.0, 0.0, device=0), session.upload(0.0, 4.0, device=1)
    >>> session.parameters.tolist()  # p = 1/4, 3/4: 1/2 [0, 0] + 1/2 [1, 3]
    [0.5, 1.5]
    """

    State = SeaflState
    combines = True

    buffer: Annotated[int, Field(ge=1)] = 10
    """K, the uploads that make a version."""
    concurrency: Annotated[int, Field(ge=1)] = 20
    """M, devices in training or waiting in the buffer."""
    staleness_limit: Annotated[float, Field(ge=1)] = 10.0
    """beta, the largest staleness of an aggregated update; inf for no limit."""
    staleness_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0
    """alpha, the weight of freshness."""
    similarity_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """mu, the weight of similarity; 0 for none."""
    mixing: Annotated[float, Field(gt=0, le=1)] = 0.8
    """theta, the share of the aggregate in the new version."""
    similarity: Literal["model", "movement", "last-step"] = "model"
    """What an update is compared with: the global model (published), its movement since the update's base, or its last
    step (cosine 1 for updates of staleness 0 and 1)."""
    aggregate: Literal["models", "deltas"] = "models"
    """What is averaged: the uploaded models (published), or their movements from their own bases."""
    replace: Literal["random", "same"] = "random"
    """Devices ordered after an aggregation: random idle ones, or those that reported."""

    about = About(
        name="seafl",
        family="buffered",
        paper="Islam et al., SEAFL, 2025",
        provenance="published",
        in_training="concurrency",
        search=SearchSpace(
            buffer=Range(2, 20, log=True, at_most="concurrency"),
            staleness_limit=Range(2.0, 20.0, log=True),
            staleness_weight=Range(0.3, 10.0, log=True),
            similarity_weight=Range(0.1, 3.0, log=True),
            mixing=Range(0.3, 1.0),
        ),
        smoke={"algorithm": {"buffer": 5, "concurrency": 10}},
    )

    def check(self, devices: int) -> None:
        if self.concurrency > devices:
            raise InvalidInput(f"algorithm.concurrency = {self.concurrency}: there are only {devices} devices")
        if self.buffer > self.concurrency:
            raise InvalidInput(
                f"algorithm.buffer = {self.buffer} exceeds algorithm.concurrency = {self.concurrency}: "
                "the buffer could never fill"
            )
        if self.staleness_weight == self.similarity_weight == 0:
            raise InvalidInput("algorithm.staleness_weight and algorithm.similarity_weight are both 0: set one above 0")

    def react(self, event: Event, state: SeaflState, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            state.buffer.append(event.update)
        yield from self.fill(state.buffer, view)
        if not self.is_due(state.buffer, view):
            return
        reported = [update.device for update in state.buffer]
        self.count(state, view)
        before = view.parameters
        yield Commit(
            parameters=self.new_version(state.buffer, view, state.last_step),
            used=tuple(update.ticket for update in state.buffer),
        )
        state.buffer = []
        if self.similarity == "last-step":
            state.last_step = view.parameters - before
        if self.replace == "same":
            for device in filter(view.is_idle, reported):
                yield Dispatch(device=device, order=self.order(view))
        yield from self.fill(state.buffer, view)
        yield from self.after_commit(view)

    def order(self, view: View) -> Order:
        """The order for one device."""
        return view.order()

    def fill(self, buffer: Sequence[Update], view: View) -> Iterator[Action]:
        """Keep M devices in training or in the buffer."""
        for device in pick_others(self.concurrency - len(view.in_flight) - len(buffer), buffer, view):
            yield Dispatch(device=device, order=self.order(view))

    def is_due(self, buffer: Sequence[Update], view: View) -> bool:
        """Whether to aggregate now: the buffer is full and no device in training is at the staleness limit."""
        if not view.in_flight:
            return bool(buffer)
        full = len(buffer) >= self.buffer
        return full and not any(self.is_at_limit(held.base, view) for held in view.in_flight.values())

    def is_at_limit(self, base: int, view: View) -> bool:
        """Whether one more version would make an update from this base too stale."""
        return view.version + 1 - base > self.staleness_limit

    def new_version(self, buffer: Sequence[Update], view: View, last_step: Vector | None = None) -> Vector:
        """Eq. (7) and (8), or w + theta sum_k p_k Delta_k."""
        weights = self.weights(buffer, view, last_step)
        if self.aggregate == "deltas":
            return moved(view.parameters, mean_delta(buffer, weights, view), self.mixing)
        return mixture(view.parameters, mean_model(buffer, weights, view), self.mixing)

    def weights(self, buffer: Sequence[Update], view: View, last_step: Vector | None = None) -> list[float]:
        """Eq. (6), before normalisation; the shares of the data if all weights are 0."""
        weights = [
            update.samples * (self.freshness(view.version - update.base) + self.likeness(update, view, last_step))
            for update in buffer
        ]
        return weights if any(weights) else [float(update.samples) for update in buffer]

    def freshness(self, staleness: int) -> float:
        """The weight of an update's staleness, Eq. (4)."""
        if isinf(self.staleness_limit):
            return self.staleness_weight
        return self.staleness_weight * self.staleness_limit / (staleness + self.staleness_limit)

    def weight_at(self, staleness: int) -> float | None:
        """Eq. (4), relative to staleness 0; the similarity of Eq. (5) is added to it."""
        return self.freshness(staleness) / self.freshness(0) if self.staleness_weight else None

    def likeness(self, update: Update, view: View, last_step: Vector | None = None) -> float:
        """The weight of an update's similarity, Eq. (5)."""
        if not self.similarity_weight:
            return 0.0
        return self.similarity_weight * (self.alignment(update, view, last_step) + 1) / 2

    def alignment(self, update: Update, view: View, last_step: Vector | None) -> float:
        """The cosine of the update's movement and what `similarity` compares it with."""
        movement = LazyDifference(update.parameters, update.base_parameters)
        match self.similarity:
            case "model":
                return cosine(movement, view.parameters)
            case "movement":
                return cosine(movement, LazyDifference(view.parameters, update.base_parameters))
            case "last-step":
                if last_step is None or view.version - update.base <= 1:
                    return 1.0
                return cosine(movement, last_step)

    def after_commit(self, view: View) -> Iterator[Action]:
        """Further actions after a new version; none in SEAFL, which waits."""
        yield from ()

    def count(self, state: SeaflState, view: View) -> None:
        """Count the epochs of the updates that are about to be aggregated."""
        ordered = view.order().slices
        state.updates += len(state.buffer)
        state.epochs += sum(update.progress.slices for update in state.buffer)
        state.partial += sum(update.progress.slices < ordered for update in state.buffer)

    def metrics(self, state: SeaflState) -> dict[str, float]:
        return {
            "mean_epochs": state.epochs / state.updates if state.updates else 0.0,
            "partial_updates": state.partial,
        }


class Seafl2(Seafl):
    """SEAFL that notifies devices at the staleness limit to upload after their epoch (SEAFL²).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Seafl2(buffer=1, concurrency=2, staleness_limit=1.0), devices=2)
    >>> session.upload(4.0, 0.0, device=0).notified  # device 1 is at the limit
    [1]
    >>> session.upload(4.0, 0.0, device=0).used  # the server waits for it
    []
    >>> session.upload(2.0, 0.0, device=1).used
    [3, 1]
    """

    notifies = True

    on_notice: Literal["finish-epoch", "last-finished"] = "finish-epoch"
    """What a notified device does: finish its epoch and upload (published), or upload its last finished epoch at once
    (Plato). Stock nodes of a deployment see notices between epochs only, where both are the same."""

    about = replace(
        Seafl.about,
        name="seafl2",
        local_differences=lambda policy, local: (
            [] if isinf(policy.staleness_limit) else ["training that ends early at the staleness limit"]
        ),
        flower=None,
    )

    def order(self, view: View) -> Order:
        return view.order() if self.on_notice == "finish-epoch" else view.order(drops_unfinished=True)

    def after_commit(self, view: View) -> Iterator[Action]:
        for held in list(view.in_flight.values()):
            if self.is_at_limit(held.base, view) and not held.notified:
                yield StopSoon(device=held.device)


class Port(Seafl2):
    """Bounded staleness with notices, similarity with the global movement (PORT, Su and Li 2022).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(Port(buffer=1, concurrency=2), devices=2)
    >>> _ = session.upload(2.0, 0.0, device=0), session.upload(0.0, 2.0, device=1)
    >>> session.parameters.tolist()  # both moved from [0, 0], and movements are added
    [2.0, 2.0]
    """

    mixing: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the weighted movements that is applied."""
    similarity: Literal["model", "movement", "last-step"] = "last-step"
    """What an update is compared with: the last step of the global model, with cosine 1 up to a staleness of 1 (the
    authors' framework Plato), or its movement since the update's base (our reading)."""
    aggregate: Literal["models", "deltas"] = "deltas"
    """What is averaged: movements from each update's own base (published), or the uploaded models."""

    about = replace(
        Seafl2.about,
        name="port",
        paper="Su and Li, IWQoS 2022",
        provenance="authors' code",
        server_memory=ServerMemory(models=1),  # the last step
    )


def cosine(one: Vector | LazyDifference, other: Vector | LazyDifference) -> float:
    """The cosine of the angle between two vectors; 1 if one of them is zero.

    >>> round(cosine(np.float32([3, 4]), np.float32([4, 3])), 6), cosine(np.float32([1, 0]), np.float32([0, 0]))
    (0.96, 1.0)
    """

    def pairs_of(block: slice) -> list[tuple[Floats, Floats]]:
        first, second = one[block].astype(np.float64), other[block].astype(np.float64)
        return [(first, first), (second, second), (first, second)]

    square, other_square, product = dots(len(one), pairs_of)
    lengths = sqrt(square) * sqrt(other_square)
    return min(max(product / lengths, -1.0), 1.0) if lengths else 1.0
