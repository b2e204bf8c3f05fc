"""Timers that fire again and again stay where they belong, and what ends with them is in time."""

import numpy as np
import pytest

from offbeat.algorithms import Audg
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Layout
from offbeat.core.session import Session
from offbeat.experiment.run_settings import Stop
from offbeat.fleet import Fleet, NetworkSettings, RatioFleet, Workload
from offbeat.simulation.engine import Simulation
from offbeat.testing import SIZE, ToyExecutor


@pytest.mark.parametrize(("epoch", "iteration", "delay"), [(0.8, 0.1, 7), (0.3, 0.1, 2), (2.7, 0.3, 8), (0.7, 0.7, 0)])
def test_an_upload_at_the_very_end_of_an_iteration_is_in_it(epoch: float, iteration: float, delay: int) -> None:
    samples = np.full(4, 10)
    workload = Workload(devices=4, samples=samples, layers=1, flops_per_sample=0.0, seed=0)
    session = Session(
        Audg(iteration_seconds=iteration),
        parameters=np.zeros(SIZE, dtype=np.float32),
        layout=Layout.flat(SIZE),
        samples=samples,
        local=LocalWork(epochs=1, batch_size=0),
    )
    instant = NetworkSettings(uplink_mbps=float("inf"), downlink_mbps=float("inf"), latency=0.0)
    fleet = Fleet.build(workload, RatioFleet(ratio=1.0, epoch_seconds=epoch), instant)
    iterations = 10 * (delay + 1)
    simulation = Simulation(session, fleet, ToyExecutor(), stop=Stop(time=iteration * iterations))
    rows = [row for row in simulation if row is not None]
    assert rows[-1]["mean_delay"] == delay
    assert rows[-1]["updates_used"] == 40, "the last iteration ends with the time"
