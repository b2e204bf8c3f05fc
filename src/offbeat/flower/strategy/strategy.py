"""`Async`: an algorithm of offbeat as a Flower strategy, for unchanged client apps."""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from logging import INFO
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from offbeat.algorithms.sizes import in_training_setting
from offbeat.core.errors import DeviceFault, InvalidInput
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Vector
from offbeat.core.policy import Policy
from offbeat.core.selection import Selector
from offbeat.core.session import Session
from offbeat.experiment.objects import as_table, name_of
from offbeat.experiment.run_settings import EvaluationTable
from offbeat.experiment.tables import checked
from offbeat.flower.compat import aggregate_metricrecords, log
from offbeat.flower.server.membership import wait_for_devices
from offbeat.flower.server.transport import Transport, grid_now, grid_wait, has_clock
from offbeat.flower.strategy.needs import check_plain
from offbeat.flower.strategy.records import Aggregate, FlowerRecords, Metrics, ModelArrays, as_records
from offbeat.flower.strategy.run import (
    ConnectedNodes,
    Evaluators,
    NodeEvaluation,
    ServerEvaluation,
    StrategyRun,
    VersionReport,
)
from offbeat.flower.strategy.settings import StrategySettings
from offbeat.results.checkpoint import load_checkpoint, save_checkpoint
from offbeat.results.metric import TargetMetric
from offbeat.results.rows import Row
from offbeat.results.tracking import check_trackers
from offbeat.running.directory import RunDirectory, RunRecord
from offbeat.running.loop import RunDescription, run_to_end
from offbeat.running.vector_file import VectorFile
from offbeat.trust.privacy import Privacy
from offbeat.trust.settings import COMBINERS, TrustTable
from offbeat.trust.trusted import TrustedRule

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
TrustedFunction = Callable[[int, ArrayRecord], ArrayRecord]
OnVersion = Callable[[int, ArrayRecord, dict[str, MetricRecord]], bool | None]
WAIT_SECONDS = 1.0
"""Seconds between two checks of the number of nodes before a run begins."""
TRIAL_DEVICES = (8, 64, 512, 4096)
"""Numbers of devices for the dry run of a policy while the real number is unknown."""
ROUNDS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
"""The methods that Flower's strategies call in a round."""
WORK = LocalWork(epochs=1)
"""The content of an order, which is not sent: a stock client app has its own training settings."""


def write_log(what: str) -> None:
    """Write a line into Flower's log."""
    log(INFO, "offbeat: %s", what)


