"""Learning-rate schedules, by hand, and over which axis an order takes its rate."""

import numpy as np
import pytest

from offbeat.algorithms import FedAvg
from offbeat.core.orders import LocalWork, RateSchedule
from offbeat.core.parameters import Layout
from offbeat.core.session import Session
from offbeat.core.terms import Contrastive, Distillation, Proximal


@pytest.mark.parametrize(
    ("schedule", "moment", "factor"),
    [
        (RateSchedule(), 7, 1.0),
        (RateSchedule(shape="exponential", decay=0.5, every=10), 29, 0.25),  # 29 // 10 = 2 halvings
        (RateSchedule(shape="inverse", every=4), 6, 0.4),  # 1 / (1 + 6/4)
        (RateSchedule(shape="step", decay=0.1, milestones=(5, 8)), 4, 1.0),
        (RateSchedule(shape="step", decay=0.1, milestones=(5, 8)), 5, 0.1),
        (RateSchedule(shape="step", decay=0.1, milestones=(5, 8)), 9, 0.01),
        (RateSchedule(shape="cosine", decay=0.2, every=10), 0, 1.0),
        (RateSchedule(shape="cosine", decay=0.2, every=10), 5, 0.6),  # 0.2 + 0.8 (1 + cos 90°) / 2
        (RateSchedule(shape="cosine", decay=0.2, every=10), 99, 0.2),
        (RateSchedule(warmup=4), 0, 0.25),  # (0 + 1) / 4
        (RateSchedule(warmup=4), 2, 0.75),
        (RateSchedule(warmup=4), 3, 1.0),
        (RateSchedule(warmup=4), 3.5, 1.0),  # of seconds, which need not be whole: never above 1
        (RateSchedule(shape="inverse", every=1, warmup=4), 1, 0.25),  # 1/2 x 2/4
    ],
)
def test_the_factor_by_hand(schedule: RateSchedule, moment: float, factor: float) -> None:
    assert schedule.factor(moment) == pytest.approx(factor, abs=1e-12)
    assert schedule.rate(0.5, moment) == pytest.approx(0.5 * factor, abs=1e-12)


def session_of(local: LocalWork) -> Session:
    return Session(
        FedAvg(cohort=1),
        parameters=np.zeros(3, dtype=np.float32),
        layout=Layout.flat(3),
        samples=np.array([5, 5]),
        local=local,
    )


@pytest.mark.parametrize(("over", "rate"), [("versions", 0.5**2), ("updates", 0.5**6), ("time", 0.5**9)])
def test_an_order_has_the_rate_of_the_axis_that_the_schedule_runs_over(over: str, rate: float) -> None:
    # One halving for each unit: 2 versions, 6 updates used, 9.5 seconds.
    session = session_of(LocalWork(learning_rate=1.0, learning_rate_decay=0.5, schedule_over=over))  # type: ignore[arg-type]
    session.version, session.counters.used, session.now = 2, 6, 9.5
    assert session.order().learning_rate == rate
    assert session.order(batch_size=1).learning_rate == rate
    assert session.order().schedule is None


def test_over_steps_the_order_carries_the_schedule() -> None:
    session = session_of(LocalWork(learning_rate=1.0, schedule="cosine", decay_every=8, schedule_over="steps"))
    session.version = 5
    order = session.order()
    assert order.learning_rate == 1.0
    assert order.schedule is not None
    assert order.schedule.rate(1.0, 4) == pytest.approx(1.0)  # decay 1.0: a cosine from 1 to 1


def test_the_proximal_term_of_the_experiment_replaces_that_of_the_algorithm() -> None:
    own = (Proximal(mu=0.5),)
    assert LocalWork().order(0, terms=own).prox == 0.5
    assert LocalWork(prox=0.1).order(0, terms=own).prox == 0.1
    assert LocalWork(prox=0.0).order(0, terms=own).prox == 0.0
    assert LocalWork(prox=0.1).order(0).prox == 0.1


def test_terms_of_the_experiment_stand_before_those_of_the_algorithm() -> None:
    ours, theirs, tables = (Distillation(),), (Contrastive(),), [{"name": "distillation"}]
    assert LocalWork(terms=tables).order(0, terms=theirs).terms == ours + theirs
    assert LocalWork(terms=tables, prox=0.1).order(0, terms=theirs).terms == (*ours, Proximal(mu=0.1), *theirs)
