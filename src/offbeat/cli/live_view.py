"""`--serve`: the live view of `offbeat serve` in a process of its own, for the time of a command."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offbeat.cli.progress import messages
from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from types import ModuleType

Serve = Annotated[
    bool,
    typer.Option("--serve", help="Show the results live in the browser, as `offbeat serve` does."),
]


def live_server() -> "ModuleType":
    """The module of the web server; raises InvalidInput if its packages are not installed."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise InvalidInput(f"the live view needs {package}, which is not installed: pip install 'offbeat[serve]'")
    from offbeat.live import server

    return server


@contextmanager
def live_view(asked: bool, root: Path) -> Iterator[None]:
    """Serve a directory, which need not exist yet, while the context lasts; in a terminal until Enter is pressed."""
    if not asked:
        yield
        return
    with live_server().listen("127.0.0.1", 0) as where:
        url = f"http://127.0.0.1:{where.getsockname()[1]}/view/"
        where.set_inheritable(True)
        command = [sys.executable, "-c", "from offbeat.cli import main; main()", "serve", str(root.absolute())]
        process: subprocess.Popen[Any] = subprocess.Popen(
            [*command, "--fd", str(where.fileno()), "--parent", str(os.getpid())],
            pass_fds=[where.fileno()],
            start_new_session=True,  # Ctrl-C ends the run first
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        messages.print(f"Live view: {url}", soft_wrap=True, highlight=False)
        if messages.is_terminal:
            import webbrowser

            webbrowser.open(url)
        yield
        if messages.is_terminal and sys.stdin.isatty():
            messages.input(f"The live view stays at {url} until you press Enter. ")
    finally:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
