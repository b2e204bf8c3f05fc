"""Random cases against both drivers: `python -m offbeat.testing.torture --runs 500 --seed 0`.

A case is an algorithm with random settings on a random toy fleet. On the virtual clock devices leave, vanish, return
and lose uploads, and the run is killed and resumed through checkpoint files. On a Flower grid in memory, with a clock
of its own, nodes also delay, reorder, duplicate and lose replies, come and go, lie about time and send hostile updates.

After every turn time has not gone back, and the session's invariants hold. At the end no ticket has ended twice,
accounts add up, staleness is within the algorithm's bound, the run has not hung, and no hostile number is in the model.
A run that was killed has the same rows, orders and model, bit for bit, as one that was not (on the virtual clock only:
real devices do not wait for a server). A failing case is shrunk and printed as one command.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from msgspec import Struct, structs

from offbeat.algorithms import POLICIES
from offbeat.core.coverage import coverage
from offbeat.core.errors import Disconnected, Diverged, InvalidInput
from offbeat.core.messages import Lost
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Layout, Vector
from offbeat.core.policy import Forecast, Policy
from offbeat.core.record import EventLine, FaultLine, RecordedUpload, RecordLine
from offbeat.core.session import Session
from offbeat.core.streams import stream
from offbeat.experiment.run_settings import DeploymentTable, EvaluationTable, Stop
from offbeat.fleet import FLEETS, BernoulliFleet, FailureSettings, NetworkSettings, OnOffAvailable
from offbeat.flower.compat import TaskIdentity
from offbeat.flower.protocol.codec import BODY, pack, unpack, vector
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
from offbeat.results.rows import Row, Span
from offbeat.running.directory import RunRecord
from offbeat.testing.toy import SIZE, ToyExecutor, toy_simulation

MOST_TURNS = 60_000
"""Turns after which a run counts as hanging."""
HORIZON = 3000.0
"""Seconds of the run's clock after which a case ends."""
BOUNDED = {"seafl": "staleness_limit"}
"""Algorithms that promise a largest staleness, and the setting that has it."""
ROUNDS = ("fedavg", "fedprox", "moon", "feddyn", "fedlws")
"""Algorithms whose updates are never stale."""


