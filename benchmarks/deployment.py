"""Persistent nodes beside stock nodes, and offbeat beside Flower's FedAvg: round trips, updates per minute, accuracy.

python benchmarks/deployment.py [--nodes 4] [--rounds 2] [--repeats 3] [--only-uneven]

Starts a SuperLink on loopback with equally many persistent nodes (`offbeat node`) and stock nodes. In each repeat one
ServerApp measures the round trip of a small message, that of 100 MB to a persistent node, and the training of LeNet-5
under Flower's FedAvg on stock nodes and under offbeat's FedAvg and FedAsync on both kinds. Before that, FedAvg and
FedAsync are run up to an accuracy on persistent nodes that are as slow as the devices of an uneven fleet (`paced`).
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from offbeat.experiment.schema import Experiment
from offbeat.flower.launch.bundle import write_bundle
from offbeat.flower.launch.local_cluster import Cluster
from offbeat.flower.launch.superlink import submit

APP = Path(__file__).parent / "flower_app"
TARGET = 0.85
FASTEST, RATIO = 1.5, 8.0
"""Epoch of the fastest device in seconds, and that of the slowest as a multiple of it."""
UNEVEN: dict[str, Any] = {
    "stop": {"accuracy": TARGET, "time": 600.0},
    "data": {"name": "mnist5k"},
    "model": {"name": "lenet5"},
    "local": {"epochs": 1, "batch_size": 32},
    "evaluation": {"every_seconds": 2.0, "targets": [TARGET]},
    "deployment": {"paced": True},
}
"""Evaluated by time: after every version, evaluation would dominate the server's time."""
TUNED: dict[str, dict[str, Any]] = {
    "fedavg": {"in_training": "cohort", "algorithm": {}, "learning_rate": 0.2},
    "fedasync": {"in_training": "concurrency", "algorithm": {"alpha": 0.9}, "learning_rate": 0.1},
}
"""The fastest settings in the simulator on seed 100, among rates of 0.05, 0.1 and 0.2 and, for FedAsync, alpha from 0.4
to 0.9. There they take 38 s and 8 s."""


def measure(nodes: int, rounds: int, repeats: int) -> tuple[list[dict[str, float]], dict[str, float]]:
    """The measurements of the ServerApp in each repeat, and those of the whole run."""
    with TemporaryDirectory() as folder:
        app, out = Path(folder) / "app", Path(folder) / "out"
        out.mkdir()
        shutil.copytree(APP, app)
        settings = app / "pyproject.toml"
        text = settings.read_text().partition("[tool.flwr.app.config]")[0]
        config = {"nodes": nodes, "rounds": rounds, "repeats": repeats, "out": str(out)}
        lines = [f"{key} = {json.dumps(value)}" for key, value in config.items()]
        settings.write_text(text + "[tool.flwr.app.config]\n" + "\n".join(lines) + "\n")
        with Cluster(nodes, warm=True) as cluster:
            for device in range(nodes):
                cluster.add_node(device, warm=False, wait=False)
            show(app, cluster)
            figures = {"large trip, peak of the child, MB": int((out / "peak_kb").read_text()) / 1024}
            figures["large trip, peak of the node, MB"] = peak_of(cluster.nodes[0].pids("offbeat.cli")[-1])
        return list(json.loads((out / "results.json").read_text())), figures


def uneven(nodes: int, repeats: int) -> list[dict[str, float]]:
    """Seconds to the target accuracy on uneven nodes under both algorithms, and start-up time of the cluster."""
    results = []
    with TemporaryDirectory() as folder:
        fleet = Path(folder) / "fleet.csv"
        seconds = [FASTEST * RATIO ** (device / max(1, nodes - 1)) for device in range(nodes)]
        rows = [f"{device},{each:.3f}" for device, each in enumerate(seconds)]
        fleet.write_text("\n".join(["device,epoch_seconds", *rows]) + "\n")
        for repeat in range(repeats):
            found: dict[str, float] = {}
            for name, tuned in TUNED.items():
                table = UNEVEN | {"seed": repeat, "fleet": {"name": "trace", "path": str(fleet)}}
                table["data"] = UNEVEN["data"] | {"devices": nodes}
                table["local"] = UNEVEN["local"] | {"learning_rate": tuned["learning_rate"]}
                table["algorithm"] = {"name": name, tuned["in_training"]: nodes, **tuned["algorithm"]}
                bundle, out = Path(folder) / f"app-{name}-{repeat}", Path(folder) / f"out-{name}-{repeat}"
                bundle.mkdir()
                write_bundle(bundle, Experiment.parse(table), out=str(out))
                began = time.monotonic()
                with Cluster(nodes, warm=True) as cluster:
                    found["start"] = time.monotonic() - began
                    show(bundle, cluster)
                summary = json.loads((out / "summary.json").read_text())
                found[name] = float(summary["time_to_accuracy"][f"{TARGET:g}"] or summary["time"])
                found[f"{name}, devices in training"] = float(summary["in_training"])
            results.append(found)
    return results


def show(app: Path, cluster: Cluster) -> None:
    """Run an app and print its log."""
    for line in submit(app, cluster.address).follow():
        if line:
            print(f"  {line}")


def peak_of(pid: int) -> float:
    """Peak memory of a process in MB."""
    status = Path(f"/proc/{psutil.Process(pid).pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


RATIOS = (
    ("round trip of a small message, stock over persistent (>= 8)", "trip, stock", "trip, warm"),
    ("updates per minute, stock: offbeat's FedAvg over Flower's (>= 1)", "fedavg, stock", "Flower's FedAvg, stock"),
    ("updates per minute, stock: FedAsync over Flower's FedAvg", "fedasync, stock", "Flower's FedAvg, stock"),
    (
        "updates per minute, FedAvg on persistent over Flower's on stock (>= 3)",
        "fedavg, warm",
        "Flower's FedAvg, stock",
    ),
    (
        "updates per minute, FedAsync on persistent over Flower's FedAvg on stock",
        "fedasync, warm",
        "Flower's FedAvg, stock",
    ),
)


def print_uneven(times: list[dict[str, float]]) -> None:
    for name in times[0]:
        print(f"uneven persistent nodes, {name}: {median(each[name] for each in times):.1f}")
    ratio = median(each["fedavg"] / each["fedasync"] for each in times)
    print(f"{f'time to accuracy {TARGET} on uneven nodes, FedAvg over FedAsync':<72} {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only-uneven", action="store_true", help="skip the comparison with stock nodes")
    options = parser.parse_args()
    times = uneven(options.nodes, options.repeats)
    print_uneven(times)
    if options.only_uneven:
        return
    results, figures = measure(options.nodes, options.rounds, options.repeats)
    print(f"{options.nodes} nodes of each kind, {options.rounds} rounds, medians (and ranges) of {options.repeats}")
    for name in results[0]:
        values = sorted(each[name] for each in results)
        print(f"{name:<40} {median(values):8.2f} ({values[0]:.2f} to {values[-1]:.2f})")
    for name, figure in figures.items():
        print(f"{name:<40} {figure:8.0f}")
    for name, over, under in RATIOS:
        print(f"{name:<72} {median(each[over] / each[under] for each in results):.2f}")


if __name__ == "__main__":
    main()
