"""A node's connection to a SuperLink: Flower's own Fleet client, its heartbeats and its keys.

This is what a SuperNode does in `flwr.supernode.fleet_http_connection`, with the same client, but without its ways to
end the process: here every trouble is an exception of few kinds, and a SuperLink that has forgotten a node which may
register itself is simply told again. The one place that knows Flower's internals on the node's side, together with
`installation` and `child`; `tests/flower/node/test_flower_contract.py` says what changed if a new Flower breaks it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import fab_from_proto, message_from_proto, run_from_proto
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
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.run import Run
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.flower.launch.superlink import SuperLink

AWAY = {429, 500, 502, 503, 504}
"""What a SuperLink, or a proxy before it, says when it may be well again soon."""
T = TypeVar("T")
Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]


class SuperLinkAway(OffbeatError):
    """The SuperLink does not answer; trying again may help."""


class TurnedAway(OffbeatError):
    """The SuperLink answers, but does not know this node, or will not have it."""


class NotRunning(OffbeatError):
    """The run that this is about has ended; nobody wants it any more."""


class ContentGone(OffbeatError):
    """The SuperLink has handed out a message whose content it no longer has."""


def load_key(path: Path) -> Keys:
    """The private key of a node, as `ssh-keygen -t ecdsa` makes it."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise InvalidInput(f"--auth-supernode-private-key {path}: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"--auth-supernode-private-key {path}: not a private key of SSH ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidInput(f"--auth-supernode-private-key {path}: it must be an ECDSA key (ssh-keygen -t ecdsa -b 384)")
    return key, key.public_key()


class FleetConnection:
    """Everything that a node asks of a SuperLink. Methods may be called from several threads."""

    def __init__(self, superlink: SuperLink, keys: Keys | None = None) -> None:
        self.superlink = superlink
        self.node_id = 0
        self.forgotten = False
        """Whether the SuperLink has said that it does not know this node."""
        self._registers = keys is None
        private, public = keys or generate_key_pairs()
        self._public = public_key_to_bytes(public)
        certificates = superlink.root_certificates
        self._client = FleetHttpClient.from_server_address(
            superlink.address,
            superlink.insecure,
            None if certificates is None else str(certificates),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, public),
            ],
        )
        self._heartbeats: HeartbeatSender | None = None

    def open(self) -> int:
        """Make this node known to the SuperLink and go on saying that it is there; its id."""
        self._stop_heartbeats()
        self.forgotten = False
        if self._registers:
            self._register()
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        self.node_id = self._ask(self._client.ActivateNode, request).node_id
        self._heartbeats = HeartbeatSender(self._heartbeat)
        self._heartbeats.start()
        return self.node_id

    def _register(self) -> None:
        try:
            self._ask(self._client.RegisterNode, RegisterNodeFleetRequest(public_key=self._public))
        except TurnedAway as error:
            if "already in use" not in str(error):  # known from before: this SuperLink keeps its state in a file
                raise

    def _heartbeat(self) -> bool:
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            self.forgotten |= not self._ask(self._client.SendNodeHeartbeat, request).success
        except TurnedAway:
            self.forgotten = True
        except OffbeatError:
            return False
        return True

    def close(self) -> None:
        """Say good-bye, if anybody listens."""
        self._stop_heartbeats()
        try:
            if self.node_id:
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self.node_id))
                if self._registers:
                    self._client.UnregisterNode(UnregisterNodeFleetRequest(node_id=self.node_id))
        except (httpx.HTTPError, RuntimeError):
            pass
        self._client.close()

    def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None and self._heartbeats.is_running:
            self._heartbeats.stop()

    # Runs and messages --------------------------------------------------------------------------------------------

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """The next message without its content, and what its content consists of."""
        response = self._ask(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        return message_from_proto(response.messages_list[0]), response.message_object_trees[0]

    def run(self, run_id: int) -> Run:
        """What the SuperLink knows of a run."""
        return run_from_proto(self._ask(self._client.GetRun, GetRunRequest(node=self._node, run_id=run_id)).run)

    def app(self, run: Run) -> Fab:
        """The app of a run, as the SuperLink has it."""
        request = GetFabRequest(node=self._node, hash_str=run.fab_hash, run_id=run.run_id)
        return fab_from_proto(self._ask(self._client.GetFab, request).fab)

    def pull_object(self, run_id: int, identity: str) -> bytes | None:
        """The content of an object, or None if the sender has not handed it in yet."""
        request = PullObjectRequest(node=self._node, run_id=run_id, object_id=identity)
        response = self._ask(self._client.PullObject, request)
        if not response.object_found:
            raise ContentGone("the content of the message is not there any more")
        return response.object_content if response.object_available else None

    def confirm(self, run_id: int, message_id: str) -> None:
        """The message is here: the SuperLink may forget its content."""
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=run_id, message_object_id=message_id)
        self._ask(self._client.ConfirmMessageReceived, request)

    def push(self, reply: bytes, tree: bytes, objects: dict[str, bytes], seconds: float) -> None:
        """Hand in an answer: the message without content, what its content consists of, and that."""
        message = ProtoMessage.FromString(reply)
        request = PushMessagesRequest(
            node=self._node,
            messages_list=[message],
            message_object_trees=[ObjectTree.FromString(tree)],
            clientapp_runtime_list=[seconds],
        )
        response = self._ask(self._client.PushMessages, request)
        for identity in response.objects_to_push:
            self._ask(
                self._client.PushObject,
                PushObjectRequest(
                    node=self._node,
                    run_id=message.metadata.run_id,
                    object_id=identity,
                    object_content=objects[identity],
                    session_id=response.session_id,
                ),
            )

    @property
    def _node(self) -> Node:
        return Node(node_id=self.node_id)

    def _ask(self, method: Callable[[Any], T], request: Any) -> T:
        """Call the SuperLink; whatever goes wrong is one of few things."""
        where = f"the SuperLink at {self.superlink.address}"
        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            status, said = error.response.status_code, FlowerError.from_json(error.response.text)
            why = f"{said.message} {said.public_details or ''}".strip() if said is not None else f"HTTP {status}"
            if status in AWAY:
                raise SuperLinkAway(f"{where} is not well: {why}") from None
            if status == httpx.codes.FORBIDDEN:
                raise NotRunning(f"{where} says: {why}") from None
            raise TurnedAway(f"{where} says: {why}") from None
        except (httpx.TransportError, ValueError) as error:
            raise SuperLinkAway(f"{where} does not answer: {error or type(error).__name__}") from None
