"""Servers from before Flower's message API, on a virtual clock.

`Server.fit_round` and `evaluate_round` wait for each client in a thread, which a virtual clock cannot follow. Here
all messages of a round are sent at once and results come in the order of arrival. The thread that looks for nodes every
few real seconds looks only when asked, so that runs are reproducible.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flwr.app import Message, RecordDict
from flwr.server import SimpleClientManager

from offbeat.flower.compat import ClientProxy, Code, GridClientProxy, app_utils
from offbeat.flower.compat import legacy_server as server
from offbeat.flower.compat import recorddict_compat as compat

Results = tuple[list[tuple[ClientProxy, Any]], list[Any]]
SendRound = Callable[..., Results]


def _at_once(
    original: SendRound, kind: str, pack: Callable[[Any], RecordDict], unpack: Callable[[RecordDict], Any]
) -> SendRound:
    def send_round(
        client_instructions: Sequence[tuple[ClientProxy, Any]],
        max_workers: int | None,
        timeout: float | None,
        group_id: int,
    ) -> Results:
        """Send the instructions to all clients at once and wait for all replies."""
        proxies = [proxy for proxy, _ in client_instructions if type(proxy) is GridClientProxy]
        if not proxies or len(proxies) < len(client_instructions):
            return original(client_instructions, max_workers=max_workers, timeout=timeout, group_id=group_id)
        messages = [
            Message(pack(ins), proxy.node_id, kind, group_id=str(group_id or ""), ttl=timeout)
            for proxy, (_, ins) in zip(proxies, client_instructions, strict=True)
        ]
        by_message = dict(zip(map(id, messages), proxies, strict=True))
        results: list[tuple[ClientProxy, Any]] = []
        failures: list[Any] = []
        replies = list(proxies[0].grid.send_and_receive(messages))
        senders = {message.metadata.message_id: by_message[id(message)] for message in messages}
        for reply in replies:
            if reply.has_error():
                failures.append(ValueError(f"Message contains an Error (reason: {reply.error.reason})."))
                continue
            found = (senders[reply.metadata.reply_to_message_id], unpack(reply.content))
            (results if found[1].status.code == Code.OK else failures).append(found)
        return results, failures

    return send_round


class _NoPolling:
    """The event that ends the thread which looks for nodes; its `wait` ignores the polling interval."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def is_set(self) -> bool:
        return bool(self._event.is_set())

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout: float | None = None) -> bool:
        return bool(self._event.wait())


def _virtual_wait(sleep: Callable[[float], None]) -> Callable[..., bool]:
    def wait_for(manager: SimpleClientManager, num_clients: int, timeout: float = 86_400) -> bool:
        """Wait until this number of clients is available, for at most `timeout` virtual seconds."""
        while (missing := manager.num_available() < num_clients) and timeout > 0:
            sleep(1.0)
            timeout -= 1.0
        return not missing

    return wait_for


@contextmanager
def rounds_at_once(sleep: Callable[[float], None]) -> Iterator[None]:
    """Patch servers from before the message API to send the messages of a round at once."""
    before = server.fit_clients, server.evaluate_clients, app_utils._update_client_manager
    original_wait = SimpleClientManager.wait_for
    original_fit, original_evaluate, original_update = before

    def update(grid: Any, client_manager: Any, f_stop: Any, c_done: Any) -> None:
        original_update(grid, client_manager, _NoPolling(f_stop), c_done)  # type: ignore[arg-type]

    fit = _at_once(
        original_fit,
        "train",
        lambda ins: compat.fitins_to_recorddict(ins, keep_input=True),
        lambda content: compat.recorddict_to_fitres(content, keep_input=False),
    )
    evaluate = _at_once(
        original_evaluate,
        "evaluate",
        lambda ins: compat.evaluateins_to_recorddict(ins, keep_input=True),
        compat.recorddict_to_evaluateres,
    )
    server.fit_clients, server.evaluate_clients = fit, evaluate
    app_utils._update_client_manager = update
    SimpleClientManager.wait_for = _virtual_wait(sleep)  # type: ignore[method-assign]
    try:
        yield
    finally:
        server.fit_clients, server.evaluate_clients, app_utils._update_client_manager = before
        SimpleClientManager.wait_for = original_wait  # type: ignore[method-assign]
