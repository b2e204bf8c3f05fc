"""Nodes that misbehave on the loopback grid, and what must be true of a run whatever they do."""

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from loopback import LoopbackGrid, deploy, run_config
from recorded import recorded
from safetensors.numpy import load_file

from offbeat.core.parameters import Vector
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import merge
from offbeat.flower.protocol.codec import unpack, vector
from offbeat.flower.protocol.messages import FromDevice, UpdateReply

DELAYS = {100: 1.0, 101: 1.1, 102: 1.2, 103: 0.5}
BAD = 103
"""The node that misbehaves; it is device 3."""
NEVER = float("inf")

Change = Callable[[UpdateReply, Vector], RecordDict | Error | None]
"""What a node makes of an upload: another content, an error of Flower's, or nothing at all."""


@dataclass
class FaultyGrid(LoopbackGrid):
    away: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Nodes that are not there from one time to another."""
    numbers: dict[int, int] = field(default_factory=dict)
    """Nodes that say another partition-id than their own."""
    unsendable: Counter[int] = field(default_factory=Counter)
    """How many of the next orders to a node cannot be handed to the SuperLink."""
    broken: dict[int, Exception] = field(default_factory=dict)
    """Nodes whose uploads cannot be taken apart, and what Flower raises then."""

    def _context(self, node: int) -> Context:
        context = super()._context(node)
        if node in self.numbers:
            context.node_config["partition-id"] = self.numbers[node]
        return context

    def get_node_ids(self) -> Iterable[int]:
        gone = {node for node, (start, end) in self.away.items() if start <= self.now < end}
        return [node for node in super().get_node_ids() if node not in gone]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities: list[str] = []
        for message in messages:
            node = message.metadata.dst_node_id
            lost = node not in self.get_node_ids()
            if "begin" in str(message.content.config_records) and self.unsendable[node]:
                self.unsendable[node] -= 1
                lost = True
            identities += [""] if lost else super().push_messages([message])
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        answers = list(super().pull_messages(message_ids))
        for answer in answers:
            node = answer.metadata.src_node_id
            if node in self.broken and answer.has_content() and answer.content.array_records:
                for other in answers:  # answers are gone once they were asked for, as Flower has it
                    self._answers[other.metadata.reply_to_message_id] = (self.now, node, _unavailable(other))
                raise self.broken[node]
        return answers


def _unavailable(answer: Message) -> Message:
    message = Message(Error(code=3, reason="Message Unavailable"), reply_to=answer)
    message.metadata.__dict__["_reply_to_message_id"] = answer.metadata.reply_to_message_id
    return message


@dataclass
class Tampering:
    """Changes the uploads of a node, the first `times` of them."""

    change: Change
    times: float = 1
    node: int = BAD
    done: int = 0

    def __call__(self, node: int, question: Message, answer: Message) -> Message | Error | None:
        body = unpack(answer.content, FromDevice) if node == self.node and self.done < self.times else None
        if not isinstance(body, UpdateReply):
            return answer
        self.done += 1
        array = answer.content.array_records["offbeat-model"]["vector"]
        changed = self.change(body, vector(answer.content, array.shape[0]))
        return Message(changed, reply_to=question) if isinstance(changed, RecordDict) else changed


def experiment(**changes: Any) -> Experiment:
    """Four devices that upload about once a second; one that fails rests for a second."""
    whole: dict[str, Any] = {key: changes[key] for key in ("stop", "algorithm") if key in changes}
    whole["stop"] = {"time": 300.0} | whole.get("stop", {"updates": 10})  # none may run for ever
    table: dict[str, Any] = {
        "data": {"name": "digits", "devices": 4},
        "model": {"name": "mlp"},
        "local": {"epochs": 1},
        "algorithm": {"name": "fedasync", "concurrency": 4},
        "deployment": {"answer_seconds": 5.0, "rest_seconds": 1.0},
    }
    return Experiment.parse(merge(table, {key: value for key, value in changes.items() if key not in whole}) | whole)


@dataclass(frozen=True)
class Outcome:
    """What a run left."""

    summary: dict[str, Any]
    record: list[dict[str, Any]]
    devices: list[dict[str, float]]
    faults: list[str]

    def of(self, what: str, **wanted: Any) -> list[dict[str, Any]]:
        lines = [line for line in self.record if line["what"] == what]
        return [line for line in lines if all(line[key] == value for key, value in wanted.items())]


def run(tmp_path: Path, grid: FaultyGrid, setting: Experiment) -> Outcome:
    """A whole run, after which everything that must be true of any run is true."""
    out = tmp_path / "run"
    deploy(setting, grid, out)
    return outcome(out)


def grid_for(setting: Experiment, **details: Any) -> FaultyGrid:
    details.setdefault("delays", dict(DELAYS))
    return FaultyGrid(run_config=run_config(setting), **details)


def outcome(out: Path) -> Outcome:
    """What a run left in its directory, found to agree with itself: nothing was used twice, or after it was refused."""
    summary = json.loads((out / "summary.json").read_text())
    record = recorded(out)
    with (out / "devices.csv").open(newline="") as lines:
        devices = [{name: float(value) for name, value in line.items()} for line in csv.DictReader(lines)]
    found = Outcome(summary, record, devices, [line["why"] for line in record if line["what"] == "fault"])

    assert all(np.isfinite(array).all() for array in load_file(out / "model.safetensors").values())
    assert [line["version"] for line in found.of("version")] == list(range(1, summary["versions"] + 1))
    tickets = {what: [line["ticket"] for line in found.of(what)] for what in ("order", "Uploaded", "Lost")}
    for what, named in tickets.items():
        assert len(set(named)) == len(named), f"a ticket has {what} twice"
    assert not set(tickets["Uploaded"]) & set(tickets["Lost"])
    assert set(tickets["Uploaded"]) | set(tickets["Lost"]) <= set(tickets["order"])
    assert summary["updates_used"] <= len(tickets["Uploaded"])
    assert summary["updates_lost"] == len(tickets["Lost"])
    sums = {name: sum(device[name] for device in devices) for name in devices[0]}
    assert sums["orders"] == len(tickets["order"])
    assert sums["delivered"] == len(tickets["Uploaded"])
    assert sums["lost"] == len(tickets["Lost"])
    assert sums["used"] == summary["updates_used"]
    assert sums["refused"] == summary["updates_refused"] == sum("refused: " in why for why in found.faults)
    return found
