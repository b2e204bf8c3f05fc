"""The timeline of a run in the Chrome trace format: a row for each device, from fast to slow, and one for the versions.

Open it in Perfetto (ui.perfetto.dev) or chrome://tracing. Times are in microseconds, as the format wants them.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from offbeat.results.files import Log
from offbeat.results.rows import Span

MOST_ORDERS = 20_000
"""The timeline of a longer run ends after so many orders, and its marks after so many versions: viewers do not like
more."""
DEVICES, SERVER = 0, 1
"""The two processes of the trace."""

Part = tuple[str, float, float]
"""What a device did: the name, the beginning and the end."""


def parts_of(span: Span) -> Iterator[Part]:
    """What a device did with an order, one thing after the other."""
    ended = span.landed if span.ended is None else span.ended
    if span.trained_until is None:  # of a real device the server knows how long it trained, not when
        yield "on the way", span.sent, span.arrived
        yield "training", span.arrived, ended
        return
    began = min(span.arrived, ended)
    yield "download", span.sent, began
    for asked, answered in span.pauses:
        yield "training", began, asked
        yield "fresh model", asked, answered
        began = answered
    trained = max(began, span.trained_until)
    yield "training", began, trained
    yield "upload", trained, ended
    yield "lost, not yet noticed", ended, span.landed


class Timeline:
    """Written as the run goes; a viewer reads it even if the closing bracket is missing.

    `saved` is the `state` of a timeline that goes on at this position.
    """

    def __init__(self, path: Path, position: int = 0, saved: dict[str, Any] | None = None) -> None:
        self._log = Log(path, position)
        self._orders: int = saved["orders"] if saved else 0
        self._version: int = saved["version"] if saved else 0
        self._devices: dict[int, tuple[float, float, int]] = saved["devices"] if saved else {}
        """When each device was last seen to be free, and the seconds and slices that it has trained in all."""
        if not position:
            self._log.write("[")

    @property
    def state(self) -> dict[str, Any]:
        """What a resumed timeline must know, for a snapshot."""
        return {"orders": self._orders, "version": self._version, "devices": self._devices}

    def write(self, span: Span) -> None:
        """Add an order that has ended, or that was in flight when the run did, and the waiting before it."""
        if self._orders >= MOST_ORDERS:
            return
        self._orders += 1
        free, seconds, slices = self._devices.get(span.device, (0.0, 0.0, 0))
        details = f'{{"ticket":{span.ticket},"base":{span.base},"slices":{span.slices}}}'
        lines = [
            _complete("waiting", span.device, free, span.sent),
            _complete(f"order ({span.outcome})", span.device, span.sent, span.landed, details),
        ]
        for name, start, end in parts_of(span):
            end = min(end, span.landed)
            if name == "training" and start < end and span.outcome == "uploaded":
                seconds += end - start
            lines.append(_complete(name, span.device, start, end))
        if span.outcome == "uploaded":
            slices += span.slices
        self._devices[span.device] = (span.landed, seconds, slices)
        self._log.write("".join(lines).rstrip("\n"))

    def mark(self, version: int, at: float) -> None:
        """Mark the version that the server has had since this time, if it is a new one."""
        if version == self._version or version > MOST_ORDERS:
            return
        made = "version" if version == self._version + 1 else f"versions {self._version + 1} to"
        self._version = version
        self._log.write(f'{{"name":"{made} {version}","ph":"i","s":"t","pid":{SERVER},"tid":0,"ts":{_micro(at)}}},')

    @property
    def position(self) -> int:
        """How many bytes of the file are written, to which a resumed run cuts it back."""
        return self._log.position

    def finish(self, in_flight: Iterable[Span], at: float) -> None:
        """Add the orders that had not ended, the names of all rows with the devices' speeds, and close the list."""
        for span in in_flight:
            self.write(span)
        if self._orders < MOST_ORDERS:
            for device, (free, _, _) in sorted(self._devices.items()):
                if line := _complete("waiting", device, free, at):
                    self._log.write(line.rstrip("\n"))
        names = [_metadata("process_name", DEVICES, name="devices"), _metadata("process_name", SERVER, name="server")]
        names.append(_metadata("thread_name", SERVER, name="versions"))
        speeds = {device: trained / n if n else None for device, (_, trained, n) in self._devices.items()}
        ranked = sorted(speeds, key=lambda device: (speeds[device] is None, speeds[device], device))
        for rank, device in enumerate(ranked):
            pace = speeds[device]
            name = f"device {device}" if pace is None else f"device {device}: {pace:.3g} s per slice"
            names.append(_metadata("thread_name", DEVICES, device, name=name))
            names.append(_metadata("thread_sort_index", DEVICES, device, sort_index=rank))
        self._log.write(",\n".join(names) + "]")

    def close(self) -> None:
        """Close the file."""
        self._log.close()


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)


def _complete(name: str, device: int, start: float, end: float, details: str = "") -> str:
    """A line for what took some time; nothing for what took none. Neighbours share their instant exactly."""
    ts = _micro(start)
    duration = _micro(end) - ts
    if duration <= 0:
        return ""
    args = f',"args":{details}' if details else ""
    return f'{{"name":"{name}","ph":"X","pid":{DEVICES},"tid":{device},"ts":{ts},"dur":{duration}{args}}},\n'


def _metadata(kind: str, process: int, thread: int = 0, **details: Any) -> str:
    return json.dumps({"name": kind, "ph": "M", "pid": process, "tid": thread, "args": details})