class Case(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One case; the defaults are the simplest values, to which a failing case is shrunk."""

    driver: str = "virtual"
    algorithm: str = "fedasync"
    settings: dict[str, Any] = {}
    seed: int = 0
    devices: int = 4
    updates: int = 10
    epochs: int = 1
    fleet: str = "ratio"
    network: dict[str, float] = {}
    on_off: tuple[float, float] | None = None
    failures: dict[str, float] = {}
    kills: tuple[float, ...] = ()
    """Shares of the run after which it is killed and resumed."""
    delayed: float = 0.0
    """Probability of a reply that takes up to 20 s more, on the grid."""
    duplicated: float = 0.0
    lost: float = 0.0
    comes_and_goes: float = 0.0
    """Probability that a node is gone for some seconds after a message."""
    skew: float = 1.0
    """Factor on the training time that devices claim."""
    hostile: str = ""
    """What the first quarter of the devices sends, one device at least; empty: nothing hostile."""


HOSTILE: dict[str, Callable[[UpdateReply, Vector], RecordDict]] = {
    "huge": lambda reply, model: pack(reply, np.full_like(model, 3e38)),
    "far": lambda reply, model: pack(reply, model + np.float32(1e7)),
    "nan": lambda reply, model: pack(reply, np.full_like(model, np.nan)),
    "short": lambda reply, model: pack(reply, model[:-1]),
    "ticket": lambda reply, model: pack(structs.replace(reply, ticket=reply.ticket + 1), model),
    "leg": lambda reply, model: pack(structs.replace(reply, leg=0), model),
    "steps": lambda reply, model: pack(structs.replace(reply, steps=2**53), model),
    "samples": lambda reply, model: pack(structs.replace(reply, samples=2**40), model),
    "extras": lambda reply, model: pack(structs.replace(reply, extras={"slot": 1e300}), model),
    "garbage": lambda reply, model: RecordDict({BODY: ConfigRecord({"json": "[" * 50_000})}),
    "bytes": lambda reply, model: RecordDict({BODY: ConfigRecord({"json": b"\\0"})}),
    "nothing": lambda reply, model: RecordDict(),
}


def random_case(seed: int) -> Case:
    """The case of this seed."""
    random = stream(seed, "torture")

    def one_of(values: Iterable[Any]) -> Any:
        found = list(values)
        return found[int(random.integers(len(found)))]

    def sometimes(share: float, value: Any, otherwise: Any) -> Any:
        return value if random.random() < share else otherwise

    devices, grid = int(random.integers(2, 17)), bool(random.random() < 0.5)
    name = one_of(POLICIES)
    return Case(
        driver="grid" if grid else "virtual",
        algorithm=name,
        settings=_settings(name, devices, random, one_of),
        seed=int(random.integers(2**31)),
        devices=devices,
        updates=int(random.integers(5, 60)),
        epochs=int(random.integers(1, 5)),
        fleet=one_of(sorted(set(FLEETS) - {"trace", "record"})),
        network=one_of(
            [{}, {"uplink_mbps": inf, "downlink_mbps": inf, "latency": 0.0}, {"uplink_mbps": 0.001, "latency": 2.0}]
        ),
        on_off=None if grid else one_of([None, (60.0, 20.0), (200.0, 1.0), (5.0, 5.0)]),
        failures={}
        if grid
        else one_of(
            [
                {},
                {"vanish": 0.2, "lost_upload": 0.1, "rejoin_seconds": 0.0, "detect_seconds": 0.0},
                {"vanish": 0.1, "rejoin_seconds": 15.0, "detect_seconds": 4.0},
                {"lost_upload": 0.5, "detect_seconds": 30.0},
            ]
        ),
        kills=tuple(sorted(random.random(int(random.integers(0, 3))).round(3).tolist())),
        delayed=sometimes(0.5, 0.3, 0.0) if grid else 0.0,
        duplicated=sometimes(0.5, 0.3, 0.0) if grid else 0.0,
        lost=sometimes(0.3, 0.1, 0.0) if grid else 0.0,
        comes_and_goes=sometimes(0.3, 0.1, 0.0) if grid else 0.0,
        skew=one_of([1.0, 0.0, 1e9, 1.5]) if grid else 1.0,
        hostile=sometimes(0.6, one_of(HOSTILE), "") if grid else "",
    )


def _settings(name: str, devices: int, random: np.random.Generator, one_of: Callable[[Iterable[Any]], Any]) -> Any:
    """Random settings of an algorithm, among those that fit any fleet."""
    policy, found = POLICIES[name], dict[str, Any]()
    fields = policy.model_fields
    for field in ("concurrency", "cohort", "max_in_flight", "buffer"):
        if field in fields:
            found[field] = int(random.integers(1, devices + 1))
    if "buffer" in found and "concurrency" in found:
        found["buffer"] = min(found["buffer"], found["concurrency"])
    if "staleness_limit" in fields:
        found["staleness_limit"] = one_of([1.0, 2.0, 10.0])
    if "on_notice" in fields:
        found["on_notice"] = one_of(["finish", "last-finished"])
    if "while_asking" in fields:
        found["while_asking"] = one_of(["wait", "train"])
    for _ in range(len(found) + 1):  # drop what this algorithm does not allow
        try:
            policy(**found).check(devices)
        except (InvalidInput, ValueError):
            if not found:
                break
            found.popitem()
    return found


# Running a case -------------------------------------------------------------------------------------------------------


class Broken(AssertionError):
    """A case violates an invariant."""


def run_case(case: Case) -> str:
    """Run a case and return why it ended; Broken, or the driver's own exception, if it fails."""
    with tempfile.TemporaryDirectory(prefix="offbeat-torture-") as directory:
        if case.driver == "grid":
            return _GridRun(case, Path(directory)).run()
        whole = _virtual(case)
        if case.kills:
            _compare(whole, _virtual(case, whole.turns, Path(directory) / "checkpoint"))
        return whole.reason


class _Ended(Struct, kw_only=True):
    """What a run on the virtual clock left."""

    reason: str
    turns: int
    rows: list[Row]
    model: bytes
    spans: list[Span]


def _virtual(case: Case, turns: int = 0, checkpoint: Path | None = None) -> _Ended:
    kills = [int(share * turns) for share in case.kills] if checkpoint is not None else []
    simulation = _simulation(case)
    rows: list[Row] = []
    spans: list[Span] = []
    count, before, reason = 0, 0.0, ""
    while True:
        most = kills[0] - count if kills else MOST_TURNS - count
        done = 0
        try:
            for row in islice(simulation, most):
                done += 1
                rows += [] if row is None else [row]
                spans += simulation.accounts.take_spans()
                if simulation.now < before:
                    raise Broken(f"time went back from {before} to {simulation.now}")
                before = simulation.now
                if (count + done) % 7 == 0:
                    _audit(simulation.session)
        except Diverged:
            reason = "diverged"
        count += done
        if not kills or reason:
            break
        del kills[0]
        assert checkpoint is not None
        save_checkpoint(checkpoint, simulation.snapshot(), "torture")
        simulation = _simulation(case)
        simulation.restore(load_checkpoint(checkpoint, "torture", simulation.snapshot_types))
    session = simulation.session
    if not reason and simulation.reason is None:
        raise Broken(f"the run hangs: {count} turns, {session.counters.used} updates used, {simulation.now} s")
    reason = reason or str(simulation.reason)
    _audit(session)
    _check_counts(session, spans, simulation.accounts.busy_seconds, case)
    quiet = case.on_off is None and not case.failures
    if quiet and reason == "time" and not session.counters.received:
        raise Broken(f"deadlock: no update in {HORIZON} s although every device is always there")
    return _Ended(reason=reason, turns=count, rows=rows, model=session.parameters.tobytes(), spans=spans)


def _policy(case: Case) -> Policy:
    policy = POLICIES[case.algorithm]
    more = {"rounds": 20, "time_budget": 400.0} if {"rounds", "time_budget"} <= policy.model_fields.keys() else {}
    return policy(**{**more, **case.settings})


def _simulation(case: Case) -> Any:
    return toy_simulation(
        _policy(case),
        seed=case.seed,
        devices=case.devices,
        troubled=False,
        stop=Stop(updates=case.updates, time=HORIZON),
        speeds=BernoulliFleet(success=0.5) if case.fleet == "bernoulli" else FLEETS[case.fleet](),
        network=NetworkSettings(**case.network),  # type: ignore[arg-type]
        availability=None
        if case.on_off is None
        else OnOffAvailable(on_seconds=case.on_off[0], off_seconds=case.on_off[1]),
        failures=FailureSettings(**case.failures),
        epochs=case.epochs,
    )


def _compare(whole: _Ended, resumed: _Ended) -> None:
    if whole.rows != resumed.rows:
        raise Broken("a run that was killed and resumed has other rows")
    if whole.model != resumed.model:
        raise Broken("a run that was killed and resumed ends with another model")
    if whole.spans != resumed.spans:
        raise Broken("a run that was killed and resumed has other orders")


def _audit(session: Session) -> None:
    if wrong := session.audit():
        raise Broken("; ".join(wrong))


def _check_counts(session: Session, spans: list[Span], busy: float, case: Case) -> None:
    """Check that no ticket ended twice, and that orders, seconds and staleness add up."""
    counters, tickets = session.counters, [span.ticket for span in spans]
    if twice := [ticket for ticket, count in Counter(tickets).items() if count > 1]:
        raise Broken(f"tickets ended twice: {twice[:5]}")
    if len(tickets) != counters.received + counters.lost:
        raise Broken(f"{len(tickets)} orders ended, but {counters.received} were received and {counters.lost} lost")
    if abs(sum(span.seconds for span in spans) - busy) > 1e-6 * max(1.0, busy):
        raise Broken(f"busy_seconds is {busy}, the orders have {sum(span.seconds for span in spans)}")
    if wrong := [span for span in spans if not span.sent <= span.arrived or not span.sent <= span.landed]:
        raise Broken(f"an order ends before it begins: {wrong[0]}")
    if case.algorithm in ROUNDS and counters.staleness_max:
        raise Broken(f"{case.algorithm} used an update of staleness {counters.staleness_max}")
    bound = getattr(session.policy, BOUNDED.get(case.algorithm, ""), inf)
    if counters.staleness_max > bound:
        raise Broken(f"staleness {counters.staleness_max} exceeds {bound}")


# The grid -------------------------------------------------------------------------------------------------------------


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


class _GridRun:
    """A case on the grid."""

    def __init__(self, case: Case, directory: Path) -> None:
        self.case, self.directory = case, directory
        self.layout = Layout.flat(SIZE)
        self.grid = _Grid(case, self.layout)
        self.record = RunRecord(None)
        self.spans: list[Span] = []
        self.turns = 0

    def _deployment(self) -> Deployment:
        case, grid, policy = self.case, self.grid, _policy(self.case)
        local, samples = LocalWork(epochs=case.epochs), np.arange(10, 10 + case.devices)
        forecast = Forecast(speeds=np.ones(case.devices), communication=np.zeros(case.devices))
        model = np.zeros(SIZE, dtype=np.float32)
        membership = Membership(
            case.devices, model=model, batch_size=None, samples=samples, forecast=forecast, answer_seconds=60.0
        )
        transport = Transport(grid, self._log)
        clock: dict[str, Any] = {"clock": grid.now, "sleep": lambda seconds: grid.wait(max(seconds, 0.5))}
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
            settings=DeploymentTable(answer_seconds=60.0, rest_seconds=1.0),
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
        deployment, kills = self._deployment(), [int(200 * share) for share in self.case.kills]
        while (reason := self._drive(deployment, kills.pop(0) if kills else MOST_TURNS)) is None:
            path = self.directory / "checkpoint"
            save_checkpoint(path, deployment.snapshot(), "torture")
            deployment = self._deployment()
            deployment.restore(load_checkpoint(path, "torture", deployment.snapshot_types))
        self.record.close()
        _audit(deployment.session)
        _check_counts(deployment.session, self.spans, deployment.accounts.busy_seconds, self.case)
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
                    _audit(deployment.session)
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
        case, honest = self.case, [each for each in range(self.case.devices) if each not in self.grid.bad]
        slowest = max((self.grid.seconds[each] for each in honest), default=inf) * 8 * case.epochs + 20.0
        if case.lost or case.comes_and_goes or slowest > 60.0 or session.counters.received:
            return
        raise Broken(f"deadlock: no update although honest devices reply in time ({reason})")


# The command ----------------------------------------------------------------------------------------------------------


def attempt(case: Case) -> tuple[str, str]:
    """Run a case; why it ended, and what is wrong with it, if anything."""
    try:
        return run_case(case), ""
    except InvalidInput:
        return "invalid settings", ""
    except Exception as error:  # whatever a case raises is a finding
        return "failed", f"{type(error).__name__}: {error}"


def shrunk(case: Case) -> Case:
    """The simplest case that still fails, found by resetting one field after the other."""
    simplest, again = Case(algorithm=case.algorithm, driver=case.driver), True
    kind = attempt(case)[1].partition(":")[0]
    while again:
        again = False
        for name in Case.__struct_fields__:
            default = getattr(simplest, name)
            candidates = [default]
            if name == "settings":
                candidates += [{k: v for k, v in case.settings.items() if k != drop} for drop in case.settings]
            if name == "kills":
                candidates += [case.kills[:1]]
            for value in candidates:
                candidate = structs.replace(case, **{name: value})
                if candidate != case and attempt(candidate)[1].partition(":")[0] == kind:
                    case, again = candidate, True
                    break
    return case


def text_of(case: Case) -> str:
    """A case as the argument of `--case`."""
    return json.dumps(msgspec.to_builtins(case))


def case_of(text: str) -> Case:
    """The case of such an argument."""
    return msgspec.convert(json.loads(text), Case)


def main(arguments: list[str] | None = None) -> int:
    """Run random cases, or one case; exit code 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m offbeat.testing.torture", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100, help="Number of random cases (default: 100).")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the first case; the others count up from it.")
    parser.add_argument("--seconds", type=float, default=inf, help="Start no case after this many seconds.")
    parser.add_argument("--case", help="Run this case only, as printed for a failing one.")
    parser.add_argument("--out", type=Path, help="Append a line per case to this file, and skip the cases in it.")
    options = parser.parse_args(arguments)
    if options.case is not None:
        reason, wrong = attempt(case_of(options.case))
        print(wrong or f"passes: {reason}")
        return int(bool(wrong))
    known: set[int] = set()
    if options.out is not None and options.out.is_file():
        known = {json.loads(line)["seed"] for line in options.out.read_text(encoding="utf-8").splitlines()}
    began, failed, reasons = time.monotonic(), 0, Counter[str]()
    for seed in range(options.seed, options.seed + options.runs):
        if seed in known:
            continue
        if time.monotonic() - began > options.seconds:
            break
        case = random_case(seed)
        reason, wrong = attempt(case)
        reasons[reason.partition(":")[0]] += 1
        if wrong:
            failed += 1
            small = shrunk(case)
            print(f"case {seed} fails: {attempt(small)[1] or wrong}")
            print(f"  python -m offbeat.testing.torture --case '{text_of(small)}'", flush=True)
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                print(json.dumps({"seed": seed, "reason": reason, "wrong": wrong}), file=file)
    ended = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    print(f"{reasons.total()} cases in {time.monotonic() - began:.0f} s, {failed} failed (ended by: {ended or 'none'})")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
