"""The cache of runs: what makes two runs the same, and that none is computed twice, whatever stops it."""

import threading
from pathlib import Path
from typing import Any

import pytest

from offbeat import run
from offbeat.comparison import run_cache
from offbeat.comparison.run_cache import digest, run_cached
from offbeat.core.errors import Interrupted
from offbeat.experiment.schema import Experiment
from offbeat.results.lock import DirectoryLock


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


class Rows:
    """Counts the rows that are computed, and can ask to stop after some."""

    def __init__(self, most: int = 1000) -> None:
        self.count, self._most = 0, most

    def __call__(self, fraction: float, row: dict[str, float] | None) -> None:
        self.count += row is not None

    def is_set(self) -> bool:
        return self.count >= self._most


def test_labels_and_who_computes_make_no_difference_and_everything_else_does(tmp_path: Path) -> None:
    same = experiment()
    labelled = experiment(algorithm={"name": "fedasync", "concurrency": 3, "label": "ours"})
    elsewhere = experiment(execution={"executor": "auto", "checkpoint_seconds": 5.0}, compare={"in_training": 3})
    defaults = experiment(local={"epochs": 1, "momentum": 0.0})
    assert {digest(each) for each in (labelled, elsewhere, defaults)} == {digest(same)}
    others = [
        experiment(seed=1),
        experiment(stop={"time": 13.0}),
        experiment(algorithm={"name": "fedasync", "concurrency": 4}),
        experiment(execution={"precision": "bfloat16"}),
        experiment(evaluation={"every_seconds": 3.0}),
    ]
    assert len({digest(each) for each in (same, *others)}) == 6


def test_another_content_of_the_fleets_file_is_another_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("epoch_seconds\n1\n2\n")
    traced = experiment(fleet={"name": "trace", "path": str(trace)})
    before = digest(traced)
    trace.write_text("epoch_seconds\n1\n3\n")
    assert digest(traced) != before


def test_another_content_of_the_links_file_is_another_run(tmp_path: Path) -> None:
    trace = tmp_path / "links.csv"
    trace.write_text("device,time,uplink_mbps\n0,0,1.0\n")
    traced = experiment(network={"trace": {"path": str(trace)}})
    before = digest(traced)
    assert digest(traced) == before
    trace.write_text("device,time,uplink_mbps\n0,0,2.0\n")
    assert digest(traced) != before


def test_another_source_of_the_users_own_module_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "cached_policy.py"
    source = "from offbeat.algorithms import FedAsync\n\nclass Mine(FedAsync):\n    pass\n"
    module.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    own = experiment(algorithm={"name": "cached_policy:Mine"})
    with_term = experiment(local={"terms": [{"name": "cached_policy:Mine"}]})
    before = digest(own), digest(with_term)
    module.write_text(source + "\n# changed\n")
    assert digest(own) != before[0]
    assert digest(with_term) != before[1]


def test_a_run_is_computed_once_and_is_the_plain_run(tmp_path: Path) -> None:
    first, second = Rows(), Rows()
    computed = run_cached(experiment(), tmp_path, watch=first)
    labelled = experiment(algorithm={"name": "fedasync", "concurrency": 3, "label": "ours"})
    found = run_cached(labelled, tmp_path, watch=second)
    assert first.count == len(computed.rows) and second.count == 0
    assert found.rows == computed.rows == run(experiment()).rows
    assert (computed.algorithm, found.algorithm) == ("fedasync", "ours")
    assert found.finished and found.tensors is not None


def test_a_run_goes_no_further_than_asked_and_later_goes_on_from_there(tmp_path: Path) -> None:
    early, again, late = Rows(), Rows(), Rows()
    part = run_cached(experiment(), tmp_path, until=5.0, watch=early)
    assert part.rows[-1]["time"] == 6.0 and not part.finished  # the first evaluation after 5 s
    assert run_cached(experiment(), tmp_path, until=6.0, watch=again).rows == part.rows and again.count == 0
    whole = run_cached(experiment(), tmp_path, watch=late)
    assert early.count + late.count == len(whole.rows)
    assert whole.rows == run(experiment()).rows
    assert run_cached(experiment(), tmp_path, until=5.0).rows == whole.rows


def test_after_an_interruption_the_run_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    stopped = Rows(most=3)
    with pytest.raises(Interrupted):
        run_cached(experiment(), tmp_path, watch=stopped, interrupted=stopped)
    rest = Rows()
    assert run_cached(experiment(), tmp_path, watch=rest).rows == run(experiment()).rows
    assert rest.count == len(run(experiment()).rows) - 3


def test_a_kill_while_the_first_file_was_written_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / digest(experiment())
    path.mkdir()
    (path / "config.toml.draft").write_text("seed")
    assert run_cached(experiment(), tmp_path).finished


def test_a_run_that_another_process_computes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "WAIT_SECONDS", 0.01)
    lock, waited = DirectoryLock(tmp_path / digest(experiment())), threading.Event()
    lock.take()

    class LetGo:
        """Looked at whenever we find the directory taken: its owner then ends."""

        def is_set(self) -> bool:
            if not waited.is_set():
                waited.set()
                lock.release()
            return False

    assert run_cached(experiment(), tmp_path, interrupted=LetGo()).finished
    assert waited.is_set()
