"""`AsyncServer`: an algorithm of offbeat in a project from before Flower's message API, with unchanged clients.

    strategy = FedAvg(initial_parameters=..., evaluate_fn=..., on_fit_config_fn=...)
    return ServerAppComponents(server=AsyncServer(FedBuff(buffer=10), strategy), config=config)

The project's strategy still provides the initial parameters, the configs, the evaluation on the server, the aggregation
of metrics and the number of clients. The policy decides when and how models are aggregated.
"""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.server import ClientManager, History, Server, SimpleClientManager
from flwr.server.strategy import Strategy as RoundStrategy

from offbeat.algorithms.sizes import in_training_setting
from offbeat.core.errors import DeviceFault, InvalidInput
from offbeat.core.parameters import Vector
from offbeat.core.policy import Policy
from offbeat.flower.compat import (
    Code,
    EvaluateRes,
    FitRes,
    GridClientProxy,
    arrayrecord_to_parameters,
    parameters_to_ndarrays,
)
from offbeat.flower.compat import recorddict_compat as compat
from offbeat.flower.protocol.codec import array_header
from offbeat.flower.server.transport import grid_now
from offbeat.flower.strategy.records import (
    Aggregate,
    Evaluate,
    FlowerRecords,
    Metrics,
    ModelArrays,
    metric_records,
    metrics_of,
)
from offbeat.flower.strategy.strategy import Async, write_log

SHARES = {
    "fraction_evaluate": "fraction_evaluate",
    "min_fit_clients": "min_train_nodes",
    "min_evaluate_clients": "min_evaluate_nodes",
    "min_available_clients": "min_available_nodes",
}
"""Attributes of the project's strategy, and the settings of `Async` that they become."""
ROUNDS = ("configure_fit", "aggregate_fit", "configure_evaluate", "aggregate_evaluate")
PRIVACY = "flwr.server.strategy.dp"
"""The package of Flower's strategies with differential privacy."""
LEAST_SHARE = 1e-9
"""Replaces a `fraction_fit` of 0, so that the least number of clients decides."""
ANSWER_SECONDS = 3600.0
"""Reply timeout if the config has no `round_timeout`, in seconds."""


