"""The timeline of a run in the Chrome trace format: a row per device, from fast to slow, and one for the versions.

Open it in Perfetto (ui.perfetto.dev) or chrome://tracing. The format has times in microseconds.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from offbeat.results.files import Log
from offbeat.results.rows import Span

MOST_ORDERS = 20_000
"""Most orders, and most versions, in a timeline: viewers become slow with more."""
DEVICES, SERVER = 0, 1
"""The two processes of the trace."""

Part = tuple[str, float, float]
"""A part of an order: name, start and end."""


def parts_of(span: Span) -> Iterator[Part]:
    """The parts of an order in their order: download, training, waiting for a fresh model, upload."""
    ended = span.landed if span.ended is None else span.ended
    if span.trained_until is None:  # the server of a real run does not know when training ended
        yield "transfer", span.sent, span.arrived
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
    """Writes the timeline during the run; viewers accept a file without the closing bracket.

    To continue a timeline, pass its length as `position` and its `state` as `saved`.
    """

    def __init__(self, path: Path, position: int = 0, saved: dict[str, Any] | None = None) -> None:
        self._log = Log(path, position)
        self._orders: int = saved["orders"] if saved else 0
        self._version: int = saved["version"] if saved else 0
        self._devices: dict[int, tuple[float, float, int]] = saved["devices"] if saved else {}
        """For each device the time since which it is idle, and its total seconds and slices of training."""
        if not position:
            self._log.write("[")

    @property
    def state(self) -> dict[str, Any]:
        """The state that a resumed timeline needs, for a snapshot."""
        return {"orders": self._orders, "version": self._version, "devices": self._devices}

    def write(self, span: Span) -> None:
        """Add an order that has ended, or was in flight at the end of the run, and the idle time before it."""
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
        """Mark the time of a new version; nothing happens if it was marked before."""
        if version == self._version or version > MOST_ORDERS:
            return
        made = "version" if version == self._version + 1 else f"versions {self._version + 1} to"
        self._version = version
        self._log.write(f'{{"name":"{made} {version}","ph":"i","s":"t","pid":{SERVER},"tid":0,"ts":{_micro(at)}}},')

    @property
    def position(self) -> int:
        """Length of the file in bytes, to which a resumed run truncates it."""
        return self._log.position

    def finish(self, in_flight: Iterable[Span], at: float, known: Sequence[str] | None = None) -> None:
        """Add the orders in flight and the names of all rows with the devices' speeds, and close the list.

        `known` are the names of the devices, if they have any.
        """
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
            name = f"device {device}" if known is None else f"{known[device]} (device {device})"
            name += "" if pace is None else f": {pace:.3g} s per slice"
            names.append(_metadata("thread_name", DEVICES, device, name=name))
            names.append(_metadata("thread_sort_index", DEVICES, device, sort_index=rank))
        self._log.write(",\n".join(names) + "]")

    def close(self) -> None:
        """Close the file."""
        self._log.close()


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)


def _complete(name: str, device: int, start: float, end: float, details: str = "") -> str:
    """The line of an event with a duration; empty if the duration is 0. Adjacent events meet exactly."""
    ts = _micro(start)
    duration = _micro(end) - ts
    if duration <= 0:
        return ""
    args = f',"args":{details}' if details else ""
    return f'{{"name":"{name}","ph":"X","pid":{DEVICES},"tid":{device},"ts":{ts},"dur":{duration}{args}}},\n'


def _metadata(kind: str, process: int, thread: int = 0, **details: Any) -> str:
    return json.dumps({"name": kind, "ph": "M", "pid": process, "tid": thread, "args": details})
