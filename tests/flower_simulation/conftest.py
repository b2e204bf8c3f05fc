"""A grid whose ClientApps are functions of the test, and Flower apps to run."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.run import Run

from offbeat.flower_simulation.app import FlowerApp
from offbeat.flower_simulation.clients import Answer, identify
from offbeat.flower_simulation.devices import WorkTimes
from offbeat.flower_simulation.engine import MessageEngine
from offbeat.flower_simulation.grid import VirtualGrid
from offbeat.flower_simulation.settings import AppSettings

SECOND = {"uplink_mbps": 8.0, "downlink_mbps": 8.0, "latency": 0.5}
"""A megabyte takes a second, and every message half a second more."""


def megabytes(number: float) -> RecordDict:
    """Content of this size: the names of record and key are two bytes of it."""
    return RecordDict({"c": ConfigRecord({"b": bytes(round(number * 1e6) - 2)})})


class ScriptedClients:
    """Answers at once with two megabytes, or as the test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.slept = 0.0
        self.processor = 0.0
        self._begun: dict[int, tuple[int, Message]] = {}

    def begin(self, number: int, device: int, message: Message) -> None:
        self._begun[number] = (device, message)

    def answer(self, number: int) -> Answer:
        device, message = self._begun.pop(number)
        self.asked.append((number, device))
        reply = Message(megabytes(2), reply_to=message)
        return Answer(reply=reply, processor_seconds=self.processor, slept_seconds=self.slept)

    def close(self) -> None:
        pass


class Simulated:
    """An engine, its grid and its clients."""

    def __init__(self, settings: AppSettings, **limits: float) -> None:
        app = FlowerApp(
            directory=Path("nowhere"),
            identity="example/app",
            version="1",
            server_reference="",
            client_reference="",
            run_config={},
            overrides={},
            nodes=None,
        )
        self.clients = ScriptedClients()
        self.engine = MessageEngine(WorkTimes(app, settings), self.clients, **limits)
        self.grid = VirtualGrid(self.engine, Run.create_empty(1))
        self.nodes = self.engine.times.node_ids

    def message(self, device: int = 0, kind: str = "train", ttl: float | None = None) -> Message:
        return Message(megabytes(1), self.nodes[device], kind, ttl=ttl)


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Callable[..., Simulated]]:
    """Makes a grid over devices of these slownesses, an epoch of the fastest being three seconds, trainings two."""
    identify(1)

    def make(*slowness: float, limits: dict[str, float] | None = None, **tables: Any) -> Simulated:
        rows = "".join(f"{device},{each}\n" for device, each in enumerate(slowness))
        (tmp_path / "fleet.csv").write_text("device,slowness\n" + rows)
        fleet = {"name": "trace", "path": str(tmp_path / "fleet.csv"), "epoch_seconds": 3.0}
        work = {"epochs": 2} | tables.pop("work", {})
        given = {"nodes": len(slowness), "fleet": fleet, "network": SECOND, "work": work} | tables
        return Simulated(AppSettings.parse(given), **(limits or {}))

    yield make
