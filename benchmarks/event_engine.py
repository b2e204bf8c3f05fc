"""Speed and memory of the event engine with training switched off, beside SimPy in the same run.

    python benchmarks/event_engine.py [--repeats 5]

Kernel: 10,000 devices x 50 timeouts through our queue and through SimPy. Simulator: the same fleet under FedBuff,
beside a SimPy program that does the same job. There every device is a process that waits for its download, five epochs
and its upload; an event is one of these. The server draws a random idle device, buffers updates, makes a version of
every ten and counts bytes, staleness and busy seconds, as ours does. It has no legality checks, journal, plans or
checkpoints.

Both are measured twice: with FedBuff's aggregation of a model of four numbers (the same numpy code on both sides; on
ours an executor that trains nothing carries out the plans), and without, where neither side reads an update. Then 1,000
devices and a million. CPU time is compared, which depends less on other load; garbage is collected before each
measurement.
"""

import argparse
import gc
import random
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from heapq import heappop
from math import sqrt
from statistics import median
from typing import Any

import numpy as np
import psutil
import simpy

from offbeat.algorithms import FedBuff
from offbeat.core.combining import Movement
from offbeat.core.orders import LocalWork, Update
from offbeat.core.parameters import Layout, Vector
from offbeat.core.policy import View
from offbeat.core.session import Session
from offbeat.experiment.run_settings import Stop
from offbeat.fleet import Fleet, RatioFleet, Workload
from offbeat.simulation.engine import Simulation
from offbeat.simulation.lifecycle import EventQueue
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState

DEVICES, EVENTS, EPOCHS, BUFFER = 10_000, 50, 5, 10
EVENTS_PER_UPDATE = EPOCHS + 2
STILL = np.zeros(4, dtype=np.float32)
NO_MOVEMENT = np.zeros(4)


class NoArithmetic(FedBuff):
    """FedBuff that never reads an update: every version equals the one before."""

    def movement(self, updates: Sequence[Update], view: View) -> Movement:
        return NO_MOVEMENT.__getitem__


class NoTraining:
    """An executor that returns its input."""

    batch_capacity = 64

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        return [job.state for job in jobs]

    def evaluate(self, parameters: Vector) -> Evaluation:
        return Evaluation(metrics={"accuracy": 0.0, "loss": 0.0})

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        return 0.0, parameters

    def close(self) -> None:
        pass


def durations(devices: int) -> list[float]:
    return [float(each) for each in np.random.default_rng(0).uniform(1.0, 5.0, devices)]


def queue_kernel() -> float:
    """Events per second of our queue; an event schedules the next event of its device."""
    queue, times = EventQueue(), durations(DEVICES)
    remaining = [EVENTS] * DEVICES
    for device, seconds in enumerate(times):
        queue.push(seconds, "timeout", device)
    start = time.process_time()
    while queue.entries:
        now, _, _, _, device, _ = heappop(queue.entries)
        remaining[device] -= 1
        if remaining[device]:
            queue.push(now + times[device], "timeout", device)
    return DEVICES * EVENTS / (time.process_time() - start)


def simpy_kernel() -> float:
    environment = simpy.Environment()

    def device(seconds: float) -> Generator[Any, Any, None]:
        for _ in range(EVENTS):
            yield environment.timeout(seconds)

    for seconds in durations(DEVICES):
        environment.process(device(seconds))
    start = time.process_time()
    environment.run()
    return DEVICES * EVENTS / (time.process_time() - start)


def simulator(devices: int, concurrency: int, algorithm: type[FedBuff] = FedBuff) -> Simulation:
    samples = np.full(devices, 100)
    workload = Workload(devices=devices, samples=samples, layers=1, flops_per_sample=0.0, seed=0)
    session = Session(
        algorithm(buffer=BUFFER, concurrency=concurrency),
        parameters=STILL,
        layout=Layout.flat(4),
        samples=samples,
        local=LocalWork(epochs=EPOCHS),
    )
    fleet = Fleet.build(workload, RatioFleet(ratio=5.0))
    return Simulation(session, fleet, NoTraining(), stop=Stop(updates=10**9))


def seconds_per_update(simulation: Simulation, updates: int) -> float:
    gc.collect()
    start = time.process_time()
    for turn, _ in enumerate(simulation):
        simulation.spans.clear()
        if turn == updates:
            break
    return (time.process_time() - start) / updates


