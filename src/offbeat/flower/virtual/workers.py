"""Worker processes for ClientApps: each loads the app once and keeps the contexts of its nodes as long as the run."""

import signal
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Message

from offbeat.core.errors import InvalidInput, OffbeatError
from offbeat.flower.virtual.clients import ClientAnswer, ClientSetup, NodeContexts, identify
from offbeat.flower.virtual.wall_clock import AppTime
from offbeat.training.processes import process_context


def work(setup: ClientSetup, pipe: Connection) -> None:
    """The life of a worker: answer what comes, end with the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop, and the pipe ends with it
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
    """Runs ClientApps in processes of their own. A node always has the same one, which keeps its context.

    They are no daemons, which could have no processes of their own, as a data loader with workers wants them.
    """

    def __init__(self, setup: ClientSetup, workers: int) -> None:
        context = process_context(__name__)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._threads: list[ThreadPoolExecutor] = []
        """One for each worker, which waits for it: sending and receiving in turn, so that no pipe can fill up."""
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

    @property
    def process_ids(self) -> Sequence[int]:
        """The workers' process ids."""
        return [process.pid for process in self._processes]

    def begin(self, number: int, device: int, message: Message) -> None:
        """Send the message to the device's worker, which answers when those before are answered."""
        worker = device % len(self._pipes)
        self._begun[number] = self._threads[worker].submit(_asked, self._pipes[worker], (number, device, message))

    def answer(self, number: int) -> ClientAnswer:
        """Wait for the answer."""
        return self._begun.pop(number).result()

    def close(self) -> None:
        """End the processes."""
        for thread in self._threads:
            thread.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()  # it may be in the middle of a message that nobody waits for
            process.join()
        for thread in self._threads:
            thread.shutdown()
        for pipe in self._pipes:
            pipe.close()


def _asked(pipe: Connection, job: tuple[int, int, Message]) -> ClientAnswer:
    with suppress(BrokenPipeError):  # the worker died: receiving says so
        pipe.send(job)
    answer: ClientAnswer = _received(pipe)
    return answer


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        raise OffbeatError("a worker process ended unexpectedly: is there enough memory?") from None
