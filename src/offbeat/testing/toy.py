"""A toy model on a fleet with failures: complete simulations of a policy in milliseconds, without torch."""

from collections.abc import Sequence

import numpy as np

from offbeat.core.combining import Combiner, Screen
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.core.policy import Policy
from offbeat.core.selection import Selector
from offbeat.core.session import Session
from offbeat.core.streams import stream
from offbeat.experiment.run_settings import EvaluationTable, Stop
from offbeat.fleet import (
    AvailabilitySettings,
    FailureSettings,
    Fleet,
    FleetSettings,
    NetworkSettings,
    OnOffAvailable,
    RatioFleet,
    Workload,
)
from offbeat.simulation.engine import Simulation
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState

SIZE = 6
"""Elements of the toy model."""
UPDATES = 80
"""Default number of updates of a toy simulation."""


class ToyExecutor:
    """Trains without torch: the first step of each slice moves the model towards the device's own target."""

    batch_capacity = 8

    def __init__(self, seed: int = 0, size: int = SIZE) -> None:
        self.seed = seed
        self.size = size
        self.given: list[tuple[Vector, bytes]] = []
        """Every vector that was handed out, with its bytes at that time."""

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Train each job for its slices."""
        return [self._train(job) for job in jobs]

    def _train(self, job: TrainingJob) -> TrainingState:
        target = stream(self.seed, "target", job.device).normal(size=self.size).astype(np.float32)
        parameters: Vector = job.state.parameters
        begun = bool(job.state.steps_into_slice)
        for k in range(job.first + begun, job.first + job.slices):
            noise = stream(self.seed, "noise", job.device, job.ticket, k).normal(size=self.size).astype(np.float32)
            rate = np.float32(job.order.learning_rate)
            parameters = np.add(parameters, rate * (target - parameters + np.float32(0.1) * noise), dtype=np.float32)
        parameters = frozen(parameters)
        self.given.append((parameters, parameters.tobytes()))
        steps, seen = (count + job.slices - begun for count in (job.state.steps, job.state.seen))
        loss = float(np.abs(target - parameters).sum())  # of every sample
        return TrainingState(
            parameters=parameters,
            steps=int(steps),
            steps_into_slice=job.extra_steps,
            loss_sum=loss * seen,
            squared_sum=loss * loss * seen,
            seen=seen,
        )

    def evaluate(self, parameters: Vector) -> Evaluation:
        """Use the distance from zero as the loss."""
        distance = float(np.linalg.norm(parameters))
        return Evaluation(metrics={"accuracy": 1 / (1 + distance), "loss": distance})

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        """Half the squared distance from the device's target, and its gradient."""
        target = stream(self.seed, "target", device).normal(size=self.size).astype(np.float32)
        return float(np.sum((parameters - target) ** 2) / 2), parameters - target

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def toy_simulation(
    policy: Policy,
    *,
    seed: int = 0,
    devices: int = 24,
    troubled: bool = True,
    stop: Stop | None = None,
    speeds: FleetSettings | None = None,
    network: NetworkSettings | None = None,
    availability: AvailabilitySettings | None = None,
    failures: FailureSettings | None = None,
    epochs: int = 3,
    combiner: Combiner | None = None,
    screen: Screen | None = None,
    sums_only: bool = False,
    selector: Selector | None = None,
) -> Simulation:
    """Simulate a policy on the toy model; with `troubled`, devices switch off, vanish, return and lose uploads.

    The fleet's parts can be replaced one by one.
    """
    samples = stream(seed, "samples").integers(5, 50, devices)
    workload = Workload(devices=devices, samples=samples, layers=1, flops_per_sample=0.0, seed=seed)
    if troubled:
        availability = availability or OnOffAvailable(on_seconds=60.0, off_seconds=20.0)
        failures = failures or FailureSettings(vanish=0.1, lost_upload=0.1, rejoin_seconds=15.0, detect_seconds=4.0)
    fleet = Fleet.build(
        workload,
        speeds or RatioFleet(ratio=8.0),
        network or NetworkSettings(uplink_mbps=0.01, downlink_mbps=0.1, latency=0.05),
        availability,
        failures,
    )
    session = Session(
        policy,
        parameters=np.zeros(SIZE, dtype=np.float32),
        layout=Layout.flat(SIZE),
        samples=samples,
        local=LocalWork(epochs=epochs, learning_rate=0.3),
        seed=seed,
        present=fleet.availability.present(0.0),
        forecast=fleet.forecast(Layout.flat(SIZE).bytes),
        horizon=1e5,
        combiner=combiner,
        screen=screen,
        sums_only=sums_only,
        selector=selector,
    )
    stop = stop or Stop(updates=UPDATES, time=1e5)
    return Simulation(session, fleet, ToyExecutor(seed), stop=stop, schedule=EvaluationTable(every_seconds=7.0))
