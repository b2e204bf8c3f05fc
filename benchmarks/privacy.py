"""The server's step of FedBuff with clipping and noise, beside the step without: 10 MB, ten updates.

`python benchmarks/privacy.py` prints wall-clock and CPU time and their ratios to the step without (required: at most
1.3), for noise from the seed, as in simulations, and from the operating system, as in deployments. A step is everything
that the session does with the uploads of a buffer: their arrival, the combination and the commit, as in
`benchmarks/trust.py`. The combination alone is measured too. Clipping reads every update once more, instead of the
check that its numbers are finite, and the noise is two and a half million Gaussian numbers; both run block by block in
up to four threads, the step without in one.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time

import numpy as np

from offbeat.algorithms.fedbuff import FedBuff, FedBuffState
from offbeat.core.messages import Uploaded
from offbeat.core.orders import KnownOutcome, Outcome, Progress
from offbeat.core.parameters import frozen
from offbeat.core.streams import stream
from offbeat.testing import ScriptedSession
from offbeat.trust.privacy import Privacy

REQUIRED = 1.3
UPDATES = 10
VARIANTS = {"without": None, "noise from the seed": False, "noise from the system": True}
"""Whether the noise is secret; None: there is none."""
Seconds = tuple[float, float]
"""Wall-clock and CPU time."""


class Server:
    """A session of FedBuff, private or not, and the models that its devices upload."""

    def __init__(self, secret: bool | None, size: int) -> None:
        self.policy = FedBuff(buffer=UPDATES, concurrency=UPDATES)
        privacy = Privacy() if secret is None else Privacy(noise_multiplier=1.0, most_updates=10**6)
        self.session = ScriptedSession(
            self.policy,
            devices=2 * UPDATES,
            start=np.ones(size).tolist(),
            combiner=privacy.combiner(self.policy, secret=bool(secret)),
            limits=privacy.limits(self.policy),
        )
        random = stream(0, "benchmark")
        models = [frozen(1 + 0.01 * random.standard_normal(size, dtype=np.float32)) for _ in range(UPDATES)]
        self.uploads = [KnownOutcome(Outcome(parameters=model)) for model in models]

    def step(self) -> Seconds:
        """One version: arrivals, combination and commit."""
        return timed(self._upload_all)

    def _upload_all(self) -> None:
        for outcome in self.uploads:
            order = next(iter(self.session.in_flight.values()))
            update = order.update(10, Progress(slices=1, steps=1), outcome, None)
            self.session.handle(Uploaded(device=order.device, ticket=order.ticket, update=update))

    def combination(self) -> Seconds:
        """The combination alone, which is not committed."""
        orders = self.session.in_flight.values()
        updates = [
            order.update(10, Progress(slices=1, steps=1), outcome, None)
            for order, outcome in zip(orders, self.uploads, strict=True)
        ]
        return timed(lambda: self.policy.aggregate(FedBuffState(updates=updates), self.session))


def timed(work: Callable[[], object]) -> Seconds:
    """The time that something takes."""
    wall, cpu = perf_counter(), process_time()
    work()
    return perf_counter() - wall, process_time() - cpu


def main() -> None:
    """Measure the variants alternately and print the medians."""
    parser = argparse.ArgumentParser(description="Cost of clipping and noise in FedBuff's step.")
    parser.add_argument("--size", type=int, default=2_500_000, help="elements of the model (default: 10 MB)")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    servers = {name: Server(secret, options.size) for name, secret in VARIANTS.items()}
    for what, measure in (("step", Server.step), ("combination alone", Server.combination)):
        times: dict[str, list[Seconds]] = {name: [] for name in servers}
        for turn in range(options.repeats + 1):
            for name, server in servers.items():
                spent = measure(server)
                if turn:  # the first turn warms up
                    times[name].append(spent)
        plain = [median(each) for each in zip(*times["without"], strict=True)]
        print(f"{what} (required: at most {REQUIRED})")
        for name, found in times.items():
            wall, cpu = (median(each) for each in zip(*found, strict=True))
            print(
                f"  {name:22} {1000 * wall:6.1f} ms, ratio {wall / plain[0]:.2f}; "
                f"CPU {1000 * cpu:6.1f} ms, ratio {cpu / plain[1]:.2f}"
            )


if __name__ == "__main__":
    main()
