"""Caches of one vector per device: the same numbers in memory and on disk, small errors in 8 bits, checkpoints."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from offbeat.algorithms import POLICIES, Ace, Ca2fl, FedStale
from offbeat.algorithms.model_cache import ModelCache, OnDisk
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Layout, frozen
from offbeat.core.policy import Policy
from offbeat.core.session import Session
from offbeat.core.snapshot import decode, encode
from offbeat.core.streams import stream
from offbeat.running.vector_file import VectorFile
from offbeat.testing import ScriptedSession, check_resume, toy_simulation

CACHING = ("ca2fl", "ace", "aced", "area", "fedstale", "fedvarp", "aso-fed")


def policy(name: str, cache: str) -> Policy:
    return POLICIES[name](cache=cache)  # type: ignore[call-arg]


def session_with_files(folder: Path, devices: int = 4, size: int = 3) -> Session:
    return Session(
        Ca2fl(buffer=1, concurrency=1),
        parameters=np.zeros(size, dtype=np.float32),
        layout=Layout.flat(size),
        samples=np.ones(devices, dtype=np.int64),
        local=LocalWork(),
        stores=partial(VectorFile, folder=folder),
    )


@pytest.mark.parametrize("name", CACHING)
def test_a_run_with_its_cache_on_disk_is_the_same_run(name: str) -> None:
    expected = toy_simulation(policy(name, "memory"))
    list(expected)
    found = toy_simulation(policy(name, "disk"))
    found.session._stores = VectorFile
    list(found)
    assert found.session.parameters.tobytes() == expected.session.parameters.tobytes()
    assert found.session.version == expected.session.version > 1
    assert isinstance(found.session.state.cache.vectors, OnDisk) and len(found.session.state.cache) > 1


@pytest.mark.parametrize("name", ["ca2fl", "aced"])
def test_a_run_with_its_cache_on_disk_resumes_from_a_snapshot(name: str) -> None:
    check_resume(policy(name, "disk"))


def test_a_file_keeps_the_last_vector_of_every_device_and_has_no_name(tmp_path: Path) -> None:
    random = stream(0, "vectors")
    first, second, third = (frozen(random.normal(size=5)) for _ in range(3))
    file = VectorFile(5, tmp_path / "run")
    file.write(7, first)
    file.write(2, second)
    file.write(7, third)
    assert file.read(7).tolist() == third.tolist() and file.read(2).tolist() == second.tolist()
    assert not file.read(2).flags.writeable
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("kind", ["memory", "disk", "quantised"])
def test_a_checkpoint_holds_the_cache_and_a_resumed_run_moves_it_to_its_own_store(kind: str, tmp_path: Path) -> None:
    before, after = session_with_files(tmp_path), session_with_files(tmp_path)
    cache = ModelCache(kind)  # type: ignore[arg-type]
    cache.write(3, frozen([1.0, -2.0, 0.5]), before)
    cache.write(1, frozen([0.0, 0.0, 0.0]), before)
    read = decode(*encode(cache), (ModelCache,))
    assert 3 in read and len(read) == 2 and read.read(0, after) is None
    for device in (3, 1):
        known, again = cache.read(device, before), read.read(device, after)
        assert known is not None and again is not None and again.tolist() == known.tolist()
    assert isinstance(read.vectors, OnDisk) == (kind == "disk")
    assert read.pop(3, after).tolist() == pytest.approx([1.0, -2.0, 0.5], abs=2.0 / 254) and 3 not in read


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
