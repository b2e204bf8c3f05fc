"""A run that is stopped after any event and resumed from its snapshot goes on as if it had never stopped."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.core.messages import (
    Action,
    Commit,
    Discard,
    Dispatch,
    Event,
    FreshRequested,
    SendFresh,
    SetTimer,
    Started,
    StopSoon,
    TimerFired,
    Uploaded,
)
from offbeat.core.orders import LocalWork, Order, Progress, Update
from offbeat.core.parameters import Layout, Vector
from offbeat.core.policy import Ask, DeviceRule, Fresh, Memory, Policy, Probe, ReadOnlyMemory, Step, Train, View
from offbeat.core.session import Session
from offbeat.core.snapshot import decode, encode
from offbeat.core.streams import stream
from offbeat.experiment.run_settings import EvaluationTable, Stop
from offbeat.fleet import FailureSettings, Fleet, NetworkSettings, OnOffAvailable, RatioFleet, Workload
from offbeat.results.rows import Row
from offbeat.simulation.engine import Simulation
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState

DEVICES = 6


class NoisyExecutor:
    """Every slice moves the model by noise that belongs to its ticket and slice, and pulls it towards its device."""

    batch_capacity = 64

    def __init__(self) -> None:
        self.most_at_once = 0

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        self.most_at_once = max(self.most_at_once, len(jobs))
        return [self._train(job) for job in jobs]

    def _train(self, job: TrainingJob) -> TrainingState:
        parameters = job.state.parameters
        for number in range(job.first, job.last):
            noise = stream(0, "noise", job.ticket, number).standard_normal(2, dtype=np.float32)
            parameters = parameters + np.float32(0.1) * (np.float32(job.device) - parameters + noise)
        return TrainingState(parameters=parameters, seen=job.last, loss_sum=1.0)

    def evaluate(self, parameters: Vector) -> Evaluation:
        return Evaluation(metrics={"accuracy": float(parameters[0]), "loss": float(parameters[1])})

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        return float(parameters.sum()), parameters

    def close(self) -> None:
        """Nothing is open."""


class Wanders(DeviceRule):
    """Asks one slice later in every run of a device, and merges by a weight that the device adapts."""

    remembers = True

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        runs = memory.get("runs", 0)
        assert isinstance(runs, int)
        slot = (runs + 1) % order.slices
        if fresh_answers:
            return super().next(progress, fresh_answers, order, memory)
        return Train(slot - progress.slices) if progress.slices < slot else Ask()

    def merge(self, local: Vector, fresh: Fresh, base: int, order: Order, memory: Memory, probe: Probe) -> Vector:
        runs, direction = memory.get("runs", 0), memory.get("direction", np.zeros(2, dtype=np.float32))
        assert isinstance(runs, int)
        assert isinstance(direction, np.ndarray)
        loss, gradient = probe(local)
        memory["runs"] = runs + 1
        memory["direction"] = direction + np.float32(0.01 * loss) * gradient
        return (local + fresh.parameters) / np.float32(2) + direction


WANDERS = Wanders()


@dataclass
class Shelf:
    updates: list[Update] = field(default_factory=list)
    recent: dict[int, Vector] = field(default_factory=dict)


class Eager(Policy):
    """Answers every request, and mixes every upload with the last model of the same device."""

    State = Shelf

    def react(self, event: Event, state: Shelf, view: View) -> Iterator[Action]:
        match event:
            case FreshRequested(device=device):
                yield SendFresh(device=device)
            case Uploaded(device=device, update=update):
                mixed = (view.parameters + update.parameters + state.recent.get(device, update.parameters)) / 3
                state.recent[device] = update.parameters
                yield Commit(parameters=mixed.astype(np.float32), used=(update.ticket,))
        for device in view.pick(3 - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order(rule=f"{__name__}:WANDERS"))


class Hurrying(Policy):
    """Collects for a second at a time, hurries those who are two versions behind, gives up what is staler than that."""

    State = Shelf

    def react(self, event: Event, state: Shelf, view: View) -> Iterator[Action]:
        match event:
            case Started():
                yield SetTimer(name="collect", after=1.0)
            case Uploaded(update=update) if view.version - update.base > 2:
                yield Discard(ticket=update.ticket, reason="too stale")
            case Uploaded(update=update):
                state.updates.append(update)
            case TimerFired():
                yield SetTimer(name="collect", after=1.0)
                if state.updates:
                    step = sum(update.delta for update in state.updates) / np.float32(len(state.updates))
                    tickets = tuple(update.ticket for update in state.updates)
                    yield Commit(parameters=view.parameters + step, used=tickets)
                    state.updates = []
                for flight in list(view.in_flight.values()):
                    if view.version - flight.base >= 2 and not flight.notified:
                        yield StopSoon(device=flight.device)
        for device in view.pick(4 - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order(budget=4.0))


POLICIES = [
    FedAvg(cohort=3),
    FedAsync(concurrency=3, max_staleness=2),
    FedBuff(buffer=3, concurrency=4),
    Eager(),
    Hurrying(),
]


def simulation(policy: Policy, rough: bool) -> Simulation:
    samples = np.arange(1, DEVICES + 1, dtype=np.int64)
    workload = Workload(devices=DEVICES, samples=samples, layers=1, flops_per_sample=0.0, seed=3)
    fleet = Fleet.build(
        workload,
        RatioFleet(epoch_seconds=0.5, ratio=5.0),
        NetworkSettings(uplink_mbps=1e-3, downlink_mbps=1e-3, latency=0.05),
        OnOffAvailable(on_seconds=9.0, off_seconds=3.0) if rough else None,
        FailureSettings(vanish=0.15, lost_upload=0.1, rejoin_seconds=2.0, detect_seconds=0.5) if rough else None,
    )
    session = Session(
        policy,
        parameters=np.zeros(2, dtype=np.float32),
        layout=Layout.flat(2),
        samples=samples,
        local=LocalWork(epochs=3, batch_size=2),
        seed=3,
        present=fleet.availability.present(0.0),
    )
    schedule = EvaluationTable(every_seconds=2.5, every_versions=3)
    return Simulation(session, fleet, NoisyExecutor(), stop=Stop(time=25.0), schedule=schedule)


def saved(sim: Simulation) -> tuple[str, dict[str, Any]]:
    """A snapshot as a checkpoint keeps it: text, and copies of arrays."""
    tree, arrays = encode(sim.snapshot())
    return json.dumps(tree), {name: array.copy() for name, array in arrays.items()}


def end_of(sim: Simulation) -> dict[str, Any]:
    return {
        "parameters": sim.session.parameters.tolist(),
        "counters": dataclasses.asdict(sim.session.counters),
        "seconds": (sim.accounts.busy_seconds, sim.accounts.wasted_seconds),
        "end": (sim.now, sim.reason),
        "journal": list(sim.session.journal.lines),
    }


@pytest.mark.parametrize("rough", [False, True], ids=["reliable", "rough"])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_a_run_resumed_after_any_event_goes_on_to_the_last_bit(policy: Policy, rough: bool) -> None:
    undisturbed = simulation(policy, rough)
    rows: list[Row] = [row for row in undisturbed if row is not None]
    watched = simulation(policy, rough)
    snapshots = [(0, saved(watched))]
    seen = 0
    for row in watched:
        seen += row is not None
        snapshots.append((seen, saved(watched)))
    assert end_of(watched) == end_of(undisturbed), "taking snapshots changes nothing"
    for rows_before, (tree, arrays) in snapshots:
        resumed = simulation(policy, rough)
        resumed.restore(decode(json.loads(tree), arrays, resumed.snapshot_types))
        assert [row for row in resumed if row is not None] == rows[rows_before:]
        assert end_of(resumed) == end_of(undisturbed)
    counters = undisturbed.session.counters
    assert len(snapshots) > 20
    assert counters.used > 3
    assert (counters.lost > 2) == rough


def test_these_runs_ask_hurry_discard_and_compute_together() -> None:
    runs = {type(policy).__name__: simulation(policy, rough=False) for policy in POLICIES}
    for sim in runs.values():
        list(sim)
        assert isinstance(sim.executor, NoisyExecutor)
        assert sim.executor.most_at_once > 1, "several are computed in one batch"
    assert runs["Eager"].session.counters.answered > 5
    assert runs["Hurrying"].session.counters.notices > 2
    assert runs["FedAsync"].session.counters.discarded > 0


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_the_same_experiment_gives_the_same_run(policy: Policy) -> None:
    first, second = (simulation(policy, rough=True) for _ in range(2))
    assert list(first) == list(second)
    assert end_of(first) == end_of(second)
