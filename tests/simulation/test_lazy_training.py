"""Lazy training: what is read is computed, once, together with what else can be; what is not read costs nothing."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.core.messages import Assignment
from offbeat.core.orders import Order, Outcome, Plain
from offbeat.core.parameters import Vector
from offbeat.core.policy import DeviceRule, Fresh, Memory, Probe, ReadOnlyMemory
from offbeat.core.snapshot import decode, encode
from offbeat.simulation.lazy_training import LazyOutcome, LazyTraining, MidSlice
from offbeat.training.local_run import DeviceMemory
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState

BASE = np.zeros(2, dtype=np.float32)


def trained(parameters: Vector, first: int, last: int) -> Vector:
    """The toy's training: halves the model and adds [1, slice] in every slice, so that order and number matter."""
    for number in range(first, last):
        parameters = parameters / np.float32(2) + np.array([1, number], dtype=np.float32)
    return parameters


class Recorder:
    """Remembers every batch as (ticket, first, last); fails rather than spin for ever."""

    batch_capacity = 64

    def __init__(self) -> None:
        self.batches: list[list[tuple[int, int, int]]] = []

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        self.batches.append([(job.ticket, job.first, job.last) for job in jobs])
        assert len(self.batches) < 500, "training goes round in circles"
        return [TrainingState(parameters=trained(job.state.parameters, job.first, job.last)) for job in jobs]

    def evaluate(self, parameters: Vector) -> Evaluation:
        return Evaluation(metrics={"accuracy": 0.0, "loss": 0.0})

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        return float(number), np.ones_like(parameters)

    def close(self) -> None:
        """Nothing is open."""


class Merging(DeviceRule):
    """Goes on in the middle between its own model and the fresh one."""

    def merge(self, local: Vector, fresh: Fresh, base: int, order: Order, memory: Memory, probe: Probe) -> Vector:
        return (local + fresh.parameters) / np.float32(2)


class Counting(Merging):
    """Counts in its memory how often this device has merged, and says so in its uploads."""

    def merge(self, local: Vector, fresh: Fresh, base: int, order: Order, memory: Memory, probe: Probe) -> Vector:
        memory["merges"] = self.merges(memory) + 1
        return super().merge(local, fresh, base, order, memory, probe)

    def extras(self, order: Order, before: ReadOnlyMemory, memory: ReadOnlyMemory) -> Mapping[str, Plain]:
        return {"merges": self.merges(memory)}

    def merges(self, memory: ReadOnlyMemory) -> int:
        count = memory.get("merges", 0)
        assert isinstance(count, int)
        return count


class Remembering(Counting):
    remembers = True


MERGING, COUNTING, REMEMBERING = Merging(), Counting(), Remembering()


def lazy(vector_bytes: int = 8) -> tuple[LazyTraining, Recorder]:
    recorder = Recorder()
    return LazyTraining(recorder, vector_bytes), recorder


def assignment(ticket: int, device: int | None = None, rule: str = "MERGING") -> Assignment:
    order = Order(slices=9, rule=f"{__name__}:{rule}")
    return Assignment(device=ticket if device is None else device, ticket=ticket, order=order, base=0, parameters=BASE)


def fresh(version: int = 1) -> Fresh:
    return Fresh(version=version, parameters=np.full(2, 10 * version, dtype=np.float32))


def delivered(training: LazyTraining, ticket: int, slices: int = 2, **named: Any) -> LazyOutcome:
    """A run of some slices that has been uploaded and not been read."""
    training.begin(assignment(ticket, **named))
    training.train(ticket, slices, float(ticket))
    return training.deliver(ticket)


def numbers(outcome: Outcome) -> list[float]:
    return [float(number) for number in outcome.parameters]


# What is computed, and when ------------------------------------------------------------------------------------------


def test_nothing_is_computed_before_it_is_read_and_then_once() -> None:
    training, recorder = lazy()
    update = delivered(training, 1)
    assert recorder.batches == []
    assert update() is update()
    assert recorder.batches == [[(1, 0, 2)]]
    # [0, 0] -> [1, 0] -> [1.5, 1]
    assert numbers(update()) == [1.5, 1.0]


def test_everything_whose_inputs_are_known_is_computed_with_what_is_read() -> None:
    training, recorder = lazy()
    first, second = delivered(training, 1), delivered(training, 2)
    training.begin(assignment(3))
    training.train(3, 4, 9.0)
    first()
    assert recorder.batches == [[(1, 0, 2), (2, 0, 2), (3, 0, 4)]]
    second()
    training.deliver(3)()
    assert len(recorder.batches) == 1


