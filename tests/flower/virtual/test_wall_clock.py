"""Which calls of `time` go by an app's clock."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offbeat.flower.virtual.wall_clock import REAL, AppTime, SleepClock, real_time_calls


class HourClock:
    """It is always an hour after the beginning."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def elapsed(self, real: float) -> float:
        return 3600.0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def function_in(file: Path, body: str) -> Callable[[], Any]:
    """A function that Python takes for one of this file."""
    names: dict[str, Any] = {"time": time}
    exec(compile(f"def call():\n    return {body}", str(file), "exec"), names)
    found: Callable[[], Any] = names["call"]
    return found


def test_the_apps_own_calls_go_by_its_clock(tmp_path: Path) -> None:
    app_time, clock = AppTime(tmp_path), HourClock()
    with app_time.installed(), app_time.by(clock):
        for name in ("time", "monotonic", "perf_counter"):
            assert function_in(tmp_path / "a.py", f"time.{name}()")() - REAL[name]() == pytest.approx(3600, abs=60)
            ahead = function_in(tmp_path / "a.py", f"time.{name}_ns()")() - REAL[f"{name}_ns"]()
            assert ahead / 1e9 == pytest.approx(3600, abs=60)
        function_in(tmp_path / "deep" / "b.py", "time.sleep(7.0)")()
    assert clock.slept == [7.0]
    assert time.sleep is REAL["sleep"]
    assert time.time is REAL["time"]


def test_libraries_and_other_threads_keep_real_time(tmp_path: Path) -> None:
    app_time, clock = AppTime(tmp_path), HourClock()
    with app_time.installed(), app_time.by(clock):
        function_in(tmp_path / ".venv" / "site-packages" / "library.py", "time.sleep(0)")()
        function_in(Path("/elsewhere/library.py"), "time.sleep(0)")()
        thread = threading.Thread(target=function_in(tmp_path / "a.py", "time.sleep(0)"))
        thread.start()
        thread.join()
        assert clock.slept == []
        assert time.time() - REAL["time"]() == pytest.approx(0, abs=60)


def test_a_client_sees_real_time_and_what_it_slept(tmp_path: Path) -> None:
    app_time, clock = AppTime(tmp_path), SleepClock()
    with app_time.installed(), app_time.by(clock):
        call = function_in(tmp_path / "a.py", "(time.time(), time.sleep(1000.0), time.time())")
        before, _, after = call()
    assert after - before == pytest.approx(1000.0, abs=60)
    assert clock.slept == 1000.0


def test_what_no_clock_can_answer_is_found(tmp_path: Path) -> None:
    text = "import datetime\nfrom datetime import datetime as d\n\nnow = datetime.datetime.now()\nlater = d.now()\n"
    (tmp_path / "server_app.py").write_text(text + "import time\n\ntime.sleep(time.time())\n")
    (tmp_path / "old.py").write_text("print 'datetime.now()'\n")
    assert real_time_calls(sorted(tmp_path.glob("*.py"))) == ["server_app.py:4 datetime.now"]
