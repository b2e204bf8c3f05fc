"""The simulator's clock, by hand: when things happen, in which order, what is evaluated and what ends a run.

Training is a toy that leaves a trace: every slice adds 1 to the first number of the model and 2^slice to the second, so
that [2, 3] has been through slices 0 and 1. The model weighs 64 bits; `SLOW_LINKS` take 1.5 s down, 2.5 s up and 0.5 s
for a message without a model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pytest
from pydantic import Field

from offbeat.core.errors import Diverged, PolicyError
from offbeat.core.messages import (
    Action,
    Commit,
    Discard,
    Dispatch,
    Event,
    Finish,
    FreshRequested,
    Ready,
    SendFresh,
    SetTimer,
    Started,
    StopSoon,
    TimerFired,
    Uploaded,
)
from offbeat.core.orders import LocalWork, Order, Progress
from offbeat.core.parameters import Layout, Vector
from offbeat.core.policy import Ask, DeviceRule, Fresh, Memory, Policy, Probe, ReadOnlyMemory, Step, Train, View
from offbeat.core.session import Session
from offbeat.experiment.run_settings import EvaluationTable, Stop
from offbeat.fleet import Failures, FailureSettings, Fleet, NetworkSettings, OrderFailure, Workload
from offbeat.fleet.availability import Always, Availability, OnOff
from offbeat.fleet.speeds import FixedSpeeds
from offbeat.results.rows import Row, Span
from offbeat.simulation.engine import Simulation
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState

INF = float("inf")
NO_LINKS = NetworkSettings(uplink_mbps=INF, downlink_mbps=INF, latency=0.0)
SLOW_LINKS = NetworkSettings(uplink_mbps=32e-6, downlink_mbps=64e-6, latency=0.5)


class ToyExecutor:
    """See the module's docstring. The accuracy is the first number in percent."""

    batch_capacity = 64

    def __init__(self, diverges: int | None = None) -> None:
        self.diverges = diverges
        self.evaluations = 0

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        return [self._train(job) for job in jobs]

    def _train(self, job: TrainingJob) -> TrainingState:
        steps = [4] * (job.last - job.first) + [job.extra_steps] * bool(job.extra_steps)  # of 4 in each slice
        steps[0] -= job.state.steps_into_slice
        shares = [(number, count / 4) for number, count in enumerate(steps, job.first)]
        trace = np.array([sum(share for _, share in shares), sum(2**n * share for n, share in shares)], np.float32)
        if job.device == self.diverges:
            trace[0] = np.inf
        return TrainingState(parameters=job.state.parameters + trace, steps_into_slice=job.extra_steps)

    def evaluate(self, parameters: Vector) -> Evaluation:
        self.evaluations += 1
        return Evaluation(metrics={"accuracy": float(parameters[0]) / 100, "loss": 0.0})

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        return 0.0, np.ones_like(parameters)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Log:
    uploads: list[Any] = field(default_factory=list)
    """(ticket, slices, model) of every upload, in the order in which the policy saw them."""
    events: list[str] = field(default_factory=list)


class Foreman(Policy):
    """Orders every device at the start and makes each upload the next version, as the test wants it."""

    State = Log

    order: dict[str, Any] = Field(default_factory=dict)
    """Fields of the orders."""
    again: bool = False
    """Order whoever is idle, at any time."""
    answers: bool = False
    """Send the fresh model to those who ask."""
    notices: list[tuple[float, int]] = Field(default_factory=list)
    """When to tell which device to stop; a time of 0 is with the order."""
    commits: list[float] = Field(default_factory=list)
    """When to make a version by adding 100 to both numbers."""
    keeps: bool = True
    """Use uploads; else discard them unread."""
    ends: str | None = None
    """Finish with this reason after the first upload."""

    def react(self, event: Event, state: Log, view: View) -> Iterator[Action]:
        state.events.append(type(event).__name__)
        match event:
            case Started():
                for at in self.commits:
                    yield SetTimer(name=f"commit {at}", after=at)
                yield from self.orders(view)
                for number, (at, device) in enumerate(self.notices):
                    if at:
                        yield SetTimer(name=f"stop {device} {number}", after=at)
                    else:
                        yield StopSoon(device=device)
            case TimerFired(name=name):
                kind, subject, *_ = name.split()
                if kind == "commit":
                    yield Commit(parameters=view.parameters + np.float32(100))
                elif any(flight.device == int(subject) for flight in view.in_flight.values()):
                    yield StopSoon(device=int(subject))
            case FreshRequested(device=device) if self.answers:
                yield SendFresh(device=device)
            case Uploaded(update=update) if self.keeps:
                state.uploads.append([update.ticket, update.progress.slices, update.parameters.tolist()])
                yield Commit(parameters=update.parameters, used=(update.ticket,))
            case Uploaded(ticket=ticket):
                yield Discard(ticket=ticket, reason="not wanted")
        if isinstance(event, Uploaded) and self.ends:
            yield Finish(reason=self.ends)
        if self.again and not isinstance(event, Started):
            yield from self.orders(view)

    def orders(self, view: View) -> Iterator[Action]:
        for device in range(view.devices):
            if view.is_idle(device):
                yield Dispatch(device=device, order=view.order(**self.order))


@dataclass(frozen=True, kw_only=True)
class ScriptedFailures(Failures):
    """Failures by ticket."""

    drawn_failures: dict[int, OrderFailure]

    def failure(self, device: int, ticket: int) -> OrderFailure | None:
        return self.drawn_failures.get(ticket)


def failures(drawn_failures: dict[int, OrderFailure], rejoin: float | None = 5.0, detect: float = 1.0) -> Failures:
    return ScriptedFailures(
        seed=0, vanish=1.0, lost_upload=1.0, rejoin_seconds=rejoin, detect_seconds=detect, drawn_failures=drawn_failures
    )


def vanishes(after: float) -> OrderFailure:
    return OrderFailure(vanish_after=after, upload_lost=False)


UPLOAD_LOST = OrderFailure(vanish_after=None, upload_lost=True)