class Async(Strategy):
    """An algorithm of offbeat as a Flower strategy: `Async(FedBuff(buffer=10))` instead of `FedAvg()` in a ServerApp.

    `StrategySettings` describes the settings; those that Flower's FedAvg has mean the same.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregate | None = None,
        evaluate_metrics_aggr_fn: Aggregate | None = None,
        train_action: str = "",
        evaluate_action: str = "",
        evaluate_every: int = 1,
        seconds: float | None = None,
        updates: int | None = None,
        target: float | None = None,
        target_metric: str = "accuracy",
        target_direction: Literal["max", "min"] = "max",
        devices: int | None = None,
        on_version: OnVersion | None = None,
        privacy: Mapping[str, Any] = MappingProxyType({}),
        epsilon: float | None = None,
        selection: str | Mapping[str, Any] | Selector | type[Selector] = "uniform",
        loss_key: str = "train_loss",
        seed: int = 0,
        rest_seconds: float = 5.0,
        norm_bound: float | None = None,
        norm_factor: float = 20.0,
        trust: Mapping[str, Any] = MappingProxyType({}),
        trusted_fn: TrustedFunction | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        overwrite: bool = False,
        checkpoint_seconds: float = 30.0,
        tracking: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """InvalidInput if the policy does not work with stock client apps.

        `on_version(version, arrays, metrics)` is called with every new version: its arrays, and its metrics by source,
        `metrics["train"]` of the updates used for it and `metrics["server"]` of `evaluate_fn`, as far as there are any.
        The run stops if it returns True.

        `trusted_fn(version, arrays)` returns the arrays after training a version on the server's own samples, as a
        client would: the update that the rules "aflguard" and "zeno++" of `trust` compare others with.
        """
        given = {name: value for name, value in locals().items() if name in StrategySettings.model_fields}
        given["tracking"], given["trust"] = dict(tracking), dict(trust)
        given["privacy"] = checked(Privacy, "privacy", dict(privacy))
        given["selection"] = as_table("selection", selection)
        self.settings: StrategySettings = checked(StrategySettings, "Async", given)
        check_trackers(self.settings.tracking, directory=None if out is None else Path(out))
        self.policy = _checked_policy(policy)
        self.settings.check_selection(self.policy)
        self.settings.check_privacy(self.policy)
        self.settings.trust.check(
            self.policy,
            type(self.policy).__name__,
            privacy=self.settings.privacy.protected,
            selector=self.settings.selection.selector,
        )
        _check_trusted(self.settings.trust, trust, trusted_fn)
        self._trusted = trusted_fn
        self._on_version = on_version
        self._versions = 0
        self._train_aggregate = train_metrics_aggr_fn or aggregate_metricrecords
        self._evaluate_aggregate = evaluate_metrics_aggr_fn or aggregate_metricrecords

    def summary(self) -> None:
        """Write the policy and its settings into Flower's log."""
        given = self.policy.model_dump(exclude_unset=True)
        write_log(f"{type(self.policy).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})")

    # A run --------------------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Train `num_rounds` versions of the model, unless another limit stops the run before.

        `timeout` is the reply timeout in seconds; a node that misses it counts as unavailable until it replies.
        `evaluate_fn` is called with the number of a version and its arrays: at the start (0), every `evaluate_every`
        versions, and at the end.
        """
        settings, model = self.settings, ModelArrays(initial_arrays)
        self._check_start(num_rounds, timeout, evaluate_fn)
        self.summary()
        out = None if settings.out is None else Path(settings.out)
        devices = self._devices(grid, out)
        policy = settings.sized(self.policy, devices)
        check_plain(policy, devices)
        settings.check_privacy(policy, model.counts)
        table = self._table(policy, devices, model, num_rounds, timeout)
        directory = (
            None if out is None else RunDirectory(out, table, overwrite=settings.overwrite, resume=settings.resume)
        )
        if directory is not None and directory.finished() is not None:
            write_log(f"the run in {out} is already finished")
            return load_result(directory.path, directory.fingerprint)
        self._versions, began = num_rounds, grid_now(grid)
        records = self._records(model, train_config, evaluate_config)
        self._arrays = records.arrays
        driver = self._driver(grid, policy, devices, records, num_rounds, timeout, evaluate_fn)
        self._run(driver, table, directory)
        result = Result(
            arrays=records.arrays(driver.session.parameters),
            train_metrics_clientapp=as_records(records.metrics()),
            evaluate_metrics_clientapp=as_records(driver.evaluation.metrics),
            evaluate_metrics_serverapp=as_records(driver.server_evaluation.metrics),
        )
        if directory is not None:
            save_result(directory.path, result, directory.fingerprint)
        log(INFO, "")
        log(INFO, "Strategy execution finished in %.2fs", grid_now(grid) - began)
        log(INFO, "")
        log(INFO, "Final results:")
        for line in str(result).splitlines():
            log(INFO, "\t%s", line)
        return result

    # What happens during a run ----------------------------------------------------------------------------------------

    def evaluated(self, version: int, metrics: Metrics) -> bool | None:
        """Called with the aggregated metrics of a version when its nodes have evaluated it; True stops the run."""

    def made(self, report: VersionReport, parameters: Vector) -> bool:
        """Log a new version that is evaluated, as Flower logs a round, and call `on_version`."""
        if (row := report.row) and report.version:
            log(INFO, "")
            log(INFO, "[VERSION %s/%s] at %.1f s", report.version, self._versions, row["time"])
            counts = (row["updates_used"], row["mean_staleness"], row["max_staleness"], row["in_flight"])
            log(INFO, "\t%d updates used, staleness %.2g on average and %d at most, %d in flight", *counts)
            if report.train is not None:
                log(INFO, "\t└──> Aggregated MetricRecord: %s", report.train)
        if report.server is not None:
            log(INFO, "Global evaluation")
            log(INFO, "\t└──> MetricRecord: %s", report.server)
        if self._on_version is None or not report.version:
            return False
        known = {"train": report.train, "server": report.server}
        metrics = {source: MetricRecord(found) for source, found in known.items() if found is not None}
        return self._on_version(report.version, self._arrays(parameters), metrics) is True

    def measured(self, report: VersionReport) -> bool:
        """Log the evaluation of a version by nodes, and call `evaluated`."""
        if report.clients is None:
            return False
        nodes, samples = len(report.evaluators), sum(report.evaluators.values())
        log(INFO, "Evaluation of version %s by %d nodes with %d samples", report.version, nodes, samples)
        log(INFO, "\t└──> Aggregated MetricRecord: %s", report.clients)
        return self.evaluated(report.version, report.clients) is True

    def resolved(self, message: str, used: bool, version: int) -> None:
        """Called with the id of a message when the update in its reply was used for a version, or given up."""

    def _records(
        self, model: ModelArrays, train_config: ConfigRecord | None, evaluate_config: ConfigRecord | None
    ) -> FlowerRecords:
        return FlowerRecords(
            model,
            self.settings.keys,
            train_config=train_config or ConfigRecord(),
            evaluate_config=evaluate_config or ConfigRecord(),
            aggregate=self._train_aggregate,
            log=write_log,
            on_resolved=self.resolved,
        )

    def _check_start(self, num_rounds: int, timeout: float, evaluate_fn: EvaluateFunction | None) -> None:
        own = [name for name in ROUNDS if getattr(type(self), name) is not getattr(Async, name)]
        if own:
            raise InvalidInput(
                f"{type(self).__name__} overrides {', '.join(own)}, which Async never calls: it has no rounds. Clients "
                "find the version in config['server-round'], and evaluate_fn gets every evaluated model"
            )
        if num_rounds < 1:
            raise InvalidInput(f"num_rounds = {num_rounds}: the number of versions must be at least 1")
        if not 0 < timeout < inf:
            raise InvalidInput(f"timeout = {timeout}: it must be a finite number of seconds above 0")
        if self.settings.target is not None and evaluate_fn is None:
            raise InvalidInput(
                f"target = {self.settings.target}: pass an evaluate_fn that measures {self.settings.target_metric!r}"
            )

    def _devices(self, grid: Grid, out: Path | None) -> int:
        """Wait for enough nodes; return the number of devices of the run."""
        wanted, said = self.settings.min_available_nodes, -1
        while (there := len(list(grid.get_node_ids()))) < wanted:
            if there != said:
                write_log(f"waiting for nodes: {there} of {wanted} are connected")
                said = there
            grid_wait(grid, WAIT_SECONDS)
        if self.settings.devices is not None:
            return self.settings.devices
        return (self._devices_before(out) if out is not None and self.settings.resume else None) or there

    def _devices_before(self, out: Path) -> int | None:
        """The number of devices of the run to resume."""
        try:
            return int(tomllib.loads((out / "config.toml").read_text(encoding="utf-8"))["flower"]["devices"])
        except (OSError, ValueError, KeyError):
            return None

    def _table(self, policy: Policy, devices: int, model: ModelArrays, versions: int, timeout: float) -> dict[str, Any]:
        """The content of `config.toml`, which must be the same when the run is resumed."""
        selection, privacy = self.settings.selection.resolved(), self.settings.privacy.resolved()
        trust = self.settings.trust.written()
        trust.pop("trusted_samples", None)  # unknown: those of `trusted_fn`
        return {
            "seed": self.settings.seed,
            "algorithm": {"name": name_of("algorithm", type(policy))} | policy.model_dump(exclude_none=True),
            **({"selection": selection} if selection else {}),
            **({"privacy": privacy} if privacy else {}),
            **({"trust": trust} if trust else {}),
            "evaluation": {"targets": [], "every_versions": self.settings.evaluate_every},
            "flower": self.settings.table()
            | {"devices": devices, "num_rounds": versions, "timeout": timeout, "model": model.digest},
        }

    def _driver(
        self,
        grid: Grid,
        policy: Policy,
        devices: int,
        records: FlowerRecords,
        versions: int,
        timeout: float,
        evaluate_fn: EvaluateFunction | None,
    ) -> StrategyRun:
        settings, model = self.settings, records.model
        clock: dict[str, Any] = {"clock": partial(grid_now, grid), "sleep": partial(grid_wait, grid)}
        stop, deployment = settings.stop(versions), settings.deployment(timeout)
        transport = Transport(grid, write_log, records)
        membership = ConnectedNodes(devices, model=model.parameters, batch_size=None, answer_seconds=timeout)
        connected = min(devices, len(transport.nodes()))
        wait_for_devices(membership, transport, wanted=connected, seconds=inf, log=lambda _: None, **clock)
        in_training = in_training_setting(policy)
        chosen = f", {in_training} = {getattr(policy, in_training)}" if in_training else ""
        write_log(f"beginning with {connected} of {devices} devices{chosen}")
        session = Session(
            policy,
            store=VectorFile(None if settings.out is None else Path(settings.out)),
            parameters=model.parameters,
            layout=model.layout,
            samples=membership.samples.copy(),  # 1 each: the real numbers are known only from replies
            local=WORK,
            seed=settings.seed,
            present=membership.present,
            horizon=stop.horizon,
            selector=settings.selection.selector,
            limits=settings.privacy.limits(policy, settings.epsilon),
            combiner=settings.privacy.combiner(policy, secret=not has_clock(grid)) or settings.trust.combiner,
            screen=settings.trust.screen,
            sums_only=settings.trust.sums_only,
            trusted=None if self._trusted is None else users_movement(self._trusted, records),
        )
        evaluators = Evaluators(
            share=settings.fraction_evaluate,
            least=settings.min_evaluate_nodes,
            seconds=timeout,
            weight=settings.weighted_by_key,
            aggregate=self._evaluate_aggregate,
        )
        on_server = ServerEvaluation(
            evaluate_fn, session, records, None if stop.target is None else settings.target_metric
        )
        return StrategyRun(
            session,
            transport,
            membership,
            on_server,
            evaluation=NodeEvaluation(Transport(grid, write_log, records), evaluators, settings.seed, write_log),
            seed=settings.seed,
            stop=stop,
            schedule=EvaluationTable(every_versions=settings.evaluate_every),
            metric=TargetMetric(settings.target_metric, settings.target_direction),
            record=RunRecord(None if settings.out is None else Path(settings.out) / "record.jsonl"),
            log=write_log,
            settings=deployment,
            wakes=has_clock(grid),
            translator=records,
            hooks=self,
            **clock,
        )

    def _run(self, driver: StrategyRun, table: dict[str, Any], directory: RunDirectory | None) -> None:
        settings, name = self.settings, table["algorithm"]["name"]
        about = RunDescription(
            algorithm=name,
            label=type(self.policy).__name__ if ":" in name else name,
            seed=settings.seed,
            targets=[] if settings.target is None else [settings.target],
            metric=TargetMetric(settings.target_metric, settings.target_direction),
            checkpoint_seconds=settings.checkpoint_seconds,
            save_model=True,
            tracking=settings.tracking,
        )

        def watch(progress: float, row: Row | None) -> None:
            if row is not None and directory is not None:
                directory.write_devices(driver)

        if directory is not None:
            directory.path.mkdir(parents=True, exist_ok=True)
        with closing(driver.record):
            result = run_to_end(driver, about, directory, watch=watch)
        write_log(f"stopped by {result.summary['stopped_by']} at version {driver.session.version}")

    # Rounds: there are none ------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise InvalidInput: there are no rounds."""
        raise _no_rounds()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raise InvalidInput: there are no rounds."""
        raise _no_rounds()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise InvalidInput: there are no rounds."""
        raise _no_rounds()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Raise InvalidInput: there are no rounds."""
        raise _no_rounds()

    def initialize_parameters(self, client_manager: Any) -> None:
        """Raise InvalidInput: only servers from before the message API call this."""
        raise InvalidInput(
            "Async needs a ServerApp with @app.main(): in a project with a server_fn, use "
            "ServerAppComponents(server=AsyncServer(policy, strategy), config=config)"
        )


def _checked_policy(policy: Any) -> Policy:
    """The policy, checked as far as possible while the number of devices is unknown."""
    if not isinstance(policy, Policy):
        raise InvalidInput(f"Async({policy!r}): pass an algorithm of offbeat, such as Async(FedBuff(buffer=10))")
    for devices in TRIAL_DEVICES:
        try:
            policy.check(devices)
        except InvalidInput:  # it needs another number of devices: checked again at the start
            continue
        check_plain(policy, devices)
        break
    return policy


def _check_trusted(trust: TrustTable, given: Mapping[str, Any], function: TrustedFunction | None) -> None:
    """Raise InvalidInput if the rule needs trusted training and there is none, or the other way round."""
    if "trusted_samples" in given:
        raise InvalidInput("trust.trusted_samples: the samples are those that trusted_fn trains on, leave it out")
    if trust.trusted_samples and function is None:
        raise InvalidInput(
            f"trust.combine = {trust.combine!r}: pass trusted_fn, a function that trains a version on samples of the "
            "server and returns its arrays"
        )
    if function is not None and not trust.trusted_samples:
        others = " and ".join(repr(name) for name, kind in COMBINERS.items() if issubclass(kind, TrustedRule))
        raise InvalidInput(f"trusted_fn: trust.combine = {trust.combine!r} does not use it, only {others} do")


def users_movement(function: TrustedFunction, records: FlowerRecords) -> Callable[[Vector, int], Vector]:
    """The movement that the user's function gives a version; InvalidInput if its arrays are not those of the model."""

    def movement(parameters: Vector, version: int) -> Vector:
        found = function(version, records.arrays(parameters))
        if not isinstance(found, ArrayRecord):
            raise InvalidInput(f"trusted_fn returned a {type(found).__name__}: it must return an ArrayRecord")
        try:
            trained, _ = records.model.read(found)
        except DeviceFault as fault:
            raise InvalidInput(f"trusted_fn, version {version}: {fault}") from None
        return trained - parameters

    return movement


def _no_rounds() -> InvalidInput:
    return InvalidInput("Async has no rounds and cannot be wrapped in another strategy: call its start()")


# Results --------------------------------------------------------------------------------------------------------------


RESULT_FILE = "result.safetensors"
METRICS = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")


def save_result(directory: Path, result: Result, fingerprint: str) -> None:
    """Write the arrays in their own types, and all metrics, for a later start of the same run."""
    state: dict[str, Any] = {"arrays": {name: array.numpy() for name, array in result.arrays.items()}}
    for kind in METRICS:
        state[kind] = {version: dict(record) for version, record in getattr(result, kind).items()}
    save_checkpoint(directory / RESULT_FILE, state, fingerprint)


def load_result(directory: Path, fingerprint: str) -> Result:
    """The result that `save_result` wrote."""
    if not (directory / RESULT_FILE).is_file():
        raise InvalidInput(
            f"{directory} holds a finished run without {RESULT_FILE}: pass overwrite=True to run it again"
        )
    saved = load_checkpoint(directory / RESULT_FILE, fingerprint, ())
    arrays = ArrayRecord({name: Array(array) for name, array in saved["arrays"].items()})
    return Result(arrays=arrays, **{kind: as_records(saved[kind]) for kind in METRICS})
