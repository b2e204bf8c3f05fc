"""Pisces' scores and exploration, worked out by hand."""

import numpy as np
import pytest

from offbeat.algorithms import FedBuff
from offbeat.selection import Pisces
from offbeat.testing import ScriptedSession


def test_score_is_samples_times_loss_over_a_power_of_the_mean_lag() -> None:
    # Device 0: 10 x 2 = 20, fresh. Device 1: 10 x 6 = 60, one version was made meanwhile, then 3: mean lag (1 + 3) / 2.
    session = ScriptedSession(FedBuff(buffer=1, concurrency=2), devices=2, selector=Pisces())
    session.upload(device=0, loss=2.0)
    session.upload(device=1, loss=6.0)  # staleness 1
    for _ in range(3):
        session.upload(device=0, loss=2.0)
    session.upload(device=1, loss=6.0)  # device 1 started at version 2; now is version 5: staleness 3
    saved = session.snapshot().selection
    assert saved is not None
    scores = Pisces().scores(np.array([0, 1], dtype=np.int32), saved.state)
    # Device 0: lags 0, then 1 (device 1 made a version after its order), 0, 0: mean 1/4.
    assert scores.tolist() == pytest.approx([20 / 1.25**0.5, 60 / 3.0**0.5])


def test_the_best_scores_are_exploited_and_the_factor_decays_to_its_limit() -> None:
    session = ScriptedSession(
        FedBuff(buffer=3, concurrency=3), devices=3, selector=Pisces(exploration=0.4, exploration_decay=0.5)
    )
    for device in range(3):
        reaction = session.upload(device=device, loss=float(device))
    assert reaction.ordered  # all devices have uploaded: only scores count
    saved = session.snapshot().selection
    assert saved is not None and saved.state.exploration == pytest.approx(0.3)  # .4 x .5 is below .3


def test_only_the_last_five_lags_count() -> None:
    session = ScriptedSession(FedBuff(buffer=1, concurrency=1), devices=1, selector=Pisces())
    for _ in range(7):
        session.upload(loss=1.0)
    saved = session.snapshot().selection
    assert saved is not None and saved.state.uploads.tolist() == [7] and np.nansum(saved.state.lags) == 0.0
