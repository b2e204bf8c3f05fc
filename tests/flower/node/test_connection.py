"""A node's connection to a real SuperLink of Flower, which runs in a thread of this process."""

import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
import uvicorn
from flwr.superlink.main import create_app

from offbeat.flower.compat import generate_key_pairs
from offbeat.flower.launch.superlink import SuperLink
from offbeat.flower.node.connection import FleetConnection, TurnedAway


@pytest.fixture(scope="module")
def superlink() -> Iterator[SuperLink]:
    server = uvicorn.Server(uvicorn.Config(create_app(), host="127.0.0.1", port=0, ws="none", log_level="error"))
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield SuperLink(address=f"127.0.0.1:{port}", insecure=True)
    server.should_exit = True
    thread.join(30.0)


@pytest.mark.parametrize("ahead", [3600.0, -3600.0], ids=["an hour ahead", "an hour behind"])
def test_a_node_whose_clock_is_wrong_is_let_in(superlink: SuperLink, ahead: float) -> None:
    connection = FleetConnection(superlink, clock=lambda: time.time() + ahead)
    assert connection.open() > 0
    assert connection.receive() is None
    connection.close()


def test_a_signature_is_still_needed(superlink: SuperLink) -> None:
    """The time of the SuperLink is public; what lets a node in is its key."""
    connection = FleetConnection(superlink, clock=lambda: time.time() + 3600.0)
    connection.open()
    signing: Any = connection._client._interceptors[1]
    signing._private, _ = generate_key_pairs()
    with pytest.raises(TurnedAway):
        connection.receive()
    connection.close()
