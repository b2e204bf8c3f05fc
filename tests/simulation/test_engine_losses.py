"""Lost uploads, and fleets that go away for good, under a policy with a timer and devices that remember."""

import numpy as np
import pytest

from offbeat.algorithms import FedASMU
from offbeat.core.orders import LocalWork
from offbeat.core.parameters import Layout
from offbeat.core.session import Session
from offbeat.experiment.run_settings import Stop
from offbeat.fleet import FailureSettings, Fleet, RatioFleet, Workload
from offbeat.simulation.engine import Simulation
from offbeat.testing import SIZE, ToyExecutor

DEVICES = 8


def simulation(failures: FailureSettings, stop: Stop) -> Simulation:
    samples = np.full(DEVICES, 10)
    workload = Workload(devices=DEVICES, samples=samples, layers=1, flops_per_sample=0.0, seed=0)
    session = Session(
        FedASMU(cohort=4, max_in_flight=6, period=1.0),
        parameters=np.zeros(SIZE, dtype=np.float32),
        layout=Layout.flat(SIZE),
        samples=samples,
        local=LocalWork(epochs=3, learning_rate=0.3),
    )
    fleet = Fleet.build(workload, RatioFleet(ratio=8.0), failures=failures)
    return Simulation(session, fleet, ToyExecutor(), stop=stop)


def test_a_device_whose_upload_was_lost_remembers_what_it_did() -> None:
    lossy = simulation(FailureSettings(lost_upload=0.5), Stop(time=200.0))
    for _ in lossy:
        pass
    lossy.training.snapshot()  # carries out what is remembered but was not read
    told = lossy.session.state.merges
    assert lossy.session.counters.lost > 0
    merges = sum(int(memory.get("merges", 0)) for memory in lossy.training.memories.values())
    assert merges > told, "a merge of a training whose upload was lost is remembered too"


@pytest.mark.parametrize("stop", [Stop(updates=10**6), Stop(versions=10**6)])
def test_timers_alone_do_not_keep_a_run_going_when_all_devices_are_gone_for_good(stop: Stop) -> None:
    doomed = simulation(FailureSettings(vanish=1.0, rejoin_seconds=None), stop)
    for _ in doomed:
        pass
    assert doomed.reason == "nothing left to happen"
    assert doomed.session.counters.lost == DEVICES
