"""Random streams depend on their arguments and on nothing else."""

import itertools

import numpy as np

from offbeat.core.streams import stream


def first(seed: int, role: str, *keys: int) -> float:
    return float(stream(seed, role, *keys).random())


def test_equal_arguments_give_equal_streams_whatever_was_drawn_before() -> None:
    before = stream(1, "batches", 2, 3).random(5).tolist()
    stream(1, "batches", 2, 4).random(100)
    assert stream(1, "batches", 2, 3).random(5).tolist() == before


def test_every_argument_makes_a_difference_also_zeros_and_their_order() -> None:
    arguments: list[tuple[int, str, tuple[int, ...]]] = [
        (seed, role, keys)
        for seed, role in itertools.product((0, 1), ("policy", "batches"))
        for keys in ((), (0,), (0, 0), (1,), (1, 0), (0, 1), (1, 2), (2, 1))
    ]
    draws = [first(seed, role, *keys) for seed, role, keys in arguments]
    assert len(set(draws)) == len(arguments)


def test_the_draws_are_the_same_on_every_machine() -> None:
    # numpy guarantees the bits of PCG64 and SeedSequence: this number may never change, or old runs do not repeat.
    assert first(0, "policy", 7) == 0.023257237483308102


def test_neighbouring_streams_are_not_correlated() -> None:
    draws = np.array([first(5, "fate", device, 1) for device in range(2000)])
    assert abs(draws.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.08
