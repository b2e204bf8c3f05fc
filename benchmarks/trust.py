"""What defences cost the server: clipping beside FedBuff's own step, and robust rules by buffer and model size.

    python benchmarks/trust.py                  # all sizes: 3 minutes
    python benchmarks/trust.py --megabytes 10 --buffers 10

A step is everything that the session does with K uploads of a model: their arrival, the combination and the commit.
Ratios are to the step without defences, measured alternately; medians of the repeats. Required: `clip = "auto"` at most
1.3 times at 10 MB.
"""

import argparse
from statistics import median
from time import perf_counter

import numpy as np

from offbeat.algorithms import FedBuff
from offbeat.core.messages import Started, Uploaded
from offbeat.core.orders import KnownOutcome, LocalWork, Outcome, Progress
from offbeat.core.parameters import Layout, frozen
from offbeat.core.session import Session
from offbeat.trust.settings import COMBINERS, TrustTable
from offbeat.trust.trusted import TrustedRule

RULES = [name for name, kind in COMBINERS.items() if not issubclass(kind, TrustedRule)]
DEFENCES: dict[str, dict[str, object]] = {
    "none": {},
    "clip = 1.0": {"clip": 1.0},
    'clip = "auto"': {"clip": "auto"},
    **{name: {"combine": name} for name in RULES},
}


def session_with(table: dict[str, object], size: int, buffer: int) -> Session:
    """A started session of FedBuff with this `[trust]` table."""
    trust = TrustTable.model_validate(table)
    session = Session(
        FedBuff(buffer=buffer, concurrency=buffer),
        parameters=np.ones(size, dtype=np.float32),
        layout=Layout.flat(size),
        samples=np.full(2 * buffer, 10),
        local=LocalWork(epochs=1),
        combiner=trust.combiner,
        screen=trust.screen,
    )
    session.handle(Started(), 0.0)
    return session


def step(session: Session, uploads: list[KnownOutcome]) -> float:
    """Seconds for one version from these uploads."""
    began = perf_counter()
    for outcome in uploads:
        order = next(iter(session.in_flight.values()))
        update = order.update(10, Progress(slices=1, steps=1), outcome, None)
        session.handle(Uploaded(device=order.device, ticket=order.ticket, update=update), session.now)
    return perf_counter() - began


def measure(megabytes: float, buffer: int, repeats: int) -> dict[str, float]:
    """Median seconds of a step for each defence, measured in turns."""
    size = int(megabytes * 1e6 / 4)
    sessions = {name: session_with(table, size, buffer) for name, table in DEFENCES.items()}
    random = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in DEFENCES}
    models = [frozen(1 + 0.01 * random.standard_normal(size).astype(np.float32)) for _ in range(buffer)]
    uploads = [KnownOutcome(Outcome(parameters=model)) for model in models]
    for turn in range(repeats + 1):
        for name, session in sessions.items():
            spent = step(session, uploads)
            if turn:  # the first turn warms up
                seconds[name].append(spent)
    return {name: median(values) for name, values in seconds.items()}


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
            print(f"{megabytes:g} MB, buffer {buffer}: {1000 * plain:.1f} ms without defences")
            for name, value in list(seconds.items())[1:]:
                print(f"  {name:18} {value / plain:6.2f} times")


if __name__ == "__main__":
    main()
