"""Workers: the longest job first, what is lost with a worker computed again, states in the order of the jobs."""

import multiprocessing
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from offbeat.core.errors import OffbeatError, WorkersLost
from offbeat.core.orders import Order
from offbeat.experiment.schema import Experiment
from offbeat.results.rows import Row
from offbeat.running.assembly import ExperimentParts
from offbeat.simulation.run import run
from offbeat.training.training_state import TrainingJob, TrainingState
from offbeat.training.worker import Trained, TrainingData
from offbeat.training.workers import ChunkResult, LocalWorkers, MeasuredCost, WorkerPool

SIZES = np.array([10, 40, 20, 30])


def job(device: int, slices: int = 1) -> TrainingJob:
    start = TrainingState(parameters=np.zeros(1, dtype=np.float32))
    order = Order(slices=slices, batch_size=1, learning_rate=0.1)
    return TrainingJob(
        device=device, ticket=device, order=order, first=0, last=slices, state=start, anchor=start.parameters
    )


class ScriptedWorkers:
    """Two workers of this process, which answer the newest chunk first and follow a script of mishaps."""

    count = 2

    def __init__(self, mishaps: Sequence[str | None] = ()) -> None:
        self.given: list[list[int]] = []
        self.queued: list[int] = []
        self._mishaps = list(mishaps)
        self._held: dict[int, list[TrainingJob]] = {}

    def give(self, chunk: int, jobs: Sequence[TrainingJob], *, ahead: bool) -> bool:
        if len(self._held) >= (2 if ahead else 1) * self.count:
            return False
        self.given.append([each.device for each in jobs])
        self._held[chunk] = list(jobs)
        return True

    def take(self, queued: int) -> list[ChunkResult]:
        self.queued.append(queued)
        chunk, jobs = self._held.popitem()
        mishap = self._mishaps.pop(0) if self._mishaps else "none"
        if mishap != "none":
            return [ChunkResult(chunk, mishap), ChunkResult(10**9, None)]
        states = [TrainingState(parameters=np.array([each.device], dtype=np.float32)) for each in jobs]
        return [ChunkResult(chunk, Trained(states=states, seconds=1.0))]

    def close(self) -> None:
        pass


def trained(pool: WorkerPool, devices: Sequence[int]) -> list[int]:
    return [int(state.parameters[0]) for state in pool.train([job(device) for device in devices])]


def test_the_longest_job_is_given_out_first_and_the_states_come_in_the_order_of_the_jobs() -> None:
    workers = ScriptedWorkers()
    assert trained(WorkerPool(workers, SIZES, stacks=False), [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert workers.given == [[1], [3], [2], [0]]  # 40, 30, 20 and 10 samples


def test_a_worker_gets_a_second_chunk_ahead_only_while_there_is_more_than_one_for_each_to_come() -> None:
    workers = ScriptedWorkers()
    trained(WorkerPool(workers, np.full(6, 1), stacks=False), range(6))
    # 6 wait, more than 2 workers: ahead until 2 are left, which go to whoever has nothing to do.
    assert workers.queued == [2, 2, 2, 1, 0, 0]


def test_stacked_jobs_go_out_in_one_share_for_each_worker() -> None:
    workers = ScriptedWorkers()
    assert trained(WorkerPool(workers, SIZES, stacks=True), [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert workers.given == [[1, 2], [3, 0]]


def test_what_is_lost_with_a_worker_is_computed_again_and_strange_answers_are_left_alone() -> None:
    workers = ScriptedWorkers([None, None])
    assert trained(WorkerPool(workers, SIZES, stacks=False), [0, 1]) == [0, 1]
    assert workers.given == [[1], [0], [0], [0]]


def test_work_that_ends_three_workers_ends_the_batch() -> None:
    with pytest.raises(WorkersLost, match="3 workers in a row died on the same job: check that there is enough memory"):
        trained(WorkerPool(ScriptedWorkers([None] * 3), SIZES, stacks=False), [0, 1])


def test_what_goes_wrong_in_a_worker_is_said() -> None:
    with pytest.raises(OffbeatError, match="a worker failed: ValueError: no"):
        trained(WorkerPool(ScriptedWorkers(["ValueError: no"]), SIZES, stacks=False), [0])


def test_cost_is_what_a_device_took_before_or_what_others_took_for_so_many_samples() -> None:
    cost = MeasuredCost(SIZES)
    assert cost.of(job(1, slices=2)) == 80.0
    cost.measured(job(0, slices=5), 5.0)  # 1 s a slice; 5 s for 50 samples
    assert (cost.of(job(0, slices=3)), cost.of(job(1, slices=2))) == (3.0, 8.0)
    cost.measured(job(1), 15.0)  # 20 s for 90 samples
    assert cost.of(job(1, slices=2)) == 30.0
    assert cost.of(job(3)) == pytest.approx(30 * 20 / 90)


def test_a_process_that_is_killed_at_work_is_started_anew() -> None:
    tables = {"stop": {"versions": 1}, "data": {"name": "digits", "devices": 4}, "model": {"name": "mlp"}}
    parts = ExperimentParts.of(Experiment.parse(tables | {"algorithm": {"name": "fedavg", "cohort": 2}}))
    data = TrainingData(x=parts.dataset.train_x, y=parts.dataset.train_y, partition=parts.partition)
    factory = parts.factory("cpu")
    whole = structs.replace(job(0, slices=1), state=TrainingState(parameters=parts.parameters), anchor=parts.parameters)
    before = set(multiprocessing.active_children())
    with closing(LocalWorkers(1, data, factory, "sequential")) as workers:
        assert workers.give(7, [whole], ahead=False) and not workers.give(8, [whole], ahead=True)
        (process,) = set(multiprocessing.active_children()) - before
        process.kill()  # it has hardly begun
        assert [(answer.chunk, answer.result) for answer in workers.take(0)] == [(7, None)]
        assert workers.give(7, [whole], ahead=False)
        (answer,) = workers.take(0)
        assert answer.chunk == 7 and isinstance(answer.result, Trained)
    expected = factory.trainer(data.x, data.y, parts.partition).train(whole)
    assert answer.result.states[0].parameters.tobytes() == expected.parameters.tobytes()


def test_a_run_survives_the_death_of_a_worker_process_with_the_same_metrics(tmp_path: Path) -> None:
    experiment = Experiment.parse(
        {
            "stop": {"versions": 4},
            "data": {"name": "digits", "devices": 8},
            "model": {"name": "mlp"},
            "algorithm": {"name": "fedbuff", "buffer": 2, "concurrency": 4},
            "evaluation": {"every_versions": 1},
            "execution": {"executor": "sequential"},
        }
    )
    killed: list[int | None] = []

    def kill(fraction: float, row: Row | None) -> None:
        if row is not None and row["version"] == 1:
            process = multiprocessing.active_children()[0]
            process.kill()
            killed.append(process.pid)

    run(experiment, tmp_path / "alone")
    run(experiment.changed({"execution": {"workers": 2}}), tmp_path / "killed", watch=kill)
    assert len(killed) == 1
    for name in ("metrics.jsonl", "model.safetensors", "timeline.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
