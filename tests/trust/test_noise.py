"""Shared noise as a linear map of the fresh noise, exactly: version t draws the unit vector e_t."""

import sys
from collections.abc import Iterator
from itertools import combinations, pairwise
from math import log, sqrt

import numpy as np
import numpy.typing as npt
import pytest

from offbeat.core.streams import stream
from offbeat.trust.noise import (
    Mechanism,
    NoiseState,
    SeededNoise,
    Source,
    SystemNoise,
    coefficients,
    gaussian,
    next_noise,
    secret_bytes,
    sensitivity,
)

VERSIONS = 8
Matrix = npt.NDArray[np.float64]


def mixing(mechanism: Mechanism, *, tree: int = 4, band: int = 3, versions: int = VERSIONS) -> Matrix:
    """Row t: how the noise of version t is made of the fresh noise of each version."""
    state, rows = NoiseState(), []
    for version in range(1, versions + 1):
        unit = np.eye(versions, dtype=np.float32)[version - 1]
        noise = next_noise(mechanism, tree, band, state, version, versions, unit.__getitem__)
        rows.append(noise(slice(0, versions)))
    return np.array(rows, dtype=np.float64)


def test_gaussian_noise_is_independent() -> None:
    assert np.array_equal(mixing("gaussian"), np.eye(VERSIONS))


