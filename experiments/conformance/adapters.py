"""Adapters that play the traces to other frameworks: each calls the framework's own server code.

A framework is configured with its own options so that it comes as close to the published rule as they allow; what the
options leave different shows as a deviation. Its device half is not run: the traces say what devices upload.

    offbeat verify --against experiments.conformance.adapters:flower
"""

import logging
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from offbeat.testing.verification import Trace, TraceUpload

OPTIMISERS = {"none": "FedAvg", "momentum": "FedAvgM", "adagrad": "FedAdagrad", "adam": "FedAdam", "yogi": "FedYogi"}
"""What frameworks call FedAvg with each of our server optimisers."""


def framework(make: Callable[..., Any]) -> Callable[..., Any]:
    """An adapter whose traces are skipped, with a reason, if a package is not installed."""

    @wraps(make)
    def adapter(rule: str, settings: dict[str, Any], trace: Trace) -> Any:
        try:
            return make(rule, settings, trace)
        except ModuleNotFoundError as error:
            return f"{error.name} is not installed"

    return adapter


class Rounds:
    """A synchronous framework: `aggregate` sees the uploads of a round."""

    def __init__(
        self, cohort: int, begin: Callable[[Any], None], aggregate: Callable[[list[TraceUpload]], Any]
    ) -> None:
        self.cohort, self.open, self.begin, self.aggregate = cohort, cohort, begin, aggregate
        self.uploads: list[TraceUpload] = []

    def start(self, parameters: Any) -> None:
        """Begin with this model."""
        self.model = parameters
        self.begin(parameters)

    def upload(self, upload: TraceUpload) -> Any:
        """Keep the upload; the last one of the round makes the next model."""
        self.uploads.append(upload)
        return self._closed()

    def lost(self, device: int) -> Any:
        """The round ends without the device."""
        return self._closed()

    def _closed(self) -> Any:
        self.open -= 1
        if self.open == 0:
            self.model = np.asarray(self.aggregate(self.uploads), dtype=np.float64)
            self.uploads, self.open = [], self.cohort
        return self.model


class Arrivals:
    """An asynchronous framework: `receive` sees each upload and returns the model after it."""

    def __init__(self, begin: Callable[[Any], None], receive: Callable[[TraceUpload], Any]) -> None:
        self.start, self.upload = begin, receive


def synchronous(rule: str, settings: dict[str, Any]) -> str | None:
    """The name that frameworks give to a rule of FedAvg's family, or None for other rules."""
    if rule == "fedprox" and settings.get("round_seconds") is None:
        return "FedAvg"
    return OPTIMISERS[settings.get("server_optimiser", "none")] if rule == "fedavg" else None


# Flower ---------------------------------------------------------------------------------------------------------------


