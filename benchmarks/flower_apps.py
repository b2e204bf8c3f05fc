"""A Flower app on the virtual clock beside Flower's simulation on Ray, and the memory of nodes with state.

python benchmarks/flower_apps.py [--app tests/flower_apps/quickstart-numpy] [--nodes 10] [--rounds 2 22] [--repeats 3]

Both sides run the same app on one core (where processes can be pinned). Throughput is that of the rounds by which the
longer of two runs exceeds the shorter, so that start-up time does not count. Needs `flwr[simulation]`.
"""

import argparse
import logging
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from statistics import median

import psutil

ROOT = Path(__file__).resolve().parents[1]
APPS = ROOT / "tests" / "flower_apps"


def on_the_virtual_clock(app: Path, nodes: int, rounds: int) -> float:
    """Wall-clock seconds of a run by offbeat."""
    from offbeat.flower.virtual.run import simulate
    from offbeat.flower.virtual.settings import AppSettings

    began = time.perf_counter()
    simulate(app, AppSettings(nodes=nodes), run_config=[f"num-server-rounds={rounds}"])
    return time.perf_counter() - began


def on_ray(app: Path, nodes: int, rounds: int) -> float:
    """Wall-clock seconds of the simulation that `flwr run` starts, in one process and with one Ray actor."""
    from flwr.app import Context, RecordDict
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore.constant import NOOP_FEDERATION_ID
    from flwr.supercore.run import Run
    from flwr.supercore.telemetry import EventType

    from offbeat.flower.virtual.app import read_app
    from offbeat.flower.virtual.clients import identify

    found = read_app(app, [f"num-server-rounds={rounds}"])
    run = Run.create_empty(1)
    run.primary_task_id, run.federation_id, run.override_config = 1, NOOP_FEDERATION_ID, dict(found.overrides)
    identify(1)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=dict(found.run_config))
    began = time.perf_counter()
    _run_simulation(
        num_supernodes=nodes,
        exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}},
        server_app_attr=found.server_reference,
        client_app_attr=found.client_reference,
        server_app_context=context,
        app_dir=str(found.directory),
        run=run,
        is_app=True,
    )
    return time.perf_counter() - began


SIDES = {"offbeat": on_the_virtual_clock, "ray": on_ray}


def measured(side: str, app: Path, nodes: int, rounds: int) -> float:
    """Seconds of one run, in a process of its own on one core."""
    command = [
        sys.executable,
        __file__,
        "--side",
        side,
        "--app",
        str(app),
        "--nodes",
        str(nodes),
        "--rounds",
        str(rounds),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{side} failed:\n{ended.stderr[-2000:]}")
    return float(ended.stdout.strip().splitlines()[-1])


def compare(app: Path, nodes: int, rounds: list[int], repeats: int) -> None:
    """Print the throughput of both sides, their ratio, and the start-up times."""
    few, many = rounds
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    starts: dict[str, list[float]] = {side: [] for side in SIDES}
    for _ in range(repeats):
        for side in SIDES:
            short, long = measured(side, app, nodes, few), measured(side, app, nodes, many)
            round_seconds = (long - short) / (many - few)
            rates[side].append(nodes / round_seconds)
            starts[side].append(short - few * round_seconds)
    for side in SIDES:
        print(f"{side}: {median(rates[side]):.1f} updates/s, {median(starts[side]):.1f} s to start")
    ratios = [ours / theirs for ours, theirs in zip(rates["offbeat"], rates["ray"], strict=True)]
    spread = f"({min(ratios):.2f} - {max(ratios):.2f})"
    print(f"offbeat over Flower's simulation on Ray: {median(ratios):.2f} {spread}  (>= 2)")


def memory(nodes: int, floats: int) -> None:
    """Print the memory of nodes that keep this many 8-byte floats in their state."""
    from offbeat.flower.virtual.app import read_app
    from offbeat.flower.virtual.run import SimulatedApp
    from offbeat.flower.virtual.settings import AppSettings

    app = read_app(APPS / "personal-state", ["num-server-rounds=2", f"head-size={floats}"])
    before = psutil.Process().memory_info().rss
    simulated = SimulatedApp(app, AppSettings(nodes=nodes))
    simulated.run()
    more = psutil.Process().memory_info().rss - before
    simulated.close()
    state = nodes * (8 * floats + 128)
    print(
        f"{nodes} nodes with {state / 1e6:.1f} MB of state: {more / 1e6:.0f} MB more, of {before / 1e6:.0f} MB before"
    )


def main() -> None:
    """Measure, or run one side in a process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--app", type=Path, default=APPS / "quickstart-numpy")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, nargs="+", default=[2, 22])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--side", choices=SIDES)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if options.side is not None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        try:
            print(SIDES[options.side](options.app, options.nodes, options.rounds[0]), flush=True)
        except Exception:
            traceback.print_exc()
            os._exit(1)  # where Ray did not start, Flower's thread of the ServerApp waits on for an hour
        return
    compare(options.app, options.nodes, options.rounds, options.repeats)
    memory(1000, 4)
    memory(1000, 10_000)


if __name__ == "__main__":
    main()
