"""`offbeat.flower.report`: metrics of a ServerApp that uses no strategy."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging import INFO

from offbeat.flower.compat import log

Listener = Callable[[Mapping[str, object], int | None], None]
_listeners: list[Listener] = []


def report(metrics: Mapping[str, object], version: int | None = None) -> None:
    """Report metrics of the model, which has this version, from a ServerApp with a loop of its own.

    Under `offbeat simulate` they become a row of the run with the virtual time; elsewhere a line of Flower's log.
    """
    for listener in _listeners:
        listener(metrics, version)
    if not _listeners:
        log(INFO, "offbeat: %s%s", "" if version is None else f"version {version}: ", dict(metrics))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Pass reports to the listener."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