def test_the_tree_carries_the_noise_of_its_open_nodes() -> None:
    # Leaves 1..4; node 2 covers 1-2, node 4 covers 1-4. Then the tree restarts, above the root of the first.
    carried = np.cumsum(mixing("tree", tree=4), axis=0)
    assert carried.tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 1, 0, 0],
        [0, 0, 0, 1, 0, 1, 1, 0],
        [0, 0, 0, 1, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize("tree", [2, 4, 8, 16])
def test_the_model_carries_popcount_nodes(tree: int) -> None:
    carried = np.cumsum(mixing("tree", tree=tree, versions=tree), axis=0)
    assert [int(row.sum()) for row in carried] == [leaf.bit_count() for leaf in range(1, tree + 1)]


def permitted(mechanism: Mechanism, tree: int, band: int, versions: int) -> Iterator[tuple[int, ...]]:
    """All sets of versions to which one device may contribute."""
    for number in range(1, versions + 1):
        for chosen in combinations(range(versions), number):
            once_per_tree = all(one // tree < other // tree for one, other in pairwise(chosen))
            apart = all(other - one >= band for one, other in pairwise(chosen))
            if {"gaussian": True, "tree": once_per_tree, "banded": apart}[mechanism]:
                yield chosen


@pytest.mark.parametrize("mechanism", ["gaussian", "tree", "banded"])
def test_no_permitted_participation_moves_the_output_further_than_the_proof_says(mechanism: Mechanism) -> None:
    # Versions x + N Z tell as much as N^-1 x + Z: a contribution of 1 to the versions P moves that by the sum of the
    # columns P of N^-1. The proof allows sensitivity * sqrt(|P|).
    tree, band = 4, 3
    encoder = np.linalg.inv(mixing(mechanism, tree=tree, band=band))
    worst: dict[int, float] = {}
    for chosen in permitted(mechanism, tree, band, VERSIONS):
        moved = float(np.linalg.norm(encoder[:, list(chosen)].sum(axis=1)))
        worst[len(chosen)] = max(moved, worst.get(len(chosen), 0.0))
    bounds = {number: sensitivity(mechanism, tree, band) * sqrt(number) for number in worst}
    assert all(worst[number] <= bounds[number] + 1e-6 for number in worst)
    assert worst[1] == pytest.approx(bounds[1])  # and one participation reaches it
    # A device that breaks the rule moves it further: two neighbouring versions share noise.
    if mechanism != "gaussian":
        assert np.linalg.norm(encoder[:, :2].sum(axis=1)) > bounds[1] * sqrt(2) + 0.1


def test_banded_noise_solves_the_toeplitz_system() -> None:
    # c = 1, 1/2, 3/8: M n = Z, so n = M^-1 Z.
    toeplitz = sum(np.diag([factor] * (VERSIONS - lag), -lag) for lag, factor in enumerate([1.0, 0.5, 0.375]))
    assert np.allclose(toeplitz @ mixing("banded", band=3), np.eye(VERSIONS), atol=1e-6)


def test_the_first_banded_versions_by_hand() -> None:
    # n1 = Z1, n2 = Z2 - n1/2, n3 = Z3 - n2/2 - 3/8 n1 = Z3 - Z2/2 - Z1/8
    assert mixing("banded", band=3)[:3, :3].tolist() == [[1, 0, 0], [-0.5, 1, 0], [-0.125, -0.5, 1]]
    assert coefficients(3) == [1.0, 0.5, 0.375]


def test_the_sensitivity_of_a_band_is_the_norm_of_a_column() -> None:
    assert sensitivity("banded", 16, 3) == sqrt(1 + 0.25 + 0.140625)
    assert sensitivity("gaussian", 16, 3) == 1.0


@pytest.mark.parametrize("mechanism", ["tree", "banded"])
def test_the_accumulated_noise_is_less_than_that_of_independent_noise_at_the_same_privacy(mechanism: Mechanism) -> None:
    versions, size = 64, {"tree": 64, "band": 16}
    carried = np.cumsum(mixing(mechanism, **size, versions=versions), axis=0)
    shared = sensitivity(mechanism, 64, 16) ** 2 * (carried[-1] ** 2).sum()
    assert shared < versions  # independent noise adds up to one variance per version


def test_seeded_noise_depends_on_version_and_block_only() -> None:
    source = SeededNoise(lambda role, *keys: stream(7, role, *keys))
    first = source("privacy", 1, 0, size=5)
    assert np.array_equal(first, source("privacy", 1, 0, size=5))
    drawn = [source("privacy", version, start, size=5) for version in range(1, 20) for start in (0, 5)]
    drawn += [source("privacy count", version, 0, size=5) for version in range(1, 20)]
    assert not any(np.isin(one, other).any() for one, other in pairwise(drawn))
    assert len(np.unique(np.concatenate(drawn))) == 5 * len(drawn)


def test_box_and_muller_by_hand() -> None:
    # u = (2^31 - 1 + 1) / 2^32 = 1/2 at the angle 0; the smallest u = 2^-32 at a quarter of a turn
    bits = np.array([2**31 - 1, 0, 0, 2**30], dtype=np.uint32)
    assert gaussian(bits).tolist() == pytest.approx([sqrt(2 * log(2)), 0.0, 0.0, sqrt(64 * log(2))], abs=1e-5)
    assert np.isfinite(gaussian(np.full(64, 2**32 - 1, dtype=np.uint32))).all()


def test_the_operating_system_takes_over_without_the_package_for_ciphers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({secret_bytes(32) for _ in range(3)}) == 3 and len(secret_bytes(1001)) == 1001
    monkeypatch.setattr("os.urandom", lambda count: b"\x07" * count)
    assert secret_bytes(3) != b"\x07" * 3  # a key, not the bytes
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    assert secret_bytes(3) == b"\x07" * 3


@pytest.mark.parametrize("source", [SystemNoise(), SeededNoise(lambda role, *keys: stream(7, role, *keys))])
def test_noise_is_standard_normal_and_never_the_same(source: Source) -> None:
    one, other = (source("privacy", version, 0, size=200_001) for version in (1, 2))
    assert one.dtype == np.float32 and len(one) == 200_001
    assert not np.array_equal(one, other)
    for drawn in (one.astype(np.float64), other.astype(np.float64)):  # bounds of 8 standard errors
        assert abs(drawn.mean()) < 8 / sqrt(len(drawn))
        assert abs(drawn.var() - 1) < 8 * sqrt(2 / len(drawn))
        assert abs((drawn**4).mean() - 3) < 8 * sqrt(96 / len(drawn))
        assert abs((drawn > 1.96).mean() - 0.025) < 8 * sqrt(0.025 / len(drawn))
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 8 / sqrt(len(one))
    assert abs(np.corrcoef(one[:100_000], one[100_001:])[0, 1]) < 8 / sqrt(100_000)
