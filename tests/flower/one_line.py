"""What changes in a user's ServerApp: the line in which its strategy is made, and an import."""

from pathlib import Path
from shutil import copytree

APPS = Path(__file__).parents[1] / "flower_apps"
IMPORT = "from offbeat import flower\nfrom offbeat.flower import Async, AsyncServer, FedBuff\n"
ASYNC = "Async(FedBuff(buffer=2)"
LINES = {
    "quickstart-numpy": ('= STRATEGIES[config["strategy"]](', f"= {ASYNC}, "),
    "quickstart-pytorch": ("= FedAvg(", f"= {ASYNC}, "),
    "quickstart-sklearn": ("= FedAvg(", f"= {ASYNC}, "),
    "personal-state": ("    Printing(", f"    {ASYNC}, "),
    "lora-adapters": ("    FedAvg(", f"    {ASYNC}, "),
    "before-messages": (
        "return ServerAppComponents(strategy=strategy, ",
        "return ServerAppComponents(server=AsyncServer(FedBuff(buffer=2), strategy), ",
    ),
}


def with_the_one_line(name: str, folder: Path, change: tuple[str, str] | None = None) -> Path:
    """A copy of an app in which that line is ours."""
    app = copytree(APPS / name, folder / name)
    (server,) = app.glob("*/server_app.py")
    old, new = change or LINES[name]
    assert server.read_text().count(old) == 1
    server.write_text(IMPORT + server.read_text().replace(old, new))
    return app
