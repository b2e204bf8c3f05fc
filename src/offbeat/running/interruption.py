"""Graceful stop: Ctrl-C, SIGTERM and SIGHUP make a run write a checkpoint and end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, the time limit of a job (Slurm, Kubernetes), and a closed terminal."""


class Flag(Protocol):
    """A stop flag: an event of `threading` or `multiprocessing`."""

    def is_set(self) -> bool:
        """Whether the run must stop."""
        ...


class StopRequest(threading.Event):
    """Stop flag that a signal sets; `number` is the signal."""

    number = int(signal.SIGINT)


class StopSignal(KeyboardInterrupt):
    """Raised by a stop signal while the process waits for others and checks no flag."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def interruption(given: Flag | None = None) -> Iterator[Flag]:
    """Yield a flag that a stop signal sets, so that a run stops between two events; a second signal stops at once."""
    asked = StopRequest()

    def ask(number: int, _: object) -> None:
        asked.number = number
        asked.set()
        for each, before in replaced.items():
            signal.signal(each, before)

    if given is not None or threading.current_thread() is not threading.main_thread():
        yield given or asked
        return
    replaced = _replace(ask)
    try:
        yield asked
    finally:
        for each, before in replaced.items():
            signal.signal(each, before)


@contextmanager
def stopping_signals_raise() -> Iterator[None]:
    """Make every stop signal raise StopSignal, while this process waits for others."""

    def stop(number: int, _: object) -> None:
        raise StopSignal(number)

    replaced = _replace(stop)
    try:
        yield
    finally:
        for each, before in replaced.items():
            signal.signal(each, before)


def _replace(handler: Any) -> dict[signal.Signals, Any]:
    """Install a handler for the stop signals; an ignored SIGHUP (`nohup`) stays ignored."""
    wanted = [each for each in STOPPING if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    return {each: signal.signal(each, handler) for each in wanted}