def simulation(
    policy: Policy,
    seconds: Sequence[float] = (2.0,),
    *,
    epochs: int = 1,
    links: NetworkSettings = NO_LINKS,
    availability: Availability | None = None,
    failing: Failures | None = None,
    stop: Stop | None = None,
    schedule: EvaluationTable | None = None,
    executor: ToyExecutor | None = None,
) -> Simulation:
    """Devices with these seconds per slice, and 20 samples each (4 steps of 5)."""
    devices = len(seconds)
    samples = np.full(devices, 20, dtype=np.int64)
    workload = Workload(devices=devices, samples=samples, layers=1, flops_per_sample=0.0, seed=0)
    fleet = Fleet(
        speeds=FixedSpeeds(np.array(seconds, dtype=np.float64), workload),
        links=links.build(workload),
        availability=availability or Always(devices),
        failures=failing or FailureSettings().build(workload),
    )
    session = Session(
        policy,
        parameters=np.zeros(2, dtype=np.float32),
        layout=Layout.flat(2),
        samples=samples,
        local=LocalWork(epochs=epochs, batch_size=5),
        present=fleet.availability.present(0.0),
    )
    return Simulation(session, fleet, executor or ToyExecutor(), stop=stop or Stop(time=100.0), schedule=schedule)


def run(sim: Simulation) -> list[Row]:
    """The rows of the whole run; a run of so few devices that goes on for thousands of events never ends."""
    turns = list(islice(sim, 5000))
    assert sim.reason is not None, "the run does not end"
    return [row for row in turns if row is not None]


def landings(sim: Simulation) -> list[tuple[int, float, int, str]]:
    return [(span.device, round(span.landed, 9), span.slices, span.outcome) for span in sim.spans]


# When uploads land ---------------------------------------------------------------------------------------------------


def test_an_upload_lands_after_the_download_the_training_and_the_transfer() -> None:
    sim = simulation(Foreman(), [2.0], epochs=3, links=SLOW_LINKS)
    run(sim)
    # down 1 + 0.5, three slices of 2 s, up 2 + 0.5
    (span,) = sim.spans
    assert (span.sent, span.arrived, span.landed) == (0.0, 1.5, 10.0)
    assert span == Span(
        device=0,
        ticket=1,
        base=0,
        sent=0.0,
        arrived=span.arrived,
        landed=span.landed,
        slices=3,
        outcome="uploaded",
        trained_until=7.5,
        ended=10.0,
        samples=20,
        seconds=6.0,
        bytes_down=8,
        bytes_up=8,
    )
    assert sim.session.state.uploads == [[1, 3, [3.0, 7.0]]]
    assert (sim.session.counters.bytes_down, sim.session.counters.bytes_up) == (8, 8)
    assert sim.accounts.busy_seconds == 6.0


def test_progress_counts_slices_steps_and_seconds_of_training() -> None:
    seen: list[Progress] = []

    class Reads(Foreman):
        def react(self, event: Event, state: Log, view: View) -> Iterator[Action]:
            if isinstance(event, Uploaded):
                seen.append(event.update.progress)
            yield from super().react(event, state, view)

    run(simulation(Reads(), [2.0], epochs=3, links=SLOW_LINKS))
    run(simulation(Reads(order={"batch_size": 7}), [2.0]))
    run(simulation(Reads(order={"batch_size": None}), [2.0]))
    # 20 samples: 4 batches of 5, 3 of at most 7, or one of all
    assert seen[0] == Progress(slices=3, steps=12, seconds=6.0)
    assert [progress.steps for progress in seen] == [12, 3, 1]


def test_devices_land_in_the_order_of_their_speeds() -> None:
    sim = simulation(Foreman(), [3.0, 1.0, 2.0])
    run(sim)
    assert landings(sim) == [(1, 1.0, 1, "uploaded"), (2, 2.0, 1, "uploaded"), (0, 3.0, 1, "uploaded")]
    assert [ticket for ticket, *_ in sim.session.state.uploads] == [2, 3, 1]


def test_what_happens_at_the_same_time_happens_in_the_order_in_which_it_was_ordered() -> None:
    sim = simulation(Foreman(again=True), [2.0, 1.0, 2.0], stop=Stop(time=2.0))
    run(sim)
    # At 2: tickets 1 and 3 (ordered at 0), then ticket 4 (device 1 again, ordered at 1).
    assert [(span.ticket, span.landed) for span in sim.spans] == [(2, 1.0), (1, 2.0), (3, 2.0), (4, 2.0)]


def test_an_upload_at_the_deadline_is_in_time() -> None:
    # The timer is set before the order is given, and yet comes after the upload of the same moment.
    sim = simulation(Foreman(commits=[2.0], again=True), [2.0], stop=Stop(time=2.0))
    run(sim)
    assert sim.session.state.events == ["Started", "Uploaded", "TimerFired"]
    assert sim.session.parameters.tolist() == [101.0, 101.0]


def test_an_update_starts_from_the_version_that_it_was_sent() -> None:
    sim = simulation(Foreman(again=True), [1.0, 2.0], stop=Stop(time=2.0))
    run(sim)
    # 1 s: device 0 from v0 -> [1, 1] = v1. 2 s: device 1 from v0 -> [1, 1] = v2, then device 0 from v1 -> [2, 2].
    assert [model for *_, model in sim.session.state.uploads] == [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]]
    assert (sim.session.counters.staleness_sum, sim.session.counters.staleness_max) == (0 + 1 + 1, 1)


# Evaluation ----------------------------------------------------------------------------------------------------------


def times(rows: list[Row]) -> list[tuple[float, float]]:
    return [(row["time"], row["version"]) for row in rows]


def test_without_a_schedule_the_model_is_evaluated_at_the_start_and_at_the_end() -> None:
    assert times(run(simulation(Foreman(again=True), [2.0], stop=Stop(time=5.0)))) == [(0.0, 0), (5.0, 2)]


