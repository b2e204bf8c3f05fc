"""Node and SuperLink may disagree about the time of day by any amount: everything they exchange is in SuperLink time.

Flower refuses requests that were signed more than 5 s in the SuperLink's future or 305 s in its past, and replies that
expire later than the message they answer. So requests are signed with the time that the SuperLink's responses state,
and a reply is dated by the message it answers plus the time since receipt on the node's monotonic clock.
"""

import time
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message

from offbeat.flower.compat import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    public_key_to_bytes,
    sign_message,
)

TOLERANCE = 2.0
"""Seconds that the clocks may differ without correction; the SuperLink states its time in whole seconds."""


def in_server_time(reply: Message, asked: Message, elapsed: float) -> None:
    """Date a reply in SuperLink time, `elapsed` seconds after its message was received; both expire together."""
    metadata = asked.metadata
    elapsed = min(elapsed, metadata.ttl)
    reply.metadata.__dict__["_created_at"] = metadata.created_at + elapsed
    reply.metadata.__dict__["_ttl"] = metadata.ttl - elapsed


class SignedRequests:
    """Signs a node's requests, as Flower's `NodeAuthHttpInterceptor` does, with the SuperLink's time."""

    def __init__(
        self,
        private: ec.EllipticCurvePrivateKey,
        public: ec.EllipticCurvePublicKey,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._private = private
        self._public = b64encode(public_key_to_bytes(public)).decode()
        self._clock = clock
        self._ahead = 0.0
        """Seconds by which this machine's clock is ahead of the SuperLink's."""

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Send a request; if it was refused, and the clocks differ, send it once more with the SuperLink's time."""
        before = self._ahead
        response = self._signed(context, call_next)
        if response.status_code == httpx.codes.UNAUTHORIZED and self._ahead != before:
            response.close()
            response = self._signed(context, call_next)
        return response

    def _signed(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        timestamp = datetime.fromtimestamp(self._clock() - self._ahead, UTC).isoformat()
        headers = context.request.headers
        headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = self._public
        headers[TIMESTAMP_HEADER] = timestamp
        headers[FLEET_HTTP_SIGNATURE_HEADER] = b64encode(sign_message(self._private, timestamp.encode())).decode()
        response = call_next(context)
        self._learn(response.headers.get("Date", ""))
        return response

    def _learn(self, date: str) -> None:
        try:
            ahead = self._clock() - parsedate_to_datetime(date).timestamp()
        except ValueError:
            return  # a proxy without a clock
        if abs(ahead - self._ahead) > TOLERANCE:
            self._ahead = ahead
