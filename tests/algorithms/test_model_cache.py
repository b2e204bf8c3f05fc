"""Caches of one vector per device: the same numbers in memory and on disk, small errors in 8 bits, checkpoints."""

import tracemalloc
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest

from offbeat.algorithms import POLICIES, Ace, Ca2fl, FedStale, Psurdg, Ringleader
from offbeat.algorithms.model_cache import ModelCache
from offbeat.core.errors import InvalidInput
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Layout, frozen
from offbeat.core.policy import Policy
from offbeat.core.session import Session
from offbeat.core.snapshot import decode, encode
from offbeat.core.streams import stream
from offbeat.results.checkpoint import BACKGROUND_BYTES, CheckpointWriter, load_checkpoint, save_checkpoint
from offbeat.results.files import FileVector
from offbeat.running.vector_file import SEGMENT_ROWS, VectorFile
from offbeat.testing import ScriptedSession, check_resume, toy_simulation

CACHING = ("ca2fl", "ace", "aced", "area", "fedstale", "fedvarp", "aso-fed", "safa", "psurdg", "ringleader")


def policy(name: str, cache: str) -> Policy:
    return POLICIES[name](cache=cache)  # type: ignore[call-arg]


def session_with_files(folder: Path, devices: int = 4, size: int = 3) -> Session:
    return Session(
        Ca2fl(buffer=1, concurrency=1),
        parameters=np.zeros(size, dtype=np.float32),
        layout=Layout.flat(size),
        samples=np.ones(devices, dtype=np.int64),
        local=LocalWork(),
        store=VectorFile(folder),
    )


def cache_of(session: Session) -> ModelCache:
    cache: ModelCache = session.state.table.sums if isinstance(session.policy, Ringleader) else session.state.cache
    return cache


@pytest.mark.parametrize("name", CACHING)
def test_a_run_with_its_cache_on_disk_is_the_same_run_also_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    expected = toy_simulation(policy(name, "memory"))
    list(expected)
    found = toy_simulation(policy(name, "disk"))
    found.session.store = VectorFile()
    list(found)
    assert found.session.parameters.tobytes() == expected.session.parameters.tobytes()
    assert found.session.version == expected.session.version > 1
    assert sum(isinstance(each, FileVector) for each in cache_of(found.session).vectors.values()) > 1
    assert found.session.parameters.base is not None, "versions are mapped"
    stopped, resumed = toy_simulation(policy(name, "disk")), toy_simulation(policy(name, "disk"))
    stopped.session.store, resumed.session.store = VectorFile(), VectorFile()
    list(islice(stopped, 60))
    save_checkpoint(tmp_path / "latest", stopped.snapshot(), "f")
    list(stopped)  # the rows of the checkpoint are used for other vectors
    resumed.restore(load_checkpoint(tmp_path / "latest", "f", resumed.snapshot_types))
    assert any(isinstance(each, FileVector) for each in cache_of(resumed.session).vectors.values())
    assert resumed.session.parameters.base is not None
    list(resumed)
    assert resumed.session.parameters.tobytes() == expected.session.parameters.tobytes()


@pytest.mark.parametrize("name", ["ca2fl", "aced", "safa", "psurdg", "ringleader"])
def test_a_run_with_its_cache_on_disk_resumes_from_a_snapshot(name: str) -> None:
    check_resume(policy(name, "disk"))


def test_a_run_with_a_quantised_cache_resumes() -> None:
    check_resume(policy("psurdg", "quantised"))


@pytest.mark.parametrize("name", ["area", "aso-fed", "safa", "ringleader"])
def test_models_and_sums_are_not_quantised(name: str) -> None:
    with pytest.raises(InvalidInput, match="cache"):
        policy(name, "quantised")


def test_a_file_has_no_name_and_a_row_is_used_again_when_its_vector_is_not(tmp_path: Path) -> None:
    random = stream(0, "vectors")
    first, second, third, double = (random.normal(size=5).astype(kind) for kind in ("f4", "f4", "f4", "f8"))
    file = VectorFile(tmp_path / "run")
    one, other, sums = file.keep(first), file.keep(second), file.keep(double)
    assert one[:].tolist() == first.tolist() and sums[:].tolist() == double.tolist()
    assert other[1:3].tolist() == second[1:3].tolist() and not other[:].flags.writeable
    assert list((tmp_path / "run").iterdir()) == []
    row = one._offset
    held, one = one, file.keep(third)
    assert held[:].tolist() == first.tolist() and one._offset != row, "something still refers to the first vector"
    del held
    assert file.keep(second)._offset == row


def test_versions_take_memory_only_while_they_are_read_and_stay_as_they_are_as_long_as_one_part_is_in_use() -> None:
    file, size, before = VectorFile(), 100_000, psutil.Process().memory_info().rss
    versions = []
    for k in range(200):
        versions.append(file.mapped(np.full(size, float(k), dtype=np.float32)))
        assert float(versions[-1].sum()) == size * k, "all of its pages are read"
    assert psutil.Process().memory_info().rss < before + 20e6, "200 versions have 80 MB"
    assert [float(version.sum()) for version in versions] == [size * float(k) for k in range(200)]
    part = versions[7][5:7]
    del versions
    again = [file.mapped(np.full(size, -1.0, dtype=np.float32)) for _ in range(200)]
    assert part.tolist() == [7.0, 7.0] and not part.flags.writeable
    assert all(version[0] == -1.0 for version in again)


