"""What an app sees of the time: while it runs, its own calls of `time.sleep`, `time.time` ... go by another clock.

Only calls from the app's files, and from Flower's strategies on its behalf, are answered by that clock, and only in the
thread that runs the app. Libraries wait for real things (a lock, a download, a process), and so their time stays real.
"""

import ast
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import flwr
import flwr.serverapp.strategy.strategy_utils as strategy_utils

READINGS = ("time", "monotonic", "perf_counter")
REAL = {name: getattr(time, name) for name in (*READINGS, *(f"{name}_ns" for name in READINGS), "sleep")}
FLOWERS = tuple(str(Path(flwr.__file__).parent / part) for part in ("serverapp", "server", "compat"))


BEYOND_US = (
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today", "timeit.default_timer"),
    *("time.localtime", "time.strftime", "time.ctime", "asyncio.sleep", "threading.Timer"),
)
"""Calls that read the time, or wait, and that no other clock can answer."""


def real_time_calls(files: Iterable[Path]) -> list[str]:
    """Where these files read real time, or wait for it, whatever clock they live by: "file.py:7 datetime.now"."""
    found: list[str] = []
    for file in files:
        with suppress(SyntaxError, ValueError):  # a file that is not for this version of Python is not used either
            calls = [each for each in ast.walk(ast.parse(file.read_bytes())) if isinstance(each, ast.Call)]
            names = [(call.lineno, ".".join(ast.unparse(call.func).split(".")[-2:])) for call in calls]
            found += [f"{file.name}:{line} {name}" for line, name in names if name in BEYOND_US]
    return found


class AppClock(Protocol):
    """A clock that an app lives by."""

    def elapsed(self, real: float) -> float:
        """Seconds since the clock was set, of which so many have passed for real."""

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass."""


class SleepClock:
    """The clock of a ClientApp: real time, and on top of it what the app has slept, which takes no real time."""

    def __init__(self) -> None:
        self.slept = 0.0

    def elapsed(self, real: float) -> float:
        """Seconds since the clock was set."""
        return real + self.slept

    def sleep(self, seconds: float) -> None:
        """Count the seconds: the device's work takes so much longer."""
        self.slept += max(0.0, seconds)


class AppTime:
    """Stands in for the functions of `time`, for the files of one app."""

    def __init__(self, directory: Path) -> None:
        self._directory = f"{directory}/"
        self._thread = 0
        self._clock: AppClock | None = None
        self._began: dict[str, float] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The functions of `time` are ours; without a clock they do as always."""
        for name in READINGS:
            setattr(time, name, partial(self._read, name, REAL[name]))
            setattr(time, f"{name}_ns", partial(self._read_ns, name, REAL[f"{name}_ns"]))
        for module in (time, strategy_utils):
            setattr(module, "sleep", self._sleep)  # noqa: B010  (mypy knows no other way)
        try:
            yield
        finally:
            for name, function in REAL.items():
                setattr(time, name, function)
            setattr(strategy_utils, "sleep", REAL["sleep"])  # noqa: B010

    @contextmanager
    def by(self, clock: AppClock) -> Iterator[None]:
        """Have this thread live by the clock, which is set to the real time of this moment."""
        before = self._thread, self._clock, self._began
        self._thread, self._clock = threading.get_ident(), clock
        self._began = {name: REAL[name]() for name in READINGS}
        try:
            yield
        finally:
            self._thread, self._clock, self._began = before

    def _concerns(self, caller: Any) -> bool:
        if self._clock is None or threading.get_ident() != self._thread:
            return False
        file: str = caller.f_code.co_filename
        own = file.startswith(self._directory) and "site-packages" not in file
        return own or file.startswith(FLOWERS)

    def _read(self, name: str, real: Callable[[], float]) -> float:
        if not self._concerns(sys._getframe(1)):
            return real()
        return self._reading(name)

    def _read_ns(self, name: str, real: Callable[[], int]) -> int:
        if not self._concerns(sys._getframe(1)):
            return real()
        return round(self._reading(name) * 1e9)

    def _reading(self, name: str) -> float:
        assert self._clock is not None
        return self._began[name] + self._clock.elapsed(REAL[name]() - self._began[name])

    def _sleep(self, seconds: float) -> None:
        if self._concerns(sys._getframe(1)):
            assert self._clock is not None
            self._clock.sleep(seconds)
        else:
            REAL["sleep"](seconds)
