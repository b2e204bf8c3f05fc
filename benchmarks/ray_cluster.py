"""Training on a Ray cluster: speed beside worker processes, cost of shipping a version, workers per driver.

1. The standard job (100 devices x 600 samples, LeNet-5) on two actors of a local cluster, beside two worker processes.
2. A version of 1, 10 and 100 MB: put into the object store, read by a worker, and an update of that size sent back.
3. CPU time of the driver per update of that size, most of it aggregation, under FedAvg and FedBuff.
4. FedBuff with updates of LeNet-5's size that take 1 s each, on 8, 64 and 512 simulated workers: events and aggregation
   take their real CPU time, a job costs the driver what was measured on Ray, and training takes the time of that many
   workers. --figure draws the result to a file.

Run it on an idle machine:

    python benchmarks/ray_cluster.py [--repeats 3] [--rounds 20] [--figure docs/scaling.png]
"""

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
from standard_job import COHORT, measure, standard_data, with_offbeat

from offbeat.algorithms import FedAvg, FedBuff
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.core.policy import Policy
from offbeat.core.session import Session
from offbeat.experiment.run_settings import Stop
from offbeat.fleet import Fleet, RatioFleet, Workload
from offbeat.simulation.engine import Simulation
from offbeat.training.execution import ExecutionTable
from offbeat.training.executor import torch_executor
from offbeat.training.factory import TrainerFactory
from offbeat.training.ray_cluster import RayCluster
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState
from offbeat.training.workers import JOBS_PER_WORKER

ON_RAY = ExecutionTable(executor="ray", workers=2)
LENET5 = 61_706
"""Elements of LeNet-5 on 28 x 28 pixels."""
JOB_SECONDS = 1.0
WORKERS = (8, 64, 512)
IN_TRAINING = (2, 4, 8, 16)
"""Devices in training per worker."""
MEGABYTE = 2**20


def compare_with_processes(rounds: int, repeats: int) -> None:
    """Throughput of two actors over that of two worker processes."""
    dataset, partition = standard_data()
    given: Any = (TrainerFactory.of(dataset, "lenet5", 0), dataset, partition)
    policy = FedAvg(cohort=COHORT)
    with (
        closing(torch_executor(*given, arithmetic="sequential", workers=2)) as pool,
        closing(torch_executor(*given, arithmetic="sequential", cluster=ON_RAY)) as cluster,
    ):
        for executor in (pool, cluster):
            with_offbeat(policy, "lenet5", dataset, executor, 2)  # the workers have started
        rates = measure(
            {
                "processes": lambda: with_offbeat(policy, "lenet5", dataset, pool, rounds),
                "ray": lambda: with_offbeat(policy, "lenet5", dataset, cluster, rounds),
            },
            repeats,
        )
    for name, rate in rates.items():
        print(f"lenet5 fedavg, 2 workers, {name:10} {rate:8.1f} updates/s")
    print(f"ray / processes, two cores: {rates['ray'] / rates['processes']:.2f}  (>= 0.90)")


class Echo:
    """An actor that reads a version and sends an update back."""

    def read(self, version: Vector) -> float:
        return float(version[::1024].sum())  # one element of every page

    def train(self, version: Vector) -> Vector:
        return version + np.float32(1)


