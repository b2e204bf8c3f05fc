"""Training speed on the standard job, as ratios to a hand-written PyTorch loop measured in the same run.

100 devices x 600 samples of 1x28x28, batch 32, 1 epoch, 10 devices per round, 20 rounds. FedASMU is compared with
FedAsync on the same job, and with 5 epochs, where devices merge fresh models while they train. Run it on an idle
machine:

    python benchmarks/standard_job.py [--rounds 20] [--repeats 5]
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch.nn import functional

from offbeat.algorithms import FedASMU, FedAsync, FedAvg, FedBuff
from offbeat.core.orders import LocalWork
from offbeat.core.policy import Policy
from offbeat.core.session import Session
from offbeat.core.streams import stream
from offbeat.data import Dataset, Partition
from offbeat.experiment.run_settings import Stop
from offbeat.fleet import Fleet, RatioFleet, Workload
from offbeat.models import build, layout_of, vector_of
from offbeat.simulation.engine import Simulation
from offbeat.training.executor import TorchExecutor, torch_executor
from offbeat.training.factory import TrainerFactory

DEVICES, SAMPLES, BATCH, COHORT, RATE = 100, 600, 32, 10, 0.01
RATIOS = [
    ("lenet5 fedavg", "lenet5 by hand", 0.95),
    ("lenet5 fedavg, 2 workers", "lenet5 by hand", 1.70),
    ("lenet5 fedbuff", "lenet5 fedavg", 0.90),
    ("mlp fedavg", "mlp by hand", 4.00),
    ("lenet5 fedasmu", "lenet5 fedasync", 0.85),
    ("lenet5 fedasmu, 5 epochs", "lenet5 fedasync, 5 epochs", 0.85),
    ("lenet5 fedasmu, 5 epochs, 2 workers", "lenet5 fedasync, 5 epochs, 2 workers", 0.85),
]
"""The smallest acceptable ratios."""


def standard_data() -> tuple[Dataset, Partition]:
    random = stream(0, "benchmark")
    x = random.normal(size=(DEVICES * SAMPLES, 1, 28, 28)).astype(np.float32)
    y = random.integers(0, 10, DEVICES * SAMPLES)
    dataset = Dataset(train_x=x, train_y=y, test_x=x[:100], test_y=y[:100], classes=10)
    return dataset, Partition.of(np.arange(DEVICES * SAMPLES).reshape(DEVICES, SAMPLES))  # type: ignore[arg-type]


def by_hand(model_name: str, dataset: Dataset, rounds: int) -> float:
    """Updates per second of FedAvg as a plain PyTorch loop: an optimizer, a permutation, a mean."""
    model = build(model_name, dataset.input_shape, dataset.classes, 0)
    x = torch.from_numpy(dataset.train_x).view(DEVICES, SAMPLES, 1, 28, 28)
    y = torch.from_numpy(dataset.train_y).view(DEVICES, SAMPLES)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    start = time.perf_counter()
    for number in range(rounds):
        trained = []
        for device in stream(0, "cohort", number).choice(DEVICES, COHORT, replace=False):
            model.load_state_dict(state)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            order = torch.randperm(SAMPLES)
            for chosen in (order[start : start + BATCH] for start in range(0, SAMPLES, BATCH)):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x[device, chosen]), y[device, chosen])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            trained.append({name: value.clone() for name, value in model.state_dict().items()})
        state = {name: torch.stack([each[name] for each in trained]).mean(0) for name in state}
    return rounds * COHORT / (time.perf_counter() - start)


def with_offbeat(
    policy: Policy, model_name: str, dataset: Dataset, executor: TorchExecutor, rounds: int, epochs: int = 1
) -> float:
    """Updates per second of the simulator, events and aggregation included."""
    network = build(model_name, dataset.input_shape, dataset.classes, 0)
    samples = np.full(DEVICES, SAMPLES)
    layout = layout_of(network)
    workload = Workload(devices=DEVICES, samples=samples, layers=layout.layers, flops_per_sample=0.0, seed=0)
    session = Session(
        policy,
        parameters=vector_of(network),
        layout=layout,
        samples=samples,
        local=LocalWork(epochs=epochs, batch_size=BATCH, learning_rate=RATE),
    )
    fleet = Fleet.build(workload, RatioFleet(ratio=5.0))
    simulation = Simulation(session, fleet, executor, stop=Stop(updates=rounds * COHORT))
    start = time.perf_counter()
    for _ in simulation:
        simulation.spans.clear()
    return session.counters.used / (time.perf_counter() - start)


def measure(cases: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """Median updates per second of each case; the cases alternate, so that all see the same machine."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, case in cases.items():
            rates[name].append(case())
    return {name: median(values) for name, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset, partition = standard_data()

    def executor(model: str, workers: int) -> TorchExecutor:
        return torch_executor(
            TrainerFactory.of(dataset, model, 0), dataset, partition, arithmetic="auto", workers=workers
        )

    fedavg, fedbuff = FedAvg(cohort=COHORT), FedBuff(buffer=COHORT, concurrency=2 * COHORT)
    fedasync, fedasmu = FedAsync(concurrency=COHORT, prox=0.0), FedASMU(cohort=COHORT, period=5.0)
    lenet, lenet_pool, mlp = executor("lenet5", 0), executor("lenet5", 2), executor("mlp", 0)
    rounds = options.rounds
    with_offbeat(fedavg, "lenet5", dataset, lenet_pool, 1)  # the workers have started

    def timely(policy: Policy, executor: TorchExecutor, epochs: int) -> Callable[[], float]:
        # With fewer updates, training that is computed ahead and never used would dominate.
        fewer = rounds if epochs == 1 else max(6, rounds // epochs)
        return lambda: with_offbeat(policy, "lenet5", dataset, executor, fewer, epochs)

    rates = measure(
        {
            "lenet5 by hand": lambda: by_hand("lenet5", dataset, rounds),
            "lenet5 fedavg": lambda: with_offbeat(fedavg, "lenet5", dataset, lenet, rounds),
            "lenet5 fedbuff": lambda: with_offbeat(fedbuff, "lenet5", dataset, lenet, rounds),
            "lenet5 fedavg, 2 workers": lambda: with_offbeat(fedavg, "lenet5", dataset, lenet_pool, rounds),
            "mlp by hand": lambda: by_hand("mlp", dataset, rounds),
            "mlp fedavg": lambda: with_offbeat(fedavg, "mlp", dataset, mlp, rounds),
            "lenet5 fedasync": timely(fedasync, lenet, 1),
            "lenet5 fedasmu": timely(fedasmu, lenet, 1),
            "lenet5 fedasync, 5 epochs": timely(fedasync, lenet, 5),
            "lenet5 fedasmu, 5 epochs": timely(fedasmu, lenet, 5),
            "lenet5 fedasync, 5 epochs, 2 workers": timely(fedasync, lenet_pool, 5),
            "lenet5 fedasmu, 5 epochs, 2 workers": timely(fedasmu, lenet_pool, 5),
        },
        options.repeats,
    )
    lenet_pool.close()
    for name, rate in rates.items():
        print(f"{name:38} {rate:8.1f} updates/s")
    for over, under, wanted in RATIOS:
        print(f"{over + ' / ' + under:76} {rates[over] / rates[under]:.2f}  (>= {wanted:.2f})")


if __name__ == "__main__":
    main()
