"""What `offbeat node` uses of Flower's internals. If a new Flower breaks it, this says what changed, and where to look.

Nothing here is promised by Flower. After an upgrade run this first; then `tests/processes`, which uses all of it.
"""

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

import pytest

WRITTEN_FOR = "1.41"
SIGNATURES: dict[str, list[str]] = {
    "flwr.supernode.fleet_http_client:FleetHttpClient.from_server_address": [
        "server_address",
        "insecure",
        "root_certificates",
        "interceptors",
    ],
    "flwr.supernode.node_auth_http_interceptor:NodeAuthHttpInterceptor": ["private_key", "public_key"],
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
"""What is read of the answers."""
MADE_FOR = f"offbeat node was written for Flower {WRITTEN_FOR}, and this is {version('flwr')}"


def found(path: str) -> Any:
    module, _, names = path.partition(":")
    try:
        thing: Any = import_module(module)
        for name in names.split("."):
            thing = getattr(thing, name)
    except (ImportError, AttributeError) as error:
        pytest.fail(f"{path} is gone ({error}). {MADE_FOR}: see src/offbeat/deployment/node")
    return thing


def test_this_is_the_flower_that_offbeat_node_was_written_for() -> None:
    assert version("flwr").startswith(f"{WRITTEN_FOR}."), MADE_FOR


@pytest.mark.parametrize("path", SIGNATURES)
def test_functions_are_where_they_were_and_take_what_they_took(path: str) -> None:
    thing: Callable[..., Any] = found(path)
    parameters = inspect.signature(thing).parameters
    missing = [name for name in SIGNATURES[path] if name not in parameters]
    assert not missing, f"{path} no longer takes {missing}, but {list(parameters)}. {MADE_FOR}"
    needed = [
        name
        for name, each in parameters.items()
        if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    assert set(needed) <= set(SIGNATURES[path]), f"{path} now needs {needed}. {MADE_FOR}"


@pytest.mark.parametrize("name", CALLS)
def test_the_fleet_api_has_these_calls(name: str) -> None:
    found(f"flwr.supernode.fleet_http_client:FleetHttpClient.{name}")
    path, fields = CALLS[name]
    there = set(found(path).DESCRIPTOR.fields_by_name)
    assert set(fields) <= there, f"{path} has no {sorted(set(fields) - there)} any more. {MADE_FOR}"


@pytest.mark.parametrize("path", ANSWERS)
def test_the_fleet_api_answers_with_these_fields(path: str) -> None:
    there = set(found(path).DESCRIPTOR.fields_by_name)
    assert set(ANSWERS[path]) <= there, f"{path} has no {sorted(set(ANSWERS[path]) - there)} any more. {MADE_FOR}"


def test_the_server_can_fetch_answers_one_by_one() -> None:
    grid = found("flwr.superlink.grid.http_grid:HttpGrid")
    assert isinstance(inspect.getattr_static(grid, "_runtime_client"), property), MADE_FOR
    assert isinstance(inspect.getattr_static(grid, "run"), property), MADE_FOR
    assert "self.node = " in inspect.getsource(grid.__init__), MADE_FOR
    for name in ("PullMessages", "PullObject", "ConfirmMessageReceived"):
        found(f"flwr.supercore.runtime:RuntimeHttpClient.{name}")
    fields = set(found("flwr.proto.runtime_pb2:PullAppMessagesResponse").DESCRIPTOR.fields_by_name)
    assert fields == {"messages_list", "message_object_trees"}, MADE_FOR


def test_errors_have_the_numbers_that_the_server_reads() -> None:
    codes = found("flwr.common.constant:ErrorCode")
    named = (
        codes.LOAD_CLIENT_APP_EXCEPTION,
        codes.CLIENT_APP_RAISED_EXCEPTION,
        codes.NODE_UNAVAILABLE,
        codes.INVALID_FAB,
        codes.CLIENT_APP_CRASHED,
    )
    assert named == (1, 2, 5, 7, 8), MADE_FOR


def test_the_metadata_of_a_message_says_how_long_it_lives() -> None:
    fields = inspect.signature(found("flwr.app:Metadata")).parameters
    assert {"run_id", "message_id", "reply_to_message_id", "created_at", "ttl"} <= set(fields), MADE_FOR
