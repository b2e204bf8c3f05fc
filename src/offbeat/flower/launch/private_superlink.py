"""A SuperLink for one user: `flower-superlink` that answers only processes of the user who started it.

Whoever reaches a SuperLink may start runs, that is code on the server and on all nodes, and loopback is open to every
user of the machine. Flower's clients cannot present a secret, so each connection is looked up in the kernel's table
of TCP sockets (Linux), which states the user of its other end. Started by `local_cluster`.
"""

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]
ESTABLISHED = "01"
"""State of a socket in the kernel's table. Closed sockets lose their user: they count as foreign."""


def user_of(port: int, table: str | None = None) -> int | None:
    """The user of the established socket at a port of 127.0.0.1; None if there is none."""
    text = Path("/proc/net/tcp").read_text() if table is None else table
    start = -1
    while (start := text.find(f": 0100007F:{port:04X} ", start + 1)) >= 0:  # not line by line: it is asked per request
        _, _, _, state, _, _, _, user, *_ = text[start : text.find("\n", start)].split()
        if state == ESTABLISHED:
            return int(user)
    return None


class OnlyThisUser:
    """ASGI middleware: responds 403 to processes of other users, and to other machines."""

    def __init__(self, app: Any, find: Callable[[int], int | None] = user_of) -> None:
        self._app = app
        self._find = find

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan" or self._trusted(scope.get("client")):
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"this SuperLink belongs to another user"})

    def _trusted(self, client: tuple[str, int] | None) -> bool:
        return client is not None and client[0] == "127.0.0.1" and self._find(client[1]) == os.getuid()


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
