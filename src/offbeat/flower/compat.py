# ruff: noqa: F401  (names for type checkers)
"""Flower's private modules, behind one door: no other module of offbeat imports them.

Public are `flwr.app`, `flwr.clientapp`, `flwr.server`, `flwr.server.strategy`, `flwr.serverapp`, its `strategy` and
`flwr.simulation`; the rest moves between minor versions. Names are imported on first use: a node must not load what
only the command line needs, and older versions of Flower lack what only nodes need. `tests/flower/test_compat.py` says
what a new version of Flower has changed.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from offbeat.core.errors import InvalidInput

if TYPE_CHECKING:
    from flwr.app.message import make_message, remove_content_from_message
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.constant import LOCAL_SUPERLINK_HTTP_API_PORT
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.install import install_from_fab
    from flwr.cli.supernode.register import try_load_public_key
    from flwr.cli.typing import SuperLinkConnection
    from flwr.cli.utils import SUPERLINK_UNAVAILABLE_MESSAGE, flwr_cli_exc_handler, init_http_client_from_connection
    from flwr.clientapp.client_app import ClientAppException
    from flwr.clientapp.utils import get_load_client_app_fn
    from flwr.common import Code, EvaluateRes, FitRes, parameters_to_ndarrays
    from flwr.common.config import (
        flatten_dict,
        get_fused_config_from_fab,
        get_metadata_from_config,
        get_project_config,
        parse_config_args,
    )
    from flwr.common.constant import (
        HEARTBEAT_DEFAULT_INTERVAL,
        NUM_PARTITIONS_KEY,
        PARTITION_ID_KEY,
        SUPERLINK_NODE_ID,
        ErrorCode,
        Status,
        SubStatus,
    )
    from flwr.common.serde import (
        fab_from_proto,
        fab_to_proto,
        message_from_proto,
        message_to_proto,
        recorddict_from_proto,
        recorddict_to_proto,
        run_from_proto,
    )
    from flwr.compat.common import recorddict_compat
    from flwr.compat.common.recorddict_compat import arrayrecord_to_parameters
    from flwr.proto.control_pb2 import (
        ListFederationsRequest,
        ListRunsRequest,
        RegisterNodeRequest,
        ShowFederationRequest,
        StartRunRequest,
        StopRunRequest,
        StreamLogsRequest,
    )
    from flwr.proto.fab_pb2 import GetFabRequest
    from flwr.proto.fleet_pb2 import (
        ActivateNodeRequest,
        DeactivateNodeRequest,
        PullMessagesRequest,
        PushMessagesRequest,
        RegisterNodeFleetRequest,
        UnregisterNodeFleetRequest,
    )
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.proto.node_pb2 import Node
    from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
    from flwr.proto.run_pb2 import GetRunRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.server import server as legacy_server
    from flwr.server.client_proxy import ClientProxy
    from flwr.server.compat import app_utils, start_grid
    from flwr.server.compat.grid_client_proxy import GridClientProxy
    from flwr.serverapp.strategy import strategy_utils
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
    from flwr.supercore import log
    from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.error import FlowerError
    from flwr.supercore.fab import Fab
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supercore.object_ref import load_app
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supercore.utils import get_flwr_home
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import (  # type: ignore[attr-defined]
        FLEET_HTTP_PUBLIC_KEY_HEADER,
        FLEET_HTTP_SIGNATURE_HEADER,
        TIMESTAMP_HEADER,
        sign_message,
    )
    from flwr.supernode.start_client_internal import _verify_fab as verify_fab

NAMES: dict[str, tuple[str, ...]] = {
    "flwr.app.message": ("make_message", "remove_content_from_message"),
    "flwr.cli.build": ("build_fab_from_disk",),
    "flwr.cli.constant": ("LOCAL_SUPERLINK_HTTP_API_PORT",),
    "flwr.cli.flower_config": ("read_superlink_connection",),
    "flwr.cli.install": ("install_from_fab",),
    "flwr.cli.supernode.register": ("try_load_public_key",),
    "flwr.cli.typing": ("SuperLinkConnection",),
    "flwr.cli.utils": ("SUPERLINK_UNAVAILABLE_MESSAGE", "flwr_cli_exc_handler", "init_http_client_from_connection"),
    "flwr.clientapp.client_app": ("ClientAppException",),
    "flwr.clientapp.utils": ("get_load_client_app_fn",),
    "flwr.common": ("Code", "EvaluateRes", "FitRes", "parameters_to_ndarrays"),
    "flwr.common.config": (
        "flatten_dict",
        "get_fused_config_from_fab",
        "get_metadata_from_config",
        "get_project_config",
        "parse_config_args",
    ),
    "flwr.common.constant": (
        "ErrorCode",
        "HEARTBEAT_DEFAULT_INTERVAL",
        "NUM_PARTITIONS_KEY",
        "PARTITION_ID_KEY",
        "SUPERLINK_NODE_ID",
        "Status",
        "SubStatus",
    ),
    "flwr.common.serde": (
        "fab_from_proto",
        "fab_to_proto",
        "message_from_proto",
        "message_to_proto",
        "recorddict_from_proto",
        "recorddict_to_proto",
        "run_from_proto",
    ),
    "flwr.compat.common": ("recorddict_compat",),
    "flwr.compat.common.recorddict_compat": ("arrayrecord_to_parameters",),
    "flwr.proto.control_pb2": (
        "ListFederationsRequest",
        "ListRunsRequest",
        "RegisterNodeRequest",
        "ShowFederationRequest",
        "StartRunRequest",
        "StopRunRequest",
        "StreamLogsRequest",
    ),
    "flwr.proto.fab_pb2": ("GetFabRequest",),
    "flwr.proto.fleet_pb2": (
        "ActivateNodeRequest",
        "DeactivateNodeRequest",
        "PullMessagesRequest",
        "PushMessagesRequest",
        "RegisterNodeFleetRequest",
        "UnregisterNodeFleetRequest",
    ),
    "flwr.proto.heartbeat_pb2": ("SendNodeHeartbeatRequest",),
    "flwr.proto.message_pb2": (
        "ConfirmMessageReceivedRequest",
        "ProtoMessage",
        "ObjectTree",
        "PullObjectRequest",
        "PushObjectRequest",
    ),
    "flwr.proto.node_pb2": ("Node",),
    "flwr.proto.recorddict_pb2": ("ProtoRecordDict",),
    "flwr.proto.run_pb2": ("GetRunRequest",),
    "flwr.proto.runtime_pb2": ("PullAppMessagesRequest",),
    "flwr.server": ("legacy_server",),
    "flwr.server.client_proxy": ("ClientProxy",),
    "flwr.server.compat": ("app_utils", "start_grid"),
    "flwr.server.compat.grid_client_proxy": ("GridClientProxy",),
    "flwr.serverapp.strategy": ("strategy_utils",),
    "flwr.serverapp.strategy.strategy_utils": ("aggregate_metricrecords",),
    "flwr.supercore": ("log",),
    "flwr.supercore.constant": ("SYSTEM_MESSAGE_TYPE",),
    "flwr.supercore.control": ("ControlHttpClient",),
    "flwr.supercore.error": ("FlowerError",),
    "flwr.supercore.fab": ("Fab",),
    "flwr.supercore.heartbeat": ("HeartbeatSender",),
    "flwr.supercore.inflatable.inflatable_object": (
        "get_all_nested_objects",
        "get_object_tree",
        "iterate_object_tree",
        "no_object_id_recompute",
    ),
    "flwr.supercore.inflatable.inflatable_utils": ("inflate_object_from_contents",),
    "flwr.supercore.interceptors.http.runtime_version": ("RuntimeVersionHttpInterceptor",),
    "flwr.supercore.object_ref": ("load_app",),
    "flwr.supercore.primitives.asymmetric": ("generate_key_pairs", "public_key_to_bytes"),
    "flwr.supercore.run": ("Run",),
    "flwr.supercore.task_identity": ("TaskIdentity",),
    "flwr.supercore.utils": ("get_flwr_home",),
    "flwr.superlink.cli.flower_superlink": ("flower_superlink",),
    "flwr.supernode.fleet_http_client": ("FleetHttpClient",),
    "flwr.supernode.node_auth_http_interceptor": (
        "FLEET_HTTP_PUBLIC_KEY_HEADER",
        "FLEET_HTTP_SIGNATURE_HEADER",
        "TIMESTAMP_HEADER",
        "sign_message",
    ),
    "flwr.supernode.start_client_internal": ("verify_fab",),
}
"""What offbeat uses of each module. The imports above say the same to type checkers."""
RENAMED = {
    "ProtoMessage": "Message",
    "ProtoRecordDict": "RecordDict",
    "legacy_server": "server",
    "verify_fab": "_verify_fab",
}
"""What Flower calls the names that are called differently here."""
_HOMES = {name: module for module, names in NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, theirs = _HOMES[name], RENAMED.get(name, name)
    try:
        found = getattr(import_module(module), theirs, None) or import_module(f"{module}.{theirs}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "flwr":
            raise
        raise InvalidInput(f"{_installed()} has no {module}.{theirs}, which offbeat uses: {INSTALL}") from None
    globals()[name] = found
    return found


# Versions -------------------------------------------------------------------------------------------------------------


Minor = tuple[int, int]
FOR_APPS: Minor = (1, 38)
"""Oldest tested Flower for `offbeat simulate` and `offbeat.flower.Async`."""
FOR_NODES: Minor = (1, 40)
"""Oldest tested Flower for `offbeat node`, `deploy` and `local-cluster`: the first with a Fleet client over HTTP."""
NEWEST: Minor = (1, 42)
"""Newest tested Flower."""
INSTALL = "pip install 'offbeat[flower]'"


def flower_version() -> str | None:
    """The installed version of Flower; None if it is not installed."""
    try:
        return version("flwr")
    except PackageNotFoundError:
        return None


def check_flower(oldest: Minor = FOR_APPS) -> None:
    """Raise InvalidInput if Flower is not installed or older than `oldest`."""
    found = flower_version()
    if found is None:
        raise InvalidInput(f"Flower is not installed: {INSTALL}")
    if _minor(found) < oldest:
        raise InvalidInput(
            f"Flower {found} is installed; this needs {oldest[0]}.{oldest[1]} or newer (tested up to "
            f"{NEWEST[0]}.{NEWEST[1]}): {INSTALL}"
        )


def _installed() -> str:
    found = flower_version()
    return "Flower (not installed)" if found is None else f"Flower {found}"


def _minor(found: str) -> Minor:
    major, minor, *_ = found.split(".")
    return int(major), int("".join(filter(str.isdigit, minor)))
