"""SEAFL, SEAFL² and PORT on the simulator's clock: what a notice does to a device, by hand, and what holds in any run
with any settings over a fleet that fails."""

import json
from collections import deque
from collections.abc import Sequence
from itertools import islice
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.algorithms.seafl import Port, Seafl, Seafl2
from offbeat.core.orders import LocalWork, Order
from offbeat.core.parameters import Layout, Vector
from offbeat.core.session import Session
from offbeat.core.snapshot import decode, encode
from offbeat.core.state import JOURNAL_LINES, JournalLine
from offbeat.experiment.run_settings import Stop
from offbeat.fleet import FailureSettings, Fleet, NetworkSettings, Workload
from offbeat.fleet.availability import Always
from offbeat.fleet.speeds import FixedSpeeds
from offbeat.results.rows import Row
from offbeat.simulation.engine import Simulation
from offbeat.testing import check_accounts, check_events, toy_simulation
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState

EPOCHS = 3  # of the toy simulation


# On the simulator's clock --------------------------------------------------------------------------------------------


class Counting:
    """Training that leaves a trace: every slice adds 1 to both numbers."""

    batch_capacity = 64

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        return [TrainingState(parameters=job.state.parameters + np.float32(job.last - job.first)) for job in jobs]

    def evaluate(self, parameters: Vector) -> Evaluation:
        return Evaluation(metrics={"accuracy": float(parameters[0]) / 100, "loss": 0.0})

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        return 0.0, np.ones_like(parameters)

    def close(self) -> None:
        """Nothing is open."""


def a_simulation(policy: Seafl, seconds: Sequence[float], stop: Stop) -> Simulation:
    """Devices that take so many seconds for each of 4 epochs; 1.5 s down, 2.5 s up, 0.5 s for a notice."""
    devices = len(seconds)
    samples = np.full(devices, 20, dtype=np.int64)
    workload = Workload(devices=devices, samples=samples, layers=1, flops_per_sample=0.0, seed=0)
    links = NetworkSettings(uplink_mbps=32e-6, downlink_mbps=64e-6, latency=0.5)
    session = Session(
        policy,
        parameters=np.zeros(2, dtype=np.float32),
        layout=Layout.flat(2),
        samples=samples,
        local=LocalWork(epochs=4),
    )
    fleet = Fleet(
        speeds=FixedSpeeds(np.array(seconds), workload),
        links=links.build(workload),
        availability=Always(devices),
        failures=FailureSettings().build(workload),
    )
    return Simulation(session, fleet, Counting(), stop=stop)


def landings(simulation: Simulation) -> list[tuple[int, float, int]]:
    for _ in islice(simulation, 1000):
        pass
    assert simulation.reason is not None, "the run does not end"
    return [(span.device, round(span.landed, 9), span.slices) for span in simulation.spans]


def two_devices(policy: type[Seafl], slow: float, time: float) -> Simulation:
    return a_simulation(policy(buffer=1, concurrency=2, staleness_limit=1.0), [1.0, slow], Stop(time=time))


def test_a_notice_ends_the_training_with_its_epoch() -> None:
    # Device 0: 1.5 + 4 * 1 + 2.5 = 8. Device 1, 3 s an epoch, ends its epochs at 4.5, 7.5, 10.5, 13.5; the notice of 8
    # is there at 8.5, in the third: up at 10.5 + 2.5.
    assert landings(two_devices(Seafl2, 3.0, 13.0)) == [(0, 8.0, 4), (1, 13.0, 3)]
    assert landings(two_devices(Seafl, 3.0, 16.0)) == [(0, 8.0, 4), (1, 16.0, 4), (0, 16.0, 4)]


@pytest.mark.parametrize("policy", [Seafl2, Port])
@pytest.mark.parametrize(
    "slow",
    [
        1.2,  # ends its training at 6.3; the notice is there at 8.5, while the upload is on its way until 8.8
        1.1,  # its upload lands at 8.4, before the notice is there: the device works on its next order already
        1.75,  # ends its training at 8.5, at the very moment
    ],
)
def test_a_notice_that_crosses_an_upload_on_the_wire_changes_nothing(policy: type[Seafl], slow: float) -> None:
    told, spared = two_devices(policy, slow, 40.0), two_devices(policy, slow, 40.0)
    landed = landings(told)
    assert landed[:2] == [(0, 8.0, 4), (1, round(1.5 + 4 * slow + 2.5, 9), 4)]
    late = told.spans[1].ticket
    assert [line[:2] for line in told.session.journal.lines if line[3] == late] == [
        (0.0, "dispatched"),
        (8.0, "notified"),
        (told.spans[1].landed, "uploaded"),
    ]
    carry_out = spared._stop_soon
    spared._stop_soon = lambda ticket: None if ticket == late else carry_out(ticket)  # type: ignore[method-assign]
    assert landings(spared) == landed
    assert told.session.parameters.tobytes() == spared.session.parameters.tobytes()
    assert told.accounts.busy_seconds == spared.accounts.busy_seconds


# Any settings, any seed, devices that fail ---------------------------------------------------------------------------

ANY_POLICY = st.sampled_from([Seafl, Seafl2, Port])