def test_every_so_many_seconds_the_model_of_that_moment_is_evaluated() -> None:
    sim = simulation(Foreman(again=True), [2.0], stop=Stop(time=7.5), schedule=EvaluationTable(every_seconds=2.0))
    # Uploads at 2, 4 and 6: an evaluation at the same time sees them.
    assert times(run(sim)) == [(0.0, 0), (2.0, 1), (4.0, 2), (6.0, 3), (7.5, 3)]


def test_evaluations_go_on_while_nothing_happens_and_cost_nothing() -> None:
    executor = ToyExecutor()
    sim = simulation(
        Foreman(), [2.0], stop=Stop(time=5.0), schedule=EvaluationTable(every_seconds=1.0), executor=executor
    )
    assert times(run(sim)) == [(0.0, 0), (1.0, 0), (2.0, 1), (3.0, 1), (4.0, 1), (5.0, 1)]
    assert executor.evaluations == 2


def test_every_so_many_versions_the_model_is_evaluated() -> None:
    sim = simulation(Foreman(again=True), [2.0], stop=Stop(versions=5), schedule=EvaluationTable(every_versions=2))
    assert times(run(sim)) == [(0.0, 0), (4.0, 2), (8.0, 4), (10.0, 5)]


def test_the_last_row_is_not_written_twice() -> None:
    by_version = simulation(
        Foreman(again=True), [2.0], stop=Stop(versions=4), schedule=EvaluationTable(every_versions=2)
    )
    assert times(run(by_version)) == [(0.0, 0), (4.0, 2), (8.0, 4)]
    by_time = simulation(Foreman(again=True), [2.0], stop=Stop(time=4.0), schedule=EvaluationTable(every_seconds=2.0))
    assert times(run(by_time)) == [(0.0, 0), (2.0, 1), (4.0, 2)]


def test_no_row_is_written_twice_where_both_schedules_meet() -> None:
    both = EvaluationTable(every_seconds=2.0, every_versions=1)
    rows = times(run(simulation(Foreman(again=True), [2.0], stop=Stop(time=5.0), schedule=both)))
    assert rows == [(0.0, 0), (2.0, 1), (4.0, 2), (5.0, 2)]


def test_a_row_says_what_was_used_discarded_and_lost_and_what_it_cost() -> None:
    (_, row) = run(simulation(Foreman(keeps=False), [2.0, 3.0], failing=failures({2: UPLOAD_LOST}), links=SLOW_LINKS))
    assert row["time"] == 100.0
    assert (row["updates_used"], row["updates_discarded"], row["updates_lost"], row["in_flight"]) == (0, 1, 1, 0)
    assert (row["bytes_down"], row["bytes_up"]) == (16, 8)
    assert (row["busy_seconds"], row["wasted_seconds"]) == (5.0, 5.0)
    assert (row["accuracy"], row["mean_staleness"], row["max_staleness"]) == (0.0, 0.0, 0)


# The end -------------------------------------------------------------------------------------------------------------


def test_a_run_ends_with_its_time_and_what_happens_at_that_moment_still_counts() -> None:
    sim = simulation(Foreman(again=True), [2.0], stop=Stop(time=4.0))
    run(sim)
    assert (sim.reason, sim.now, sim.session.version) == ("time", 4.0, 2)


def test_a_run_ends_with_its_versions() -> None:
    sim = simulation(Foreman(commits=[1.0, 1.5], again=True), [2.0], stop=Stop(versions=3))
    run(sim)
    assert (sim.reason, sim.now, sim.session.version) == ("versions", 2.0, 3)


def test_a_run_ends_with_its_updates_which_are_not_its_versions() -> None:
    sim = simulation(Foreman(commits=[1.0], again=True), [2.0], stop=Stop(updates=2))
    run(sim)
    assert (sim.reason, sim.now, sim.session.version) == ("updates", 4.0, 3)


def test_a_run_ends_when_an_evaluation_finds_the_accuracy() -> None:
    sim = simulation(Foreman(again=True), [2.0], stop=Stop(accuracy=0.03), schedule=EvaluationTable(every_seconds=5.0))
    # 1 % more every 2 s: 3 % at 6 s, found at 10 s.
    assert times(run(sim)) == [(0.0, 0), (5.0, 2), (10.0, 5)]
    assert (sim.reason, sim.now) == ("accuracy", 10.0)


def test_a_run_ends_when_its_policy_says_so() -> None:
    sim = simulation(Foreman(ends="converged"), [2.0, 3.0])
    assert times(run(sim)) == [(0.0, 0), (2.0, 1)]
    assert sim.reason == "converged"


def test_a_run_ends_when_nothing_is_left_to_happen() -> None:
    sim = simulation(Foreman(), [2.0], stop=Stop(versions=10))
    assert times(run(sim)) == [(0.0, 0), (2.0, 1)]
    assert sim.reason == "nothing left to happen"


def test_training_that_diverges_ends_the_run_and_says_how_to_help_it() -> None:
    sim = simulation(Foreman(), [1.0, 2.0], executor=ToyExecutor(diverges=1))
    with pytest.raises(Diverged, match="lower"):
        run(sim)
    assert (sim.now, sim.session.version) == (2.0, 1)


def test_training_that_diverges_and_is_not_read_does_no_harm() -> None:
    sim = simulation(Foreman(keeps=False), [1.0, 2.0], executor=ToyExecutor(diverges=1))
    run(sim)
    assert sim.session.counters.discarded == 2


# The time budget -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "slices", "model", "landed"),
    [
        (7.0, 3, [3.0, 7.0], 7.0),  # slices end at 2, 4 and 6; the fourth would end at 8
        (6.0, 3, [3.0, 7.0], 6.0),  # exactly at the end of a slice: it counts
        (1.5, 0, [0.0, 0.0], 1.5),  # not even one slice: the base comes back
        (8.0, 4, [4.0, 15.0], 8.0),
        (9.0, 4, [4.0, 15.0], 8.0),  # done before the time is up
    ],
)
def test_a_budget_stops_between_slices_and_uploads_what_is_done(
    budget: float, slices: int, model: list[float], landed: float
) -> None:
    sim = simulation(Foreman(order={"budget": budget}), [2.0], epochs=4)
    run(sim)
    assert sim.session.state.uploads == [[1, slices, model]]
    assert landings(sim) == [(0, landed, slices, "uploaded")]
    assert sim.accounts.busy_seconds == landed, "a slice that was cut off was work all the same"


