"""The server: every repeat measures both, one after the other, on the same nodes."""

import json
import time
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from offbeat.deployment.protocol.codec import pack
from offbeat.deployment.protocol.messages import MESSAGE_TYPE, Hello
from offbeat.deployment.server.app import ServerParts, serve
from offbeat.deployment.server.membership import POLL_SECONDS
from offbeat.deployment.server.transport import SentMessage, Transport
from offbeat.models import vector_of
from offbeat.settings.schema import Experiment
from round_trips.task import BATCH, EPOCHS, RATE, model, test_data

app = ServerApp()
HELLO = Hello(batch_size=BATCH)


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes, rounds, out = int(config["nodes"]), int(config["rounds"]), Path(str(config["out"]))
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(POLL_SECONDS)
    results: list[dict[str, float]] = []
    for repeat in range(int(config["repeats"])):
        fedavg, fedasync = out / f"fedavg-{repeat}", out / f"fedasync-{repeat}"
        results.append(
            {
                "trip_flower": trip_flower(grid),
                "trip_offbeat": trip_offbeat(grid),
                "flower fedavg": flower_rate(grid, nodes, rounds),
                "offbeat fedavg": rate(grid, nodes, rounds, fedavg, name="fedavg", cohort=nodes),
                "offbeat fedasync": rate(grid, nodes, rounds, fedasync, name="fedasync", concurrency=nodes),
            }
        )
        print(results[-1], flush=True)
        (out / "results.json").write_text(json.dumps(results))


def settle(grid: Grid) -> None:
    """Wait until no node has anything left to do: a run ends with orders in flight."""
    list(grid.send_and_receive([Message(pack(HELLO), node, MESSAGE_TYPE) for node in grid.get_node_ids()]))


def trip_flower(grid: Grid) -> float:
    """Seconds of a small message to a node and back, as Flower's strategies send it."""
    node, began = min(grid.get_node_ids()), time.monotonic()
    list(grid.send_and_receive([Message(pack(HELLO), node, MESSAGE_TYPE)]))
    return time.monotonic() - began


def trip_offbeat(grid: Grid) -> float:
    """The same, as offbeat sends it."""
    transport, began = Transport(grid, print), time.monotonic()
    transport.send(SentMessage(node=min(transport.nodes()), at=0.0, deadline=600.0), HELLO)
    while not transport.poll():
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


def flower_rate(grid: Grid, nodes: int, rounds: int) -> float:
    """Updates a minute of Flower's FedAvg."""
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    arrays, began = ArrayRecord({"vector": Array(vector_of(model()))}), time.monotonic()
    strategy.start(grid, arrays, num_rounds=rounds)
    return 60.0 * nodes * rounds / (time.monotonic() - began)


def rate(grid: Grid, nodes: int, rounds: int, out: Path, **algorithm: Any) -> float:
    """Updates a minute of offbeat, from the first order on."""
    experiment = Experiment.parse(
        {
            "stop": {"updates": nodes * rounds},
            "data": {"devices": nodes},
            "local": {"epochs": EPOCHS, "batch_size": BATCH, "learning_rate": RATE},
            "algorithm": algorithm,
            "evaluation": {"every_versions": 1_000_000},
        }
    )
    serve(grid, experiment, ServerParts(network=model(), test=test_data()), out)
    settle(grid)
    summary = json.loads((out / "summary.json").read_text())
    return 60.0 * float(summary["updates_used"]) / float(summary["time"])
