"""The server's step of FedBuff with clipping and noise, beside the step without: 10 MB, ten updates.

`python benchmarks/privacy.py` prints the ratio of the times (required: at most 1.3) for noise from the seed, as in
simulations, and from the operating system, as in deployments. Clipping reads every update once more, and the noise is
two and a half million Gaussian numbers; both run block by block in up to four threads, the step without in one.
"""

import argparse
from statistics import median
from time import perf_counter

import numpy as np

from offbeat.algorithms.fedbuff import FedBuff, FedBuffState
from offbeat.core.combining import Combiner
from offbeat.core.streams import stream
from offbeat.testing import ScriptedSession
from offbeat.trust.privacy import Privacy

REQUIRED = 1.3
UPDATES = 10


def seconds(combiner: Combiner | None, size: int) -> float:
    """The time of one step, after a first one that is not counted."""
    policy = FedBuff(buffer=UPDATES, concurrency=UPDATES)
    session = ScriptedSession(policy, devices=UPDATES, start=np.zeros(size).tolist(), combiner=combiner)
    random = stream(0, "benchmark")
    updates = [session.update(*random.normal(size=size).tolist(), ticket=ticket) for ticket in list(session.in_flight)]
    began = 0.0
    for _ in range(2):
        state = FedBuffState(updates=list(updates))
        began = perf_counter()
        policy.aggregate(state, session)
    return perf_counter() - began


def main() -> None:
    """Measure the variants alternately and print the medians."""
    parser = argparse.ArgumentParser(description="Cost of clipping and noise in FedBuff's step.")
    parser.add_argument("--size", type=int, default=2_500_000, help="elements of the model (default: 10 MB)")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    policy = FedBuff(buffer=UPDATES, concurrency=UPDATES)
    privacy = Privacy(noise_multiplier=1.0)
    variants: dict[str, Combiner | None] = {
        "without": None,
        "noise from the seed": privacy.combiner(policy, secret=False),
        "noise from the system": privacy.combiner(policy, secret=True),
    }
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(options.repeats):
        for name, combiner in variants.items():
            times[name].append(seconds(combiner, options.size))
    plain = median(times["without"])
    for name, found in times.items():
        ratio = median(found) / plain
        print(f"{name:22} {1000 * median(found):7.1f} ms, ratio {ratio:.2f} (required: at most {REQUIRED})")


if __name__ == "__main__":
    main()
