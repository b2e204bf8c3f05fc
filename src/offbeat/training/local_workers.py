"""Worker processes on this machine: one per core, each with the model and the data, fed with jobs over pipes.

They are started once and live as long as the run; one that dies is started anew. Inputs lie in files that all of them
map, so that memory does not grow with their number.
"""

import pickle  # for processes of our own on this machine; nothing is ever read back from a file
import signal
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from offbeat.core.errors import InvalidInput
from offbeat.training.factory import TrainerSetup
from offbeat.training.in_process import Arithmetic
from offbeat.training.processes import process_context
from offbeat.training.training_state import TrainingJob
from offbeat.training.worker_setup import TrainingData, Worker, WorkerSetup, store_in
from offbeat.training.workers import PortionAnswer


def work(setup: WorkerSetup, pipe: Connection) -> None:
    """The life of a worker: train what comes, answer with the numbers or with what went wrong, end with the pipe."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop, and the pipe ends with it
    worker = Worker(setup)
    with suppress(EOFError, ConnectionError):
        while True:
            pipe.send(worker.train(pipe.recv()))


class LocalWorkers:
    """Processes that compute portions of jobs, each one portion at a time."""

    def __init__(self, workers: int, data: TrainingData, setup: TrainerSetup, arithmetic: Arithmetic) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="offbeat-")
        self._setup = WorkerSetup.of(setup, arithmetic, data, store_in(Path(self._folder.name)))
        try:
            pickle.dumps(self._setup)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._folder.cleanup()
            raise InvalidInput(
                f"execution.workers = {workers}: worker processes cannot be sent the task or the data ({error}): "
                "define them in a module, or train with one worker."
            ) from None
        self._context = process_context(__name__)
        self._processes: dict[Connection, BaseProcess] = {}
        self._at_work: dict[Connection, int] = {}
        """The portion that each busy worker has."""
        for _ in range(workers):
            self._start()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=work, args=(self._setup, theirs), name="offbeat-worker", daemon=True)
        process.start()
        theirs.close()
        self._processes[ours] = process

    @property
    def count(self) -> int:
        """How many workers there are."""
        return len(self._processes)

    def give(self, portion: int, jobs: Sequence[TrainingJob], *, ahead: bool) -> bool:
        """Hand a portion to a worker that has nothing to do; False if there is none."""
        pipe = next((each for each in self._processes if each not in self._at_work), None)
        if pipe is None:
            return False
        self._at_work[pipe] = portion
        with suppress(ConnectionError):  # the worker died: taking its answer says so
            pipe.send(list(jobs))
        return True

    def take(self, queued: int) -> list[PortionAnswer]:
        """Wait until a worker has answered or died; one that died is started anew."""
        answers = []
        for ready in wait(list(self._at_work)):
            pipe = next(each for each in self._at_work if each is ready)
            portion = self._at_work.pop(pipe)
            try:
                answers.append(PortionAnswer(portion, pipe.recv()))
            except (EOFError, OSError):
                self._end(pipe)
                self._start()
                answers.append(PortionAnswer(portion, None))
        return answers

    def _end(self, pipe: Connection) -> None:
        process = self._processes.pop(pipe)
        pipe.close()
        process.join(timeout=5)
        if process.is_alive():
            process.kill()
            process.join()

    def close(self) -> None:
        """End the worker processes and remove their files."""
        for pipe in self._processes:
            pipe.close()
        for pipe in list(self._processes):
            self._end(pipe)
        self._folder.cleanup()
