"""ClientApps that answer messages: the app loaded once, a context for each node, as Flower's simulation has them.

A node's context is made when its first message comes: node id, partition-id and num-partitions, the run config, and an
empty state, which then lasts as long as the run. What the app raises becomes a message with an error, and the node's
state is as before.
"""

import random
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp.client_app import ClientAppException
from flwr.common.constant import NUM_PARTITIONS_KEY, PARTITION_ID_KEY, SUPERLINK_NODE_ID, ErrorCode
from flwr.supercore.task_identity import TaskIdentity

from offbeat.core.streams import stream
from offbeat.flower.virtual.app import FlowerApp
from offbeat.flower.virtual.wall_clock import AppTime, SleepClock

PROCESSOR_TIME = time.process_time


@dataclass(frozen=True, kw_only=True)
class ClientSetup:
    """What it takes to run an app's ClientApps, here or in a worker process."""

    app: FlowerApp
    run_id: int
    nodes: Sequence[int]
    """The node id of each device."""
    seed: int
    seeded: bool


@dataclass(frozen=True, kw_only=True)
class ClientAnswer:
    """What a ClientApp made of a message."""

    reply: Message
    processor_seconds: float
    slept_seconds: float
    """What it has slept, without having slept."""
    trouble: str = ""
    """Where it raised, if it did."""


class ClientRuns(Protocol):
    """Who runs the ClientApps: this process or others."""

    def begin(self, number: int, device: int, message: Message) -> None:
        """A device has begun to work on a message."""

    def answer(self, number: int) -> ClientAnswer:
        """What has come of it; waits for it, or does it now."""

    def close(self) -> None:
        """Let go of everything."""


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
        """Let the ClientApp answer a message that this device has received."""
        context, clock = self._context(device), SleepClock()
        before = copied(context.state)
        began, trouble = PROCESSOR_TIME(), ""
        with self._app_time.by(clock), generators(self.setup, device, number):
            try:
                reply = self._called(message, context)
            except Exception as error:
                context.state, context.run_config = before, dict(self.setup.app.run_config)
                code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION if _is_apps(error) else ErrorCode.UNKNOWN
                reply = Message(Error(code=code, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
                trouble = traceback.format_exc()
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


def _is_apps(error: Exception) -> bool:
    return isinstance(error, ClientAppException)


class InProcess:
    """Runs the ClientApps in this process, each when its answer is asked for."""

    def __init__(self, setup: ClientSetup, app_time: AppTime) -> None:
        self._nodes = NodeContexts(setup, app_time)
        self._begun: dict[int, tuple[int, Message]] = {}

    def begin(self, number: int, device: int, message: Message) -> None:
        """Remember the message."""
        self._begun[number] = (device, message)

    def answer(self, number: int) -> ClientAnswer:
        """Run the ClientApp."""
        device, message = self._begun.pop(number)
        answer = self._nodes.answer(number, device, message)
        return replace(answer, reply=copied_message(answer.reply))

    def close(self) -> None:
        """Forget what was not asked for."""
        self._begun.clear()


# Copies: what an app changes in a record that it was sent must not reach the sender ----------------------------------


def copied(content: RecordDict) -> RecordDict:
    """The records as another process would have them; arrays are bytes that nobody changes, and are shared."""
    fresh = RecordDict()
    for key, record in content.items():
        again = type(record)()
        for name, value in record.items():
            again[name] = list(value) if isinstance(value, list) else value  # type: ignore[assignment]
        fresh[key] = again
    return fresh


def copied_message(message: Message) -> Message:
    """The message with records of its own."""
    fresh = Message.__new__(Message)
    fresh.__dict__.update(message.__dict__)
    if message.has_content():
        fresh.__dict__["_content"] = copied(message.content)
    return fresh


# Generators: the global ones of random, numpy and torch --------------------------------------------------------------


@contextmanager
def generators(setup: ClientSetup, device: int, number: int) -> Iterator[None]:
    """What a ClientApp does to the global generators does not reach the ServerApp, which another process would have."""
    before = _states()
    if setup.seeded:
        seed_generators(int(stream(setup.seed, "flower message", device, number).integers(2**32)))
    try:
        yield
    finally:
        _restore(before)


def seed_generators(seed: int) -> None:
    """Seed random, numpy and, if it is loaded, torch."""
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
    """Say to Flower in this process whose messages it makes."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run_id, 1, SUPERLINK_NODE_ID
