"""Arithmetic on long vectors block by block: what is between lies in the cache, not in vectors of the model's size.

Every element is computed by the same operations in the same order as in one go, so neither the blocks nor the threads
that share them change a bit.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 2**17
"""Elements of a block: a megabyte in float64."""

THREADED_FROM = 2**22
"""From this many elements (16 MB in float32) on, blocks are shared among threads."""

THREADS = 4
"""More would wait for the memory."""


def blockwise(size: int, compute: Callable[[slice], None]) -> None:
    """Let `compute` do its work on every block of a vector of this size; on a long one several at a time.

    >>> blockwise(300_000, print)
    slice(0, 131072, None)
    slice(131072, 262144, None)
    slice(262144, 300000, None)
    """
    if size <= BLOCK:
        compute(slice(0, size))
        return
    blocks = [slice(first, min(first + BLOCK, size)) for first in range(0, size, BLOCK)]
    if size < THREADED_FROM:
        for block in blocks:
            compute(block)
        return
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(compute, blocks):
            pass


def by_block(size: int, block_of: Callable[[slice], npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    """A vector of this size in float32, of which `block_of` gives every block.

    >>> vector = np.float32([1.0, 2.0])
    >>> by_block(2, lambda block: vector[block] + 1).tolist()
    [2.0, 3.0]
    """
    if size <= BLOCK:
        return block_of(slice(0, size)).astype(np.float32)  # a copy in any case, as below
    whole = np.empty(size, dtype=np.float32)

    def compute(block: slice) -> None:
        whole[block] = block_of(block)

    blockwise(size, compute)
    return whole
