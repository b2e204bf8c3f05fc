"""Stopping in good order: Ctrl-C, SIGTERM and SIGHUP ask a run to leave a checkpoint and end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, the end of a job's time (Slurm, Kubernetes), and the end of a terminal."""


class Flag(Protocol):
    """An event of threads or of processes."""

    def is_set(self) -> bool:
        """Whether the run is to stop."""
        ...


class StopRequest(threading.Event):
    """Set when somebody has asked to stop; `number` is the signal that did."""

    number = int(signal.SIGINT)


class StopSignal(KeyboardInterrupt):
    """A signal that asks to stop, where nothing looks at a flag."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def interruption(given: Flag | None = None) -> Iterator[Flag]:
    """A flag that a stopping signal sets, so that a run stops between two events. A second one stops at once."""
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
    """Every stopping signal raises StopSignal, as Ctrl-C does KeyboardInterrupt, while we wait for other processes."""

    def stop(number: int, _: object) -> None:
        raise StopSignal(number)

    replaced = _replace(stop)
    try:
        yield
    finally:
        for each, before in replaced.items():
            signal.signal(each, before)


def _replace(handler: Any) -> dict[signal.Signals, Any]:
    """Handle the stopping signals; a terminal whose end is to be ignored (`nohup`) stays ignored."""
    wanted = [each for each in STOPPING if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    return {each: signal.signal(each, handler) for each in wanted}