def test_thousands_of_versions_need_few_file_descriptors() -> None:
    file, open_before = VectorFile(), psutil.Process().num_fds()
    versions = [file.mapped(np.full(3, float(k), dtype=np.float32)) for k in range(3000)]
    assert psutil.Process().num_fds() < open_before + 3000 / SEGMENT_ROWS + 10
    assert [version.tolist() for version in versions] == [[float(k)] * 3 for k in range(3000)]
    del versions
    for _ in range(3000):
        file.mapped(np.zeros(3, dtype=np.float32))
    assert psutil.Process().num_fds() < open_before + 3000 / SEGMENT_ROWS + 10, "rows are used again"


def test_a_checkpoint_in_the_background_does_not_copy_versions_that_are_mapped(tmp_path: Path) -> None:
    file, size = VectorFile(), BACKGROUND_BYTES // 4
    versions = {str(k): file.mapped(np.full(size, float(k), dtype=np.float32)) for k in range(4)}
    writer = CheckpointWriter(tmp_path / "latest", "f")
    tracemalloc.start()
    writer.save(versions)
    writer.wait()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * BACKGROUND_BYTES, "one vector at a time, not four"
    read = load_checkpoint(tmp_path / "latest", "f", ())
    assert [read[str(k)][-1] for k in range(4)] == [0.0, 1.0, 2.0, 3.0]


def test_a_checkpoint_in_the_background_holds_the_vectors_of_when_it_was_asked_for(tmp_path: Path) -> None:
    session = session_with_files(tmp_path, size=BACKGROUND_BYTES // 4)
    cache, writer = ModelCache("disk"), CheckpointWriter(tmp_path / "latest", "f")
    cache.write(3, np.full(session.layout.size, 1.0, dtype=np.float32), session)
    tracemalloc.start()
    writer.save({"cache": cache})
    cache.write(3, np.full(session.layout.size, 2.0, dtype=np.float32), session)
    writer.wait()
    read = load_checkpoint(tmp_path / "latest", "f", (ModelCache,))["cache"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read.read(3)[-2:].tolist() == [1.0, 1.0] and isinstance(read.read(3), FileVector)
    assert peak < 3 * BACKGROUND_BYTES, "one vector at a time"


@pytest.mark.parametrize("kind", ["memory", "disk", "quantised"])
def test_a_snapshot_holds_the_cache(kind: str, tmp_path: Path) -> None:
    session = session_with_files(tmp_path)
    cache = ModelCache(kind)  # type: ignore[arg-type]
    cache.write(3, frozen([1.0, -2.0, 0.5]), session)
    cache.write(1, frozen([0.0, 0.0, 0.0]), session)
    read = decode(*encode(cache), (ModelCache,))
    assert 3 in read and len(read) == 2 and read.read(0) is None
    for device in (3, 1):
        known, again = cache.read(device), read.read(device)
        assert known is not None and again[:].tolist() == known[:].tolist()
    assert read.pop(3)[:].tolist() == pytest.approx([1.0, -2.0, 0.5], abs=2.0 / 254) and 3 not in read


def test_eight_bits_in_psurdg() -> None:
    """[2, 0.5] in steps of 2/127: 127 and round(31.75) = 32, so [2, 64/127], applied twice."""
    session = ScriptedSession(Psurdg(cache="quantised"), samples=[1])
    session.move(2.0, 0.5), session.fire("iteration"), session.fire("iteration")
    assert session.parameters == pytest.approx([4.0, 128 / 127])
    assert session.state.cache.vectors[0].dtype == np.int8
    with pytest.raises(InvalidInput, match="set one of them"):
        ScriptedSession(Psurdg(cache="quantised", storage="float16"), samples=[1])


def test_eight_bits_in_ace_and_fedstale() -> None:
    """[2, 0.5] in steps of 2/127: 127 and round(31.75) = 32, so [2, 64/127]."""
    ace = ScriptedSession(Ace(concurrency=1, server_learning_rate=1.0, cache="quantised"), devices=1)
    ace.move(2.0, 0.5)
    assert ace.parameters == pytest.approx([2.0, 64 / 127])  # U_j is the quantised movement
    ace.move(0.0, 0.0)
    assert ace.state.total.tolist() == [0.0, 0.0], "nothing of the rounding is left"
    stale = ScriptedSession(FedStale(cohort=1, beta=0.5, participation="uniform", cache="quantised"), devices=1)
    stale.move(2.0, 0.5)
    assert stale.parameters.tolist() == [2.0, 0.5]  # the movement itself is exact
    assert stale.state.total == pytest.approx([2.0, 64 / 127])
