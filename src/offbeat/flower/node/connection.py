"""A node's connection to a SuperLink: Flower's Fleet client, heartbeats and keys.

It does what a SuperNode does in `flwr.supernode.fleet_http_connection`, with the same client. But a failure never ends
the process: it raises one of four exceptions, and a node that registers itself does so again if the SuperLink has
forgotten it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.flower.compat import (
    HEARTBEAT_DEFAULT_INTERVAL,
    ActivateNodeRequest,
    ConfirmMessageReceivedRequest,
    DeactivateNodeRequest,
    Fab,
    FleetHttpClient,
    FlowerError,
    GetFabRequest,
    GetRunRequest,
    HeartbeatSender,
    Node,
    ObjectTree,
    ProtoMessage,
    PullMessagesRequest,
    PullObjectRequest,
    PushMessagesRequest,
    PushObjectRequest,
    RegisterNodeFleetRequest,
    Run,
    RuntimeVersionHttpInterceptor,
    SendNodeHeartbeatRequest,
    UnregisterNodeFleetRequest,
    fab_from_proto,
    generate_key_pairs,
    message_from_proto,
    public_key_to_bytes,
    run_from_proto,
)
from offbeat.flower.launch.superlink import SuperLink
from offbeat.flower.node.clocks import SignedRequests

AWAY = {429, 500, 502, 503, 504}
"""HTTP status codes of temporary failures of a SuperLink or of a proxy before it."""
T = TypeVar("T")
Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]


class SuperLinkAway(OffbeatError):
    """The SuperLink cannot be reached or fails temporarily: retry."""


class TurnedAway(OffbeatError):
    """The SuperLink does not know this node or refuses it."""


class NotRunning(OffbeatError):
    """The run has ended."""


class ContentGone(OffbeatError):
    """The SuperLink has lost the content of a message that it delivered."""


def load_key(path: Path) -> Keys:
    """Read the private key of a node, as `ssh-keygen -t ecdsa` writes it."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise InvalidInput(f"private key {path}: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"private key {path}: not a private key of SSH ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidInput(f"private key {path}: must be an ECDSA key (ssh-keygen -t ecdsa -b 384)")
    return key, key.public_key()


class FleetConnection:
    """A node's requests to a SuperLink. Methods may be called from several threads."""

    def __init__(self, superlink: SuperLink, keys: Keys | None = None, clock: Callable[[], float] = time.time) -> None:
        self.superlink = superlink
        self.node_id = 0
        self.forgotten = False
        """Whether the SuperLink has reported that it does not know this node."""
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
                SignedRequests(private, public, clock),
            ],
        )
        self._heartbeats: HeartbeatSender | None = None

    def open(self) -> int:
        """Activate this node at the SuperLink and start its heartbeats; returns its id."""
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
            if "already in use" not in str(error):  # registered earlier, at a SuperLink that keeps its state in a file
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
        """Stop the heartbeats and deactivate the node, if the SuperLink can be reached."""
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

    # Runs and messages ------------------------------------------------------------------------------------------------

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """The next message without its content, and the tree of objects that the content consists of."""
        response = self._ask(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        return message_from_proto(response.messages_list[0]), response.message_object_trees[0]

    def run(self, run_id: int) -> Run:
        """The SuperLink's description of a run."""
        return run_from_proto(self._ask(self._client.GetRun, GetRunRequest(node=self._node, run_id=run_id)).run)

    def app(self, run: Run) -> Fab:
        """Fetch the app of a run."""
        request = GetFabRequest(node=self._node, hash_str=run.fab_hash, run_id=run.run_id)
        return fab_from_proto(self._ask(self._client.GetFab, request).fab)

    def pull_object(self, run_id: int, identity: str) -> bytes | None:
        """Fetch the content of an object; None if the sender has not uploaded it yet."""
        request = PullObjectRequest(node=self._node, run_id=run_id, object_id=identity)
        response = self._ask(self._client.PullObject, request)
        if not response.object_found:
            raise ContentGone("the SuperLink no longer has the content of the message")
        return response.object_content if response.object_available else None

    def confirm(self, run_id: int, message_id: str) -> None:
        """Confirm that a message has arrived, so that the SuperLink may delete its content."""
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=run_id, message_object_id=message_id)
        self._ask(self._client.ConfirmMessageReceived, request)

    def push(self, reply: bytes, tree: bytes, objects: dict[str, bytes], seconds: float) -> None:
        """Upload a reply: the message without content, its tree of objects, and the objects."""
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
        """Call the SuperLink; any failure becomes SuperLinkAway, NotRunning or TurnedAway."""
        where = f"the SuperLink at {self.superlink.address}"
        try:
            return method(request)
        except httpx.HTTPStatusError as error:
            status, said = error.response.status_code, FlowerError.from_json(error.response.text)
            why = f"{said.message} {said.public_details or ''}".strip() if said is not None else f"HTTP {status}"
            if status in AWAY:
                raise SuperLinkAway(f"{where} fails: {why}") from None
            if status == httpx.codes.FORBIDDEN:
                raise NotRunning(f"{where} refuses: {why}") from None
            raise TurnedAway(f"{where} refuses: {why}") from None
        except (httpx.TransportError, ValueError) as error:
            raise SuperLinkAway(f"{where} does not answer: {error or type(error).__name__}") from None
