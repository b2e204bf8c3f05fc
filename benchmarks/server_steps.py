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
VECTORS = {
    "fedbuff": (2.3, 0.3),  # update, base and a third of the old version; a third of the new one
    "ca2fl": (4.0, 2.0),  # and the device's last movement, a third of the mean in float64
    "fedstale": (3.5, 1.5),  # the same with a sixth, of rounds
    "fedvarp": (3.5, 1.5),
    "fadas": (4.3, 2.3),  # and a third of three moments in float64
    "fadas-large-step": (4.3, 2.3),
    "psurdg": (4.6, 1.2),  # and the movements of all devices, per iteration of five uploads
    "seafl": (4.7, 0.7),  # and the update again, after three inner products
    "seafl2": (4.7, 0.7),
    "auto": (5.5, 1.0),  # and the update and its base again, after the step that made it and three inner products
    "fedfa": (6.0, 1.0),  # the whole queue; the new version
    "delayed-nesterov": (5.7, 3.7),  # update, base, old and new version, a sum in float64, a third of another
    "ace": (6.0, 4.0),  # update, base, the device's last movement, old and new version, a sum in float64
    "aced": (6.0, 4.0),
    "ringleader": (9.0, 5.0),  # update, base, old and new version; the device's sum and the sum of all, in float64
}
"""Vectors of the size of a model in float32 that a server must read and write per update; in float64 each counts twice.
"""
NOTE = f"""
Ratios of CPU seconds per update, medians. {IN_TRAINING} of {DEVICES} devices are in training. `vectors`: how many of
10 MB a rule must read + write per update. FedBuff, which makes a version of every third update, has 2.3 + 0.3; rules
with at least 1.9 times as many take more than 1.5 times as long, because memory traffic dominates. `seafl` and `auto`
also take inner products in float64; `fedasmu`, `fedlws` and `refl` read every update again for those or for norms.
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
    print("| algorithm | makes versions of | vectors | / FedBuff | / FedAsync |\n|---|---|---|---|---|")
    for name in given.algorithms or POLICIES:
        if name not in POLICIES:
            raise unknown("algorithm", name, POLICIES)
        made_from = compatibility_of(POLICIES[name]).made_from
        how = given.megabytes, given.repeats, given.uploads
        least = f"{ratio(name, 'fedasync', *how):.2f}" if made_from == "single uploads" else ""
        vectors = "{} + {}".format(*VECTORS[name]) if name in VECTORS else ""
        print(f"| {name} | {made_from} | {vectors} | {ratio(name, 'fedbuff', *how):.2f} | {least} |", flush=True)
        gc.collect()
    print(NOTE)


if __name__ == "__main__":
    main()