class AsyncServer(Server):
    """A Flower server that trains with a policy: `AsyncServer(FedBuff(buffer=10), strategy)`.

    `settings` are those of `Async`, and take precedence over the strategy's attributes.
    """

    def __init__(
        self,
        policy: Policy,
        strategy: RoundStrategy | None = None,
        *,
        client_manager: ClientManager | None = None,
        **settings: Any,
    ) -> None:
        """InvalidInput if the policy does not work with stock clients."""
        super().__init__(client_manager=client_manager or SimpleClientManager(), strategy=strategy)
        self.policy = policy
        self._history = History()
        rounds = self.strategy
        if any(kind.__module__.startswith(PRIVACY) for kind in type(rounds).__mro__):
            raise InvalidInput(
                f"AsyncServer cannot use {type(rounds).__name__}: it adds its noise in rounds, and there are none"
            )
        given = {ours: getattr(rounds, theirs) for theirs, ours in SHARES.items() if hasattr(rounds, theirs)}
        if isinstance(policy, Policy) and in_training_setting(policy) not in (None, *policy.model_fields_set):
            given["fraction_train"] = max(LEAST_SHARE, getattr(rounds, "fraction_fit", 1.0))
        self.asynchronous = FitAsync(policy, self.strategy, self._history, **(given | settings))

    def fit(self, num_rounds: int, timeout: float | None) -> tuple[History, float]:
        """Train `num_rounds` versions of the model; return the history and the seconds that it took."""
        (client,) = self._client_manager.sample(1)
        if not isinstance(client, GridClientProxy):
            raise InvalidInput(
                "AsyncServer needs clients behind a grid, and start_simulation has none: call run_simulation with a "
                "ServerApp that returns ServerAppComponents(server=...), or run the script with offbeat simulate"
            )
        grid = client.grid
        if own := _own_rounds(self.strategy):
            write_log(f"{own} of {type(self.strategy).__name__} will not be called: there are no rounds")
        began = grid_now(grid)
        first = parameters_to_ndarrays(self._get_initial_parameters(server_round=0, timeout=timeout))
        result = self.asynchronous.start(
            grid,
            ArrayRecord({str(position): Array(array) for position, array in enumerate(first)}),
            num_rounds,
            ANSWER_SECONDS if timeout is None else timeout,
            evaluate_fn=None if getattr(self.strategy, "evaluate_fn", self) is None else self._evaluate,
        )
        self.parameters = arrayrecord_to_parameters(result.arrays, keep_input=True)
        for version, metrics in result.train_metrics_clientapp.items():
            for name, value in metrics.items():
                self._history.metrics_distributed_fit.setdefault(name, []).append((version, value))  # type: ignore[arg-type]
        return self._history, grid_now(grid) - began

    def _evaluate(self, version: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate a version with the project's strategy."""
        found = self.strategy.evaluate(version, parameters=arrayrecord_to_parameters(arrays, keep_input=True))
        if found is None:
            return None
        loss, metrics = found
        self._history.add_loss_centralized(server_round=version, loss=loss)
        self._history.add_metrics_centralized(server_round=version, metrics=metrics)
        return MetricRecord(_numbers(metrics) | {LOSS: float(loss)})


class FitAsync(Async):
    """`Async` for clients that `fit` and `evaluate`."""

    def __init__(self, policy: Policy, strategy: RoundStrategy, history: History, **settings: Any) -> None:
        super().__init__(
            policy,
            train_metrics_aggr_fn=_aggregation(getattr(strategy, "fit_metrics_aggregation_fn", None)),
            evaluate_metrics_aggr_fn=_aggregation(getattr(strategy, "evaluate_metrics_aggregation_fn", None)),
            **settings,
        )
        self._round_strategy = strategy
        self._history = history

    def _records(
        self, model: ModelArrays, train_config: ConfigRecord | None, evaluate_config: ConfigRecord | None
    ) -> FlowerRecords:
        return FitRecords(
            model,
            self.settings.keys,
            fit_config=_config(self._round_strategy, "on_fit_config_fn"),
            evaluate_config=_config(self._round_strategy, "on_evaluate_config_fn"),
            aggregate=self._train_aggregate,
            log=write_log,
            on_resolved=self.resolved,
        )

    def evaluated(self, version: int, metrics: Metrics) -> bool | None:
        """Add the metrics of a version to Flower's history."""
        if LOSS not in metrics:  # a client replied to `evaluate` with the result of `fit`
            return None
        others = {name: value for name, value in metrics.items() if name != LOSS}
        self._history.add_loss_distributed(server_round=version, loss=metrics[LOSS])
        self._history.add_metrics_distributed(server_round=version, metrics=others)
        return None


def _config(strategy: RoundStrategy, name: str) -> Callable[[int], Mapping[str, Any]]:
    """The strategy's function for the config of a version; without one the config is empty."""
    return getattr(strategy, name, None) or (lambda _: {})


def _aggregation(function: Callable[[list[tuple[int, Metrics]]], Mapping[str, Any]] | None) -> Aggregate:
    """The user's aggregation function in the form that `Async` takes. The loss is always averaged."""

    def aggregate(contents: list[RecordDict], weight: str) -> MetricRecord:
        found = [metrics_of(content) for content in contents]
        examples = [int(metrics.pop(weight)) for metrics in found]
        together = _numbers(function(list(zip(examples, found, strict=True)))) if function is not None else {}
        if all(LOSS in metrics for metrics in found):
            losses = [float(metrics[LOSS]) for metrics in found]
            mean = sum(count * loss for count, loss in zip(examples, losses, strict=True)) / sum(examples)
            together = {LOSS: mean} | together
        return MetricRecord(together)

    return aggregate


def _own_rounds(strategy: RoundStrategy) -> str:
    """The methods for rounds that the user's strategy overrides."""
    homes = {name: next(kind for kind in type(strategy).__mro__ if name in vars(kind)) for name in ROUNDS}
    return ", ".join(name for name, kind in homes.items() if not kind.__module__.startswith("flwr."))


def _numbers(metrics: Mapping[str, Any]) -> Metrics:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


# Messages -------------------------------------------------------------------------------------------------------------


LOSS = "loss"
RoundConfig = Callable[[int], Mapping[str, Any]]


class FitRecords(FlowerRecords):
    """A `Translator` for clients that `fit` and `evaluate`, whose messages have other names and records."""

    __slots__ = ("_configs", "_last_config")

    def __init__(self, *args: Any, fit_config: RoundConfig, evaluate_config: RoundConfig, **settings: Any) -> None:
        """Both functions return the config of a version, as `on_fit_config_fn` of Flower's strategies does."""
        super().__init__(*args, train_config=ConfigRecord(), evaluate_config=ConfigRecord(), **settings)
        self._configs = {"fitins": fit_config, "evaluateins": evaluate_config}
        self._last_config: dict[str, tuple[int, Mapping[str, Any]]] = {}
        """The last version and its config, by kind of message: all nodes get the same config."""

    def packed(self, body: Any, vector: Vector | None) -> tuple[RecordDict, str]:
        """The content of a message and its type."""
        content, kind = super().packed(body, vector)
        name = "evaluateins" if isinstance(body, Evaluate) else "fitins"
        own = content.config_records[self.keys.config]
        number = int(str(own["server-round"]))
        config = {**self._config(name, number), "server-round": number}
        if "proximal-mu" in own:
            config["proximal_mu"] = own["proximal-mu"]
        arrays = content.array_records[self.keys.arrays]
        return RecordDict({f"{name}.parameters": arrays, f"{name}.config": ConfigRecord(config)}), kind

    def _config(self, name: str, number: int) -> Mapping[str, Any]:
        if name not in self._last_config or self._last_config[name][0] != number:
            self._last_config[name] = (number, dict(self._configs[name](number)))
        return self._last_config[name][1]

    def unpacked(self, content: RecordDict) -> RecordDict:
        """The result of a client as the arrays and metrics of a reply."""
        fits = "fitres.parameters" in content.array_records
        try:
            result: FitRes | EvaluateRes = (
                compat.recorddict_to_fitres(content, keep_input=True)
                if fits
                else compat.recorddict_to_evaluateres(content)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceFault(f"not a result of fit or evaluate: {type(error).__name__}: {error}") from None
        if result.status.code != Code.OK:
            raise DeviceFault(f"the client returned {result.status.code.name}: {result.status.message}")
        metrics = {name: value for name, value in result.metrics.items() if not isinstance(value, bytes)}
        metrics[self.keys.weight] = result.num_examples
        if isinstance(result, EvaluateRes):
            return metric_records(metrics | {LOSS: float(result.loss)})
        content = metric_records(metrics)
        arrays = {str(position): _array(data) for position, data in enumerate(result.parameters.tensors)}
        content["arrays"] = ArrayRecord(arrays)
        return content


def _array(data: bytes) -> Array:
    """The array with the shape and type of its own header."""
    header = array_header(data)
    return Array(dtype=str(header.dtype), shape=header.shape, stype="numpy.ndarray", data=data)
