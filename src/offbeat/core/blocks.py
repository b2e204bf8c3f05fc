"""Arithmetic on long vectors block by block: what is between lies in the cache, not in vectors of the model's size.

Every element is computed by the same operations in the same order as in one go, so neither the blocks nor the threads
that share them change a bit.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