@framework
def flower(rule: str, settings: dict[str, Any], trace: Trace) -> Any:
    """Flower's strategies for rounds; it has no asynchronous ones."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp import strategy as strategies

    from offbeat.flower.compat import TaskIdentity

    logging.getLogger("flwr").setLevel(logging.WARNING)
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # as in a ServerApp's process
    name = synchronous(rule, settings)
    if name is None:
        return "no such strategy"
    options: dict[str, Any] = {}
    if name == "FedAvgM":
        options = {key: settings[key] for key in ("server_learning_rate", "server_momentum")}
    elif name != "FedAvg":
        options = {"eta": settings["server_learning_rate"], "tau": settings["server_epsilon"]}  # FedAdagrad: beta_1 = 0
    if name in ("FedAdam", "FedYogi"):
        options |= {"beta_1": settings["server_momentum"], "beta_2": settings["server_decay"]}
    strategy = getattr(strategies, name)(**options)
    state = SimpleNamespace(arrays=None, round=0)
    grid = SimpleNamespace(get_node_ids=lambda: range(1, 1 + len(trace.samples)))

    def record(values: Any) -> Any:
        return ArrayRecord({"w": Array(np.asarray(values, dtype=np.float64))})

    def reply(upload: TraceUpload) -> Any:
        content = RecordDict({"arrays": record(upload.model), "m": MetricRecord({"num-examples": upload.samples})})
        order = Message(RecordDict({}), dst_node_id=1 + upload.device, message_type="train")
        return Message(content, reply_to=order)

    def begin(parameters: Any) -> None:
        state.arrays = record(parameters)

    def aggregate(uploads: list[TraceUpload]) -> Any:
        state.round += 1
        strategy.configure_train(state.round, state.arrays, ConfigRecord({}), grid)
        state.arrays, _ = strategy.aggregate_train(state.round, [reply(upload) for upload in uploads])
        return state.arrays["w"].numpy()

    return Rounds(settings["cohort"], begin, aggregate)


# FLGo -----------------------------------------------------------------------------------------------------------------


@framework
def flgo(rule: str, settings: dict[str, Any], trace: Trace) -> Any:
    """FLGo's servers, without their construction from a task directory."""
    import torch
    from flgo.algorithm import fedasync, fedavg, fedavgm, fedbuff, feddyn
    from flgo.utils.fmodule import FModule

    class Numbers(FModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(len(trace.start), dtype=torch.float64), requires_grad=False)

    def model_of(values: Any, version: int = 0) -> Any:
        model = Numbers()
        model.w.copy_(torch.as_tensor(values))
        model._round = version
        return model

    modules = {"fedasync": fedasync, "fedbuff": fedbuff, "feddyn": feddyn}
    name = synchronous(rule, settings)
    module = {"FedAvg": fedavg, "FedAvgM": fedavgm}.get(name or "") or modules.get(rule)
    if module is None or settings.get("compounding") or settings.get("variant") == "plato":
        return "no such rule"
    if settings.get("normaliser") == "weights":
        return "no such option"
    server = module.Server.__new__(module.Server)
    kinds = {"polynomial": "poly", "hinge": "hinge", "constant": "constant"}
    vars(server).update(
        clients=[SimpleNamespace(datavol=each) for each in trace.samples],
        num_clients=len(trace.samples),
        aggregation_option="other" if name else "uniform",  # weights by samples, or one model
        alpha=settings.get("alpha"),
        flag=kinds.get(settings.get("staleness", "polynomial")),
        poly_a=settings.get("exponent"),
        hinge_a=settings.get("slope"),
        hinge_b=settings.get("grace"),
        buffer=[],
        buffer_ratio=(settings.get("buffer", 0) + 0.5) / len(trace.samples),
        eta=settings.get("server_learning_rate", 1.0),
        beta=settings.get("server_momentum"),
        current_round=0,
    )

    def begin(parameters: Any) -> None:
        server.model = model_of(parameters)
        server.h = server.v = server.model.zeros_like()

    def receive(upload: TraceUpload) -> Any:
        sent = upload.movement if rule == "fedbuff" else upload.model
        package = {"model": [model_of(sent, upload.base_version)], "__cid": [upload.device]}
        server.current_round += bool(server.package_handler(package))
        return server.model.w.numpy().copy()

    def aggregate(uploads: list[TraceUpload]) -> Any:
        server.received_clients = [upload.device for upload in uploads]
        models = [model_of(upload.model) for upload in uploads]
        if name == "FedAvgM":
            server.sample, server.communicate = (lambda: []), (lambda _: {"model": models})
            server.iterate()
        else:
            server.model = server.aggregate(models)
        return server.model.w.numpy().copy()

    return Rounds(settings["cohort"], begin, aggregate) if "cohort" in settings else Arrivals(begin, receive)


# APPFL ----------------------------------------------------------------------------------------------------------------


@framework
def appfl(rule: str, settings: dict[str, Any], trace: Trace) -> Any:
    """APPFL's aggregators; FedBuff's server learning rate over K is its alpha."""
    import torch
    from appfl.algorithm import aggregator as aggregators
    from omegaconf import DictConfig

    name = synchronous(rule, settings) or {"fedasync": "FedAsync", "fedbuff": "FedBuff"}.get(rule)
    if name is None or settings.get("compounding") or settings.get("variant") == "plato":
        return "no such aggregator"
    if settings.get("normaliser") == "weights":
        return "no such option"
    hinge = settings.get("staleness") == "hinge"
    rate = settings.get("server_learning_rate", 1.0)
    options = {
        "client_weights_mode": "sample_size" if "cohort" in settings else "equal",
        "staleness_fn": settings.get("staleness", "polynomial"),
        "staleness_fn_kwargs": {"a": settings["slope"], "b": settings["grace"]}
        if hinge
        else {"a": settings.get("exponent", 0.5)},
        "alpha": settings.get("alpha", rate / settings.get("buffer", 1)),
        "K": settings.get("buffer"),
        "server_learning_rate": rate,
        "server_adapt_param": settings.get("server_epsilon"),
        "server_momentum_param_1": settings.get("server_momentum"),
        "server_momentum_param_2": settings.get("server_decay"),
    }

    class Numbers(torch.nn.Module):
        def __init__(self, values: Any) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.as_tensor(values, dtype=torch.float64))

    state = SimpleNamespace(aggregator=None)

    def tensors(values: Any) -> Any:
        return {"w": torch.as_tensor(values, dtype=torch.float64).clone()}

    def begin(parameters: Any) -> None:
        kind = getattr(aggregators, f"{name}Aggregator")
        state.aggregator = kind(Numbers(parameters), DictConfig(options))
        for device, samples in enumerate(trace.samples):
            state.aggregator.set_client_sample_size(device, samples)

    def aggregate(uploads: list[TraceUpload]) -> Any:
        return state.aggregator.aggregate({each.device: tensors(each.model) for each in uploads})["w"].numpy()

    def receive(upload: TraceUpload) -> Any:
        return state.aggregator.aggregate(upload.device, tensors(upload.model))["w"].numpy()

    return Rounds(settings["cohort"], begin, aggregate) if "cohort" in settings else Arrivals(begin, receive)