def test_what_is_dropped_or_held_is_never_computed() -> None:
    training, recorder = lazy()
    wanted = delivered(training, 1)
    delivered(training, 2)
    training.resolved([2])
    training.begin(assignment(3))
    training.train(3, 2, 3.0)
    training.hold(3)
    training.begin(assignment(4))
    training.train(4, 2, 4.0)
    training.drop(4)
    wanted()
    assert recorder.batches == [[(1, 0, 2)]]


def test_what_is_held_stays_held_when_a_run_is_resumed() -> None:
    training, _ = lazy()
    training.begin(assignment(1))
    training.train(1, 2, 1.0)
    training.hold(1)
    resumed, recorder = lazy()
    resumed.restore(training.snapshot(), {1: assignment(1)}, {})
    delivered(resumed, 2)()
    assert recorder.batches == [[(2, 0, 2)]]


def test_a_run_that_trained_nothing_is_its_base() -> None:
    training, recorder = lazy()
    training.begin(assignment(1))
    assert numbers(training.deliver(1)()) == [0.0, 0.0]
    assert recorder.batches == []


def test_what_is_computed_ahead_is_bounded_and_those_due_first_come_first() -> None:
    training, recorder = lazy(vector_bytes=2**26)  # so large that the memory is enough for 16 only
    last = [delivered(training, ticket) for ticket in range(1, 41)][-1]
    last()
    assert [ticket for ticket, _, _ in recorder.batches[0]] == [40, *range(1, 16)]
    assert len(recorder.batches) == 1


def test_stretches_between_merges_are_computed_one_after_the_other() -> None:
    training, recorder = lazy()
    training.begin(assignment(1))
    training.train(1, 1, 1.0)
    training.merge(1, fresh())
    training.train(1, 3, 3.0)
    # [1, 0]; merged with [10, 10]: [5.5, 5]; slice 1: [3.75, 3.5]; slice 2: [2.875, 3.75]
    assert numbers(training.deliver(1)()) == [2.875, 3.75]
    assert recorder.batches == [[(1, 0, 1)], [(1, 1, 3)]]


def test_a_merge_before_the_first_and_after_the_last_slice_is_done() -> None:
    training, _ = lazy()
    training.begin(assignment(1))
    training.merge(1, fresh())
    training.train(1, 1, 1.0)
    training.merge(1, fresh(2))
    # [5, 5]; slice 0: [3.5, 2.5]; merged with [20, 20]: [11.75, 11.25]
    assert numbers(training.deliver(1)()) == [11.75, 11.25]


# Shortening ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
def test_a_shortened_run_is_as_if_it_had_never_been_longer(ahead: bool) -> None:
    training, _ = lazy()
    training.begin(assignment(1))
    training.train(1, 1, 1.0)
    training.merge(1, fresh())
    training.train(1, 5, 5.0)
    if ahead:
        delivered(training, 2)()
        delivered(training, 3)()
    training.shorten(1, 3, 3.0)
    assert numbers(training.deliver(1)()) == [2.875, 3.75]


def test_a_run_shortened_to_nothing_more_keeps_what_it_merged() -> None:
    training, _ = lazy()
    training.begin(assignment(1))
    training.train(1, 1, 1.0)
    training.merge(1, fresh())
    training.train(1, 5, 5.0)
    delivered(training, 2)()
    training.shorten(1, 1, 1.0)
    assert numbers(training.deliver(1)()) == [5.5, 5.0]


MIDST = MidSlice(3, 2)


@pytest.mark.parametrize(
    ("until", "places"),
    [(5, [1, MIDST, "merge", 5]), (4, [1, MIDST, "merge", 4]), (3, [1, 3, "merge"]), (1, [1, "merge"])],
)
def test_a_run_with_a_merge_in_the_midst_of_a_slice_merges_where_it_ends_if_that_is_before(
    until: int, places: list[int | MidSlice | str]
) -> None:
    training, _ = lazy()
    training.begin(assignment(1))
    newer = fresh()
    training.train(1, 1, 1.0)
    training.train(1, MIDST, 3.5)
    training.merge(1, newer)
    training.train(1, 5, 5.0)
    training.shorten(1, until, float(until))
    tree, arrays = encode(training.snapshot())
    resumed, _ = lazy()
    saved = decode(json.loads(json.dumps(tree)), arrays, [DeviceMemory])
    resumed.restore(saved, {1: assignment(1)}, {1: newer.parameters})
    for each in (training, resumed):
        items = each.plans[1].items
        assert ["merge" if isinstance(item, Fresh) else item for item in items] == places


def test_a_held_run_that_is_shortened_can_be_read_again() -> None:
    training, _ = lazy()
    training.begin(assignment(1))
    training.train(1, 5, 5.0)
    training.hold(1)
    training.shorten(1, 2, 2.0)
    assert numbers(training.deliver(1)()) == [1.5, 1.0]


STEPS = st.lists(st.sampled_from(["train", "merge", "shorten", "look ahead", "resume"]), max_size=14)


