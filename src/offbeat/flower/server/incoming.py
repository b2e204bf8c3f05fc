"""Answers as they come in, each by itself: what one device sends, or fails to send, costs no other device anything.

Flower's `pull_messages` fetches all answers that are there, waits for those whose content is still being handed in, and
if one of them cannot be taken apart, all that were fetched with it are lost. So with Flower's own grid the same calls
are made here, answer by answer: one that is not complete yet is tried again the next time, and a broken one costs
only itself.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from msgspec import Struct

from offbeat.flower.grid_clock import has_clock

Arrived = tuple[str, Message | str]
"""The id of the message that is answered, and the answer, or why there is none."""


class MessageSource(Protocol):
    """What is used of a grid of Flower's."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers to these messages that are there."""
        ...


class PartialAnswer(Struct, kw_only=True, eq=False):
    """An answer that is being handed in."""

    identity: str
    missing: list[str]
    contents: dict[str, bytes] = {}


class Incoming:
    """Fetches what has come in, without waiting for anything."""

    def __init__(self, grid: MessageSource) -> None:
        self._grid = grid
        self._partial: dict[str, PartialAnswer] = {}
        """Answers that have come in part, by the message that they answer."""

    def fetch(self, identities: list[str]) -> list[Arrived]:
        """Answers to these messages."""
        if not identities:
            return []
        if has_clock(self._grid):  # a simulated one, whose answers no stranger has touched
            return [(each.metadata.reply_to_message_id, each) for each in self._grid.pull_messages(identities)]
        client = getattr(self._grid, "_runtime_client", None)
        if client is None:  # a grid without a SuperLink
            return [each for identity in identities for each in self._whole(identity)]
        return self._apart(client, identities)

    def _whole(self, identity: str) -> list[Arrived]:
        try:
            return [(message.metadata.reply_to_message_id, message) for message in self._grid.pull_messages([identity])]
        except httpx.HTTPError:  # the SuperLink's trouble, not a device's
            raise
        except Exception as error:  # what Flower makes of a stranger's bytes may be any error there is
            return [(identity, _why(error))]

    def _apart(self, client: Any, identities: list[str]) -> list[Arrived]:
        asked = [identity for identity in identities if identity not in self._partial]
        if asked:
            response = client.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                self._partial[head.metadata.reply_to_message_id] = _announced(tree)
        found: list[Arrived] = []
        for answered in list(self._partial):
            if answered not in identities:  # its order was given up
                del self._partial[answered]
                continue
            try:
                message = self._complete(client, self._partial[answered])
            except httpx.HTTPError:
                raise
            except Exception as error:
                found.append((answered, _why(error)))
                del self._partial[answered]
            else:
                if message is not None:
                    found.append((answered, message))
                    del self._partial[answered]
        return found

    def _complete(self, client: Any, answer: PartialAnswer) -> Message | None:
        """The answer, if all of it is there by now."""
        grid: Any = self._grid
        while answer.missing:
            request = PullObjectRequest(node=grid.node, run_id=grid.run.run_id, object_id=answer.missing[-1])
            response = client.PullObject(request)
            if not response.object_found:
                raise ValueError("a part of it is missing")
            if not response.object_available:
                return None
            answer.contents[answer.missing.pop()] = response.object_content
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=grid.node, run_id=grid.run.run_id, message_object_id=answer.identity)
        )
        message = inflate_object_from_contents(answer.identity, answer.contents)
        if not isinstance(message, Message):
            raise ValueError("it is no message")
        message.metadata.__dict__["_message_id"] = answer.identity
        return message


def _announced(tree: ObjectTree) -> PartialAnswer:
    objects = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
    return PartialAnswer(identity=tree.object_id, missing=objects)


def _why(error: Exception) -> str:
    return f"its answer cannot be taken apart: {type(error).__name__}: {error}"
