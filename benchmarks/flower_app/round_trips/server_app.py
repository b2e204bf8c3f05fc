"""The server: each repeat measures offbeat and Flower in turn on the same nodes."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from offbeat.experiment.schema import Experiment
from offbeat.flower.protocol.codec import pack, unpack
from offbeat.flower.protocol.messages import MESSAGE_TYPE, FromDevice, Hello
from offbeat.flower.server.app import ServerParts, serve
from offbeat.flower.server.membership import POLL_SECONDS
from offbeat.flower.server.transport import Incoming, SentMessage, Transport
from offbeat.models import vector_of
from round_trips.task import BATCH, EPOCHS, RATE, model, test_data

app = ServerApp()
HELLO = Hello(batch_size=BATCH)
WARM_TRIPS = 9
LARGE = 25_000_000
"""Elements of a model of 100 MB."""


class SomeNodes:
    """A grid that shows only some of its nodes."""

    def __init__(self, grid: Grid, nodes: Iterable[int]) -> None:
        self._grid = grid
        self._nodes = set(nodes)

    def get_node_ids(self) -> list[int]:
        return [node for node in self._grid.get_node_ids() if node in self._nodes]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes, rounds, out = int(config["nodes"]), int(config["rounds"]), Path(str(config["out"]))
    while len(list(grid.get_node_ids())) < 2 * nodes:
        time.sleep(POLL_SECONDS)
    warm, stock = (SomeNodes(grid, numbers) for numbers in by_kind(grid))
    results: list[dict[str, float]] = []
    for repeat in range(int(config["repeats"])):
        found = {
            "trip, stock, Flower": trip_flower(stock),
            "trip, stock": trip(stock),
            "trip, warm": median(trip(warm) for _ in range(WARM_TRIPS)),
            "large trip, warm": large_trip(warm, out / "peak_kb"),
        }
        found["Flower's FedAvg, stock"], found["processor, Flower"] = measured(flower_rate, stock, nodes, rounds)
        for kind, some in (("stock", stock), ("warm", warm)):
            for name, setting in (("fedavg", {"cohort": nodes}), ("fedasync", {"concurrency": nodes})):
                folder = out / f"{name}-{kind}-{repeat}"
                some_rounds = rounds if kind == "stock" else 5 * rounds
                rate_of, used = measured(rate, some, nodes, some_rounds, folder, name=name, **setting)
                found[f"{name}, {kind}"] = rate_of
                if (name, kind) == ("fedavg", "stock"):
                    found["processor, offbeat"] = used
        results.append(found)
        print(found, flush=True)
        (out / "results.json").write_text(json.dumps(results))


def by_kind(grid: Grid) -> tuple[list[int], list[int]]:
    """The persistent nodes, as their greetings state, and the other nodes."""
    kinds: tuple[list[int], list[int]] = [], []
    greetings = grid.send_and_receive([Message(pack(HELLO), node, MESSAGE_TYPE) for node in grid.get_node_ids()])
    for reply in greetings:
        greeting = unpack(reply.content, FromDevice)
        kinds[0 if greeting.interruptible else 1].append(reply.metadata.src_node_id)
    return kinds


def measured(work: Callable[..., float], *arguments: Any, **more: Any) -> tuple[float, float]:
    """The result, and the share of a core that this process used meanwhile."""
    began, used = time.monotonic(), time.process_time()
    found = work(*arguments, **more)
    return found, (time.process_time() - used) / (time.monotonic() - began)


def settle(grid: Any) -> None:
    """Wait until all nodes are idle: a run ends with orders in flight."""
    list(grid.send_and_receive([Message(pack(HELLO), node, MESSAGE_TYPE) for node in grid.get_node_ids()]))


def trip_flower(grid: Any) -> float:
    """Round trip of a small message in seconds, as Flower's strategies send it."""
    node, began = min(grid.get_node_ids()), time.monotonic()
    list(grid.send_and_receive([Message(pack(HELLO), node, MESSAGE_TYPE)]))
    return time.monotonic() - began


def trip(grid: Any) -> float:
    """Round trip of a small message in seconds, as offbeat sends it."""
    transport, began = Transport(grid, print), time.monotonic()
    transport.send(SentMessage(node=min(transport.nodes()), at=0.0, deadline=600.0), HELLO)
    while not transport.poll():
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


def large_trip(grid: Any, peak: Path) -> float:
    """Seconds for the round trip of a 100 MB model to a persistent node, whose app reports its peak memory."""
    incoming, began = Incoming(grid), time.monotonic()
    content = RecordDict({"large": ArrayRecord({"vector": Array(np.zeros(LARGE, dtype=np.float32))})})
    (identity,) = grid.push_messages([Message(content, min(grid.get_node_ids()), "train.echo")])
    while not (arrived := incoming.fetch({identity: 8 * LARGE})):
        time.sleep(POLL_SECONDS)
    seconds = time.monotonic() - began
    ((_, reply),) = arrived
    assert isinstance(reply, Message), reply
    peak.write_text(str(reply.content.metric_records["memory"]["peak"]))
    return seconds


def flower_rate(grid: Any, nodes: int, rounds: int) -> float:
    """Updates per minute of Flower's FedAvg."""
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    arrays, began = ArrayRecord({"vector": Array(vector_of(model()))}), time.monotonic()
    strategy.start(grid, arrays, num_rounds=rounds)
    return 60.0 * nodes * rounds / (time.monotonic() - began)


def rate(grid: Any, nodes: int, rounds: int, out: Path, **algorithm: Any) -> float:
    """Updates per minute of offbeat, counted from the first order."""
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
