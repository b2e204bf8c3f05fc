"""Redirects an app's calls of `time.sleep`, `time.time` ... to a virtual clock while the app runs.

Only calls from the app's files and from Flower's strategies are redirected, and only in the thread that runs the app.
Other libraries wait for real things (a lock, a download, a process), so their time stays real.
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

from offbeat.flower.compat import strategy_utils

READINGS = ("time", "monotonic", "perf_counter")
REAL = {name: getattr(time, name) for name in (*READINGS, *(f"{name}_ns" for name in READINGS), "sleep")}
FLOWERS = tuple(str(Path(flwr.__file__).parent / part) for part in ("serverapp", "server", "compat"))


NOT_REDIRECTED = (
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today", "timeit.default_timer"),
    *("time.localtime", "time.strftime", "time.ctime", "asyncio.sleep", "threading.Timer"),
)
"""Calls that read the time or wait, and that cannot be redirected."""


def real_time_calls(files: Iterable[Path]) -> list[str]:
    """Find calls in these files that use real time in spite of the virtual clock, as "file.py:7 datetime.now"."""
    found: list[str] = []
    for file in files:
        with suppress(SyntaxError, ValueError):  # a file for another version of Python is not imported either
            calls = [each for each in ast.walk(ast.parse(file.read_bytes())) if isinstance(each, ast.Call)]
            names = [(call.lineno, ".".join(ast.unparse(call.func).split(".")[-2:])) for call in calls]
            found += [f"{file.name}:{line} {name}" for line, name in names if name in NOT_REDIRECTED]
    return found


class AppClock(Protocol):
    """The clock of an app."""

    def elapsed(self, real: float) -> float:
        """Virtual seconds since the clock was set; `real` seconds have passed since then."""

    def sleep(self, seconds: float) -> None:
        """Advance the clock by `seconds`."""


class SleepClock:
    """The clock of a ClientApp: real time plus the seconds slept, which take no real time."""

    def __init__(self) -> None:
        self.slept = 0.0

    def elapsed(self, real: float) -> float:
        """Seconds since the clock was set."""
        return real + self.slept

    def sleep(self, seconds: float) -> None:
        """Add the seconds to the device's work."""
        self.slept += max(0.0, seconds)


class AppTime:
    """Replaces the functions of `time` for the files of one app."""

    def __init__(self, directory: Path) -> None:
        self._directory = f"{directory}/"
        self._thread = 0
        self._clock: AppClock | None = None
        self._began: dict[str, float] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the functions of `time`; without a clock they work as before."""
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
        """Use the clock in this thread, set to the current real time."""
        before = self._thread, self._clock, self._began
        self._thread, self._clock = threading.get_ident(), clock
        self._began = {name: REAL[name]() for name in READINGS}
        try:
            yield
        finally:
            self._thread, self._clock, self._began = before

    def _is_from_app(self, caller: Any) -> bool:
        if self._clock is None or threading.get_ident() != self._thread:
            return False
        file: str = caller.f_code.co_filename
        own = file.startswith(self._directory) and "site-packages" not in file
        return own or file.startswith(FLOWERS)

    def _read(self, name: str, real: Callable[[], float]) -> float:
        if not self._is_from_app(sys._getframe(1)):
            return real()
        return self._reading(name)

    def _read_ns(self, name: str, real: Callable[[], int]) -> int:
        if not self._is_from_app(sys._getframe(1)):
            return real()
        return round(self._reading(name) * 1e9)

    def _reading(self, name: str) -> float:
        assert self._clock is not None
        return self._began[name] + self._clock.elapsed(REAL[name]() - self._began[name])

    def _sleep(self, seconds: float) -> None:
        if self._is_from_app(sys._getframe(1)):
            assert self._clock is not None
            self._clock.sleep(seconds)
        else:
            REAL["sleep"](seconds)
