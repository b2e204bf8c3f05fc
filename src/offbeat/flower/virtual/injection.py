"""Replaces the strategy of an unmodified app by one of offbeat's algorithms while the app runs: the one line, injected.

`Strategy.start` builds an `Async` with the settings of the app's strategy, and `Server.fit` of a project with a
`server_fn` becomes that of an `AsyncServer`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flwr.server import Server
from flwr.serverapp.strategy import Strategy

from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import about_of
from offbeat.algorithms.sizes import in_training_setting
from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.policy import Policy
from offbeat.flower.strategy.server import AsyncServer
from offbeat.flower.strategy.settings import StrategySettings
from offbeat.flower.strategy.strategy import ROUNDS, Async, write_log

AS_WRITTEN = "app"
"""The name of the app's own strategy."""
NO_LIMIT = 10**9
"""The number of versions of a run that ends by time."""
SHARED = (
    *("fraction_train", "fraction_evaluate", "min_train_nodes", "min_evaluate_nodes", "min_available_nodes"),
    *("weighted_by_key", "arrayrecord_key", "configrecord_key"),
    "train_metrics_aggr_fn",
    "evaluate_metrics_aggr_fn",
)
"""Settings that `Async` has in common with Flower's strategies."""


def policy_named(name: str) -> type[Policy]:
    """The algorithm of this name; InvalidInput if there is none, or if stock client apps cannot run it."""
    possible = {each: policy for each, policy in POLICIES.items() if about_of(policy).flower is not None}
    if name in POLICIES and name not in possible:
        raise InvalidInput(f"{name} does not run with stock Flower client apps: choose from {', '.join(possible)}")
    if name not in possible:
        raise unknown("strategy", name, [AS_WRITTEN, *possible])
    return possible[name]


@dataclass
class Injection:
    """An algorithm in the place of an app's strategy."""

    policy: type[Policy]
    seed: int
    seconds: float | None = None
    """Virtual seconds of the run, whatever number of rounds the app asks for; None: that number of versions."""
    used: bool = False
    """Whether the app had a strategy to replace."""

    def _policy(self) -> Policy:
        return self.policy(**(about_of(self.policy).flower or {}))

    def _rounds(self, wanted: int) -> int:
        self.used = True
        return wanted if self.seconds is None else NO_LIMIT

    def _every(self, settings: StrategySettings, nodes: int) -> int:
        """Versions between two evaluations: as many as the nodes in training make with an update each."""
        policy = settings.sized(self._policy(), nodes)
        if self.seconds is None or about_of(policy).family not in ("asynchronous", "buffered"):
            return 1
        return max(1, int(nodes * settings.fraction_train) // getattr(policy, "buffer", 1))

    @contextmanager
    def injected(self) -> Iterator[None]:
        """Replace the strategies that the app starts."""
        start, fit = vars(Strategy)["start"], vars(Server)["fit"]

        def started(strategy: Any, grid: Any, initial_arrays: Any, num_rounds: int = 3, *args: Any, **more: Any) -> Any:
            own = [name for name in ROUNDS if not getattr(type(strategy), name).__module__.startswith("flwr.")]
            if own:
                write_log(f"{', '.join(own)} of {type(strategy).__name__} will not be called: there are no rounds")
            shared = {name: getattr(strategy, name) for name in SHARED if getattr(strategy, name, None) is not None}
            if in_training_setting(self.policy) is None:
                shared.pop("fraction_train", None)
            ours = Async(self._policy(), seconds=self.seconds, seed=self.seed, **shared)
            every = self._every(ours.settings, len(list(grid.get_node_ids())))
            ours.settings = ours.settings.model_copy(update={"evaluate_every": every})
            return ours.start(grid, initial_arrays, self._rounds(num_rounds), *args, **more)

        def fitted(server: Server, num_rounds: int, timeout: float | None) -> Any:
            if isinstance(server, AsyncServer):
                return fit(server, num_rounds, timeout)
            clients = server.client_manager()
            settings = {"seconds": self.seconds, "seed": self.seed}
            ours = AsyncServer(self._policy(), server.strategy, client_manager=clients, **settings)
            inner = ours.asynchronous
            every = self._every(inner.settings, clients.num_available())
            inner.settings = inner.settings.model_copy(update={"evaluate_every": every})
            found = ours.fit(self._rounds(num_rounds), timeout)
            server.parameters = ours.parameters
            return found

        Strategy.start, Server.fit = started, fitted  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            Strategy.start, Server.fit = start, fit  # type: ignore[method-assign]