def shipping(repeats: int) -> float:
    """Print the cost of shipping a version by its size; returns the driver's seconds per job of LeNet-5's size."""
    with closing(RayCluster(ON_RAY)) as cluster:
        ray = cluster.ray
        actor = ray.remote(Echo).options(num_cpus=1).remote()
        print(f"\n{'a version of':14}{'put':>10}{'read':>10}{'update back':>14}")
        for size in (1, 10, 100):
            version = np.ones(size * MEGABYTE // 4, dtype=np.float32)
            spent = []
            for _ in range(repeats + 1):
                began = perf_counter()
                reference = ray.put(version)
                put = perf_counter()
                ray.get(actor.read.remote(reference))
                read = perf_counter()
                ray.get(actor.train.remote(reference)).copy()
                spent.append((put - began, read - put, perf_counter() - read))
            columns = [f"{1000 * median(column):10.1f}" for column in zip(*spent[1:], strict=True)]
            print(f"{size:>7} MB    {columns[0]}{columns[1]}    {columns[2]}  ms")
        jobs, version = 300, np.ones(LENET5, dtype=np.float32)
        reference = ray.put(version)
        ray.get(actor.train.remote(reference))
        began = process_time()
        waiting = [actor.train.remote(reference) for _ in range(jobs)]
        while waiting:
            done, waiting = ray.wait(waiting)
            ray.get(done[0]).copy()
        cost = (process_time() - began) / jobs
    print(f"a job of LeNet-5's size costs the driver {1000 * cost:.2f} ms\n")
    return cost


@dataclass
class SimulatedWorkers:
    """An executor that trains nothing and counts the seconds that the simulated workers would take."""

    workers: int
    job_cost: float
    """Seconds of the driver per job; half of them to send it."""
    seconds: float = 0.0
    jobs: int = 0
    uploads: Sequence[Vector] = ()
    """The uploads of the devices in order; if there are none, each device uploads its input."""

    @property
    def batch_capacity(self) -> int:
        return self.workers * JOBS_PER_WORKER

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        first = self.jobs
        self.jobs += len(jobs)
        self.seconds += self._makespan(len(jobs))
        if not self.uploads:
            return [job.state for job in jobs]
        numbers = range(first, self.jobs)
        return [TrainingState(parameters=self.uploads[number % len(self.uploads)]) for number in numbers]

    def _makespan(self, jobs: int) -> float:
        """When a batch ends, with a driver that does one thing at a time and workers that hold two jobs each."""
        half, now, given = self.job_cost / 2, 0.0, 0
        free = [0.0] * self.workers
        ends: list[float] = []
        while given < min(jobs, 2 * self.workers) or ends:
            if given < jobs and len(ends) < 2 * self.workers:
                now += half
                end = max(now, heappop(free)) + JOB_SECONDS
                heappush(free, end)
                heappush(ends, end)
                given += 1
            else:
                now = max(now, heappop(ends)) + half
        return now

    def evaluate(self, parameters: Vector) -> Evaluation:
        return Evaluation(metrics={"accuracy": 0.0, "loss": 0.0})

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        return 0.0, parameters

    def close(self) -> None:
        pass


def simulated(policy: Policy, devices: int, executor: SimulatedWorkers, updates: int, size: int) -> Simulation:
    """A fleet with equal data under a policy, trained by simulated workers."""
    samples = np.full(devices, 600)
    session = Session(
        policy,
        parameters=np.zeros(size, dtype=np.float32),
        layout=Layout.flat(size),
        samples=samples,
        local=LocalWork(epochs=1, batch_size=32, learning_rate=0.01),
    )
    workload = Workload(devices=devices, samples=samples, layers=1, flops_per_sample=0.0, seed=0)
    return Simulation(session, Fleet.build(workload, RatioFleet(ratio=5.0)), executor, stop=Stop(updates=updates))


def aggregation(repeats: int) -> None:
    """Print the CPU time of the driver per update by model size, summed over its threads."""
    policies = {"FedAvg": FedAvg(cohort=10), "FedBuff": FedBuff(buffer=10, concurrency=10)}
    print(f"{'a model of':14}" + "".join(f"{name:>10}" for name in policies) + "  ms per update")
    for size in (LENET5 * 4 / MEGABYTE, 1, 10, 100):
        elements = int(size * MEGABYTE) // 4
        uploads = [frozen(np.full(elements, 0.001 * number)) for number in range(10)]
        costs = []
        for policy in policies.values():
            updates, spent = int(min(2_000, max(50, 5_000 / size))), []
            for _ in range(repeats):
                simulation = simulated(policy, 20, SimulatedWorkers(10, 0.0, uploads=uploads), updates, elements)
                began = process_time()
                for _ in simulation:
                    simulation.spans.clear()
                spent.append((process_time() - began) / updates)
            costs.append(median(spent))
        print(f"{size:>9.2g} MB  " + "".join(f"{1000 * cost:10.3g}" for cost in costs))
    print()


def utilisation(workers: int, in_training: int, job_cost: float) -> tuple[float, float]:
    """Utilisation of the workers, and the driver's seconds per update."""
    executor = SimulatedWorkers(workers, job_cost)
    updates = max(3_000, min(10_000, 10 * JOBS_PER_WORKER * workers))
    policy = FedBuff(buffer=10, concurrency=in_training)
    simulation = simulated(policy, 2 * in_training, executor, updates, LENET5)
    began = process_time()
    for _ in simulation:
        simulation.spans.clear()
    own = process_time() - began
    return executor.jobs * JOB_SECONDS / (workers * (executor.seconds + own)), own / updates


def scaling(job_cost: float, figure: Path | None) -> None:
    """Utilisation against workers, for several numbers of devices in training."""
    found: dict[int, list[float]] = {}
    print(f"{'workers':>8}{'in training':>13}{'utilisation':>13}{'driver, ms per update':>22}")
    for factor in IN_TRAINING:
        for workers in WORKERS:
            share, own = utilisation(workers, factor * workers, job_cost)
            found.setdefault(factor, []).append(share)
            print(f"{workers:8}{factor * workers:13}{100 * share:12.1f}%{1000 * (own + job_cost):22.2f}")
    share = found[IN_TRAINING[-1]][WORKERS.index(64)]
    print(f"FedBuff, 64 workers, {IN_TRAINING[-1]} devices in training for each: {100 * share:.1f} %  (>= 90 %)")
    if figure is not None:
        draw(found, figure)


def draw(found: dict[int, list[float]], figure: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    canvas, axes = pyplot.subplots(figsize=(6, 3.4), layout="constrained")
    for factor, shares in found.items():
        axes.plot(
            WORKERS, [100 * share for share in shares], marker="o", label=f"{factor} devices in training a worker"
        )
    axes.axhline(90, color="grey", linewidth=0.8, linestyle="--")
    axes.set(
        xscale="log", xticks=WORKERS, xticklabels=WORKERS, xlabel="workers", ylabel="utilisation, %", ylim=(0, 101)
    )
    axes.minorticks_off()
    axes.legend(fontsize="small")
    axes.set_title("FedBuff, LeNet-5, 1 s an update: how busy simulated workers are", fontsize="medium")
    canvas.savefig(figure, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--job-cost", type=float, help="Seconds of the driver per job; skips the measurements and only simulates."
    )
    parser.add_argument("--figure", type=Path, help="File to write the figure to.")
    options = parser.parse_args()
    job_cost = options.job_cost
    if job_cost is None:
        compare_with_processes(options.rounds, options.repeats)
        job_cost = shipping(options.repeats)
        aggregation(options.repeats)
    scaling(job_cost, options.figure)


if __name__ == "__main__":
    main()