def test_the_budget_begins_when_the_device_has_the_model() -> None:
    sim = simulation(Foreman(order={"budget": 5.0}), [2.0], epochs=4, links=SLOW_LINKS)
    run(sim)
    # model at 1.5, out of time at 6.5, up 2.5
    assert landings(sim) == [(0, 9.0, 2, "uploaded")]


# Stop notices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "slices", "model", "landed"),
    [
        (0.5, 1, [1.0, 1.0], 2.0),
        (3.0, 2, [2.0, 3.0], 4.0),  # amid the second of four slices
        (5.9, 3, [3.0, 7.0], 6.0),
        (7.0, 4, [4.0, 15.0], 8.0),  # in the last one: no difference
    ],
)
def test_a_notice_ends_the_run_with_the_slice_it_is_in(
    at: float, slices: int, model: list[float], landed: float
) -> None:
    sim = simulation(Foreman(notices=[(at, 0)]), [2.0], epochs=4)
    run(sim)
    assert sim.session.state.uploads == [[1, slices, model]]
    assert landings(sim) == [(0, landed, slices, "uploaded")]
    assert sim.accounts.busy_seconds == landed


@pytest.mark.parametrize(
    ("at", "slices", "model", "landed"),
    # Slices end at 2, 4, 6, 8 s. In the first there is nothing to deliver yet; at the end of one it is finished.
    [(1.0, 1, [1.0, 1.0], 2.0), (2.0, 1, [1.0, 1.0], 2.0), (5.5, 2, [2.0, 3.0], 5.5), (7.9, 3, [3.0, 7.0], 7.9)],
)
def test_an_order_that_drops_the_unfinished_ends_at_once_with_the_last_finished_slice(
    at: float, slices: int, model: list[float], landed: float
) -> None:
    sim = simulation(Foreman(order={"drops_unfinished": True}, notices=[(at, 0)]), [2.0], epochs=4)
    run(sim)
    assert sim.session.state.uploads == [[1, slices, model]]
    assert landings(sim) == [(0, landed, slices, "uploaded")]
    assert sim.accounts.busy_seconds == landed  # what was dropped was work, too


def test_an_order_that_drops_the_unfinished_takes_back_what_was_computed_ahead() -> None:
    # Device 1 uploads at 1; all four slices of device 0 are computed with it. The notice at 5 leaves two of them.
    sim = simulation(Foreman(order={"drops_unfinished": True}, notices=[(5.0, 0)]), [2.0, 0.25], epochs=4)
    run(sim)
    assert sim.session.state.uploads == [[2, 4, [4.0, 15.0]], [1, 2, [2.0, 3.0]]]
    # Down 1.5: slices end at 3.5, 5.5, ... The notice of 5.2 comes at 5.7, the upload of two slices takes 2.5.
    sim = simulation(Foreman(order={"drops_unfinished": True}, notices=[(5.2, 0)]), [2.0], epochs=4, links=SLOW_LINKS)
    run(sim)
    assert landings(sim) == [(0, 8.2, 2, "uploaded")]


def test_a_notice_takes_one_latency_and_the_upload_the_usual_time() -> None:
    sim = simulation(Foreman(notices=[(3.1, 0)]), [2.0], epochs=4, links=SLOW_LINKS)
    run(sim)
    # Slices end at 3.5, 5.5, ...: sent at 3.1 in the first one, it arrives at 3.6 in the second; up 2.5.
    assert landings(sim) == [(0, 8.0, 2, "uploaded")]


def test_a_notice_before_the_start_leaves_one_slice() -> None:
    sim = simulation(Foreman(notices=[(0.0, 0)]), [2.0], epochs=4, links=SLOW_LINKS)
    run(sim)
    # The notice is there at 0.5, the model at 1.5: one slice to 3.5, up 2.5.
    assert landings(sim) == [(0, 6.0, 1, "uploaded")]
    assert sim.session.state.uploads == [[1, 1, [1.0, 1.0]]]


def test_a_notice_after_the_end_of_training_changes_nothing() -> None:
    sim = simulation(Foreman(notices=[(9.2, 0)]), [2.0], epochs=4, links=SLOW_LINKS)
    run(sim)
    # Training ends at 9.5, the notice comes at 9.7 amid the upload, which lands at 12.
    assert landings(sim) == [(0, 12.0, 4, "uploaded")]


def test_a_notice_that_arrives_after_the_upload_does_not_touch_the_next_order() -> None:
    sim = simulation(Foreman(notices=[(11.8, 0)], again=True), [2.0], epochs=4, links=SLOW_LINKS, stop=Stop(updates=2))
    run(sim)
    assert landings(sim) == [(0, 12.0, 4, "uploaded"), (0, 24.0, 4, "uploaded")]


def test_only_the_device_that_was_told_stops() -> None:
    sim = simulation(Foreman(notices=[(1.0, 1)]), [2.0, 2.0], epochs=3)
    run(sim)
    assert landings(sim) == [(1, 2.0, 1, "uploaded"), (0, 6.0, 3, "uploaded")]
    assert sim.session.state.uploads == [[2, 1, [1.0, 1.0]], [1, 3, [3.0, 7.0]]]


def test_numbers_that_were_computed_ahead_are_taken_back_by_a_notice() -> None:
    # Device 1 uploads at 1; all four slices of device 0 are computed with it. At 3 device 0 is told to stop.
    sim = simulation(Foreman(notices=[(3.0, 0)]), [2.0, 0.25], epochs=4)
    run(sim)
    assert sim.session.state.uploads == [[2, 4, [4.0, 15.0]], [1, 2, [2.0, 3.0]]]


