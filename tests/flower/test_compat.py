"""The contract with Flower's internals: what `offbeat.flower.compat` passes on, and how it is used.

Flower promises none of it. After an upgrade run this first, then `tests/processes`, which uses all of it.
"""

import ast
import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

import offbeat
from offbeat.core.errors import InvalidInput
from offbeat.flower import compat

PACKAGE = Path(offbeat.__file__).parent
PUBLIC = {
    "flwr",
    "flwr.app",
    "flwr.clientapp",
    "flwr.server",
    "flwr.server.strategy",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
}
FOUND = f"This is Flower {version('flwr')}: see src/offbeat/flower/compat.py"
NODES = ("flwr.supernode.fleet_http_client", "flwr.supernode.node_auth_http_interceptor")
"""Modules that Flower has had since 1.40, and that only nodes need."""
HAS_NODES = compat._minor(version("flwr")) >= compat.FOR_NODES
needs_nodes = pytest.mark.skipif(not HAS_NODES, reason="nodes need Flower 1.40 or newer")
SIGNATURES: dict[str, list[str]] = {
    "flwr.supernode.fleet_http_client:FleetHttpClient.from_server_address": [
        "server_address",
        "insecure",
        "root_certificates",
        "interceptors",
    ],
    "flwr.supernode.node_auth_http_interceptor:sign_message": ["private_key", "message"],
    "flwr.supercore.interceptors.http.runtime_version:RuntimeVersionHttpInterceptor": ["component_name"],
    "flwr.supercore.heartbeat:HeartbeatSender": ["heartbeat_fn"],
    "flwr.supercore.error:FlowerError.from_json": ["value"],
    "flwr.supercore.fab:Fab": ["hash_str", "content", "verifications"],
    "flwr.supernode.start_client_internal:_verify_fab": ["fab", "trusted_entities"],
    "flwr.cli.install:install_from_fab": ["fab_file", "install_dir", "skip_prompt"],
    "flwr.clientapp.utils:get_load_client_app_fn": ["default_app_ref", "app_path", "multi_app"],
    "flwr.common.config:get_fused_config_from_fab": ["fab_file", "run"],
    "flwr.common.config:parse_config_args": ["config"],
    "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents": ["object_id", "object_contents"],
    "flwr.supercore.inflatable.inflatable_object:get_all_nested_objects": ["obj"],
    "flwr.supercore.inflatable.inflatable_object:get_object_tree": ["obj"],
    "flwr.supercore.inflatable.inflatable_object:iterate_object_tree": ["tree"],
    "flwr.supercore.inflatable.inflatable_object:no_object_id_recompute": [],
    "flwr.app.message:remove_content_from_message": ["message"],
    "flwr.app:Context": ["run_id", "node_id", "node_config", "state", "run_config", "series_id"],
}
"""Functions and classes by where they are, with the parameters that are given to them."""
CALLS = {
    "RegisterNode": ("flwr.proto.fleet_pb2:RegisterNodeFleetRequest", ["public_key"]),
    "ActivateNode": ("flwr.proto.fleet_pb2:ActivateNodeRequest", ["public_key", "heartbeat_interval"]),
    "DeactivateNode": ("flwr.proto.fleet_pb2:DeactivateNodeRequest", ["node_id"]),
    "UnregisterNode": ("flwr.proto.fleet_pb2:UnregisterNodeFleetRequest", ["node_id"]),
    "SendNodeHeartbeat": ("flwr.proto.heartbeat_pb2:SendNodeHeartbeatRequest", ["node", "heartbeat_interval"]),
    "PullMessages": ("flwr.proto.fleet_pb2:PullMessagesRequest", ["node"]),
    "PushMessages": (
        "flwr.proto.fleet_pb2:PushMessagesRequest",
        ["node", "messages_list", "message_object_trees", "clientapp_runtime_list"],
    ),
    "GetRun": ("flwr.proto.run_pb2:GetRunRequest", ["node", "run_id"]),
    "GetFab": ("flwr.proto.fab_pb2:GetFabRequest", ["node", "hash_str", "run_id"]),
    "PullObject": ("flwr.proto.message_pb2:PullObjectRequest", ["node", "run_id", "object_id"]),
    "PushObject": (
        "flwr.proto.message_pb2:PushObjectRequest",
        ["node", "run_id", "object_id", "object_content", "session_id"],
    ),
    "ConfirmMessageReceived": (
        "flwr.proto.message_pb2:ConfirmMessageReceivedRequest",
        ["node", "run_id", "message_object_id"],
    ),
}
"""Calls of the Fleet API, with the type of the request and the fields of it that are set."""
ANSWERS = {
    "flwr.proto.fleet_pb2:ActivateNodeResponse": ["node_id"],
    "flwr.proto.heartbeat_pb2:SendNodeHeartbeatResponse": ["success"],
    "flwr.proto.fleet_pb2:PullMessagesResponse": ["messages_list", "message_object_trees"],
    "flwr.proto.fleet_pb2:PushMessagesResponse": ["objects_to_push", "session_id"],
    "flwr.proto.message_pb2:PullObjectResponse": ["object_found", "object_available", "object_content"],
    "flwr.proto.run_pb2:GetRunResponse": ["run"],
    "flwr.proto.fab_pb2:GetFabResponse": ["fab"],
    "flwr.proto.message_pb2:ObjectTree": ["object_id", "children"],
}
"""What is read of the replies."""