@settings(deadline=None)
@given(STEPS)
def test_numbers_do_not_depend_on_when_they_are_computed(steps: list[str]) -> None:
    training, _ = lazy()
    training.begin(assignment(1))
    eager = BASE
    before: Vector | None = None  # the model before the last stretch, if that came last
    slices = versions = 0
    models: dict[int, Vector] = {}
    for number, step in enumerate(steps):
        if step == "train" and slices + 3 <= 9:
            training.train(1, slices + 3, float(number))
            before, eager = eager, trained(eager, slices, slices + 3)
            slices += 3
        elif step == "merge":
            versions += 1
            models[versions] = fresh(versions).parameters
            training.merge(1, fresh(versions))
            before, eager = None, (eager + models[versions]) / np.float32(2)
        elif step == "shorten" and before is not None:
            slices -= 2
            training.shorten(1, slices, float(number))
            eager, before = trained(before, slices - 1, slices), None
        elif step == "look ahead":
            delivered(training, 100 + number)()
        elif step == "resume":
            tree, arrays = encode(training.snapshot())
            training, _ = lazy()
            training.restore(decode(json.loads(json.dumps(tree)), arrays, [DeviceMemory]), {1: assignment(1)}, models)
    assert training.deliver(1)().parameters.tolist() == eager.tolist()


# Reading late --------------------------------------------------------------------------------------------------------


def test_an_update_that_was_discarded_can_still_be_read() -> None:
    # A policy that keeps a discarded update in its state reads it at the latest when a snapshot is taken.
    training, _ = lazy()
    update = delivered(training, 1)
    training.resolved([1])
    assert numbers(update()) == [1.5, 1.0]


# Memory --------------------------------------------------------------------------------------------------------------


def run_once(training: LazyTraining, ticket: int, rule: str) -> LazyOutcome:
    """Device 0 trains, merges and uploads."""
    training.begin(assignment(ticket, device=0, rule=rule))
    training.train(ticket, 1, 1.0)
    training.merge(ticket, fresh())
    return training.deliver(ticket)


@pytest.mark.parametrize(("rule", "merges"), [("COUNTING", [1, 1, 1]), ("REMEMBERING", [1, 2, 3])])
def test_memory_lasts_from_run_to_run_if_the_rule_remembers(rule: str, merges: list[int]) -> None:
    training, _ = lazy()
    assert [run_once(training, ticket, rule)().extras["merges"] for ticket in (1, 2, 3)] == merges


def test_a_rule_that_remembers_has_its_earlier_runs_finished_before_the_next() -> None:
    training, _ = lazy()
    runs = [run_once(training, ticket, "REMEMBERING") for ticket in (1, 2, 3)]
    assert [each().extras["merges"] for each in reversed(runs)] == [3, 2, 1]


def test_what_a_device_remembers_does_not_depend_on_when_the_server_reads() -> None:
    training, _ = lazy()
    runs = [run_once(training, ticket, "REMEMBERING") for ticket in (1, 2)]
    assert [each().extras["merges"] for each in runs] == [1, 2]


def test_what_was_discarded_is_remembered_across_a_snapshot() -> None:
    training, _ = lazy()
    run_once(training, 1, "REMEMBERING")
    training.resolved([1])
    tree, arrays = encode(training.snapshot())
    training, _ = lazy()
    training.restore(decode(json.loads(json.dumps(tree)), arrays, [DeviceMemory]), {}, {})
    assert run_once(training, 2, "REMEMBERING")().extras == {"merges": 2}


def test_a_device_remembers_also_what_the_server_discarded() -> None:
    training, _ = lazy()
    run_once(training, 1, "REMEMBERING")
    training.resolved([1])
    assert run_once(training, 2, "REMEMBERING")().extras == {"merges": 2}


def test_numbers_taken_back_by_a_notice_are_taken_back_from_the_memory_too() -> None:
    training, _ = lazy()
    training.begin(assignment(1, device=0, rule="REMEMBERING"))
    training.train(1, 1, 1.0)
    training.merge(1, fresh())
    training.train(1, 5, 5.0)
    delivered(training, 2)()
    delivered(training, 3)()
    training.shorten(1, 3, 3.0)
    assert training.deliver(1)().extras == {"merges": 1}


def test_what_a_rule_sees_of_its_memory_does_not_depend_on_what_others_read() -> None:
    seen = []
    for is_read in (False, True):
        training, _ = lazy()
        training.begin(assignment(1, device=0, rule="REMEMBERING"))
        training.train(1, 1, 1.0)
        training.merge(1, fresh())
        training.train(1, 2, 2.0)
        if is_read:
            delivered(training, 2)()
        seen.append(dict(training.plans[1].remembered))
    assert seen[0] == seen[1] == {}
