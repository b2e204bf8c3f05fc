"""The idle set behaves as a set whose order is reproducible."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.state import IdleSet
from offbeat.core.streams import stream

DEVICES = 6


@given(
    members=st.sets(st.integers(0, DEVICES - 1)),
    flips=st.lists(st.integers(0, DEVICES - 1), max_size=30),
    count=st.integers(1, DEVICES + 2),
)
def test_it_is_a_set(members: set[int], flips: list[int], count: int) -> None:
    idle, model = IdleSet(DEVICES, np.array(sorted(members), dtype=np.int64)), set(members)
    for device in flips:
        if device in model:
            idle.remove(device)
            model.remove(device)
        else:
            idle.add(device)
            model.add(device)
        assert set(idle) == model
        assert len(idle) == len(list(idle)) == len(model)
        assert [each for each in range(DEVICES) if each in idle] == sorted(model)
    drawn = idle.sample(count, stream(0, "test"))
    assert len(drawn) == len(set(drawn)) == min(count, len(model))
    assert set(drawn) <= model
    assert set(idle) == model


@given(
    start=st.lists(st.integers(0, DEVICES - 1), unique=True),
    flips=st.lists(st.integers(0, DEVICES - 1), max_size=20),
)
def test_a_set_made_again_from_its_members_draws_and_develops_alike(start: list[int], flips: list[int]) -> None:
    idle = IdleSet(DEVICES, np.array(start, dtype=np.int64))
    again = IdleSet(DEVICES, idle.members())
    for step, device in enumerate(flips):
        for each in (idle, again):
            (each.remove if device in each else each.add)(device)
        assert idle.sample(3, stream(step, "test")) == again.sample(3, stream(step, "test"))
    assert idle.members().tolist() == again.members().tolist()


def test_every_member_is_drawn_equally_often_also_after_gaps_were_filled() -> None:
    idle = IdleSet(10, np.arange(10))
    for device in (0, 4, 9):
        idle.remove(device)
    random = stream(0, "test")
    for count in (1, 3):
        drawn = [device for _ in range(3000) for device in idle.sample(count, random)]
        shares = np.bincount(drawn, minlength=10) / len(drawn)
        assert shares[[0, 4, 9]].tolist() == [0.0, 0.0, 0.0]
        assert np.abs(shares[[1, 2, 3, 5, 6, 7, 8]] - 1 / 7).max() < 0.02


def test_drawing_from_nobody_gives_nobody() -> None:
    assert IdleSet(3, np.array([], dtype=np.int64)).sample(2, stream(0, "test")) == []