@pytest.mark.parametrize("at", [1.0, 5.0])
def test_a_notice_to_a_run_with_a_budget_counts_the_seconds_that_were_worked(at: float) -> None:
    # Slices end at 4 and 8, the budget at 10 cuts the third. A notice at 1 ends the run at 4, one at 5 at 8.
    sim = simulation(Foreman(order={"budget": 10.0}, notices=[(at, 0)]), [4.0], epochs=5)
    run(sim)
    assert sim.accounts.busy_seconds == sim.spans[0].landed


class SliceBySlice(DeviceRule):
    """As the plain rule, but wants to be asked after every slice."""

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        step = super().next(progress, fresh_answers, order, memory)
        return Train(1) if isinstance(step, Train) else step


SLICE_BY_SLICE = SliceBySlice()


def test_a_rule_that_is_asked_after_every_slice_trains_them_all() -> None:
    sim = simulation(Foreman(order={"rule": f"{__name__}:SLICE_BY_SLICE"}), [2.0], epochs=4)
    run(sim)
    assert sim.session.state.uploads == [[1, 4, [4.0, 15.0]]]
    assert landings(sim) == [(0, 8.0, 4, "uploaded")]


def test_a_notice_stops_a_rule_that_is_asked_after_every_slice_just_as_well() -> None:
    order = {"rule": f"{__name__}:SLICE_BY_SLICE"}
    sim = simulation(Foreman(order=order, notices=[(1.0, 0)]), [2.0], epochs=4)
    run(sim)
    assert sim.session.state.uploads == [[1, 1, [1.0, 1.0]]]
    assert landings(sim) == [(0, 2.0, 1, "uploaded")]


# Asking for the fresh model ------------------------------------------------------------------------------------------


class Asking(DeviceRule):
    """Asks once, after `slot` slices, and goes on halfway between its own model and the fresh one, which it awaits or
    (`waits`) does not."""

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        slot = int(order.arguments["slot"])
        if fresh_answers:
            return super().next(progress, fresh_answers, order, memory)
        return Train(slot - progress.slices) if progress.slices < slot else Ask(waits=bool(order.arguments["waits"]))

    def merge(self, local: Vector, fresh: Fresh, base: int, order: Order, memory: Memory, probe: Probe) -> Vector:
        return (local + fresh.parameters) / np.float32(2)


ASKING = Asking()


def asking(slot: int, *, waits: bool = True, **order: Any) -> dict[str, Any]:
    return {"rule": f"{__name__}:ASKING", "arguments": {"slot": slot, "waits": waits}} | order


def test_a_device_that_asks_waits_for_the_newer_model_and_merges_it() -> None:
    sim = simulation(Foreman(order=asking(1), answers=True, commits=[1.0]), [2.0], epochs=3, links=SLOW_LINKS)
    run(sim)
    # Model at 1.5, a slice to 3.5, request at the server at 4, answer 1.5 s later at 5.5, two slices to 9.5, up at 12.
    assert landings(sim) == [(0, 12.0, 3, "uploaded")]
    # [1, 1] after slice 0; halfway to [100, 100] is [50.5, 50.5]; slices 1 and 2 add [2, 2 + 4].
    assert sim.session.state.uploads == [[1, 3, [52.5, 56.5]]]
    counters = sim.session.counters
    assert (counters.requests, counters.answered) == (1, 1)
    assert (counters.bytes_down, counters.bytes_up) == (16, 8)
    assert sim.accounts.busy_seconds == 6.0, "waiting is not work"


@pytest.mark.parametrize("policy", [{"answers": True}, {"answers": False, "commits": [1.0]}], ids=str)
def test_a_device_that_is_told_there_is_nothing_newer_goes_on_after_one_latency(policy: dict[str, Any]) -> None:
    sim = simulation(Foreman(order=asking(1), **policy), [2.0], epochs=3, links=SLOW_LINKS)
    run(sim)
    # Request at the server at 4, answer at 4.5, two slices to 8.5, up at 11.
    assert landings(sim) == [(0, 11.0, 3, "uploaded")]
    assert sim.session.state.uploads == [[1, 3, [3.0, 7.0]]]
    counters = sim.session.counters
    assert (counters.requests, counters.answered, counters.bytes_down) == (1, 0, 8)


@pytest.mark.parametrize(("slot", "model"), [(0, [53.0, 57.0]), (3, [51.5, 53.5])])
def test_a_device_may_ask_before_its_first_and_after_its_last_slice(slot: int, model: list[float]) -> None:
    # Before: halfway from [0, 0] to [100, 100] and then [3, 7]. After: halfway from [3, 7].
    sim = simulation(Foreman(order=asking(slot), answers=True, commits=[0.1]), [2.0], epochs=3, links=SLOW_LINKS)
    run(sim)
    assert sim.session.state.uploads == [[1, 3, model]]
    assert landings(sim) == [(0, 12.0, 3, "uploaded")]


def test_the_version_that_counts_is_the_one_when_the_request_reaches_the_server() -> None:
    sim = simulation(Foreman(order=asking(1), answers=True, commits=[1.0, 4.5]), [2.0], epochs=3, links=SLOW_LINKS)
    run(sim)
    assert sim.session.state.uploads == [[1, 3, [52.5, 56.5]]], "the version of 4.5 came too late"


def test_a_notice_before_the_question_makes_it_unnecessary() -> None:
    sim = simulation(Foreman(order=asking(2), answers=True, notices=[(1.0, 0)]), [2.0], epochs=3)
    run(sim)
    assert landings(sim) == [(0, 2.0, 1, "uploaded")]
    assert sim.session.counters.requests == 0


def test_a_question_that_a_notice_made_unnecessary_is_not_asked_while_the_upload_is_on_its_way() -> None:
    # Slices of 0.5 s end at 2 and 2.5, the question would be at the server at 3. The notice of 1.3 is there at 1.8.
    sim = simulation(Foreman(order=asking(2), notices=[(1.3, 0)]), [0.5], epochs=3, links=SLOW_LINKS)
    run(sim)
    assert landings(sim) == [(0, 4.5, 1, "uploaded")]
    assert sim.session.counters.requests == 0


