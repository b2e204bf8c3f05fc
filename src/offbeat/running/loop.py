"""The loop around a driver, simulated or real: writes results and checkpoints, and stops on signals between turns."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from math import inf

from offbeat.algorithms.sizes import sizes_of
from offbeat.core.errors import Disconnected, DiskFull, Diverged, Interrupted, WorkersLost
from offbeat.core.parameters import Vector
from offbeat.core.session import Session
from offbeat.experiment.run_settings import TrackingTable
from offbeat.experiment.schema import Experiment
from offbeat.results.fleet_facts import FleetFacts
from offbeat.results.metric import TargetMetric, summarise
from offbeat.results.result import Result, tensors_of
from offbeat.results.rows import RUN_COLUMNS, Row
from offbeat.results.tracking import TrackedRun, Tracking
from offbeat.running.accounts import influence, influence_summary
from offbeat.running.device_metrics import DeviceMetrics
from offbeat.running.directory import Beginning, RunDirectory
from offbeat.running.driver import Driver, OnProgress, progress_of
from offbeat.running.interruption import Flag, interruption
from offbeat.running.problems import DIVERGED, problem_of
from offbeat.training.torch_device import processor_kind

log = logging.getLogger("offbeat")


class ProcessorKinds:
    """The kinds of processors that computed a run; warns of a second one, because the last bits may then differ."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.known = set(known)

    def note(self, kinds: Iterable[str]) -> None:
        """Add these kinds; logs a warning if the run had others before."""
        for kind in sorted(set(kinds) - self.known):
            if self.known:
                before = " and ".join(sorted(self.known))
                log.warning(
                    "offbeat: note: this run was computed on %s and continues on %s: the last bits of its results may "
                    "differ from those of a run on one kind of processor",
                    before,
                    kind,
                )
            self.known.add(kind)


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """What the loop needs to know about a run in addition to its driver."""

    algorithm: str
    label: str
    seed: int
    targets: Sequence[float]
    metric: TargetMetric
    checkpoint_seconds: float
    save_model: bool
    checkpoint_first: bool = False
    """Whether the run starts with a checkpoint, because remote workers may be lost early."""
    watts: float | None = None
    """Power of a device in training (`fleet.watts`)."""
    price_per_gb: float | None = None
    """Price of a gigabyte sent or received (`network.price_per_gb`)."""
    tracking: TrackingTable = field(default_factory=TrackingTable)
    experiment: Experiment | None = None
    """None if the run has no experiment (a Flower strategy)."""

    @classmethod
    def of(cls, experiment: Experiment) -> "RunDescription":
        """Describe the run of an experiment."""
        return cls(
            algorithm=experiment.algorithm.name,
            label=experiment.algorithm.title,
            seed=experiment.seed,
            targets=TargetMetric.of_experiment(experiment).targets(experiment.evaluation.targets),
            metric=TargetMetric.of_experiment(experiment),
            checkpoint_seconds=experiment.execution.checkpoint_seconds,
            save_model=experiment.execution.save_model,
            checkpoint_first=experiment.execution.executor == "ray",
            watts=experiment.fleet.settings.watts,
            price_per_gb=experiment.network.price_per_gb,
            tracking=experiment.tracking,
            experiment=experiment,
        )

    def costs(self, row: Row) -> Row:
        """The energy and the price of a run until this row, where the experiment says what they depend on."""
        energy = {} if self.watts is None else {"energy_wh": row["busy_seconds"] * self.watts / 3600}
        if self.price_per_gb is None:
            return energy
        return energy | {"traffic_cost": (row["bytes_up"] + row["bytes_down"]) / 1e9 * self.price_per_gb}


