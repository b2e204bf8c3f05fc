"""The ServerApp: no strategy, but a loop of its own that pushes, polls and sleeps."""

import time
from time import sleep

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


def ask(grid, nodes, arrays, kind, poll):
    """Send the model to the nodes, and poll until all have answered."""
    content = RecordDict({} if arrays is None else {"arrays": arrays})
    pending = set(grid.push_messages([Message(content, node, kind) for node in nodes]))
    replies = []
    while pending:
        arrived = list(grid.pull_messages(pending))
        replies += arrived
        pending -= {reply.metadata.reply_to_message_id for reply in arrived}
        if poll:
            sleep(poll)
    return replies


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Warm up, train, evaluate."""
    began, config, poll = time.time(), context.run_config, context.run_config["poll-seconds"]
    nodes = list(grid.get_node_ids())
    answers = ask(grid, nodes, None, "query.hardware", poll)
    print("cores", sum(reply.content["answer"]["cores"] for reply in answers))
    arrays = ArrayRecord({"w": Array(np.zeros(3))})
    for number in range(config["warm-up-rounds"] + config["num-server-rounds"]):
        kind = "train.warm_up" if number < config["warm-up-rounds"] else "train"
        replies = ask(grid, nodes, arrays, kind, poll)
        mean = np.mean([reply.content["arrays"]["w"].numpy() for reply in replies], axis=0)
        arrays = ArrayRecord({"w": Array(mean)})
        for reply in grid.send_and_receive(
            [Message(RecordDict({"arrays": arrays}), node, "evaluate", group_id=str(number)) for node in nodes]
        ):
            assert reply.has_content()
    print("took", time.time() - began)