def test_a_notice_to_a_device_that_waits_lets_it_merge_and_upload() -> None:
    policy = Foreman(order=asking(1), answers=True, commits=[1.0], notices=[(4.2, 0)])
    sim = simulation(policy, [2.0], epochs=3, links=SLOW_LINKS)
    run(sim)
    # Asked at 3.5, notice at 4.7, answer at 5.5, up at 8.
    assert landings(sim) == [(0, 8.0, 1, "uploaded")]
    assert sim.session.state.uploads == [[1, 1, [50.5, 50.5]]]


def test_a_notice_while_the_question_is_on_its_way_lets_it_merge_and_upload() -> None:
    policy = Foreman(order=asking(1), answers=True, commits=[1.0], notices=[(3.2, 0)])
    sim = simulation(policy, [2.0], epochs=3, links=SLOW_LINKS)
    run(sim)
    # The notice is there at 3.7, the question at the server at 4.
    assert landings(sim) == [(0, 8.0, 1, "uploaded")]
    assert sim.session.state.uploads == [[1, 1, [50.5, 50.5]]]


def test_a_notice_before_the_start_to_a_device_that_asks_first_leaves_one_slice() -> None:
    policy = Foreman(order=asking(0), answers=True, notices=[(0.0, 0)])
    sim = simulation(policy, [2.0], epochs=4, links=SLOW_LINKS)
    run(sim)
    # Model at 1.5, request at the server at 2, answer at 2.5, one slice to 4.5, up at 7.
    assert landings(sim) == [(0, 7.0, 1, "uploaded")]


def test_a_budget_that_runs_out_while_the_device_waits_ends_the_run_when_the_answer_is_there() -> None:
    # Model at 1.5, out of time at 4.5, asked at 3.5; the answer is there at 5.5: nothing more is trained, up at 8.
    policy = Foreman(order=asking(1, budget=3.0), answers=True, commits=[1.0])
    sim = simulation(policy, [2.0], epochs=3, links=SLOW_LINKS)
    run(sim)
    assert landings(sim) == [(0, 8.0, 1, "uploaded")]
    assert sim.accounts.busy_seconds == 2.0


# Training on while the question is on its way


def trained_on(seconds: float, slot: int = 1, **policy: Any) -> Simulation:
    """A device with three slices that has the model at 1.5 and does not wait for the fresh one; the version is of 1."""
    order = asking(slot, waits=False, **policy.pop("order", {}))
    sim = simulation(Foreman(order=order, answers=True, commits=[1.0], **policy), [seconds], epochs=3, links=SLOW_LINKS)
    run(sim)
    return sim


def test_a_fresh_model_that_is_not_awaited_is_merged_between_two_steps() -> None:
    sim = trained_on(1.5)
    # A slice to 3, request at the server at 3.5, answer 1.5 s later at 5. Slice 1 ends at 4.5; of slice 2, which ends
    # at 6, a third has passed: 1 of 4 steps is done. Up at 8.5.
    assert landings(sim) == [(0, 8.5, 3, "uploaded")]
    # Slices 0 and 1 come to [2, 3], a quarter of slice 2 adds [0.25, 1]; halfway to [100, 100] is [51.125, 52]; the
    # rest adds [0.75, 3].
    assert sim.session.state.uploads == [[1, 3, [51.875, 55.0]]]
    assert sim.accounts.busy_seconds == 4.5
    assert not sim.spans[0].pauses, "it never waited"


def test_a_fresh_model_that_comes_between_two_slices_is_merged_there() -> None:
    sim = trained_on(2.0)
    # A slice to 3.5, request at the server at 4, answer at 5.5, just when slice 1 ends; up at 10.
    assert landings(sim) == [(0, 10.0, 3, "uploaded")]
    # [2, 3], halfway to [100, 100], and slice 2.
    assert sim.session.state.uploads == [[1, 3, [52.0, 55.5]]]


def test_a_device_that_has_trained_all_when_the_fresh_model_comes_has_waited_for_it() -> None:
    sim = trained_on(0.5)
    # Slices to 2, 2.5 and 3; request at the server at 2.5, answer at 4; up at 6.5.
    assert landings(sim) == [(0, 6.5, 3, "uploaded")]
    assert sim.session.state.uploads == [[1, 3, [51.5, 53.5]]], "halfway from [3, 7] to [100, 100]"
    assert sim.spans[0].pauses == ((3.0, 4.0),)
    assert sim.accounts.busy_seconds == 1.5


def test_a_device_that_trains_on_and_is_told_there_is_nothing_newer_has_lost_no_time() -> None:
    order = asking(1, waits=False)
    sim = simulation(Foreman(order=order, answers=True), [2.0], epochs=3, links=SLOW_LINKS)
    run(sim)
    assert landings(sim) == [(0, 10.0, 3, "uploaded")]
    assert sim.session.state.uploads == [[1, 3, [3.0, 7.0]]]


def test_a_notice_to_a_device_that_trains_on_lets_it_merge_where_it_stops() -> None:
    # The fresh model would come in slice 2, at 5. The notice of 3.6 is there at 4.1, so slice 1 is the last, to 4.5,
    # and the device waits for its answer. Up at 7.5.
    sim = trained_on(1.5, notices=[(3.6, 0)])
    assert landings(sim) == [(0, 7.5, 2, "uploaded")]
    assert sim.session.state.uploads == [[1, 2, [51.0, 51.5]]], "halfway from [2, 3]"


def test_a_notice_after_the_merge_ends_with_the_slice_that_it_was_in() -> None:
    sim = trained_on(1.5, slot=0, notices=[(3.2, 0)])
    # Asked at 1.5, answer at 3.5: slice 0 has ended at 3, and 1 of 4 steps of slice 1 is done. The notice comes at 3.7.
    assert landings(sim) == [(0, 7.0, 2, "uploaded")]
    # [1, 1] and a quarter of [1, 2], halfway to [100, 100], and three quarters of [1, 2].
    assert sim.session.state.uploads == [[1, 2, [51.375, 52.25]]]


