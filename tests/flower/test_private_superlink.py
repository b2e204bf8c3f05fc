"""The SuperLink of a local cluster: only processes of the user who started it get an answer."""

import asyncio
import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from offbeat.flower.launch.private_superlink import OnlyThisUser, user_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the user of a connection")


def status(client: tuple[str, int] | None, server: tuple[str, int]) -> int:
    """The HTTP status that a client of a server gets."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(OnlyThisUser(app)({"type": "http", "client": client, "server": server}, None, send))
    return int(sent[0]["status"])


def test_processes_of_this_user_are_answered_and_closed_or_distant_ones_are_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        server = door.getsockname()
        client = socket.create_connection(server)
        address = client.getsockname()
        assert status(address, server) == 200 and user_of(address[1], server[1]) == os.getuid()
        client.close()
        assert status(address, server) == 403, "its user is no longer known"
    assert status(("192.0.2.1", address[1]), server) == 403 and status(None, server) == 403


CONNECT = """
import os, socket, sys
"".encode("idna")  # imported before the files of Python are out of reach
os.setuid(65534)
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(client.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")
def test_a_process_of_another_user_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        command = [sys.executable, "-c", CONNECT, str(door.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            port = int(other.stdout.readline())
            assert user_of(port, door.getsockname()[1]) == 65534
            assert status(("127.0.0.1", port), door.getsockname()) == 403
            other.communicate("")
