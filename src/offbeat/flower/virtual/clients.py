"""Runs ClientApps: each process loads the app once and has a context per node, as in Flower's own simulation.

A node's context is created with its first message: node id, partition-id and num-partitions, the run config, and an
empty state that lasts as long as the run. If the app raises, the reply is an error and the state stays unchanged.
"""

import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
from flwr.app import Context, Error, Message, RecordDict

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.core.streams import stream
from offbeat.flower.compat import (
    NUM_PARTITIONS_KEY,
    PARTITION_ID_KEY,
    SUPERLINK_NODE_ID,
    ClientAppException,
    ErrorCode,
    TaskIdentity,
)
from offbeat.flower.virtual.app import FlowerApp
from offbeat.flower.virtual.wall_clock import AppTime, SleepClock
from offbeat.training.processes import process_context

PROCESSOR_TIME = time.process_time


@dataclass(frozen=True, kw_only=True)
class ClientSetup:
    """What it takes to run an app's ClientApps, in this process or in a worker."""

    app: FlowerApp
    run_id: int
    nodes: Sequence[int]
    """The node id of each device."""
    seed: int
    seeded: bool
    """Seed the global random generators before each message."""


@dataclass(frozen=True, kw_only=True)
class ClientAnswer:
    """A ClientApp's reply to a message, and what it took."""

    reply: Message
    processor_seconds: float
    """CPU time."""
    slept_seconds: float
    """Virtual seconds that the app asked to sleep; they took no real time."""
    trouble: str = ""
    """Traceback of the exception that it raised, if any."""


class ClientRuns(Protocol):
    """Runs ClientApps, in this process or in others."""

    def begin(self, number: int, device: int, message: Message) -> None:
        """Start on a message for a device."""

    def answer(self, number: int) -> ClientAnswer:
        """Return the reply, after waiting for it or computing it now."""

    def close(self) -> None:
        """Release all resources."""