def test_a_device_whose_order_has_a_budget_waits() -> None:
    sim = trained_on(2.0, order={"budget": 100.0})
    assert landings(sim) == [(0, 12.0, 3, "uploaded")]
    assert sim.session.state.uploads == [[1, 3, [52.5, 56.5]]]


def test_a_rule_that_wants_more_than_was_ordered_is_a_bug_of_the_policy() -> None:
    sim = simulation(Foreman(order=asking(5)), [2.0], epochs=3)
    with pytest.raises(PolicyError, match=r"returned Train\(5\): 3 slices remain"):
        run(sim)


# Failures ------------------------------------------------------------------------------------------------------------


def test_a_device_that_vanishes_is_given_up_when_it_is_noticed_and_rejoins() -> None:
    sim = simulation(Foreman(again=True), [4.0], failing=failures({1: vanishes(0.5)}, rejoin=5.0), stop=Stop(updates=1))
    run(sim)
    # Vanishes at 2, noticed at 3, back at 2 + 5 = 7, trains to 11.
    assert [(span.ticket, span.sent, span.landed, span.outcome) for span in sim.spans] == [
        (1, 0.0, 3.0, "lost"),
        (2, 7.0, 11.0, "uploaded"),
    ]
    assert sim.session.state.events == ["Started", "Lost", "Ready", "Uploaded"]
    assert sim.session.counters.lost == 1


def test_a_device_that_is_back_before_it_was_missed_is_ready_when_it_was_missed() -> None:
    failing = failures({1: vanishes(0.5)}, rejoin=1.0, detect=3.0)
    sim = simulation(Foreman(again=True), [4.0], failing=failing, stop=Stop(updates=1))
    run(sim)
    assert [(span.sent, span.landed) for span in sim.spans] == [(0.0, 5.0), (5.0, 9.0)]


def test_a_device_that_never_rejoins_is_never_ordered_again_and_the_run_ends_without_it() -> None:
    failing = failures({1: vanishes(0.5)}, rejoin=None)
    sim = simulation(Foreman(again=True), [4.0], failing=failing, stop=Stop(updates=1))
    rows = run(sim)
    assert sim.session.state.events == ["Started", "Lost"]
    assert (sim.reason, rows[-1]["time"], rows[-1]["updates_lost"]) == ("nothing left to happen", 3.0, 1)


def test_a_lost_upload_is_noticed_later_and_the_device_is_there_at_once() -> None:
    failing = failures({1: UPLOAD_LOST}, rejoin=None)
    sim = simulation(Foreman(again=True), [4.0], failing=failing, stop=Stop(updates=1))
    run(sim)
    # It should have landed at 4, is missed at 5 and ordered again then.
    assert [(span.sent, span.landed, span.outcome) for span in sim.spans] == [
        (0.0, 5.0, "lost"),
        (5.0, 9.0, "uploaded"),
    ]
    assert sim.accounts.wasted_seconds == 4.0
    assert sim.session.counters.bytes_up == 8, "what was lost never arrived"


def test_a_device_that_vanishes_while_it_waits_for_an_answer_is_lost() -> None:
    # Three slices from 1.5 on; 40 % of 6 s later, at 3.9, it vanishes: the question of 3.5 is at the server at 4.
    failing = failures({1: vanishes(0.4)})
    sim = simulation(Foreman(order=asking(1), answers=True), [2.0], epochs=3, links=SLOW_LINKS, failing=failing)
    run(sim)
    assert landings(sim)[0][1::2] == (4.9, "lost")
    assert sim.session.counters.requests == 0


def test_a_notice_can_save_the_work_of_a_device_that_would_vanish() -> None:
    sim = simulation(Foreman(notices=[(1.0, 0)]), [2.0], epochs=4, failing=failures({1: vanishes(0.5)}))
    run(sim)
    assert landings(sim) == [(0, 2.0, 1, "uploaded")]
    assert sim.session.state.uploads == [[1, 1, [1.0, 1.0]]]


def test_a_notice_to_a_device_that_has_vanished_changes_nothing() -> None:
    sim = simulation(Foreman(notices=[(4.5, 0)]), [2.0], epochs=4, failing=failures({1: vanishes(0.5)}))
    run(sim)
    assert landings(sim)[0][::3] == (0, "lost")
    assert landings(sim)[0][1] == 5.0


def test_a_device_that_vanishes_halfway_was_busy_for_half_the_time() -> None:
    sim = simulation(Foreman(), [2.0], epochs=4, failing=failures({1: vanishes(0.5)}))
    run(sim)
    assert landings(sim) == [(0, 5.0, 2, "lost")]
    assert (sim.accounts.busy_seconds, sim.accounts.wasted_seconds) == (4.0, 4.0)


# On and off times ----------------------------------------------------------------------------------------------------


def on_off(on: float, off: float, *phases: float) -> Availability:
    return OnOff(on, off, np.array(phases))


def test_devices_that_are_off_at_the_start_come_later() -> None:
    # Device 0 is on in [0, 6) and [10, 16); device 1 comes at 2 and goes at 8.
    sim = simulation(Foreman(again=True), [5.0, 5.0], availability=on_off(6.0, 4.0, 0.0, 8.0), stop=Stop(time=7.5))
    run(sim)
    assert landings(sim) == [(0, 5.0, 1, "uploaded"), (1, 7.0, 1, "uploaded")]
    assert sim.session.state.events == ["Started", "Ready", "Uploaded", "Uploaded"]


def test_a_device_that_goes_off_amid_its_work_is_lost_and_back_with_its_next_on_time() -> None:
    # On in [0, 6), off to 10. The second order, given at 4, is cut at 6 and missed at 7; the third begins at 10.
    sim = simulation(
        Foreman(again=True),
        [4.0],
        availability=on_off(6.0, 4.0, 0.0),
        failing=failures({}, rejoin=None),
        stop=Stop(updates=2),
    )
    run(sim)
    assert [(span.sent, span.landed, span.outcome) for span in sim.spans] == [
        (0.0, 4.0, "uploaded"),
        (4.0, 7.0, "lost"),
        (10.0, 14.0, "uploaded"),
    ]