def run_to_end(
    driver: Driver,
    run: Experiment | RunDescription,
    directory: RunDirectory | None,
    *,
    watch: OnProgress | None = None,
    interrupted: Flag | None = None,
    processors: Callable[[], Iterable[str]] = lambda: [processor_kind()],
    fleet: Callable[[], FleetFacts] | None = None,
    per_device: Callable[[Vector], DeviceMetrics] | None = None,
) -> Result:
    """Run a driver to its end, from the directory's checkpoint if there is one.

    `processors` returns the kinds of processors that have computed the run so far; `fleet` returns what is known of
    the devices in advance, for reports; `per_device` evaluates the final model for each device.
    """
    about = RunDescription.of(run) if isinstance(run, Experiment) else run
    with (
        closing(directory) if directory is not None else nullcontext(),
        interruption(interrupted) as asked,
        Tracking(about.tracking, _tracked(about, driver, directory)) as tracking,
    ):
        began = directory.open(driver) if directory is not None else Beginning()
        tracking.start()
        rows, spent, in_flight_seconds = began.rows, began.wall_seconds, began.in_flight_seconds
        facts = FleetFacts() if fleet is None else fleet()
        if directory is not None and fleet is not None and not rows:
            directory.write_fleet(facts)
        kinds = ProcessorKinds(began.processors)
        kinds.note(processors())
        started = saved = time.monotonic()
        if about.checkpoint_first:
            saved = -inf
        reason, session = None, driver.session
        before, in_flight = driver.now, len(session.in_flight)
        try:
            for row in driver:
                in_flight_seconds += in_flight * (driver.now - before)
                before, in_flight = driver.now, len(session.in_flight)
                if row is not None:
                    row |= about.costs(row)
                    rows.append(row)
                    tracking.row(row)
                spans, closed = driver.accounts.take_spans(), driver.accounts.take_closed()
                now = time.monotonic()
                if directory is not None:
                    directory.write(row, spans, closed, spent + now - started)
                if watch is not None:
                    watch(progress_of(driver), row)
                due = now - saved > about.checkpoint_seconds and driver.reason is None  # a longer run could not use it
                if directory is not None and (asked.is_set() or driver.unsaved or (due and not directory.is_saving)):
                    kinds.note(processors())
                    directory.checkpoint(driver, spent + now - started, in_flight_seconds, kinds.known)
                    saved = now
                    if driver.unsaved:
                        directory.wait_until_saved()
                if asked.is_set():
                    raise _interrupted(directory, number=getattr(asked, "number", 2))
        except Diverged as error:
            reason = f"{DIVERGED}{error}"
            in_flight_seconds += in_flight * (driver.now - before)
            rows.append(driver.evaluate())
            rows[-1] |= about.costs(rows[-1])
            tracking.row(rows[-1])
            if directory is not None:
                wall = spent + time.monotonic() - started
                directory.write(rows[-1], driver.accounts.take_spans(), driver.accounts.take_closed(), wall)
        except Disconnected as error:
            if directory is not None:
                error.resumable = True
                wall = spent + time.monotonic() - started
                directory.write(None, driver.accounts.take_spans(), driver.accounts.take_closed(), wall)
                directory.checkpoint(driver, wall, in_flight_seconds, kinds.known)
            raise
        except DiskFull as error:
            error.resumable = directory is not None
            raise
        except WorkersLost as error:  # in the middle of an event: only the last checkpoint is consistent
            if directory is None:
                raise
            kept = f"everything up to the last checkpoint is in {directory.path}"
            raise WorkersLost(f"{error} ({kept})", resumable=True) from None
        summary = summarise(
            rows,
            algorithm=about.algorithm,
            label=about.label,
            seed=about.seed,
            targets=about.targets,
            reason=reason or driver.reason or "",
            wall_seconds=spent + time.monotonic() - started,
            metric=about.metric,
            metrics=_metrics_in(rows[-1], session),
            in_training=in_flight_seconds / driver.now if driver.now else 0.0,
        )
        summary |= sizes_of(session.policy)
        if session.participation is not None:
            summary["privacy"] = session.participation.summary()
        problem = problem_of(session, rows, summary["stopped_by"])
        if problem is not None:
            summary["problem"] = problem
        kinds.note(processors())
        summary["processors"] = sorted(kinds.known)
        if refused := driver.accounts.refused_devices():
            summary["refused_devices"] = refused
        parameters, layout = session.parameters, session.layout
        measured = None if per_device is None else per_device(parameters)
        if measured is not None:
            summary |= measured.summary
        if driver.accounts.per_device:
            table = driver.accounts.table(driver.open_spans(), driver.now)
            shares = session.influence_columns.get("influence", influence(table))
            summary["influence"] = influence_summary(table, shares, facts.pace)
        if directory is not None:
            directory.write_devices(driver, measured)
            directory.finish(parameters if about.save_model else None, layout, summary)
        tracking.finish(summary)
    return Result(
        experiment=about.experiment,
        rows=rows,
        summary=summary,
        tensors=tensors_of(parameters, layout),
        directory=directory.path if directory is not None else None,
    )


def _tracked(about: RunDescription, driver: Driver, directory: RunDirectory | None) -> TrackedRun:
    """The run as its trackers see it; values between evaluations are read by the thread that shows them."""
    session = driver.session
    return TrackedRun(
        name=directory.path.name if directory is not None else f"{about.label}-seed{about.seed}",
        settings=directory.table if directory is not None else about.experiment.table() if about.experiment else {},
        directory=None if directory is None else directory.path,
        live={
            "time": lambda: driver.now,
            "version": lambda: session.version,
            "in_flight": lambda: len(session.in_flight),
            "updates_used": lambda: session.counters.used,
            "updates_discarded": lambda: session.counters.discarded,
            "updates_lost": lambda: session.counters.lost,
        },
    )


def _metrics_in(row: Row, session: Session) -> list[str]:
    """The task's metrics in a row: what is neither a column of every run nor one of the policy's own."""
    own = session.own_metrics()
    return [name for name in row if name not in RUN_COLUMNS and name not in own]


def _interrupted(directory: RunDirectory | None, *, number: int) -> Interrupted:
    if directory is None:
        return Interrupted("interrupted; nothing was kept, because the run has no directory", number=number)
    return Interrupted(f"interrupted; everything so far is in {directory.path}", number=number, resumable=True)
