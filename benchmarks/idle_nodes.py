"""CPU time of a SuperLink while idle nodes poll for messages and send heartbeats.

python benchmarks/idle_nodes.py [--nodes 1000] [--idle-seconds 10] [--seconds 30]

Starts a SuperLink on loopback. The nodes are connections of `offbeat node`, without children, in this process.
"""

import argparse
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import median
from threading import Event, Thread

import psutil

from offbeat.core.errors import OffbeatError
from offbeat.flower.launch.local_cluster import Cluster
from offbeat.flower.node.connection import FleetConnection, SuperLinkAway
from offbeat.flower.node.node import Polling

WORKERS = 16
"""Concurrent requests."""
ATTEMPTS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--idle-seconds", type=float, default=Polling().idle)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with Cluster(0) as cluster, ThreadPoolExecutor(WORKERS) as pool:
        (server,) = [psutil.Process(pid) for pid in cluster.superlink.pids("flower-superlink")][-1:]
        nodes = [FleetConnection(cluster.address) for _ in range(options.nodes)]
        began = time.monotonic()
        list(pool.map(connect, nodes))
        print(f"{len(nodes)} nodes connected after {time.monotonic() - began:.0f} s")
        used, waits, failures = measure(server, nodes, pool, options.idle_seconds, options.seconds)
        rate = len(waits) / options.seconds
        print(f"{rate:.0f} requests/s of {len(nodes) / options.idle_seconds:.0f} due; {failures} failed")
        print(
            f"SuperLink: {used / options.seconds:.2f} of a core, {1000 * used / max(1, len(waits)):.2f} ms per request"
        )
        print(f"response time: {1000 * median(waits):.0f} ms (median), {1000 * max(waits):.0f} ms (longest)")
        print(f"memory of the SuperLink: {server.memory_info().rss / 2**20:.0f} MB")
        list(pool.map(FleetConnection.close, nodes))


def connect(node: FleetConnection) -> None:
    """Retry as a node does while the SuperLink is too busy to reply."""
    for _ in range(ATTEMPTS):
        with suppress(SuperLinkAway):
            node.open()
            return
        time.sleep(1.0)
    raise SystemExit("the SuperLink does not answer")


def measure(
    server: psutil.Process, nodes: list[FleetConnection], pool: ThreadPoolExecutor, idle: float, seconds: float
) -> tuple[float, list[float], int]:
    """CPU seconds of the SuperLink, the duration of each request, and the number of failed requests."""
    waits: list[float] = []
    failed: list[str] = []
    stop = Event()

    def ask(node: FleetConnection) -> None:
        began = time.monotonic()
        try:
            node.receive()
        except OffbeatError as error:
            failed.append(str(error))
        waits.append(time.monotonic() - began)

    def schedule(share: list[FleetConnection]) -> None:
        due = sorted((random.uniform(0.0, idle), number) for number in range(len(share)))
        began, turn = time.monotonic(), 0
        while not stop.is_set():
            at, number = due[turn % len(due)]
            pause = began + at + idle * (turn // len(due)) - time.monotonic()
            if pause > 0:
                stop.wait(pause)
            ask(share[number])
            turn += 1

    before = sum(server.cpu_times()[:2])
    threads = [Thread(target=schedule, args=(nodes[first::WORKERS],)) for first in range(WORKERS)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(server.cpu_times()[:2]) - before, waits, len(failed)


if __name__ == "__main__":
    main()
