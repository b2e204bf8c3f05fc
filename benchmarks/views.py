"""What the views of runs cost: writing the order log during a run, and reading it for a report.

CPU seconds of the same simulation with and without the order log, in alternation; then a report of 50 runs with a
million orders together, in a process of its own.

    python benchmarks/views.py [--repeats 7]
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
from event_engine import DEVICES, seconds_per_update, simulator
from standard_job import BATCH, COHORT, RATE, SAMPLES, standard_data

from offbeat.algorithms import FedBuff
from offbeat.core.orders import LocalWork
from offbeat.core.session import Session
from offbeat.experiment.run_settings import Stop
from offbeat.experiment.schema import Experiment
from offbeat.fleet import Fleet, RatioFleet, Workload
from offbeat.models import build, layout_of, vector_of
from offbeat.results.orders import MAGIC, ORDER, USED, OrderLog
from offbeat.simulation.engine import Simulation
from offbeat.training.executor import torch_executor
from offbeat.training.factory import TrainerFactory

UPDATES = 10_000
RUNS, ORDERS = 50, 20_000


def run_seconds(simulation: Simulation, updates: int, log: OrderLog | None) -> float:
    """CPU seconds per update of a loop that takes what happened, as every run does, and writes it if there is a log."""
    accounts, started, flushed = simulation.accounts, time.process_time(), time.monotonic()
    for _ in simulation:
        accounts.take_spans()
        closed = accounts.take_closed()
        if log is not None:
            if closed:
                log.write(closed, simulation.now)
            if time.monotonic() - flushed > 1.0:
                log.flush()
                flushed = time.monotonic()
        if simulation.session.counters.received >= updates:
            break
    if log is not None:
        log.close()
    return (time.process_time() - started) / updates


def standard_job() -> Callable[[], tuple[Simulation, int]]:
    """FedBuff with LeNet-5 on the standard job."""
    dataset, partition = standard_data()
    devices = partition.devices
    executor = torch_executor(TrainerFactory.of(dataset, "lenet5", 0), dataset, partition, arithmetic="auto", workers=0)

    def make() -> tuple[Simulation, int]:
        network, samples = build("lenet5", dataset.input_shape, dataset.classes, 0), np.full(devices, SAMPLES)
        layout = layout_of(network)
        session = Session(
            FedBuff(buffer=COHORT, concurrency=2 * COHORT),
            parameters=vector_of(network),
            layout=layout,
            samples=samples,
            local=LocalWork(epochs=1, batch_size=BATCH, learning_rate=RATE),
        )
        workload = Workload(devices=devices, samples=samples, layers=layout.layers, flops_per_sample=0.0, seed=0)
        fleet = Fleet.build(workload, RatioFleet(ratio=5.0))
        return Simulation(session, fleet, executor, stop=Stop(updates=5 * COHORT)), 5 * COHORT

    return make


def overhead(make: Callable[[], tuple[Simulation, int]], folder: Path, repeats: int) -> tuple[float, float]:
    """Median CPU seconds per update without a log, and the median of what a log adds."""
    plain, added = [], []
    for number in range(repeats):
        simulation, updates = make()
        without = run_seconds(simulation, updates, None)
        simulation, updates = make()
        plain.append(without)
        added.append(run_seconds(simulation, updates, OrderLog(folder / f"orders-{number}.bin")) - without)
    return median(plain), median(added)


def write_runs(root: Path) -> None:
    """Fifty runs of ten algorithms and five seeds, with curves and 20,000 orders each."""
    random, devices = np.random.default_rng(0), 200
    for number in range(RUNS):
        path = root / f"run-{number}"
        path.mkdir()
        algorithm = {"name": "fedbuff", "buffer": 10, "concurrency": 50, "label": f"method {number // 5}"}
        experiment = Experiment.parse(
            {"seed": number % 5, "stop": {"time": 1000.0}, "data": {"devices": devices}, "algorithm": algorithm}
        )
        (path / "config.toml").write_text(experiment.toml())
        with (path / "metrics.jsonl").open("w") as rows:
            for k in range(200):
                row = {"time": 5.0 * k, "version": 10 * k, "accuracy": 1 - 0.99**k, "loss": 2.3 * 0.99**k}
                counts = {"updates_used": 100 * k, "updates_discarded": 0, "updates_lost": 0, "mean_staleness": 2.0}
                more = {"max_staleness": 9, "bytes_up": 1e5 * k, "bytes_down": 1e5 * k, "in_flight": 50}
                rows.write(json.dumps(row | counts | more | {"busy_seconds": 9.0 * k, "wasted_seconds": 0.0}) + "\n")
        orders = np.zeros(ORDERS, ORDER)
        orders["kind"], orders["slices"], orders["samples"] = USED, 5, 100
        orders["device"], orders["ticket"] = random.integers(0, devices, ORDERS), np.arange(ORDERS)
        orders["sent"] = np.sort(random.uniform(0, 990, ORDERS))
        orders["arrived"] = orders["sent"] + 0.5
        orders["trained"] = orders["arrived"] + random.uniform(1, 8, ORDERS)
        orders["ended"] = orders["landed"] = orders["trained"] + 0.5
        orders["resolved"], orders["noticed"] = orders["landed"], np.nan
        orders["version"] = 1 + np.arange(ORDERS) // 10
        orders["base"] = np.maximum(0, orders["version"].astype(np.int64) - random.integers(1, 6, ORDERS))
        (path / "orders.bin").write_bytes(MAGIC + orders.tobytes())


def report(root: Path) -> None:
    """Write the report of all runs, and print its CPU seconds, the peak memory and its size."""
    from offbeat.comparison.gathered import comparison_of, gather
    from offbeat.results.report import report_html

    started = time.process_time()
    runs = gather([root])
    page = report_html(comparison_of(runs, None), [each.config for each in runs], "report")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(time.process_time() - started, memory, len(page.encode()) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.report is not None:
        return report(options.report)
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        root = Path(folder)
        events = lambda: (simulator(DEVICES, DEVICES // 2), UPDATES)  # noqa: E731
        pure = median(seconds_per_update(simulator(DEVICES, DEVICES // 2), UPDATES) for _ in range(3))
        _, added = overhead(events, root, options.repeats)
        print(f"event benchmark: {1e6 * pure:.1f} us per update, the log adds {1e6 * added:.2f} us")
        print(f"added to the event benchmark                 {100 * added / pure:.1f} %  (<= 10 %)")
        plain, added = overhead(standard_job(), root, max(3, options.repeats // 2))
        print(f"standard job: {1e3 * plain:.2f} ms per update")
        print(f"added to the LeNet-5 standard job            {100 * added / plain:.1f} %  (<= 2 %)")
        runs = root / "runs"
        runs.mkdir()
        write_runs(runs)
        command = [sys.executable, __file__, "--report", str(runs)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, memory, size = (float(word) for word in answer.stdout.split())
        print(f"report of {RUNS} runs, {RUNS * ORDERS:,} orders: CPU seconds  {seconds:.1f}  (< 20)")
        print(f"report: peak memory, GB                      {memory:.2f}  (< 1)")
        print(f"report: size, MB                             {size:.2f}  (< 5)")
    return None


if __name__ == "__main__":
    main()
