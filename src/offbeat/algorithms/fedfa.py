"""FedFa: the model is the mean of the last K uploaded models, renewed at every upload.

Xu, Zhang, Di, Liu, Alharthi, Cao: *FedFa: A Fully Asynchronous Training Paradigm for Federated Learning*, IJCAI 2024.
Restated: the rule is that of a description by others.

| paper | here |
|---|---|
| K, length of the queue | `queue` |

    at every upload:   the oldest of K models leaves the queue, w_k enters,   w <- mean of the queue

Before K uploads the queue holds those that there are. Staleness is not weighted: an old model leaves the mean after K
further uploads. Server memory: K models.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.arrivals import ArrivalPolicy
from offbeat.core.combining import mean_of_cache
from offbeat.core.messages import Action, Commit
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector
from offbeat.core.policy import View


@dataclass
class FedFaState:
    """The last K uploaded models and their devices, the oldest first."""

    models: list[Vector] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)


class FedFa(ArrivalPolicy):
    """Asynchronous: the model is the mean of the last K uploads, at every upload (Xu et al. 2024; restated).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedFa(queue=2, concurrency=2))
    >>> _ = session.upload(4.0, 0.0), session.upload(0.0, 4.0), session.upload(2.0, 2.0)
    >>> session.version, session.parameters.tolist()  # ([0, 4] + [2, 2]) / 2: the first has left the queue
    (3, [1.0, 3.0])
    """

    State = FedFaState
    combines = True

    queue: Annotated[int, Field(ge=1)] = 10
    """K, the models in the mean."""

    about = About(
        name="fedfa",
        family="asynchronous",
        paper="Xu et al., IJCAI 2024",
        provenance="restated",
        in_training="concurrency",
        in_proportion=("queue",),
        search=SearchSpace(queue=Range(2, 20, log=True)),
        server_memory=ServerMemory(per_setting="queue"),
    )

    def receive(self, update: Update, state: FedFaState, view: View) -> Iterator[Action]:
        state.models = [*state.models, update.parameters][-self.queue :]
        state.devices = [*state.devices, update.device][-self.queue :]
        mean = mean_of_cache(state.models, state.devices, [1.0] * len(state.models), view)
        yield Commit(parameters=mean, used=(update.ticket,))
