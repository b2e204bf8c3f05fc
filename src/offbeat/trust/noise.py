"""Gaussian noise for private versions: where it is drawn from, and how versions share it.

A mechanism draws one fresh standard normal vector Z_t for version t and adds sigma n_t to the sum of the version, where

    gaussian   n_t = Z_t                                                       sigma = z C
    tree       n_t = Z_t - sum of the open nodes that node t replaces          sigma = z C sqrt(h),  h = log2(R) + 1
    banded     n_t = Z_t - sum_{i=1..b-1} c_i n_{t-i},  c_i = (2i choose i) / 4^i
                                                                               sigma = z C sqrt(sum_{i<b} c_i^2)

tree: Kairouz et al., ICML 2021 (DP-FTRL). The versions of a tree are its R leaves (a power of two). Node t covers the
last 2^j leaves up to t, where j counts the trailing zeros of t, and replaces the open nodes among them, so the model
carries the noise of only popcount(t) nodes. A leaf is in at most h nodes, so a device that contributes once per tree
moves the vector of all nodes by at most C sqrt(h). The tree restarts when it is complete; a finished tree leaves the
noise of one node in the model.

banded: Kalinin and Lampert, NeurIPS 2024 (banded square root); participation as in Choquette-Choo et al., NeurIPS 2023.
With M the Toeplitz matrix of c_0 .. c_{b-1}, what is released is a function of M x + sigma Z. A column of M has the
norm sqrt(sum c_i^2), and columns at least b apart are orthogonal, so a device that contributes at most once in b
versions moves M x by at most C sqrt(sum c_i^2) per participation.

sigma contains the sensitivity, so one participation costs 1 / (2 z^2) under every mechanism (`trust.accounting`).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from math import comb, sqrt
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from offbeat.core.parameters import BLOCK, Vector, by_block

Mechanism = Literal["gaussian", "tree", "banded"]
"""How versions share noise."""
Block = npt.NDArray[np.float32]
"""A block of a vector of noise."""


class Source(Protocol):
    """Draws fresh noise."""

    def __call__(self, role: str, *keys: int, size: int) -> Block:
        """Standard normal numbers for this role and these keys: a version and the start of a block, or a step."""
        ...


@dataclass(frozen=True)
class SeededNoise:
    """Noise that the seed of the experiment determines, for simulations: whoever knows the seed can subtract it."""

    stream: Callable[..., np.random.Generator]
    """A stream by role and keys, as `View.stream`."""

    def __call__(self, role: str, *keys: int, size: int) -> Block:
        """Depends on the seed, the role, the keys and the size only, on processors of one kind."""
        pairs = self.stream(role, *keys).integers(0, 2**64, size=(size + 1) // 2, dtype=np.uint64)
        return gaussian(pairs.view(np.uint32))[:size]


class SystemNoise:
    """Noise from the operating system's generator, for deployments. Nothing can reproduce it: no key is kept."""

    def __call__(self, role: str, *keys: int, size: int) -> Block:
        """Fresh at every call."""
        return gaussian(np.frombuffer(secret_bytes(8 * ((size + 1) // 2)), dtype=np.uint32))[:size]


def gaussian(bits: npt.NDArray[np.uint32]) -> Block:
    """As many standard normal numbers as there are random integers, an even number (Box-Muller).

    Uniform numbers of 32 bits reach 6.6 standard deviations. In float32 numpy computes several at a time: a quarter of
    the time of its own generator of normal numbers.
    """
    half = len(bits) // 2
    radius = bits[:half].astype(np.float32)
    radius += np.float32(1.0)  # no logarithm of 0; exact for the small numbers, which make the tails
    radius *= np.float32(2.0**-32)
    np.log(radius, out=radius)
    radius *= np.float32(-2.0)
    np.sqrt(radius, out=radius)
    angle = bits[half:].astype(np.float32)
    angle *= np.float32(2.0 * np.pi / 2.0**32)
    drawn = np.empty(len(bits), dtype=np.float32)
    np.multiply(radius, np.cos(angle, out=drawn[:half]), out=drawn[:half])
    np.multiply(radius, np.sin(angle, out=drawn[half:]), out=drawn[half:])
    return drawn


def secret_bytes(count: int) -> bytes:
    """Random bytes that nobody can predict: AES in counter mode under a fresh key of the operating system.

    Ten times as fast as the operating system's own bytes, which take over where the package `cryptography` is not
    installed; Flower brings it.
    """
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        return os.urandom(count)
    key_stream = Cipher(algorithms.AES(os.urandom(32)), modes.CTR(os.urandom(16))).encryptor()
    return key_stream.update(bytes(count)) + key_stream.finalize()


@dataclass
class NoiseState:
    """The noise that later versions depend on. It must stay secret: only checkpoints hold it."""

    vectors: list[Vector] = field(default_factory=list)
    """tree: the noise of the open nodes, the largest first; banded: the noise of the last versions, newest first."""


def coefficients(band: int) -> list[float]:
    """c_0 .. c_{b-1}, the coefficients of 1 / sqrt(1 - x).

    >>> coefficients(4)
    [1.0, 0.5, 0.375, 0.3125]
    """
    return [comb(2 * index, index) / 4.0**index for index in range(band)]


def sensitivity(mechanism: Mechanism, tree: int, band: int) -> float:
    """By how many C one participation moves what receives independent noise.

    >>> sensitivity("gaussian", 16, 4), sensitivity("tree", 8, 4), round(sensitivity("banded", 8, 2), 4)
    (1.0, 2.0, 1.118)
    """
    match mechanism:
        case "tree":
            return sqrt(tree.bit_length())  # log2(R) + 1 for a power of two
        case "banded":
            return sqrt(sum(each**2 for each in coefficients(band)))
        case _:
            return 1.0


def next_noise(
    mechanism: Mechanism,
    tree: int,
    band: int,
    state: NoiseState,
    version: int,
    size: int,
    fresh: Callable[[slice], Block],
) -> Callable[[slice], Block]:
    """n_t of this version in units of sigma, by block, from its fresh noise Z_t; moves the state on.

    Each block of `gaussian` must be read once only: a second reading may draw other numbers.

    >>> state = NoiseState()
    >>> drawn = {1: 1.0, 2: 10.0, 3: 100.0, 4: 1000.0}
    >>> def noise(version):
    ...     of = next_noise("tree", 4, 1, state, version, 1, lambda block: np.float32([drawn[version]]))
    ...     return float(of(slice(0, 1))[0])
    >>> [noise(version) for version in drawn]  # node 2 replaces node 1; node 4 replaces nodes 2 and 3
    [1.0, 9.0, 100.0, 890.0]
    """
    if mechanism == "gaussian":
        return fresh
    if mechanism == "tree":
        leaf = (version - 1) % tree + 1
        before = state.vectors if leaf > 1 else []  # a finished tree leaves the noise of its root in the model
        replaced = (leaf & -leaf).bit_length() - 1
        kept, gone = before[: len(before) - replaced], before[len(before) - replaced :]
        node = by_block(size, fresh, threaded_from=BLOCK)
        state.vectors = [*kept, node]
        return lambda block: _combination(node[block], [(1.0, each[block]) for each in gone])
    earlier = list(zip(coefficients(band)[1:], state.vectors, strict=False))

    def mixed_block(block: slice) -> Block:
        return _combination(fresh(block), [(factor, each[block]) for factor, each in earlier])

    mixed = by_block(size, mixed_block, threaded_from=BLOCK)
    state.vectors = [mixed, *state.vectors][: band - 1]
    return lambda block: mixed[block]


def _combination(first: Block, subtracted: list[tuple[float, Block]]) -> Block:
    total = first.copy()
    for factor, each in subtracted:
        total -= np.float32(factor) * each
    return total
