"""The run scheduler: order, failures, crashes and cores, in this process and in worker processes."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from offbeat import run
from offbeat.comparison import scheduler
from offbeat.comparison.planned import PlannedRun, RunFailure
from offbeat.comparison.scheduler import RunScheduler
from offbeat.core.errors import Interrupted
from offbeat.experiment.schema import Experiment
from offbeat.results.result import Result
from offbeat.results.rows import Row
from offbeat.training import execution


def experiment(**tables: Any) -> Experiment:
    plain: dict[str, Any] = {
        "stop": {"time": 12.0},
        "data": {"name": "digits", "devices": 6},
        "model": "logistic",
        "local": {"epochs": 1},
        "algorithm": {"name": "fedasync", "concurrency": 3},
        "evaluation": {"every_seconds": 2.0},
        "execution": {"executor": "sequential"},
    }
    return Experiment.parse(plain | tables)


def test_many_runs_come_in_their_order_each_computed_once_and_a_crash_is_a_sentence(tmp_path: Path) -> None:
    seen: list[int] = []
    wrong = experiment(algorithm={"name": "seafl", "buffer": 5, "concurrency": 3})
    wanted = [experiment(seed=1), wrong, experiment(seed=0), experiment(seed=1)]
    with RunScheduler(
        tmp_path, watch=lambda planned, _, row: seen.append(planned.experiment.seed) if row else None
    ) as runs:
        found = runs.run_cached(wanted)
    seeds = [each.seed if isinstance(each, Result) else None for each in found]
    assert seeds == [1, None, 0, 1]
    assert isinstance(found[1], RunFailure) and str(found[1]).startswith("seafl, seed 0 failed: ")
    assert seen == sorted(seen, reverse=True)
    assert len(list(tmp_path.glob("*/summary.json"))) == 2


def test_processes_give_the_same_runs(tmp_path: Path) -> None:
    with RunScheduler(tmp_path, jobs=2) as runs:
        part = runs.run_cached([experiment(seed=seed) for seed in range(2)], until=4.0)
        whole = runs.run_cached([experiment()])
    assert all(isinstance(each, Result) and not each.finished for each in part)
    assert isinstance(whole[0], Result) and whole[0].rows == run(experiment()).rows


DIES_ONCE = """
import os
from pathlib import Path
from offbeat.algorithms import FedAsync


class DiesOnce(FedAsync):
    def react(self, event, state, view):
        yield from super().react(event, state, view)
        mark = Path(__file__).with_name("died")
        if view.version == 2 and not mark.exists():
            mark.touch()
            os._exit(9)
"""


def test_a_run_whose_process_died_is_carried_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dying_once.py").write_text(DIES_ONCE)
    monkeypatch.syspath_prepend(tmp_path)
    wanted = [experiment(algorithm={"name": "dying_once:DiesOnce", "concurrency": 3}), experiment()]
    with RunScheduler(tmp_path / "runs", jobs=2) as runs:
        found = runs.run_cached(wanted)
    assert (tmp_path / "died").exists()
    assert all(isinstance(each, Result) and each.finished for each in found)


def test_a_stop_signal_lets_runs_in_processes_leave_checkpoints(tmp_path: Path) -> None:
    wanted = [experiment(seed=seed, stop={"time": 3000.0}) for seed in range(2)]
    sent: list[Row] = []

    def watch(_: PlannedRun, __: float, row: Row | None) -> None:
        if row is not None and not sent:  # a second signal would end this process
            sent.append(row)
            os.kill(os.getpid(), signal.SIGTERM)

    with RunScheduler(tmp_path, jobs=2, watch=watch) as runs, pytest.raises(Interrupted) as stopped:
        runs.run_cached(wanted)
    assert stopped.value.number == signal.SIGTERM
    assert list(tmp_path.glob("*/checkpoint/latest.safetensors"))
    assert not list(tmp_path.glob("*/summary.json"))


def test_runs_and_their_workers_fill_the_cores_of_a_comparison_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "available_cores", lambda: 6)
    monkeypatch.setattr(execution, "available_cores", lambda: 6)
    unsaid, auto, two = (experiment(execution=table) for table in ({}, {"workers": "auto"}, {"workers": 2}))
    assert [each.execution.processes() for each in (unsaid, auto, two)] == [0, 6, 2]

    def shares(given: Experiment, jobs: int | None, runs: int) -> tuple[int, Any]:
        together = scheduler.runs_at_a_time(jobs, [given] * runs)
        return together, scheduler.sharing_cores(scheduler.with_automatic_workers(given), together).execution.workers

    for given in (unsaid, auto):
        assert [shares(given, None, runs) for runs in (1, 2, 4, 9)] == [(1, 6), (2, 3), (4, 1), (6, 1)]
        assert [shares(given, jobs, 9) for jobs in (1, 3, 8)] == [(1, 6), (3, 2), (8, 1)]
    assert shares(two, None, 9) == (3, 2)
    assert "workers" not in unsaid.table()["execution"]