# FedLab ---------------------------------------------------------------------------------------------------------------


@framework
def fedlab(rule: str, settings: dict[str, Any], trace: Trace) -> Any:
    """FedLab's server handlers, imported without the package's data sets, which need torchvision."""
    import fedlab
    import torch

    for folder in ("dataset", "algorithm"):
        package = ModuleType(f"fedlab.contrib.{folder}")
        package.__path__ = [f"{fedlab.__path__[0]}/contrib/{folder}"]
        sys.modules.setdefault(package.__name__, package)
    from fedlab.contrib.algorithm.basic_server import AsyncServerHandler, SyncServerHandler
    from fedlab.contrib.algorithm.feddyn import FedDynServerHandler

    name = "FedDyn" if rule == "feddyn" else synchronous(rule, settings)
    if (rule != "fedasync" and name not in ("FedAvg", "FedDyn")) or settings.get("compounding"):
        return "no such handler"

    class Numbers(torch.nn.Module):
        def __init__(self, values: Any) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.as_tensor(values, dtype=torch.float32))

    state = SimpleNamespace(handler=None)

    def begin(parameters: Any) -> None:
        model = Numbers(parameters)
        if rule == "fedasync":
            state.handler = AsyncServerHandler(model, global_round=99)
            first = settings["slope"] if settings["staleness"] == "hinge" else settings.get("exponent", 1.0)
            state.handler.setup_optim(settings["alpha"], settings["staleness"], first, settings.get("grace", 0))
            return
        kind = FedDynServerHandler if name == "FedDyn" else SyncServerHandler
        state.handler = kind(model, global_round=99, sample_ratio=settings["cohort"] / len(trace.samples))
        state.handler.num_clients = len(trace.samples)
        if name == "FedDyn":
            state.handler.setup_optim(settings["alpha"])

    def sent(upload: TraceUpload) -> list[Any]:
        values, base = torch.as_tensor(upload.model, dtype=torch.float32), torch.tensor([float(upload.base_version)])
        return [values, base] if rule == "fedasync" else [values]

    def receive(upload: TraceUpload) -> Any:
        state.handler.load(sent(upload))
        return state.handler.model_parameters.numpy().copy()

    def aggregate(uploads: list[TraceUpload]) -> Any:
        for upload in uploads:
            state.handler.load(sent(upload))
        return state.handler.model_parameters.numpy().copy()

    if rule == "fedasync":
        return Arrivals(begin, receive)
    if any(step.lost is not None for step in trace.steps):
        return "its rounds wait for every client"
    return Rounds(settings["cohort"], begin, aggregate)


# NVIDIA FLARE ---------------------------------------------------------------------------------------------------------


@framework
def nvflare(rule: str, settings: dict[str, Any], trace: Trace) -> Any:
    """The buffered model manager of NVIDIA FLARE's edge workflow, with staleness weights."""
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.edge.assessors.buff_model_manager import BuffModelManager
    from nvflare.edge.mud import ModelUpdate

    if rule != "fedbuff" or settings.get("variant") == "plato":
        return "no such model manager"
    if settings.get("normaliser") == "weights":
        return "no such option"
    context = FLContext()
    manager = BuffModelManager(
        settings["buffer"], global_lr=settings.get("server_learning_rate", 1.0), staleness_weight=True
    )
    manager.fire_event = lambda *_: None

    def begin(parameters: Any) -> None:
        manager.initialize_model(DXO(DataKind.WEIGHTS, data={"w": parameters}), context)
        manager.generate_new_model(context)  # its version 1 is the first model

    def receive(upload: TraceUpload) -> Any:
        difference = DXO(DataKind.WEIGHT_DIFF, data={"dict": {"w": upload.movement}, "count": 1}).to_shareable()
        version = upload.base_version + 1
        manager.process_updates({version: ModelUpdate(version, difference, {str(upload.device): 0.0})}, context)
        return np.array(manager.current_model.data["w"])

    return Arrivals(begin, receive)
