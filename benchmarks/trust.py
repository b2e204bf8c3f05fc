"""What defences cost the server: clipping beside FedBuff's own step, and robust rules by buffer and model size.

    python benchmarks/trust.py                  # all sizes: 3 minutes
    python benchmarks/trust.py --megabytes 10 --buffers 10

A step is everything that the session does with K uploads of a model: their arrival, the combination and the commit.
Ratios of wall-clock and CPU time are to the step without defences, measured alternately; medians of the repeats.
Required: `clip = "auto"` at most 1.3 times at 10 MB. For AFLGuard and Zeno++ the server's own training comes
on top, which depends on the model and the trusted samples.
"""

import argparse
from statistics import median
from time import perf_counter, process_time

import numpy as np

from offbeat.algorithms import FedBuff
from offbeat.core.messages import Started, Uploaded
from offbeat.core.orders import KnownOutcome, LocalWork, Outcome, Progress
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.core.session import Session
from offbeat.trust.settings import COMBINERS, TrustTable

Seconds = tuple[float, float]
"""Wall-clock and CPU time."""
DEFENCES: dict[str, dict[str, object]] = {
    "none": {},
    "clip = 1.0": {"clip": 1.0},
    'clip = "auto"': {"clip": "auto"},
    **{name: {"combine": name} for name in COMBINERS},
}


def session_with(table: dict[str, object], size: int, buffer: int) -> Session:
    """A started session of FedBuff with this `[trust]` table."""
    trust = TrustTable.model_validate(table)
    movement = frozen(np.full(size, 0.01))

    def trusted(parameters: Vector, version: int) -> Vector:
        return movement

    session = Session(
        FedBuff(buffer=buffer, concurrency=buffer),
        parameters=np.ones(size, dtype=np.float32),
        layout=Layout.flat(size),
        samples=np.full(2 * buffer, 10),
        local=LocalWork(epochs=1),
        combiner=trust.combiner,
        screen=trust.screen,
        trusted=trusted,
    )
    session.handle(Started(), 0.0)
    return session


def step(session: Session, uploads: list[KnownOutcome]) -> Seconds:
    """The time of one version from these uploads."""
    wall, cpu = perf_counter(), process_time()
    for outcome in uploads:
        order = next(iter(session.in_flight.values()))
        update = order.update(10, Progress(slices=1, steps=1), outcome, None)
        session.handle(Uploaded(device=order.device, ticket=order.ticket, update=update), session.now)
    return perf_counter() - wall, process_time() - cpu


def measure(megabytes: float, buffer: int, repeats: int) -> dict[str, Seconds]:
    """Median times of a step for each defence, measured in turns."""
    size = int(megabytes * 1e6 / 4)
    sessions = {name: session_with(table, size, buffer) for name, table in DEFENCES.items()}
    random = np.random.default_rng(0)
    seconds: dict[str, list[Seconds]] = {name: [] for name in DEFENCES}
    models = [frozen(1 + 0.01 * random.standard_normal(size).astype(np.float32)) for _ in range(buffer)]
    uploads = [KnownOutcome(Outcome(parameters=model)) for model in models]
    for turn in range(repeats + 1):
        for name, session in sessions.items():
            spent = step(session, uploads)
            if turn:  # the first turn warms up
                seconds[name].append(spent)
    medians = {name: [median(each) for each in zip(*values, strict=True)] for name, values in seconds.items()}
    return {name: (wall, cpu) for name, (wall, cpu) in medians.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1.0, 10.0, 40.0])
    parser.add_argument("--buffers", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    for megabytes in given.megabytes:
        for buffer in given.buffers:
            seconds = measure(megabytes, buffer, given.repeats)
            plain = seconds["none"]
            print(
                f"{megabytes:g} MB, buffer {buffer}: {1000 * plain[0]:.1f} ms without defences, "
                f"{1000 * plain[1]:.1f} ms of CPU time"
            )
            for name, (wall, cpu) in list(seconds.items())[1:]:
                print(f"  {name:18} {wall / plain[0]:6.2f} times, CPU {cpu / plain[1]:6.2f} times")


if __name__ == "__main__":
    main()