def found(path: str) -> Any:
    module, _, names = path.partition(":")
    if module in NODES and not HAS_NODES:
        pytest.skip("nodes need Flower 1.40 or newer")
    try:
        thing: Any = import_module(module)
        for name in names.split("."):
            thing = getattr(thing, name)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{path} is gone ({error}). {FOUND}")
    return thing


def imported(tree: ast.AST) -> set[str]:
    """Modules that are imported, and names that may be modules."""
    modules: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            modules |= {alias.name for alias in each.names}
        elif isinstance(each, ast.ImportFrom) and each.module:
            modules.add(each.module)
    return {module for module in modules if module.partition(".")[0] == "flwr"}


def test_only_compat_imports_private_modules_of_flower() -> None:
    private = {
        str(file.relative_to(PACKAGE)): sorted(modules)
        for file in sorted(PACKAGE.rglob("*.py"))
        if file != Path(compat.__file__) and (modules := imported(ast.parse(file.read_text())) - PUBLIC)
    }
    assert private == {}


def test_type_checkers_see_what_is_imported_on_first_use() -> None:
    tree = ast.parse(Path(compat.__file__).read_text())
    (block,) = [each for each in tree.body if isinstance(each, ast.If)]
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    seen = {(each.module, alias.asname or alias.name, alias.name) for each in imports for alias in each.names}
    assert seen == {
        (module, name, compat.RENAMED.get(name, name)) for module, names in compat.NAMES.items() for name in names
    }


@pytest.mark.parametrize("module", compat.NAMES)
def test_every_name_is_where_compat_looks_for_it(module: str) -> None:
    if module in NODES and not HAS_NODES:
        pytest.skip("nodes need Flower 1.40 or newer")
    for name in compat.NAMES[module]:
        assert getattr(compat, name) is not None


def test_a_name_that_flower_does_not_have_is_reported_with_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat._HOMES, "Moved", "flwr.supernode")
    with pytest.raises(InvalidInput, match=rf"^Flower {version('flwr')} has no flwr.supernode.Moved, which"):
        compat.Moved  # noqa: B018


def test_an_older_flower_is_named_and_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "version", lambda _: "1.39.0")
    compat.check_flower()
    with pytest.raises(InvalidInput, match=r"^Flower 1.39.0 is installed; this needs 1.40 or newer"):
        compat.check_flower(compat.FOR_NODES)


def test_a_missing_flower_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr(compat, "version", missing)
    with pytest.raises(InvalidInput, match=r"^Flower is not installed: pip install"):
        compat.check_flower()


def test_this_flower_is_one_that_was_tested() -> None:
    assert compat.FOR_APPS <= compat._minor(version("flwr")) <= compat.NEWEST, FOUND


@pytest.mark.parametrize("path", SIGNATURES)
def test_functions_are_where_they_were_and_take_what_they_took(path: str) -> None:
    thing: Callable[..., Any] = found(path)
    parameters = inspect.signature(thing).parameters
    missing = [name for name in SIGNATURES[path] if name not in parameters]
    assert not missing, f"{path} no longer takes {missing}, but {list(parameters)}. {FOUND}"
    needed = [
        name
        for name, each in parameters.items()
        if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    assert set(needed) <= set(SIGNATURES[path]), f"{path} now needs {needed}. {FOUND}"


@pytest.mark.parametrize("name", CALLS)
def test_the_fleet_api_has_these_calls(name: str) -> None:
    found(f"flwr.supernode.fleet_http_client:FleetHttpClient.{name}")
    path, fields = CALLS[name]
    there = set(found(path).DESCRIPTOR.fields_by_name)
    assert set(fields) <= there, f"{path} has no {sorted(set(fields) - there)} any more. {FOUND}"


@pytest.mark.parametrize("path", ANSWERS)
def test_the_fleet_api_replies_with_these_fields(path: str) -> None:
    there = set(found(path).DESCRIPTOR.fields_by_name)
    assert set(ANSWERS[path]) <= there, f"{path} has no {sorted(set(ANSWERS[path]) - there)} any more. {FOUND}"


@needs_nodes
def test_the_server_can_fetch_replies_one_by_one() -> None:
    grid = found("flwr.superlink.grid.http_grid:HttpGrid")
    assert isinstance(inspect.getattr_static(grid, "_runtime_client"), property), FOUND
    assert isinstance(inspect.getattr_static(grid, "run"), property), FOUND
    assert "self.node = " in inspect.getsource(grid.__init__), FOUND
    for name in ("PullMessages", "PullObject", "ConfirmMessageReceived"):
        found(f"flwr.supercore.runtime:RuntimeHttpClient.{name}")
    fields = set(found("flwr.proto.runtime_pb2:PullAppMessagesResponse").DESCRIPTOR.fields_by_name)
    assert fields == {"messages_list", "message_object_trees"}, FOUND


def test_errors_have_the_numbers_that_the_server_reads() -> None:
    codes = found("flwr.common.constant:ErrorCode")
    named = (
        codes.LOAD_CLIENT_APP_EXCEPTION,
        codes.CLIENT_APP_RAISED_EXCEPTION,
        codes.NODE_UNAVAILABLE,
        codes.INVALID_FAB,
        codes.CLIENT_APP_CRASHED,
    )
    assert named == (1, 2, 5, 7, 8), FOUND


def test_the_metadata_of_a_message_says_how_long_it_lives() -> None:
    fields = inspect.signature(found("flwr.app:Metadata")).parameters
    assert {"run_id", "message_id", "reply_to_message_id", "created_at", "ttl"} <= set(fields), FOUND
