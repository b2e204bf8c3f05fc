"""Arithmetic in blocks and threads: not a bit differs from doing it in one go, and memory stays that of the result."""

import tracemalloc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offbeat.algorithms import POLICIES
from offbeat.algorithms.deadlines.heterofl import HeteroFL
from offbeat.algorithms.deadlines.rounds import with_absent_as_old
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.server_optimisers import ServerMoments
from offbeat.core import parameters as blocks
from offbeat.core.parameters import Layout, Mask, Vector, mixture, weighted_mean
from offbeat.experiment.run_settings import Stop
from offbeat.testing import toy_simulation

MEGABYTE = 2**20


def vectors(count: int, size: int, seed: int = 0) -> list[Vector]:
    random = np.random.default_rng(seed)
    return [random.normal(size=size).astype(np.float32) for _ in range(count)]


@pytest.fixture(params=["blocks", "threads"])
def in_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 7)
    monkeypatch.setattr(blocks, "THREADED_FROM", 8 if request.param == "threads" else 10**9)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(size=st.integers(1, 40), count=st.integers(1, 4), seed=st.integers(0, 9))
def test_a_mean_in_blocks_has_the_bits_of_one_in_one_go(in_blocks: None, size: int, count: int, seed: int) -> None:
    models, weights = vectors(count, size, seed), [1.0 + k for k in range(count)]
    scale = 1.0 / sum(weights)
    total = np.zeros(size)
    for model, weight in zip(models, weights, strict=True):
        total += (weight * scale) * model
    assert weighted_mean(models, weights).tobytes() == total.astype(np.float32).tobytes()


def test_a_mixture_in_blocks_has_the_bits_of_one_in_one_go(in_blocks: None) -> None:
    one, other = vectors(2, 30)
    share = np.float32(0.3)
    assert mixture(one, other, 0.3).tobytes() == ((1 - share) * one + share * other).tobytes()


@pytest.mark.parametrize("optimiser", ["none", "momentum", "adagrad", "adam", "yogi"])
def test_a_server_step_in_blocks_has_the_bits_of_one_in_one_go(in_blocks: None, optimiser: str) -> None:
    policy = FedBuff.model_validate({"server_optimiser": optimiser, "server_learning_rate": 0.5})
    model, *deltas = vectors(3, 30)

    def steps(model: Vector, pieces: Sequence[slice]) -> list[bytes]:
        """Two steps, each piece of the model on its own."""
        found = []
        moments = {piece.start: ServerMoments() for piece in pieces}
        for delta in deltas:
            model = np.concatenate(
                [
                    policy.server_step(model[piece], delta[piece].astype(np.float64).__getitem__, moments[piece.start])
                    for piece in pieces
                ]
            )
            found.append(model.tobytes())
        return found

    # A step is element by element, so that pieces shorter than a block are steps in one go.
    assert steps(model, [slice(0, 30)]) == steps(model, [slice(first, first + 5) for first in range(0, 30, 5)])


def test_means_over_those_who_hold_an_element_have_the_bits_of_one_in_one_go(in_blocks: None) -> None:
    model, *uploads = vectors(4, 30)
    chosen = np.random.default_rng(1).random((3, 30)) < 0.5
    updates: list[Any] = [
        SimpleNamespace(parameters=upload, mask=Mask(held)) for upload, held in zip(uploads, chosen, strict=True)
    ]
    view: Any = SimpleNamespace(parameters=model, layout=Layout.flat(30))
    total, holders = np.zeros(30), chosen.sum(axis=0)
    for upload, held in zip(uploads, chosen, strict=True):
        total += np.where(held, upload, 0.0)
    mean = total / np.maximum(holders, 1)
    state: Any = None
    expected = np.where(holders > 0, mean, model).astype(np.float32)
    assert HeteroFL(masked_loss=False).aggregate(updates, state, view).tobytes() == expected.tobytes()
    share = np.minimum(holders / 4, 1.0)
    expected = (share * mean + (1.0 - share) * model).astype(np.float32)
    assert with_absent_as_old(updates, 4, view).tobytes() == expected.tobytes()


def peak(work: object) -> float:
    """Megabytes that a call needs beyond what there was before it."""
    assert callable(work)
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / MEGABYTE
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [3, 2 * blocks.BLOCK + 1])
def test_a_vector_of_blocks_shares_no_memory_with_what_they_came_from(size: int) -> None:
    source = np.ones(size, dtype=np.float32)
    made = blocks.by_block(size, lambda block: source[block])
    source[:] = 2.0
    assert made.tolist() == [1.0] * size


def test_the_mean_of_large_models_needs_the_memory_of_one_model_and_some_blocks() -> None:
    models = [np.ones(5 * MEGABYTE, dtype=np.float32)] * 3  # 20 MB, shared among threads
    # The mean is 20 MB; each of 4 threads has a block of 2^17 elements in float64 (1 MB) and two in float32 (1 MB).
    assert peak(lambda: weighted_mean(models, [1.0, 2.0, 3.0])) < 20 + 4 * 2 + 1


def test_a_step_of_fedbuff_needs_the_memory_of_one_model_and_some_blocks() -> None:
    model = np.zeros(5 * MEGABYTE, dtype=np.float32)
    updates: list[Any] = [
        SimpleNamespace(parameters=np.full_like(model, k), base_parameters=model, base=0, outcome=None)
        for k in (1.0, 3.0)
    ]
    view: Any = SimpleNamespace(version=0, parameters=model, combiner=None, sums=None)
    policy = FedBuff(buffer=2, concurrency=2)
    # The version is 20 MB; each of 4 threads has at most three blocks in float64 (1 MB each) and two in float32.
    assert peak(lambda: policy.server_step(model, policy.movement(updates, view), ServerMoments())) < 20 + 4 * 4 + 1
    assert policy.server_step(model, policy.movement(updates, view), ServerMoments())[-1] == 2.0


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_makes_the_same_versions_in_blocks_and_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def versions() -> bytes:
        simulation = toy_simulation(POLICIES[name](), stop=Stop(updates=40))
        return b"".join(simulation.session.parameters.tobytes() for _ in simulation)

    whole = versions()
    monkeypatch.setattr(blocks, "BLOCK", 2)  # of the toy model's 6 elements
    monkeypatch.setattr(blocks, "THREADED_FROM", 3)
    assert versions() == whole


@pytest.mark.parametrize("size", [1, blocks.RUN, 3 * blocks.RUN + 5, blocks.BLOCK + 1, blocks.THREADED_FROM + 7])
def test_inner_products_by_block_have_the_bits_of_those_of_whole_vectors(size: int) -> None:
    one, other = vectors(2, size)

    def pairs_of(block: slice) -> list[tuple[blocks.Floats, blocks.Floats]]:
        first, second = one[block].astype(np.float64), other[block].astype(np.float64)
        return [(first, second), (second, second)]

    assert blocks.dots(size, pairs_of) == [blocks.dot(one, other), blocks.dot(other, other)]


def test_a_mean_of_differences_needs_no_copies_of_them() -> None:
    one, other, base = (np.array(each, dtype=np.float32) for each in ([3.0, 1.0], [1.0, 2.0], [1.0, 1.0]))
    movements = [blocks.LazyDifference(one, base), blocks.LazyDifference(other, base)]
    assert len(movements[0]) == 2
    assert blocks.weighted_mean(movements, [1.0, 3.0]).tolist() == [0.5, 0.75]  # 1/4 [2, 0] + 3/4 [0, 1]
