"""A message's way to a node and back, and updates a minute: offbeat beside Flower's own FedAvg on the same nodes.

python benchmarks/deployment.py [--nodes 4] [--rounds 2] [--repeats 3]

Starts a SuperLink and the nodes on loopback. In each repeat one ServerApp does everything one after the other: a small
message with Flower's `send_and_receive` and with offbeat's mail, then the same local training under Flower's FedAvg,
offbeat's FedAvg and offbeat's FedAsync. All nodes share this machine, so the updates a minute say how much the driver
costs, not how much asynchrony gains.
"""

import argparse
import json
import shutil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from offbeat.deployment.launch import submit
from offbeat.deployment.local_cluster.cluster import Cluster

APP = Path(__file__).parent / "flower_app"


def measure(nodes: int, rounds: int, repeats: int) -> list[dict[str, float]]:
    with TemporaryDirectory() as folder, Cluster(nodes) as cluster:
        app, out = Path(folder) / "app", Path(folder) / "out"
        out.mkdir()
        shutil.copytree(APP, app)
        settings = app / "pyproject.toml"
        text = settings.read_text().partition("[tool.flwr.app.config]")[0]
        config = {"nodes": nodes, "rounds": rounds, "repeats": repeats, "out": str(out)}
        lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
        settings.write_text(text + "[tool.flwr.app.config]\n" + "\n".join(lines) + "\n")
        for line in submit(app, cluster.address).follow():
            if line:
                print(f"  {line}")
        return list(json.loads((out / "results.json").read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    results = measure(options.nodes, options.rounds, options.repeats)

    def shown(name: str) -> str:
        values = sorted(each[name] for each in results)
        return f"{median(values):.1f} ({values[0]:.1f} to {values[-1]:.1f})"

    print(f"{options.nodes} nodes, {options.rounds} rounds, medians (and ranges) of {options.repeats}")
    print(f"message to a node and back, seconds: Flower {shown('trip_flower')}, offbeat {shown('trip_offbeat')}")
    for name in ("flower fedavg", "offbeat fedavg", "offbeat fedasync"):
        print(f"{name}: {shown(name)} updates a minute")
    for name, over, under in (
        ("message trip, Flower over offbeat", "trip_flower", "trip_offbeat"),
        ("updates a minute, offbeat FedAvg over Flower's", "offbeat fedavg", "flower fedavg"),
        ("updates a minute, offbeat FedAsync over Flower's FedAvg", "offbeat fedasync", "flower fedavg"),
    ):
        print(f"{name:<58} {median(each[over] / each[under] for each in results):.2f}")


if __name__ == "__main__":
    main()