class NodeContexts:
    """The contexts of the nodes whose messages this process answers."""

    def __init__(self, setup: ClientSetup, app_time: AppTime) -> None:
        self.setup = setup
        self._client_app = setup.app.client_app()
        self._app_time = app_time
        self._contexts: dict[int, Context] = {}

    def _context(self, device: int) -> Context:
        if device not in self._contexts:
            self._contexts[device] = Context(
                run_id=self.setup.run_id,
                node_id=self.setup.nodes[device],
                node_config={PARTITION_ID_KEY: device, NUM_PARTITIONS_KEY: len(self.setup.nodes)},
                state=RecordDict(),
                run_config=dict(self.setup.app.run_config),
            )
        return self._contexts[device]

    def answer(self, number: int, device: int, message: Message) -> ClientAnswer:
        """Run the ClientApp on a message that this device has received."""
        context, clock = self._context(device), SleepClock()
        before = copied(context.state)
        began, trouble = PROCESSOR_TIME(), ""
        with self._app_time.by(clock), generators(self.setup, device, number):
            try:
                reply = self._called(message, context)
            except Exception as error:
                context.state, context.run_config = before, dict(self.setup.app.run_config)
                from_app = isinstance(error, ClientAppException)
                code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION if from_app else ErrorCode.UNKNOWN
                reply = Message(Error(code=code, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
                trouble = "".join(traceback.format_exception(error.__cause__ or error if from_app else error))
        return ClientAnswer(
            reply=reply,
            processor_seconds=PROCESSOR_TIME() - began,
            slept_seconds=clock.slept,
            trouble=trouble,
        )

    def _called(self, message: Message, context: Context) -> Message:
        try:
            reply = self._client_app(message, context)
        except (Exception, SystemExit) as error:
            raise ClientAppException(f"{type(error).__name__}: {error}") from error
        if not isinstance(reply, Message):
            raise ClientAppException(f"it returned a {type(reply).__name__}, not a Message")
        if context.run_config != self.setup.app.run_config:
            raise ValueError("The `run_config` field of the `Context` object cannot be modified.")
        return reply


class InProcess:
    """Runs each ClientApp in this process, when its reply is asked for."""

    def __init__(self, setup: ClientSetup, app_time: AppTime) -> None:
        self._nodes = NodeContexts(setup, app_time)
        self._begun: dict[int, tuple[int, Message]] = {}

    def begin(self, number: int, device: int, message: Message) -> None:
        """Hold the message until its reply is asked for."""
        self._begun[number] = (device, message)

    def answer(self, number: int) -> ClientAnswer:
        """Run the ClientApp."""
        device, message = self._begun.pop(number)
        answer = self._nodes.answer(number, device, message)
        return replace(answer, reply=copied_message(answer.reply))

    def close(self) -> None:
        """Drop the messages whose replies were never asked for."""
        self._begun.clear()


# Worker processes -----------------------------------------------------------------------------------------------------


def work(setup: ClientSetup, pipe: Connection) -> None:
    """Load the app and answer messages until the pipe closes: the main function of a worker process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop, and closes the pipe
    app_time = AppTime(setup.app.directory)
    identify(setup.run_id)
    with setup.app.importable(), app_time.installed(), suppress(EOFError, BrokenPipeError):
        try:
            nodes = NodeContexts(setup, app_time)
        except InvalidInput as error:
            pipe.send(str(error))
            return
        pipe.send("")
        while True:
            pipe.send(nodes.answer(*pipe.recv()))


class WorkerProcesses:
    """Runs ClientApps in worker processes. A node always has the same worker, which keeps its context.

    The workers are not daemons: a daemon may not start processes, which a data loader with workers does.
    """

    def __init__(self, setup: ClientSetup, workers: int) -> None:
        context = process_context(__name__)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._threads: list[ThreadPoolExecutor] = []
        """One thread per worker. It sends and receives in turn, so that no pipe can fill up."""
        self._begun: dict[int, Future[ClientAnswer]] = {}
        for number in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(setup, theirs), name=f"offbeat-{number}")
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
            self._threads.append(ThreadPoolExecutor(1, f"offbeat-worker-{number}"))
        try:
            for pipe in self._pipes:
                if mistake := _received(pipe):
                    raise InvalidInput(mistake)
        except BaseException:
            self.close()
            raise

    def begin(self, number: int, device: int, message: Message) -> None:
        """Send the message to the device's worker, which answers messages in order."""
        worker = device % len(self._pipes)
        self._begun[number] = self._threads[worker].submit(_asked, self._pipes[worker], (number, device, message))

    def answer(self, number: int) -> ClientAnswer:
        """Wait for the reply."""
        return self._begun.pop(number).result()

    def close(self) -> None:
        """End the processes."""
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()  # it may be working on a message whose reply is no longer needed
            process.join()
        for thread in self._threads:
            thread.shutdown()
        for pipe in self._pipes:
            pipe.close()


def _asked(pipe: Connection, job: tuple[int, int, Message]) -> ClientAnswer:
    with suppress(BrokenPipeError):  # the worker has died: receiving reports it
        pipe.send(job)
    answer: ClientAnswer = _received(pipe)
    return answer


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        raise OffbeatError("a worker process ended unexpectedly: is there enough memory?") from None


# Copies: an app's changes to a record that it received must not reach the sender --------------------------------------


def copied(content: RecordDict) -> RecordDict:
    """Copy the records. Arrays are immutable bytes, so they are shared."""
    fresh = RecordDict()
    for key, record in content.items():
        again = type(record)()
        for name, value in record.items():
            again[name] = list(value) if isinstance(value, list) else value  # type: ignore[assignment]
        fresh[key] = again
    return fresh


def copied_message(message: Message) -> Message:
    """Copy the message with its records."""
    fresh = Message.__new__(Message)
    fresh.__dict__.update(message.__dict__)
    if message.has_content():
        fresh.__dict__["_content"] = copied(message.content)
    return fresh


# The global random generators of random, numpy and torch --------------------------------------------------------------


@contextmanager
def generators(setup: ClientSetup, device: int, number: int) -> Iterator[None]:
    """Isolate the global random generators: on real nodes, a ClientApp's draws do not affect the ServerApp's."""
    before = _states()
    if setup.seeded:
        seed_generators(int(stream(setup.seed, "flower message", device, number).integers(2**32)))
    try:
        yield
    finally:
        _restore(before)


def seed_generators(seed: int) -> None:
    """Seed random, numpy and, if it is imported, torch."""
    random.seed(seed)
    np.random.seed(seed)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def _states() -> tuple[Any, ...]:
    torch = sys.modules.get("torch")
    return random.getstate(), np.random.get_state(), torch.get_rng_state() if torch is not None else None


def _restore(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    if states[2] is not None:
        sys.modules["torch"].set_rng_state(states[2])


def identify(run_id: int) -> None:
    """Tell Flower which run the messages of this process belong to."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, 1, SUPERLINK_NODE_ID
