"""A case on a Flower grid in memory, with a clock of its own."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from flwr.app import Message, RecordDict

from offbeat.core.coverage import coverage
from offbeat.core.errors import Disconnected, Diverged
from offbeat.core.messages import Lost
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Layout, Vector
from offbeat.core.policy import Forecast
from offbeat.core.record import EventLine, FaultLine, RecordedUpload, RecordLine
from offbeat.core.session import Session
from offbeat.core.streams import stream
from offbeat.experiment.run_settings import DeploymentTable, EvaluationTable, Stop
from offbeat.flower.compat import TaskIdentity
from offbeat.flower.protocol.codec import pack, unpack, vector
from offbeat.flower.protocol.messages import (
    Begin,
    Continue,
    FreshRequest,
    FreshResponse,
    Greeting,
    Hello,
    Notice,
    NoticeReceived,
    ToDevice,
    UpdateReply,
)
from offbeat.flower.server.driver import Deployment
from offbeat.flower.server.membership import Membership, wait_for_devices
from offbeat.flower.server.transport import Transport
from offbeat.results.checkpoint import load_checkpoint, save_checkpoint
from offbeat.results.rows import Span
from offbeat.running.directory import RunRecord
from offbeat.testing.torture.cases import HOSTILE, Case, policy_of
from offbeat.testing.torture.invariants import HORIZON, MOST_TURNS, Broken, audit, check_counts
from offbeat.testing.toy import SIZE, ToyExecutor

ANSWER_SECONDS = 60.0
"""Seconds after which a server gives up an order."""


class _Grid:
    """Nodes in memory that keep the protocol or break it, on a clock that only waiting moves."""

    def __init__(self, case: Case, layout: Layout) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.case, self.layout = case, layout
        self.time = 0.0
        self.sent = 0
        self.orders: dict[int, tuple[Begin, Vector]] = {}
        self.replies: list[tuple[float, int, str, int, Message]] = []
        self.gone_until = dict.fromkeys(range(case.devices), 0.0)
        self.bad = set(range(max(1, case.devices // 4))) if case.hostile else set[int]()
        self.slowest = 0.0
        """Seconds of the slowest reply of an honest device."""
        self.seconds = stream(case.seed, "node seconds").uniform(0.5, 20.0, case.devices)

    def now(self) -> float:
        """The time of the grid's clock."""
        return self.time

    def wait(self, seconds: float) -> None:
        """Let time pass until a reply arrives or a node returns."""
        coming = [at for at, *_ in self.replies if at > self.time]
        coming += [at for at in self.gone_until.values() if at > self.time]
        self.time = min([self.time + max(seconds, 1e-3), *coming])

    def get_node_ids(self) -> list[int]:
        """The connected nodes: 100 and up."""
        return [100 + device for device, until in self.gone_until.items() if until <= self.time]

    def push_messages(self, messages: Iterable[Message]) -> Iterator[str]:
        """Hand messages to their nodes, which work at once and reply later."""
        for message in messages:
            self.sent += 1
            identity, device = f"message-{self.sent}", message.metadata.dst_node_id - 100
            message.metadata.__dict__["_message_id"] = identity
            message.metadata.__dict__["_src_node_id"] = 1
            self._work(device, identity, message)
            yield identity

    def _work(self, device: int, identity: str, message: Message) -> None:
        case, random = self.case, stream(self.case.seed, "node", device, self.sent)
        body = unpack(message.content, ToDevice)
        content, seconds = self._reply(device, body, message.content, random)
        if content is None or (random.random() < case.lost and not isinstance(body, Hello)):
            return
        at = self.time + seconds + (20.0 * random.random() if random.random() < case.delayed else 0.0)
        if device not in self.bad:
            self.slowest = max(self.slowest, at - self.time)
        reply = Message(content, reply_to=message)
        for copy in range(2 if random.random() < case.duplicated else 1):
            self.replies.append((at + copy * random.random() * 5.0, len(self.replies), identity, device, reply))
        if random.random() < case.comes_and_goes and not isinstance(body, Hello) and device:
            self.gone_until[device] = self.time + float(random.uniform(1.0, 30.0))

    def _reply(
        self, device: int, body: Any, content: RecordDict, random: np.random.Generator
    ) -> tuple[RecordDict | None, float]:
        if isinstance(body, Hello):
            greeting = Greeting(device=device, samples=10 + device, elements=self.layout.size, speed=100.0)
            model = np.zeros(self.layout.size, np.float32) if body.measure else None
            return pack(greeting, model), 0.1
        if isinstance(body, Notice):
            return pack(NoticeReceived(ticket=body.ticket, slices=0, step=None, working=False)), 0.1
        leg = 1
        if isinstance(body, Begin):
            size = self.layout.size if body.order.width == 1.0 else None
            model = vector(content, size) if size is not None else np.zeros(self.layout.size, np.float32)
            self.orders[device] = (body, model)
        elif isinstance(body, Continue | FreshResponse):
            leg = body.leg + 1
        begun, model = self.orders[device]
        order, seconds = begun.order, float(self.seconds[device]) * begun.order.slices
        told: dict[str, Any] = {"ticket": begun.ticket, "leg": leg, "remembered": 0}
        told |= {"steps": order.slices, "seconds": min(seconds * self.case.skew, 1e9)}
        if leg == 1 and order.rule == "fedasmu" and order.slices > 1:
            return pack(FreshRequest(slices=1, **told)), seconds / 2
        reply = UpdateReply(slices=order.slices, samples=10 + device, loss=1.0, **told)
        mask = coverage(order, order.slices, self.layout)
        step = random.normal(size=self.layout.size).astype(np.float32) * np.float32(0.1)
        trained = model + step if mask is None else (model + step)[mask.chosen]
        if device in self.bad:
            return HOSTILE[self.case.hostile](reply, trained), seconds
        return pack(reply, trained), seconds

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """The replies that have arrived; a duplicate comes however often it was answered before."""
        wanted, there = set(message_ids), {node - 100 for node in self.get_node_ids()}
        due = sorted(each for each in self.replies if each[0] <= self.time and each[3] in there)
        for entry in due:
            if entry[2] in wanted or self.case.duplicated:
                self.replies.remove(entry)
                entry[4].metadata.__dict__["_reply_to_message_id"] = entry[2]
                yield entry[4]


