"""The sizes of algorithms follow the number of devices in training, unless they are given."""

from typing import Any

import pytest

from offbeat.algorithms import POLICIES, FedASMU, FedAsync, FedAvg, FedBuff, FedProx, FedSSMU, Safa, Seafl, Seafl2
from offbeat.algorithms.about import About
from offbeat.algorithms.sizes import default_in_training, governed, settings_for, sizes_of
from offbeat.core.policy import Policy


def sizes(policy: type[Policy], in_training: int = 6, devices: int = 40, **given: Any) -> dict[str, Any]:
    return settings_for(policy, in_training, devices=devices, order_seconds=lambda: [1.0] * devices, given=given)


def test_buffers_and_staleness_bounds_keep_the_proportion_of_the_published_defaults() -> None:
    assert sizes(FedProx) == {"cohort": 6}
    assert sizes(FedAsync) == {"concurrency": 6}
    assert sizes(FedBuff) == sizes(Seafl2) == {"concurrency": 6, "buffer": 3}  # published: 10 of 20
    assert sizes(Seafl, 20) == {"concurrency": 20, "buffer": 10}
    assert sizes(FedBuff, 5) == {"concurrency": 5, "buffer": 3}  # rounded up
    assert sizes(FedBuff, 1) == {"concurrency": 1, "buffer": 1}
    assert sizes(FedSSMU, 20) == {"cohort": 20, "staleness_bound": 198}  # published: 99 with 10
    assert sizes(POLICIES["fedfa"], 20) == {"concurrency": 20, "queue": 20}  # 10 of 10
    assert sizes(Safa) == {"share": 6 / 40}
    assert sizes(Policy) == {}


def test_what_is_given_is_kept_and_the_rest_follows_from_it() -> None:
    assert sizes(FedAvg, cohort=3) == {}
    assert sizes(FedBuff, concurrency=8) == {"buffer": 4}
    assert sizes(FedBuff, buffer=1) == {"concurrency": 6}
    assert sizes(Safa, share=0.5) == {}
    assert sizes(FedASMU, cohort=3, period=1.0, staleness_bound=5) == {}


def test_a_period_keeps_the_number_in_training_on_average() -> None:
    # 40 devices of 1 s, 8 of them in training: each trains for a fifth of its time, and 8 orders take 1 s.
    assert sizes(FedASMU, 8) == {"cohort": 8, "period": 1.0, "staleness_bound": 80}
    assert sizes(FedASMU, 8, period=0.5) == {"cohort": 4, "staleness_bound": 80}
    assert sizes(FedASMU, 16, cohort=4)["period"] == pytest.approx(0.25)
    assert sizes(FedASMU, 20)["max_in_flight"] == 40  # half of the devices, the default, would throttle it
    unknown = settings_for(FedASMU, 4, devices=4, order_seconds=None, given={})
    assert unknown == {"cohort": 4, "staleness_bound": 40}


class Plain(Policy):
    """A user's algorithm that says nothing about itself."""

    concurrency: int = 10
    buffer: int = 10
    mixing: float = 0.5


class Staleness(Policy):
    cohort: int = 10
    max_staleness: int = 20


class Waves(Policy):
    cohort: int = 5
    period: float = 9.0


class Named(Policy):
    slots: int = 4
    buffer_size: int = 2
    about = About(in_training="slots")


class Everyone(Policy):
    concurrency: int = 10
    about = About(trains_all_devices=True)


def test_an_own_algorithm_takes_part_by_the_names_of_its_fields() -> None:
    assert sizes(Plain, 2) == {"concurrency": 2, "buffer": 2}
    assert sizes(Staleness, 5) == {"cohort": 5, "max_staleness": 10}
    assert sizes(Waves, 4) == {"cohort": 4, "period": pytest.approx(1.0)}
    assert sizes(Waves, 20, 40).keys() == {"cohort", "period"}  # it has no max_in_flight
    assert sizes(Named, 8) == {"slots": 8, "buffer_size": 4}
    assert sizes(Everyone) == {} and governed(Everyone) == []


@pytest.mark.parametrize("name", POLICIES)
def test_no_fleet_is_too_small_for_an_algorithm_with_default_settings(name: str) -> None:
    for devices in (2, 3, 5, 12, 20, 100, 1000):
        found = sizes(POLICIES[name], default_in_training(devices), devices)
        POLICIES[name](**found).check(devices)
        assert set(found) <= set(governed(POLICIES[name]))


def test_tables_show_the_buffer_and_the_staleness_bound_of_a_policy() -> None:
    assert sizes_of(FedBuff(buffer=3)) == {"buffer": 3}
    assert sizes_of(Seafl(staleness_limit=4.0)) == {"buffer": 10, "staleness_bound": 4.0}
    assert sizes_of(Seafl(staleness_limit=float("inf"))) == {"buffer": 10}
    assert sizes_of(FedAsync(max_staleness=7)) == {"staleness_bound": 7}
    assert sizes_of(FedAsync()) == sizes_of(FedAvg()) == {}


def test_an_iteration_of_psurdg_is_half_the_median_order() -> None:
    def iteration(**given: float) -> dict[str, Any]:
        return settings_for(POLICIES["psurdg"], 2, devices=3, order_seconds=lambda: [1.0, 7.0, 40.0], given=given)

    assert iteration() == {"iteration_seconds": 3.5}
    assert iteration(iteration_seconds=2.0) == {}
    assert settings_for(POLICIES["psurdg"], 2, devices=3, order_seconds=None, given={}) == {}  # nodes: unknown
    assert settings_for(POLICIES["audg"], 2, devices=3, order_seconds=lambda: [7.0] * 3, given={}) == {}
