"""ASO-Fed: asynchronous online learning with a copy of every device's model. Restated.

Chen, Ning, Slawski, Rangwala: *Asynchronous Online Federated Learning for Edge Devices with Non-IID Data*, IEEE Big
Data 2020. We did not have the paper: the rules are those of third-party code and of summaries of the paper.

| paper | here |
|---|---|
| lambda | `mu`, of the proximal term |
| beta | `beta` |
| r_k = max(1, log(mean delay of k)) | `dynamic_rate`; the delay is the training time in seconds that k reports |
| feature learning on the first layer | `attention` |

    device   direction  grad (L_k + mu / 2 ||w - w_o||^2) - v_k + h_k,   step size  r_k eta
             h_k <- beta h_k + (1 - beta) v_k,   v_k <- the mean gradient of this training
    server   w <- w - n_k / n (w_k_old - w_k_new),   w_k_old the copy of k's model, w_k_new becomes the copy
             attention:  W <- W * softmax(|W|) row by row, W the first layer

Server memory: one model per device that has reported (`algorithms.model_cache`). v_k changes once per local training
instead of at every step, so that it can be kept between two trainings of a device.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log
from typing import Annotated

import numpy as np
from msgspec.structs import replace
from pydantic import Field

from offbeat.algorithms.about import About, Choice, Range, SearchSpace, ServerMemory, proximal_difference
from offbeat.algorithms.model_cache import ExactCacheKind, ModelCache
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Dispatch, Event, Uploaded
from offbeat.core.orders import Order, Update
from offbeat.core.parameters import Layout, Vector, by_block
from offbeat.core.policy import Policy, View
from offbeat.core.terms import PastGradients, Proximal


@dataclass
class AsoFedState:
    """The initial model, and each device's last model and training times."""

    first: Vector | None = None
    cache: ModelCache = field(default_factory=ModelCache)
    seconds: dict[int, float] = field(default_factory=dict)
    """Total training seconds of each device."""
    reports: dict[int, int] = field(default_factory=dict)


class AsoFed(Policy):
    """Asynchronous with a copy of every device's model and past gradients (after Chen et al. 2020; restated).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(AsoFed(concurrency=1), samples=[10, 30])
    >>> device = session.first.ordered[0]
    >>> _ = session.upload(4.0, 8.0)  # w = 0 + n_k / n ([4, 8] - w_0)
    >>> (session.parameters * 40 / session.samples(device)).tolist()
    [4.0, 8.0]
    """

    State = AsoFedState
    Records = (ModelCache,)

    concurrency: Annotated[int, Field(ge=1)] = 10
    """Devices kept in training."""
    mu: Annotated[float, Field(ge=0)] = 0.1
    """lambda, the proximal weight. `local.prox` replaces it."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.001
    """Decay of the moving average of earlier gradients."""
    dynamic_rate: bool = True
    """Whether slow devices get a larger learning rate."""
    attention: bool = False
    """Whether the first layer is multiplied by its own softmax after every upload, as in the paper."""
    cache: ExactCacheKind = "memory"
    """Where the devices' models are kept."""

    about = About(
        name="aso-fed",
        family="asynchronous",
        paper="Chen et al., IEEE Big Data 2020",
        provenance="restated",
        in_training="concurrency",
        search=SearchSpace(
            mu=Range(0.001, 1.0, log=True),
            beta=Range(0.0001, 0.1, log=True),
            dynamic_rate=Choice(True, False),
        ),
        local_differences=lambda policy, local: [
            *proximal_difference(policy.mu, local),
            f"a term of past gradients in the local loss (beta = {policy.beta:g})",
            *(["larger learning rates on slower devices"] if policy.dynamic_rate else []),
        ],
        flower=None,
        server_memory=ServerMemory(models=1, per_device=1),
        needs_training_times=True,
    )

    def check(self, devices: int) -> None:
        if self.concurrency > devices:
            raise InvalidInput(f"algorithm.concurrency = {self.concurrency}: there are only {devices} devices")

    def init(self, view: View) -> AsoFedState:
        return AsoFedState(cache=ModelCache(self.cache))

    def react(self, event: Event, state: AsoFedState, view: View) -> Iterator[Action]:
        if state.first is None:
            state.first = view.parameters
        if isinstance(event, Uploaded):
            yield Commit(parameters=self.moved(event.update, state, view), used=(event.ticket,))
            self.note(event.update, state, view)
        for device in view.pick(self.concurrency - len(view.in_flight)):
            yield Dispatch(device=device, order=self.order(device, state, view))

    def moved(self, update: Update, state: AsoFedState, view: View) -> Vector:
        """The model after an upload."""
        assert state.first is not None
        total = sum(view.samples(device) for device in range(view.devices))
        share = np.float32(update.samples / total)
        kept = state.cache.read(update.device)
        now, before, after = view.parameters, state.first if kept is None else kept, update.parameters
        model = by_block(len(now), lambda block: now[block] - share * (before[block] - after[block]))
        return attended(model, view.layout) if self.attention else model

    def note(self, update: Update, state: AsoFedState, view: View) -> None:
        """Store the device's model and training time."""
        device = update.device
        state.cache.write(device, update.parameters, view)
        state.seconds[device] = state.seconds.get(device, 0.0) + update.progress.seconds
        state.reports[device] = state.reports.get(device, 0) + 1

    def order(self, device: int, state: AsoFedState, view: View) -> Order:
        """The experiment's local training with both terms and the device's own learning rate."""
        order = view.order(terms=(Proximal(mu=self.mu), PastGradients(beta=self.beta)))
        return replace(order, learning_rate=order.learning_rate * self.rate(device, state))

    def rate(self, device: int, state: AsoFedState) -> float:
        """r_k, the factor on the device's learning rate."""
        if not self.dynamic_rate or device not in state.reports:
            return 1.0
        mean = state.seconds[device] / state.reports[device]
        return max(1.0, log(mean)) if mean > 0 else 1.0


def attended(model: Vector, layout: Layout) -> Vector:
    """Multiply the matrices of the first layer by the softmax of their magnitudes, row by row."""
    model = model.copy()
    for entry in layout.entries:
        if entry.layer == 0 and entry.trained and len(entry.shape) > 1:
            rows = model[entry.span].reshape(entry.shape[0], -1)
            magnitude = np.exp(np.abs(rows) - np.abs(rows).max(axis=1, keepdims=True))
            rows *= magnitude / magnitude.sum(axis=1, keepdims=True)
    return model
