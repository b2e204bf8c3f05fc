"""The translator for clients from before Flower's message API (`NumPyClient`, `client_fn`), who `fit` and `evaluate`.

What goes out and comes in has other names and other records there; between the two it is what `records` knows.
"""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common import Code, EvaluateRes, FitRes
from flwr.compat.common import recorddict_compat as compat

from offbeat.core.errors import DeviceFault
from offbeat.core.parameters import Vector
from offbeat.flower.protocol.codec import array_header
from offbeat.flower.strategy.records import Evaluate, FlowerRecords, metric_records

LOSS = "loss"
RoundConfig = Callable[[int], Mapping[str, Any]]


class FitRecords(FlowerRecords):
    """A `Translator` for one run on clients who fit and evaluate."""

    def __init__(self, *args: Any, fit_config: RoundConfig, evaluate_config: RoundConfig, **settings: Any) -> None:
        """Both functions say what a version's config is, as `on_fit_config_fn` of Flower's strategies does."""
        super().__init__(*args, train_config=ConfigRecord(), evaluate_config=ConfigRecord(), **settings)
        self._configs = {"fitins": fit_config, "evaluateins": evaluate_config}
        self._said: dict[str, tuple[int, Mapping[str, Any]]] = {}
        """The last version that each was asked about, and what it said: the same to all who are sent it."""

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
        if name not in self._said or self._said[name][0] != number:
            self._said[name] = (number, dict(self._configs[name](number)))
        return self._said[name][1]

    def unpacked(self, content: RecordDict) -> RecordDict:
        """What a client has returned, as the arrays and metrics of a reply."""
        fits = "fitres.parameters" in content.array_records
        try:
            result: FitRes | EvaluateRes = (
                compat.recorddict_to_fitres(content, keep_input=True)
                if fits
                else compat.recorddict_to_evaluateres(content)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceFault(f"it is no result of fit or evaluate: {type(error).__name__}: {error}") from None
        if result.status.code != Code.OK:
            raise DeviceFault(f"its client says {result.status.code.name}: {result.status.message}")
        metrics = {name: value for name, value in result.metrics.items() if not isinstance(value, bytes)}
        metrics[self.keys.weight] = result.num_examples
        if isinstance(result, EvaluateRes):
            return metric_records(metrics | {LOSS: float(result.loss)})
        content = metric_records(metrics)
        arrays = {str(place): _array(data) for place, data in enumerate(result.parameters.tensors)}
        content["arrays"] = ArrayRecord(arrays)
        return content


def _array(data: bytes) -> Array:
    """The array with the shape and the type that its own header says."""
    header = array_header(data)
    return Array(dtype=str(header.dtype), shape=header.shape, stype="numpy.ndarray", data=data)
