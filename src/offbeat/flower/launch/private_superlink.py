"""A SuperLink for one user: `flower-superlink` that answers only processes of the user who started it.

Whoever reaches a SuperLink may start runs, that is code on the server and on all nodes, and loopback is open to every
user of the machine. Flower's clients cannot present a secret, so the kernel is asked for the user at the other end of
each connection (Linux). Started by `local_cluster`.
"""

import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]
ESTABLISHED = 1
"""State of a TCP socket. Closed sockets lose their user: they count as foreign."""
LOOPBACK = socket.inet_aton("127.0.0.1")
SOCK_DIAG_BY_FAMILY, NETLINK_INET_DIAG, REQUEST = 20, 4, 1
"""Constants of sock_diag(7). A socket is found by its ends at once; reading /proc/net/tcp takes 10 ms."""


def user_of(port: int, server_port: int) -> int | None:
    """The user of the established connection from one port of 127.0.0.1 to another; None if there is none."""
    ends = struct.pack("!HH16s16s", port, server_port, LOOPBACK, LOOPBACK) + struct.pack(
        "=III", 0, 2**32 - 1, 2**32 - 1
    )
    asked = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 2**32 - 1) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_INET_DIAG) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(asked), SOCK_DIAG_BY_FAMILY, REQUEST, 0, 0) + asked)
        reply = kernel.recv(4096)
    (kind,) = struct.unpack_from("=H", reply, 4)
    if kind != SOCK_DIAG_BY_FAMILY or reply[17] != ESTABLISHED:
        return None
    (user,) = struct.unpack_from("=I", reply, 16 + 4 + 48 + 12)  # after state, ends, timer and queues
    return int(user)


class OnlyThisUser:
    """ASGI middleware: responds 403 to processes of other users, and to other machines."""

    def __init__(self, app: Any, find: Callable[[int, int], int | None] = user_of) -> None:
        self._app = app
        self._find = find

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan" or self._trusted(scope.get("client"), scope.get("server")):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"this SuperLink belongs to another user"})

    def _trusted(self, client: tuple[str, int] | None, server: tuple[str, int] | None) -> bool:
        if client is None or server is None or client[0] != "127.0.0.1":
            return False
        return self._find(client[1], server[1]) == os.getuid()


def main() -> None:
    """Run `flower-superlink` with its command-line options, for this user only."""
    import uvicorn

    from offbeat.flower.compat import flower_superlink

    serve: Any = uvicorn.run

    def run(app: Any, **options: Any) -> None:
        serve(app=OnlyThisUser(app) if sys.platform == "linux" else app, **options)

    uvicorn.run = run
    sys.argv[0] = "flower-superlink"
    flower_superlink()


if __name__ == "__main__":
    main()
