"""One place makes times: no event happens before its cause, even where nothing takes any time."""

from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.algorithms import POLICIES
from offbeat.core.state import moment, moment_after
from offbeat.core.streams import stream
from offbeat.fleet import FailureSettings, NetworkSettings, OnOffAvailable
from offbeat.testing import check_session, toy_simulation

NO_DELAY = NetworkSettings(uplink_mbps=inf, downlink_mbps=inf, latency=0.0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("seafl2", {"on_notice": "last-finished", "staleness_limit": 1, "buffer": 2, "concurrency": 12}),
        ("fedasmu", {}),
        ("sfl", {}),
    ],
)
def test_a_fleet_without_delays_never_goes_back_in_time(name: str, settings: dict[str, Any], seed: int) -> None:
    simulation = toy_simulation(
        POLICIES[name](**settings),
        seed=seed,
        network=NO_DELAY,
        availability=OnOffAvailable(on_seconds=60.0, off_seconds=20.0),
        failures=FailureSettings(vanish=0.2, lost_upload=0.1, rejoin_seconds=0.0, detect_seconds=0.0),
    )
    before = 0.0
    for _ in simulation:
        assert simulation.now >= before
        before = simulation.now
        check_session(simulation.session)
    assert simulation.reason == "updates"


TIMES = st.one_of(
    st.sampled_from([0.1 + 0.2, 0.3, 1.0000000004, 86400.1234567894999, 1e6 - 1e-10, 1e6, 1e7 + 1e-8, 1e12 + 0.3, inf]),
    st.floats(min_value=0.0, max_value=1e9),
)


@given(time=TIMES, other=TIMES)
def test_moments_are_monotonic_and_a_change_has_happened_by_its_moment(time: float, other: float) -> None:
    assert moment(moment(time)) == moment(time) == moment_after(moment(time))
    assert time <= moment_after(time) <= time + 1.1e-9
    assert abs(moment(time) - time) <= 0.6e-9 or time == inf
    assert moment(time) == round(time, 9)
    assert (moment(time) <= moment(other)) or time > other


def test_moments_are_the_nearest_decimals() -> None:
    assert moment(0.1 + 0.2) == 0.3
    random = stream(0, "moments")
    drawn, ties = 10.0 ** random.uniform(-6, 7, size=20_000), random.integers(0, 10**14, size=20_000) / 1e9 + 0.5e-9
    assert [moment(time) for time in [*drawn, *ties]] == [round(time, 9) for time in [*drawn, *ties]]
