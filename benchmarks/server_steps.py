"""The server's work per update, for every algorithm, relative to FedBuff's.

Each algorithm gets the same uploads of a model of 10 MB in a session without training or transfer; timed is what the
session and the policy do with them. FedBuff and the algorithm are measured in alternation.

    python benchmarks/server_steps.py                       # all algorithms: 10 minutes, 2 GB
    python benchmarks/server_steps.py ca2fl ace --repeats 9
"""

import argparse
import gc
import time
from math import inf, sqrt
from statistics import median

import numpy as np
from msgspec.structs import replace

from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import compatibility_of
from offbeat.algorithms.sizes import settings_for
from offbeat.core.errors import unknown
from offbeat.core.messages import Event, TimerFired, Uploaded
from offbeat.core.orders import KnownOutcome, Update
from offbeat.core.parameters import Layout, frozen
from offbeat.core.streams import stream
from offbeat.testing import ScriptedSession

DEVICES, IN_TRAINING, LAYERS = 12, 6, 4
NOTE = f"""
Ratios of CPU seconds per update, medians. {IN_TRAINING} of {DEVICES} devices are in training. Per update of 10 MB
FedBuff, which makes a version of every third, moves 27 MB: the update, its base, and a third of the old and the new
version.
Memory traffic forbids 1.5 times as much for
- `delayed-nesterov` and `ringleader`, whose sums in float64 are read and written with every update: 80 and 120 MB;
- `ace` and `aced`, with such a sum and the device's old and new movement: 120 MB; `fedstale` and `fedvarp` likewise;
- `fadas`, with three moments in float64 per version, and `fedasmu`, which needs the movement and two inner products;
- `fedfa`, `safa` and `psurdg`, which read every cached model for each version;
- `seafl`, `port`, `fedlws` and `auto`, which read every update again for inner products or norms.
FedAsync, the last column, makes a version of every update with the least arithmetic.
"""


class Server:
    """A session of one algorithm, and models that devices upload."""

    def __init__(self, name: str, megabytes: float) -> None:
        policy, width = POLICIES[name], round(sqrt(megabytes * 1e6 / 4 / LAYERS))
        sizes = settings_for(policy, IN_TRAINING, devices=DEVICES, order_seconds=lambda: [1.0] * DEVICES, given={})
        self.session = ScriptedSession(
            policy(**sizes),
            devices=DEVICES,
            start=[0.0] * (LAYERS * width * width),
            layout=Layout.of([(f"{number}.weight", (width, width), True) for number in range(LAYERS)]),
            speeds=[1e6] * DEVICES,
            horizon=1e6,
            epochs=2,
        )
        random = stream(0, "movements")
        self.movements = [frozen(1e-3 * random.normal(size=self.session.layout.size)) for _ in range(4)]
        self.uploads = 0

    def seconds(self, uploads: int) -> float:
        """CPU seconds per update that the session takes for this many uploads, and for the timers between them."""
        session, spent, goal = self.session, 0.0, self.uploads + uploads
        while self.uploads < goal:
            due = min(session.timers.values(), default=inf)
            if session.in_flight and due > session.now:
                update = self.update(min(session.in_flight))
                event: Event = Uploaded(device=update.device, ticket=update.ticket, update=update)
                at = min(session.now + 0.1, due)
            else:
                event = TimerFired(name=min(session.timers, key=lambda timer: session.timers[timer]))
                at = max(session.now, due)
            started = time.process_time()
            session.handle(event, at)
            spent += time.process_time() - started
        return spent / uploads

    def update(self, ticket: int) -> Update:
        """The next upload of an order."""
        update, movement = self.session.update(ticket=ticket), self.movements[self.uploads % len(self.movements)]
        self.uploads += 1
        model = update.base_parameters + movement
        if update.mask is not None:
            model = np.where(update.mask.chosen, model, update.base_parameters)
        return replace(update, outcome=KnownOutcome(replace(update.outcome(), parameters=frozen(model))))


def ratio(name: str, reference: str, megabytes: float, repeats: int, uploads: int) -> float:
    """CPU seconds per update of an algorithm / of another, measured in alternation."""
    one, other = Server(name, megabytes), Server(reference, megabytes)
    for server in (one, other):
        server.seconds(uploads)  # caches fill, memory is mapped
    return median(one.seconds(uploads) / other.seconds(uploads) for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help="default: all")
    parser.add_argument("--megabytes", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--uploads", type=int, default=36, help="per repeat")
    given = parser.parse_args()
    print("| algorithm | makes versions of | / FedBuff | / FedAsync |\n|---|---|---|---|")
    for name in given.algorithms or POLICIES:
        if name not in POLICIES:
            raise unknown("algorithm", name, POLICIES)
        made_from = compatibility_of(POLICIES[name]).made_from
        how = given.megabytes, given.repeats, given.uploads
        least = f"{ratio(name, 'fedasync', *how):.2f}" if made_from == "single uploads" else ""
        print(f"| {name} | {made_from} | {ratio(name, 'fedbuff', *how):.2f} | {least} |", flush=True)
        gc.collect()
    print(NOTE)


if __name__ == "__main__":
    main()
