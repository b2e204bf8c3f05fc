"""Memory and time of a server that keeps one vector per device: in memory, in 8 bits, or on disk.

10,000 devices with LeNet-5 upload at random, twice each on average, without training or transfer. Every kind of cache
runs in a process of its own. Required of `disk`: below 1 GB resident, at most 1.3 times the time of `memory` for an
update with its training (one epoch of LeNet-5 on 60 images, measured here).

    python benchmarks/server_cache.py                     # 3 minutes, 3 GB of memory, 2.5 GB of disk
    python benchmarks/server_cache.py --algorithm ringleader --devices 2000 --folder /var/tmp
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import get_args

import numpy as np

from offbeat.algorithms import POLICIES
from offbeat.core.messages import Started, TimerFired, Uploaded
from offbeat.core.orders import KnownOutcome, LocalWork, Order, Outcome, Progress
from offbeat.core.parameters import Layout, frozen
from offbeat.core.session import Session
from offbeat.core.streams import stream
from offbeat.running.vector_file import VectorFile

ELEMENTS = 61_706
"""Parameters of LeNet-5."""


def measure(algorithm: str, kind: str, devices: int, folder: Path) -> tuple[float, float]:
    """Peak resident memory in GB, and seconds per update."""
    session = Session(
        POLICIES[algorithm](cache=kind),  # type: ignore[call-arg]
        parameters=np.zeros(ELEMENTS, dtype=np.float32),
        layout=Layout.flat(ELEMENTS),
        samples=np.full(devices, 60),
        local=LocalWork(),
        store=VectorFile(folder),
    )
    movements = [frozen(1e-3 * stream(0, "movement", k).normal(size=ELEMENTS)) for k in range(16)]
    session.handle(Started(), 0.0)
    spent = []
    for number in range(2 * devices):
        now = 10 * number / devices  # a tenth of the devices uploads in an iteration of PSURDG, as in a round of SAFA
        while session.timers and (min(session.timers.values()) <= now or not session.in_flight):
            timer = min(session.timers, key=lambda name: session.timers[name])
            now = max(now, session.timers[timer])
            started = time.perf_counter()
            session.handle(TimerFired(name=timer), now)
            spent.append(time.perf_counter() - started)
        ticket = min(session.in_flight)
        held = session.in_flight[ticket]
        outcome = KnownOutcome(Outcome(parameters=frozen(held.parameters + movements[number % 16]), loss=1.0))
        update = held.update(60, Progress(slices=held.order.slices, steps=10, seconds=1.0), outcome, None)
        started = time.perf_counter()
        session.handle(Uploaded(device=held.device, ticket=ticket, update=update), now)
        spent.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return peak, sum(spent) / (2 * devices)


def training_seconds() -> float:
    """Seconds of one epoch of LeNet-5 on 60 images."""
    from offbeat.models import build, vector_of
    from offbeat.training.trainer import TorchTrainer
    from offbeat.training.training_state import TrainingJob, TrainingState

    class Held:
        def samples(self, device: int) -> np.ndarray:
            return np.arange(60)

    random, model = stream(0, "data"), build("lenet5", (1, 28, 28), 10, seed=0)
    x = random.normal(size=(60, 1, 28, 28)).astype(np.float32)
    trainer, start = TorchTrainer(model, x, random.integers(0, 10, 60), Held(), seed=0), vector_of(model)
    spent = []
    for ticket in range(7):
        state = TrainingState(parameters=start)
        job = TrainingJob(device=0, ticket=ticket, order=Order(), first=0, last=1, state=state, anchor=start)
        started = time.perf_counter()
        trainer.train(job)
        spent.append(time.perf_counter() - started)
    return median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="ca2fl")
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, default=Path(), help="of the file on disk")
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kind:
        print(*measure(given.algorithm, given.kind, given.devices, given.folder))
        return
    training = training_seconds()
    print(f"{given.algorithm}, {given.devices:,} devices; training of an order: {1e3 * training:.1f} ms")
    print(
        "| cache | peak memory, GB | server, ms per update | / memory | with training / memory |\n|---|---|---|---|---|"
    )
    base = 0.0
    for kind in get_args(POLICIES[given.algorithm].model_fields["cache"].annotation):
        again = [sys.executable, __file__, *sys.argv[1:], "--kind", kind]
        peak, seconds = map(float, subprocess.run(again, check=True, capture_output=True, text=True).stdout.split())
        base = base or seconds
        whole = (seconds + training) / (base + training)
        print(f"| {kind} | {peak:.2f} | {1e3 * seconds:.2f} | {seconds / base:.2f} | {whole:.2f} |", flush=True)


if __name__ == "__main__":
    main()