class GridRun:
    """A case on the grid."""

    def __init__(self, case: Case, directory: Path) -> None:
        self.case, self.directory = case, directory
        self.layout = Layout.flat(SIZE)
        self.grid = _Grid(case, self.layout)
        self.record = RunRecord(None)
        self.spans: list[Span] = []
        self.turns = 0

    def _deployment(self) -> Deployment:
        case, grid, policy = self.case, self.grid, policy_of(self.case)
        local, samples = LocalWork(epochs=case.epochs), np.arange(10, 10 + case.devices)
        forecast = Forecast(speeds=np.ones(case.devices), communication=np.zeros(case.devices))
        model = np.zeros(SIZE, dtype=np.float32)
        membership = Membership(
            case.devices,
            model=model,
            batch_size=None,
            samples=samples,
            forecast=forecast,
            answer_seconds=ANSWER_SECONDS,
        )
        transport = Transport(grid, self._log)
        clock: dict[str, Any] = {"clock": grid.now, "sleep": lambda seconds: grid.wait(max(seconds, case.polls))}
        wait_for_devices(membership, transport, wanted=case.devices, seconds=30.0, log=self._log, **clock)
        session = Session(
            policy,
            parameters=model,
            layout=self.layout,
            samples=samples,
            local=local,
            seed=case.seed,
            present=membership.present,
            forecast=membership.estimate_absent(),
            horizon=HORIZON,
        )
        self.record.close()
        self.record = RunRecord(self.directory / "record.jsonl")
        return Deployment(
            session,
            transport,
            membership,
            ToyExecutor(case.seed).evaluate,
            seed=case.seed,
            stop=Stop(updates=case.updates, time=HORIZON),
            schedule=EvaluationTable(every_seconds=100.0),
            record=self.record,
            log=self._log,
            settings=DeploymentTable(answer_seconds=ANSWER_SECONDS, rest_seconds=1.0),
            **clock,
        )

    def _log(self, line: str) -> None:
        if "\n" in line or len(line) > 700:
            raise Broken(f"a log line that a device can forge: {line[:80]!r}")

    def run(self) -> str:
        """Run the case to its end, through all kills."""
        try:
            return self._run()
        finally:
            self.record.close()

    def _run(self) -> str:
        deployment, kills = self._deployment(), [int(100 * share) for share in self.case.kills]
        while (reason := self._drive(deployment, kills.pop(0) if kills else MOST_TURNS)) is None:
            path = self.directory / "checkpoint"
            save_checkpoint(path, deployment.snapshot(), "torture")
            deployment = self._deployment()
            deployment.restore(load_checkpoint(path, "torture", deployment.snapshot_types))
        self.record.close()
        audit(deployment.session)
        check_counts(deployment.session, self.spans, deployment.accounts.busy_seconds, self.case)
        self._check_culprits(deployment)
        self._check_record(deployment)
        self._check_progress(deployment.session, reason)
        return reason

    def _drive(self, deployment: Deployment, until: int) -> str | None:
        """Drive a run to its end, and return why it ended; None if it was killed after so many turns."""
        before = deployment.now
        try:
            for _ in deployment:
                self.turns += 1
                self.spans += deployment.accounts.take_spans()
                if deployment.now < before:
                    raise Broken(f"time went back from {before} to {deployment.now}")
                before = deployment.now
                if self.turns % 7 == 0:
                    audit(deployment.session)
                if self.turns >= until:
                    if until == MOST_TURNS:
                        raise Broken(f"the run hangs: {self.turns} turns, {before} s")
                    return None
        except (Diverged, Disconnected) as error:
            self.spans += deployment.accounts.take_spans()
            return f"{type(error).__name__}: {error}"
        self.spans += deployment.accounts.take_spans()
        return str(deployment.reason)

    def _check_culprits(self, deployment: Deployment) -> None:
        for account in deployment.accounts.table():
            if account.device in self.grid.bad and account.used:
                raise Broken(f"a hostile update ({self.case.hostile}) of device {account.device} was used")
        if not np.abs(deployment.session.parameters).max() < 1e4:
            raise Broken("a hostile number is in the model")

    def _check_record(self, deployment: Deployment) -> None:
        lines = (self.directory / "record.jsonl").read_bytes().splitlines()
        ended: Counter[int] = Counter()
        for text in lines[: len(lines) if deployment.reason is not None else -1]:
            line: Any = msgspec.json.decode(text, type=RecordLine)
            if isinstance(line, EventLine) and isinstance(line.event, RecordedUpload | Lost):
                ended[line.event.ticket] += 1
            elif isinstance(line, FaultLine) and line.device not in self.grid.bad and self._is_wrong(line.why):
                raise Broken(f"honest device {line.device}: {line.why}")
        if twice := [ticket for ticket, count in ended.items() if count > 1]:
            raise Broken(f"tickets ended twice in the record: {twice[:5]}")

    def _is_wrong(self, why: str) -> bool:
        return why.startswith("refused: ") and "came after its deadline" not in why

    def _check_progress(self, session: Session, reason: str) -> None:
        case = self.case
        if not self.grid.orders:
            raise Broken(f"deadlock: no order although devices are there ({reason})")
        in_time = self.grid.slowest <= ANSWER_SECONDS - case.polls and len(self.grid.bad) < case.devices
        if in_time and not case.lost and not case.comes_and_goes and not session.counters.received:
            raise Broken(f"deadlock: no update although honest devices reply in time ({reason})")
