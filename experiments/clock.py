"""The virtual clock against numbers that others published: how many versions, or how long, for given delays.

Nothing is trained in earnest: the toy model of `offbeat.testing` replaces torch, so only the clock, the event engine and
the algorithms count. `python -m experiments.clock` prints the table of `docs/validation.md` in half a minute.

| source | settings |
|---|---|
| NVFlare, `research/fedrevive/README.md` | 1,000 devices, 100 in training, 200 s. Training is exponential with a mean of 1.0, 1.3 or 1.6 s (shares 0.25, 0.5, 0.25), download 0.1 s, upload uniform within 0.02 s of 0.15 or 0.25 s (equal shares) |
| NVFlare, `examples/advanced/edge/README.md` | 16 devices of three types (equal shares) that take 100, 200 or 400 s, with standard deviations of 1, 2 and 4 s, and 5 s with 1 s for communication, besides the training: a minute, as 10 rounds without delays take 10 minutes |

NVFlare's curve of synchronous rounds (`figs/async_comp.png`) has nine, not ten. The first three last 467 s each, 403 s
more than without delays (64 s). The others last 520 to 665 s, for which no setting accounts. Its asynchronous curve
begins at version 16.
"""  # noqa: E501

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from offbeat.algorithms import POLICIES
from offbeat.core.orders import Order
from offbeat.core.streams import stream
from offbeat.experiment.run_settings import Stop
from offbeat.fleet import FleetSettings, NetworkSettings, Speeds, Workload
from offbeat.testing.toy import toy_simulation

SEEDS = 30
"""Repetitions of each check; numbers of versions of FedBuff hardly vary, and have a tenth of them."""
NETWORK = NetworkSettings(uplink_mbps=1e9, downlink_mbps=1e9, latency=0.1)
"""0.1 s each way; what a link takes beyond that is part of the times below."""
Draw = Callable[[np.random.Generator, int], float]


class DrawnSpeeds(Speeds):
    """Draws the time of every order from the distribution of its device's type."""

    def __init__(self, types: Sequence[int], draw: Draw, seed: int) -> None:
        self.types = types
        self.draw = draw
        self.seed = seed

    def slice_seconds(self, device: int, ticket: int, order: Order) -> list[float]:
        return [self.draw(stream(self.seed, "speed", device, ticket), self.types[device])]


class DrawnFleet(FleetSettings):
    """Devices whose types are drawn with equal probabilities."""

    name: str = "drawn"
    types: int
    draw: Any

    def build(self, workload: Workload) -> Speeds:
        types = stream(workload.seed, "types").integers(self.types, size=workload.devices)
        return DrawnSpeeds(types.tolist(), self.draw, workload.seed)


def fedrevive_seconds(random: np.random.Generator, kind: int) -> float:
    """Training and upload, without 0.1 s of each way; `kind` is 0 to 7, as the means have shares 2 : 4 : 2 of 8."""
    mean = (1.0, 1.0, 1.3, 1.3, 1.3, 1.3, 1.6, 1.6)[kind]
    upload = (0.15, 0.25)[kind % 2] + random.uniform(-0.02, 0.02)
    return float(random.exponential(mean) + upload - 0.1)


def edge_seconds(random: np.random.Generator, kind: int) -> float:
    """Training of a minute, the delay of the type, and communication without 0.1 s each way."""
    mean, spread = ((100.0, 1.0), (200.0, 2.0), (400.0, 4.0))[kind]
    return float(60.0 + random.normal(mean, spread) + random.normal(5.0, 1.0) - 0.2)


FEDREVIVE = DrawnFleet(types=8, draw=fedrevive_seconds)
EDGE = DrawnFleet(types=3, draw=edge_seconds)


@dataclass(frozen=True, kw_only=True)
class Check:
    """A published number, and the simulation that should reproduce it."""

    title: str
    published: float
    algorithm: str
    settings: dict[str, int]
    fleet: DrawnFleet
    devices: int
    stop: Stop
    minutes: float | None = None
    """If times are compared: minutes without delays, which are subtracted. None: versions are compared."""

    def measured(self, seed: int) -> float:
        """The number of versions, or the minutes."""
        simulation = toy_simulation(
            POLICIES[self.algorithm](**self.settings),
            seed=seed,
            devices=self.devices,
            troubled=False,
            stop=self.stop,
            speeds=self.fleet,
            network=NETWORK,
            epochs=1,
        )
        for _ in simulation:
            pass
        return simulation.session.version if self.minutes is None else simulation.now / 60 - self.minutes


def fedrevive(title: str, published: int, algorithm: str, **settings: int) -> Check:
    """A number of versions in 200 s, of 1,000 devices."""
    return Check(
        title=f"fedrevive: versions of {title}",
        published=published,
        algorithm=algorithm,
        settings=settings,
        fleet=FEDREVIVE,
        devices=1000,
        stop=Stop(time=200.0),
    )


def edge(
    title: str, published: float, versions: int, algorithm: str, *, minutes: float = 10.0, **settings: int
) -> Check:
    """Additional minutes until a version, of 16 devices; without delays it takes `minutes`."""
    return Check(
        title=f"edge: additional minutes, {title}",
        published=published,
        algorithm=algorithm,
        settings=settings,
        fleet=EDGE,
        devices=16,
        stop=Stop(versions=versions),
        minutes=minutes,
    )


CHECKS = [
    fedrevive("FedAvg, cohort 100", 28, "fedavg", cohort=100),
    fedrevive("FedBuff, K = 2", 6343, "fedbuff", buffer=2, concurrency=100),
    fedrevive("FedBuff, K = 1", 12687, "fedbuff", buffer=1, concurrency=100),
    edge("10 synchronous rounds, calculated", 68, 10, "fedavg", cohort=16),
    edge("first 3 synchronous rounds, read off the curve", 20.2, 3, "fedavg", minutes=3.0, cohort=16),
    edge("10 synchronous rounds, measured", 72, 10, "fedavg", cohort=16),
    edge("160 asynchronous versions, measured", 35, 160, "fedbuff", buffer=1, concurrency=16),
]


def main() -> None:
    """Print published and simulated numbers side by side."""
    table = Table("check", "published", "simulated", "seeds", "difference", box=box.SIMPLE_HEAD)
    for check in CHECKS:
        many = check.published > 1000
        found = [check.measured(seed) for seed in range(SEEDS // 10 if many else SEEDS)]
        middle, spread = fmean(found), stdev(found)
        text = f"{middle:,.0f} ± {spread:.0f}" if many else f"{middle:.1f} ± {spread:.1f}"
        change = f"{100 * (middle / check.published - 1):+.1f} %"
        table.add_row(check.title, f"{check.published:,}", text, str(len(found)), change)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
