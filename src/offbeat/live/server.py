"""The web server of the live view. It reads files, never writes, and listens on loopback unless it has a token.

`/` lists the runs, `/view/DIR` shows one, `/data...` has what they show as JSON, `/events...` says when that changes.
"""

import asyncio
import hmac
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from offbeat.core.errors import InvalidInput
from offbeat.live.watching import Watching
from offbeat.results.report import page_html

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PERIOD = 1.0
"""Seconds between two looks at the files; longer if a look takes long."""
PING_SECONDS = 15.0
COOKIE = "offbeat-token"
HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def make_app(root: Path, token: str | None = None) -> Starlette:
    """The application for a results directory; with a token, every request needs it."""
    watching = Watching(root)
    closing = asyncio.Event()

    def page(request: Request) -> Response:
        name = request.path_params.get("path")
        tail = "" if name is None else f"/{name}"
        data = {"source": f"/data{tail}", "events": f"/events{tail}", "home": "/"}
        title = root.resolve().name if name is None else Path(name).name
        return HTMLResponse(page_html(data, title or "offbeat", connect="'self'"))

    def data(request: Request) -> Response:
        name = request.path_params.get("path")
        try:
            shown = watching.index() if name is None else watching.view(watching.place(name))
        except InvalidInput as error:
            return PlainTextResponse(f"{error}.", status_code=404)
        return Response(json.dumps(shown, separators=(",", ":"), default=str), media_type="application/json")

    async def events(request: Request) -> Response:
        name = request.path_params.get("path")
        try:
            path = None if name is None else watching.place(name)
        except InvalidInput as error:
            return PlainTextResponse(f"{error}.", status_code=404)

        async def changes() -> AsyncIterator[str]:
            before, spoken = None, time.monotonic()
            while not closing.is_set():
                started = time.monotonic()
                now = await run_in_threadpool(watching.signature, path)
                if now != before:
                    before, spoken = now, time.monotonic()
                    yield "data: changed\n\n"
                elif time.monotonic() - spoken > PING_SECONDS:
                    spoken = time.monotonic()
                    yield ": still here\n\n"
                await asyncio.sleep(max(PERIOD, 4 * (time.monotonic() - started)))

        return StreamingResponse(changes(), media_type="text/event-stream")

    async def guard(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        if token is None:  # against pages elsewhere that resolve their own name to loopback
            host = request.headers.get("host", "").rpartition(":")[0].strip("[]")
            if host not in LOOPBACK:
                return PlainTextResponse("This server answers on loopback only.", status_code=403)
            response = await proceed(request)
        else:
            given = request.query_params.get("token") or request.cookies.get(COOKIE) or ""
            if not hmac.compare_digest(given.encode(), token.encode()):
                return PlainTextResponse("A token is needed: open the address that offbeat serve printed.", 401)
            response = await proceed(request)
            response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
        response.headers.update(HEADERS)
        return response

    routes = [
        Route("/", page),
        Route("/view/{path:path}", page),
        Route("/data", data),
        Route("/data/{path:path}", data),
        Route("/events", events),
        Route("/events/{path:path}", events),
    ]
    return Starlette(
        routes=routes, middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard), Middleware(GZipMiddleware)]
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; raises InvalidInput if the address is taken or not of this machine."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidInput(f"--host {host} --port {port}: {error.strerror}; choose another --port") from None


def token_for(host: str) -> str | None:
    """A new token, unless the host is loopback."""
    return None if host in LOOPBACK else secrets.token_urlsafe(16)


def address(where: socket.socket, host: str, token: str | None) -> str:
    """The URL of the live view at a socket."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{where.getsockname()[1]}/" + (f"?token={token}" if token else "")


def make_server(root: Path, token: str | None = None) -> uvicorn.Server:
    """The server of the live view, not yet started."""
    config = uvicorn.Config(
        make_app(root, token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
        ws="none",
    )
    return uvicorn.Server(config)


def serve(root: Path, where: socket.socket, token: str | None = None, parent: int | None = None) -> None:
    """Serve until interrupted, or until the parent process ends."""
    server = make_server(root, token)
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent, server), daemon=True).start()
    server.run(sockets=[where])


def _end_with(parent: int, server: Any) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    server.should_exit = True
