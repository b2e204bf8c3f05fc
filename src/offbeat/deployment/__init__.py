"""Real runs on Flower: the same algorithms as in a simulation, on real devices and the wall clock.

from offbeat.deployment import client_app, server_app
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from offbeat.deployment.device.app import client_app, experiment_client_app
    from offbeat.deployment.server.app import experiment_server_app, server_app

__all__ = ["client_app", "experiment_client_app", "experiment_server_app", "server_app"]
_HOMES = {
    "client_app": "offbeat.deployment.device.app",
    "experiment_client_app": "offbeat.deployment.device.app",
    "experiment_server_app": "offbeat.deployment.server.app",
    "server_app": "offbeat.deployment.server.app",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that what needs Flower is needed only by those who use it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'offbeat.deployment' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise InvalidInput("Flower is not installed: pip install 'offbeat[flower]'") from None