def test_a_device_that_is_on_again_before_it_was_missed_is_ready_when_it_was_missed() -> None:
    sim = simulation(
        Foreman(again=True),
        [4.0],
        availability=on_off(6.0, 1.0, 0.0),
        failing=failures({}, rejoin=None, detect=2.5),
        stop=Stop(updates=2),
    )
    run(sim)
    # Off in [6, 7), missed at 8.5, ordered then, and done at 12.5 before it goes off at 13.
    assert [(span.sent, span.landed) for span in sim.spans] == [(0.0, 4.0), (4.0, 8.5), (8.5, 12.5)]


def test_an_idle_device_that_goes_off_is_not_ordered() -> None:
    sim = simulation(Foreman(commits=[6.5]), [4.0], availability=on_off(6.0, 4.0, 0.0), stop=Stop(time=11.0))
    run(sim)
    assert sim.session.state.events == ["Started", "Uploaded", "Left", "TimerFired", "Ready"]


def test_a_device_that_failed_and_is_due_back_in_its_off_time_comes_with_its_next_on_time() -> None:
    # Vanishes at 2, would be back at 7, but is off in [6, 10).
    failing = failures({1: vanishes(0.5)}, rejoin=5.0)
    sim = simulation(
        Foreman(again=True), [4.0], availability=on_off(6.0, 4.0, 0.0), failing=failing, stop=Stop(updates=1)
    )
    run(sim)
    assert [(span.sent, span.landed) for span in sim.spans] == [(0.0, 3.0), (10.0, 14.0)]


def test_a_device_that_failed_does_not_come_back_with_its_on_times_before_it_has_recovered() -> None:
    # Vanishes at 1.5 and recovers at 31.5, though it would be on again from 10 and from 20 on; or never.
    for rejoin, sent in ((30.0, [0.0, 31.5]), (None, [0.0])):
        failing = failures({1: vanishes(0.5)}, rejoin=rejoin)
        availability = on_off(6.0, 4.0, 0.0)
        sim = simulation(Foreman(again=True), [3.0], availability=availability, failing=failing, stop=Stop(time=35.5))
        run(sim)
        assert [span.sent for span in sim.spans] == sent


def test_a_device_that_uploads_at_the_very_moment_it_goes_off_is_not_ordered_until_it_is_back() -> None:
    sim = simulation(Foreman(again=True), [3.0], availability=on_off(6.0, 4.0, 0.0), stop=Stop(time=12.0))
    run(sim)
    # Orders at 0 and 3; from 6 to 10 the device is off.
    assert all(span.sent < 6.0 or span.sent >= 10.0 for span in sim.spans)


def test_a_run_without_any_device_left_ends_though_devices_go_on_and_off() -> None:
    failing = failures({1: vanishes(0.5)}, rejoin=None)
    sim = simulation(
        Foreman(again=True), [4.0], availability=on_off(6.0, 4.0, 0.0), failing=failing, stop=Stop(updates=1)
    )
    run(sim)
    assert sim.reason == "nothing left to happen"


def test_ready_is_never_said_of_a_device_that_is_off() -> None:
    phases = np.linspace(0.0, 9.9, 12)
    availability = OnOff(6.0, 4.0, phases)
    at: list[tuple[int, float]] = []

    class Listens(Foreman):
        def react(self, event: Event, state: Log, view: View) -> Iterator[Action]:
            if isinstance(event, Ready):
                assert isinstance(view, Session)
                at.append((event.device, view.now))
            yield from super().react(event, state, view)

    failing = FailureSettings(vanish=0.3, lost_upload=0.2, rejoin_seconds=3.0, detect_seconds=1.5)
    workload = Workload(devices=12, samples=np.ones(12, np.int64), layers=1, flops_per_sample=0.0, seed=5)
    sim = simulation(
        Listens(again=True),
        [0.9 + 0.13 * device for device in range(12)],
        epochs=2,
        availability=availability,
        failing=failing.build(workload),
        stop=Stop(time=80.0),
    )
    run(sim)
    assert len(at) > 100
    assert all(availability.available(device, now) for device, now in at)
    assert all(availability.available(span.device, span.sent) for span in sim.spans)


# What the timeline is told --------------------------------------------------------------------------------------------


def test_a_span_says_when_the_device_trained_waited_for_a_fresh_model_and_uploaded() -> None:
    # Down 1.5, one slice of 2 s, the question takes 0.5; nothing is newer, which takes 0.5 to say; then two slices.
    sim = simulation(Foreman(order=asking(1)), [2.0], epochs=3, links=SLOW_LINKS)
    run(sim)
    (span,) = sim.spans
    assert span.pauses == ((3.5, 4.5),)
    assert (span.arrived, span.trained_until, span.ended, span.landed) == (1.5, 8.5, 11.0, 11.0)


def test_a_span_says_when_a_device_vanished_and_when_that_was_noticed() -> None:
    sim = simulation(Foreman(), [2.0], epochs=3, failing=failures({1: vanishes(0.5)}), stop=Stop(time=4.5))
    run(sim)
    (span,) = sim.spans
    # Half of the 6 s of training; the server notices a second later.
    assert (span.trained_until, span.ended, span.landed, span.slices) == (3.0, 3.0, 4.0, 1)


def test_orders_in_flight_are_told_as_far_as_they_have_come() -> None:
    sim = simulation(Foreman(), [2.0, 9.0], epochs=3, links=SLOW_LINKS, stop=Stop(time=8.0))
    run(sim)
    told = {span.device: span for span in sim.open_spans()}
    # Both have the model at 1.5. Device 0 has trained until 7.5 and uploads, device 1 is in its first slice.
    assert {(span.outcome, span.landed, span.ended) for span in told.values()} == {("in flight", 8.0, 8.0)}
    assert (told[0].slices, told[0].trained_until) == (3, 7.5)
    assert told[1].slices == 0
