"""The virtual clock against numbers that others published, in a small form of `experiments.clock`."""

from dataclasses import replace
from statistics import fmean

import pytest

from experiments.clock import CHECKS, Check
from offbeat.experiment.run_settings import Stop

FEDAVG, PAIRS, SINGLES, ROUNDS, FIRST_ROUNDS, _, VERSIONS = CHECKS


def mean(check: Check, seeds: int) -> float:
    return fmean(check.measured(seed) for seed in range(seeds))


def test_a_tenth_of_the_published_time_makes_a_tenth_of_the_published_versions() -> None:
    """The first updates arrive after the first orders, so a short run lacks a few: 0.16 per device in training."""
    for check in (PAIRS, SINGLES):
        short = replace(check, stop=Stop(time=20.0))
        assert mean(short, 1) == pytest.approx(check.published / 10, rel=0.05)
    assert mean(FEDAVG, 3) == pytest.approx(28, rel=0.08)  # the standard deviation of one run is 4 %


def test_rounds_and_versions_on_three_types_of_devices_take_the_published_minutes() -> None:
    assert mean(ROUNDS, 1) == pytest.approx(68, rel=0.02)
    assert mean(FIRST_ROUNDS, 1) == pytest.approx(20.2, rel=0.05)
    assert mean(VERSIONS, 20) == pytest.approx(35, rel=0.08)  # the draw of the types changes one run by 13 %