@st.composite
def policies(draw: st.DrawFn, kinds: st.SearchStrategy[type[Seafl]] = ANY_POLICY) -> Seafl:
    concurrency = draw(st.integers(1, 12))
    return draw(kinds)(
        buffer=draw(st.integers(1, concurrency)),
        concurrency=concurrency,
        staleness_limit=draw(st.sampled_from([1.0, 2.0, 3.0, 5.0, 10.0, inf])),
        staleness_weight=draw(st.sampled_from([0.5, 3.0])),
        similarity_weight=draw(st.sampled_from([0.0, 1.0, 4.0])),
        mixing=draw(st.sampled_from([0.3, 0.8, 1.0])),
        similarity=draw(st.sampled_from(["model", "movement"])),
        replace=draw(st.sampled_from(["random", "same"])),
    )


def check_concurrency(session: Session) -> None:
    """M devices are in training or in the buffer, each once, as far as there are so many."""
    policy = session.policy
    assert isinstance(policy, Seafl)
    waiting = [update.device for update in session.state.buffer]
    busy = waiting + [flight.device for flight in session.in_flight.values()]
    assert len(set(busy)) == len(busy) <= policy.concurrency
    if len(busy) < policy.concurrency:
        assert not any(session.is_idle(device) and device not in waiting for device in range(session.devices))


@given(policy=policies(), seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_no_aggregated_update_is_staler_than_the_limit_and_no_run_hangs(policy: Seafl, seed: int) -> None:
    simulation = toy_simulation(policy, seed=seed, stop=Stop(updates=60, time=1e5))
    for _ in simulation:
        assert simulation.session.counters.staleness_max <= policy.staleness_limit
        check_concurrency(simulation.session)
    assert simulation.reason == "updates"


@given(policy=policies(), seed=st.integers(0, 10_000), share=st.floats(0, 1))
@settings(max_examples=12, deadline=None)
def test_the_buffer_is_never_lost_when_a_run_is_resumed(policy: Seafl, seed: int, share: float) -> None:
    stop = Stop(updates=40, time=1e5)
    whole, stopped, resumed = (toy_simulation(policy, seed=seed, stop=stop) for _ in range(3))
    turns = list(whole)
    before = list(islice(stopped, int(share * len(turns))))
    for _ in range(20):  # stop where there is something to lose, if that is not too far
        if stopped.session.state.buffer or stopped.reason is not None:
            break
        before.extend(islice(stopped, 1))
    tree, arrays = encode(stopped.snapshot())
    resumed.restore(decode(json.loads(json.dumps(tree)), arrays, resumed.snapshot_types))
    kept, lost = resumed.session.state.buffer, stopped.session.state.buffer
    assert [(update.ticket, update.parameters.tobytes()) for update in kept] == [
        (update.ticket, update.parameters.tobytes()) for update in lost
    ]
    assert rows(before + list(resumed)) == rows(turns)
    assert resumed.session.parameters.tobytes() == whole.session.parameters.tobytes()


def rows(turns: list[Row | None]) -> list[Row]:
    return [row for row in turns if row is not None]


@given(policy=policies(), devices=st.integers(12, 20))
@settings(max_examples=6, deadline=None)
def test_no_update_is_used_twice_and_every_order_is_accounted_for(policy: Seafl, devices: int) -> None:
    check_accounts(policy, devices)


@given(policy=policies(), choices=st.lists(st.integers(0, 10_000), max_size=60))
@settings(max_examples=25, deadline=None)
def test_no_sequence_of_events_breaks_it(policy: Seafl, choices: list[int]) -> None:
    check_events(policy, choices, devices=13)


@given(
    policy=policies(st.sampled_from([Seafl2, Port])).filter(lambda policy: policy.staleness_limit <= 3),
    seed=st.integers(0, 10_000),
    troubled=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_who_is_notified_is_at_the_limit_and_uploads_once_within_an_epoch_of_the_notice(
    policy: Seafl, seed: int, troubled: bool
) -> None:
    simulation = toy_simulation(policy, seed=seed, troubled=troubled, stop=Stop(updates=60, time=1e5))
    session, fleet = simulation.session, simulation.fleet
    bases: dict[int, int] = {}
    notices: dict[int, float] = {}
    uploads: dict[int, int] = {}

    class Journal(deque[JournalLine]):
        def append(self, line: JournalLine) -> None:
            time, what, _, ticket, version = line
            if what == "dispatched":
                bases[ticket or 0] = version
            elif what == "notified":
                assert ticket and ticket not in notices, "notified twice"
                assert version - bases[ticket] == policy.staleness_limit, "notified too early or too late"
                notices[ticket] = time
            elif what == "uploaded":
                uploads[ticket or 0] = uploads.get(ticket or 0, 0) + 1
            super().append(line)

    session.journal.lines = Journal(maxlen=JOURNAL_LINES)
    for _ in simulation:
        late = [flight for flight in session.in_flight.values() if policy.is_at_limit(flight.base, session)]
        assert all(flight.notified for flight in late), "somebody is at the limit and does not know"
    for span in simulation.spans:
        if span.ticket not in notices:
            continue
        assert uploads.get(span.ticket, 0) == (span.outcome == "uploaded")
        if not troubled:
            assert span.outcome == "uploaded"
        if span.outcome == "uploaded":
            order = Order(slices=EPOCHS)
            epoch = max(fleet.speeds.slice_seconds(span.device, span.ticket, order))
            told = max(span.arrived, notices[span.ticket] + fleet.links.latency(span.device))
            wire = fleet.links.up_seconds(span.device, session.layout.bytes)
            assert span.landed <= told + epoch + wire + 1e-9
            assert 1 <= span.slices <= EPOCHS
    assert set(notices) <= {span.ticket for span in simulation.spans} | set(session.in_flight)