def simpy_seconds_per_update(devices: int, concurrency: int, updates: int, *, arithmetic: bool) -> float:
    """The same fleet and the same FedBuff in SimPy."""
    environment, draw, seconds = simpy.Environment(), random.Random(0), durations(devices)
    done = environment.event()
    arrived: Any = simpy.Store(environment)
    idle, version, parameters = list(range(devices)), 0, STILL
    buffer: list[tuple[int, Vector, Vector]] = []
    used = bytes_up = bytes_down = staleness_sum = staleness_max = 0
    busy_seconds = 0.0

    def device(number: int, base: int, model: Vector) -> Generator[Any, Any, None]:
        yield environment.timeout(0.05)
        for _ in range(EPOCHS):
            yield environment.timeout(seconds[number])
        yield environment.timeout(0.05)
        arrived.put((number, base, model, model))

    def dispatch() -> None:
        nonlocal bytes_down
        place = draw.randrange(len(idle))
        idle[place], idle[-1] = idle[-1], idle[place]
        bytes_down += parameters.nbytes
        environment.process(device(idle.pop(), version, parameters))

    def movement() -> Vector:
        weights = [1 / sqrt(1 + version - base) for base, _, _ in buffer]
        total = np.zeros(parameters.shape, dtype=np.float64)
        for weight, (_, model, trained) in zip(weights, buffer, strict=True):
            total += weight * (trained - model)
        return (1.0 / len(buffer) * total).astype(np.float32)

    def commit() -> None:
        nonlocal version, parameters, used, staleness_sum, staleness_max
        if arithmetic:
            parameters = parameters + movement()
            if not np.isfinite(parameters).all():
                raise ArithmeticError("diverged")
        for base, _, _ in buffer:
            staleness_sum += version - base
            staleness_max = max(staleness_max, version - base)
        used += len(buffer)
        version += 1
        buffer.clear()

    def server() -> Generator[Any, Any, None]:
        nonlocal bytes_up, busy_seconds
        for _ in range(concurrency):
            dispatch()
        for _ in range(updates):
            number, base, model, trained = yield arrived.get()
            idle.append(number)
            bytes_up += trained.nbytes
            busy_seconds += EPOCHS * seconds[number]
            buffer.append((base, model, trained))
            if len(buffer) == BUFFER:
                commit()
            dispatch()
        done.succeed()

    environment.process(server())
    gc.collect()
    start = time.process_time()
    environment.run(until=done)
    return (time.process_time() - start) / updates


def million() -> None:
    """Measure start-up time, memory and cost per event, in a process of its own."""
    start = time.perf_counter()
    simulation = simulator(1_000_000, 1_000)
    turns = iter(simulation)
    next(turns)
    started = time.perf_counter() - start
    cost = seconds_per_update(simulation, 20_000)
    memory = psutil.Process().memory_info().rss / 1e9
    print(f"{started} {memory} {cost}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--million", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.million:
        return million()
    kernels, simulators, bare, scales, large = [], [], [], [], []
    updates = DEVICES * EVENTS // EVENTS_PER_UPDATE
    for _ in range(options.repeats):
        kernels.append((queue_kernel(), simpy_kernel()))
        ours = seconds_per_update(simulator(DEVICES, DEVICES // 2), updates)
        simulators.append((ours, simpy_seconds_per_update(DEVICES, DEVICES // 2, updates, arithmetic=True)))
        ours = seconds_per_update(simulator(DEVICES, DEVICES // 2, NoArithmetic), updates)
        bare.append((ours, simpy_seconds_per_update(DEVICES, DEVICES // 2, updates, arithmetic=False)))
        answer = subprocess.run([sys.executable, __file__, "--million"], capture_output=True, text=True, check=True)
        started, memory, cost = (float(word) for word in answer.stdout.split())
        large.append((started, memory))
        scales.append(cost / seconds_per_update(simulator(1_000, 1_000), 20_000))
    ours_per_second, theirs_per_second = (median(values) for values in zip(*kernels, strict=True))
    print(f"kernel: {ours_per_second:,.0f} events/s, SimPy {theirs_per_second:,.0f}")
    print(f"kernel over SimPy                            {median(a / b for a, b in kernels):.2f}  (>= 1.00)")
    for name, pairs in (("simulator", simulators), ("without arithmetic", bare)):
        ours_seconds, theirs_seconds = (median(values) for values in zip(*pairs, strict=True))
        print(
            f"{name}: {EVENTS_PER_UPDATE / ours_seconds:,.0f} events/s, "
            f"SimPy program {EVENTS_PER_UPDATE / theirs_seconds:,.0f}"
        )
        ratios = sorted(theirs / ours for ours, theirs in pairs)
        label = f"{name} over the SimPy program"
        print(f"{label:<44} {median(ratios):.2f}  (>= 1.00; {ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"a million devices: start, seconds            {median(s for s, _ in large):.2f}  (< 10)")
    print(f"a million devices: memory, GB                {median(m for _, m in large):.2f}  (< 1.5)")
    print(f"cost per event, a million over a thousand    {median(scales):.2f}  (< 1.5)")
    return None


if __name__ == "__main__":
    main()
