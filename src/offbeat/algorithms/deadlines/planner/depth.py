"""Depth of a backward pass at a deadline, under ADEL-FL's exponential time model.

Goren, Lang, Shlezinger, Cohen: *Adaptive Deadline and Batch Layered Synchronized Federated Learning*, 2026. A layer
takes device u an exponential time of mean S / P_u (B1), so the number of layers completed in T - B_u seconds is Poisson
distributed (A.2) with the mean `layer_rates`. Layers are numbered from the input, 0 to L - 1; the backward pass starts
at L - 1, so layer l is delivered if at least L - l layers are completed.
"""

import numpy as np
import numpy.typing as npt
import scipy  # submodules load on use, which saves a device half a second at start

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def layer_rates(deadline: float, batches: npt.ArrayLike, speeds: Floats, communication: Floats) -> Floats:
    """lambda_u = P_u (T - B_u) / S_u (A.2), the mean number of layers that each device completes.

    >>> layer_rates(10.0, [20, 20], np.array([4.0, 8.0]), np.array([0.0, 5.0])).tolist()
    [2.0, 2.0]
    """
    rates: Floats = speeds * np.maximum(deadline - communication, 0.0) / np.asarray(batches, dtype=np.float64)
    return rates


def miss_probabilities(rates: Floats, layers: int) -> Floats:
    """p^l: the probability that no device delivers layer l, from input to output.

    P(z <= k) of a Poisson variable of mean x is Q(k + 1, x), so with equal rates T/m this is
    p^l = Q(L + 1 - l, T/m)^U with l from 1 (7).
    """
    most = np.arange(layers - 1, -1, -1.0)  # a device misses layer l if it completes at most L - 1 - l
    missed: Floats = scipy.special.pdtr(most[:, None], rates[None, :]).prod(axis=1)
    return missed


def expected_depth(rates: Floats, slices: int) -> Floats:
    """E min(z_u, slices), the mean number of layers that each device completes out of `slices`."""
    done: Floats = (1.0 - scipy.special.pdtr(np.arange(float(slices))[:, None], rates[None, :])).sum(axis=0)
    return done


def fixed_depth(rates: Floats, slices: int) -> Floats:
    """Layers that each device completes out of `slices` if every layer takes it the same time.

    A run keeps a billionth of its time in reserve, so a layer that would end exactly at the deadline does not count.

    >>> fixed_depth(np.array([0.9, 2.5, 9.0]), 5).tolist()
    [0.0, 2.0, 5.0]
    """
    return np.minimum(np.floor(rates * (1 - 1e-9)), slices)


def batch_sizes(scale: float, deadline: float, speeds: Floats, communication: Floats) -> Integers:
    """S_u = floor(m P_u (T - B_u) / T) (B3), and at least 1.

    >>> batch_sizes(2.0, 10.0, np.array([8.0, 8.0]), np.array([0.0, 2.5])).tolist()
    [16, 12]
    """
    exact = scale * speeds * (deadline - communication) / deadline
    return np.maximum(np.floor(exact * (1 + 1e-12)), 1).astype(np.int64)  # 12 must not become 11.999...
