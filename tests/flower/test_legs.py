"""The device's half: an order in legs gives the numbers of the order in one piece; clocks, notices, memory, pace."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import RecordDict
from msgspec.structs import replace
from torch import nn

from offbeat.algorithms import DEVICE_RULES
from offbeat.core.coverage import submodel
from offbeat.core.errors import DeviceFault
from offbeat.core.orders import Order, Progress
from offbeat.core.parameters import Vector
from offbeat.core.policy import Ask, DeviceRule, Fresh, Memory, Probe, ReadOnlyMemory, Step, Train, Upload
from offbeat.core.streams import stream
from offbeat.core.terms import Proximal
from offbeat.flower.device.program import RECORDS, DeviceProgram, DeviceStore, PausedOrder, Reply
from offbeat.flower.protocol.codec import keep, kept
from offbeat.flower.protocol.messages import (
    Begin,
    CheckIn,
    Continue,
    FreshRequest,
    FreshResponse,
    Greeting,
    Hello,
    UpdateReply,
)
from offbeat.models import vector_of
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

MODEL = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
START = vector_of(MODEL)


class Halves:
    """Device 0 has the first twelve samples, device 1 the others."""

    def samples(self, device: int) -> npt.NDArray[np.int64]:
        return np.arange(12) + 12 * device


class Clock:
    """Time passes only when somebody looks or sleeps."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick, self.slept = 100.0, tick, 0.0

    def __call__(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds


def trainer() -> TorchTrainer:
    random = stream(5, "data")
    x = random.normal(size=(24, 6)).astype(np.float32)
    return TorchTrainer(MODEL, x, random.integers(0, 3, 24), Halves(), seed=0)


def device_of(store: DeviceStore, clock: Clock | None = None, **more: Any) -> DeviceProgram:
    """As in a new process: what was kept is all that is known. It travels through a device's state as in Flower."""
    state = RecordDict()
    keep(state, store)
    clock = clock or Clock()
    return DeviceProgram(
        trainer(), kept(state, RECORDS, DeviceStore()), number=1, clock=clock, sleep=clock.sleep, **more
    )


def begin(order: Order, *, received: int = 0, ticket: int = 4, leg_seconds: float | None = None) -> Begin:
    return Begin(device=1, ticket=ticket, order=order, base=2, seed=9, received=received, leg_seconds=leg_seconds)


def in_one_piece(order: Order, last: int | None = None, ticket: int = 4) -> TrainingState:
    whole = trainer()
    whole.batches.seed = 9
    last = order.slices if last is None else last
    return whole.train(
        TrainingJob(
            device=1,
            ticket=ticket,
            order=order,
            first=0,
            last=last,
            state=TrainingState(parameters=START),
            anchor=START,
        )
    )


def delivered(reply: Reply) -> tuple[UpdateReply, Vector]:
    body, vector = reply
    assert isinstance(body, UpdateReply) and vector is not None
    return body, vector


ORDER = Order(slices=3, batch_size=4, learning_rate=0.1, momentum=0.9, terms=(Proximal(mu=0.1),))


def test_an_order_without_notices_is_one_leg() -> None:
    device = device_of(DeviceStore())
    body, parameters = delivered(device.begin(begin(ORDER), START))
    expected = in_one_piece(ORDER)
    assert np.array_equal(parameters, expected.parameters)
    assert (body.ticket, body.leg, body.slices, body.steps, body.samples) == (4, 1, 3, 9, 12)
    assert body.loss == expected.loss and device.store.paused is None


def test_legs_in_new_processes_change_no_bit() -> None:
    """Checking in after every epoch: three legs, each in a process that knows only what was kept."""
    clock = Clock(tick=1.0)
    device = device_of(DeviceStore(), clock)
    body, nothing = device.begin(begin(ORDER, leg_seconds=0.5), START)
    assert isinstance(body, CheckIn) and nothing is None and (body.leg, body.slices) == (1, 1)
    device = device_of(device.store, clock)
    body, _ = device.go_on(Continue(ticket=4, leg=1, stop=False))
    assert isinstance(body, CheckIn) and (body.leg, body.slices) == (2, 2)
    device = device_of(device.store, clock)
    last, parameters = delivered(device.go_on(Continue(ticket=4, leg=2, stop=False)))
    assert (last.leg, last.slices) == (3, 3)
    assert np.array_equal(parameters, in_one_piece(ORDER).parameters)


def test_a_device_that_is_told_to_stop_uploads_what_it_has() -> None:
    clock = Clock(tick=1.0)
    device = device_of(DeviceStore(), clock)
    device.begin(begin(ORDER, leg_seconds=0.5), START)
    body, parameters = delivered(device_of(device.store, clock).go_on(Continue(ticket=4, leg=1, stop=True)))
    assert body.slices == 1
    assert np.array_equal(parameters, in_one_piece(ORDER, last=1).parameters)


STEPS = Order(slices=7, unit="step", batch_size=4, learning_rate=0.1, momentum=0.9)
"""Two epochs of three steps, and one step."""


def test_legs_may_end_between_any_two_steps() -> None:
    """With a clock that ticks at every look, each leg ends with the step after the first."""
    clock = Clock(tick=1.0)
    device = device_of(DeviceStore(), clock)
    body, parameters = device.begin(begin(STEPS, leg_seconds=0.5), START)
    slices: list[int] = []
    while isinstance(body, CheckIn):
        slices.append(body.slices)
        assert body.steps == body.slices
        device = device_of(device.store, clock)
        body, parameters = device.go_on(Continue(ticket=4, leg=body.leg, stop=False))
    last, parameters = delivered((body, parameters))
    assert slices == list(range(1, 7)) and (last.slices, last.steps) == (7, 7)
    assert np.array_equal(parameters, in_one_piece(STEPS).parameters)


def test_a_device_that_is_told_to_stop_between_two_steps_uploads_those_it_has_done() -> None:
    clock = Clock(tick=1.0)
    device = device_of(DeviceStore(), clock)
    device.begin(begin(STEPS, leg_seconds=0.5), START)
    body, parameters = delivered(device_of(device.store, clock).go_on(Continue(ticket=4, leg=1, stop=True)))
    assert (body.slices, body.steps) == (1, 1)
    assert np.array_equal(parameters, in_one_piece(STEPS, last=1).parameters)


@pytest.mark.parametrize(("drops", "slices"), [(False, 3), (True, 2)])
def test_a_notice_heard_within_a_step_ends_the_run_with_it_or_before_it(drops: bool, slices: int) -> None:
    """The device listens within each step; the notice arrives within the third."""
    order = replace(STEPS, drops_unfinished=drops)
    heard: list[int] = []

    def listen(paused: PausedOrder, step: int | None) -> bool:
        assert step == 0
        heard.append(paused.run.progress.slices)
        if len(heard) == 3:
            paused.run.stop_soon()
        return True

    body, parameters = delivered(device_of(DeviceStore(), listen=listen).begin(begin(order), START))
    assert heard[:3] == [0, 1, 2] and (body.slices, body.steps) == (slices, slices)
    assert np.array_equal(parameters, in_one_piece(order, last=slices).parameters)


def test_the_steps_that_are_done_when_the_budget_is_used_up_are_uploaded() -> None:
    """The clock goes on by 1 s at every look, three of them within each step of the trainer."""
    order = replace(STEPS, budget=10.0)
    body, parameters = delivered(device_of(DeviceStore(), Clock(tick=1.0)).begin(begin(order), START))
    assert 0 < body.slices == body.steps < 7
    assert np.array_equal(parameters, in_one_piece(order, last=body.slices).parameters)


def test_a_paced_device_waits_after_each_step() -> None:
    clock = Clock()
    paced = device_of(DeviceStore(), clock, pace=lambda device, ticket, order: [2.0] * order.slices)
    body, parameters = delivered(paced.begin(begin(replace(STEPS, budget=7.0)), START))
    assert (body.slices, body.steps, clock.slept) == (3, 3, 7.0)
    assert np.array_equal(parameters, in_one_piece(STEPS, last=3).parameters)


@pytest.mark.parametrize("message", [Continue(ticket=4, leg=2, stop=False), Continue(ticket=5, leg=1, stop=False)])
def test_a_message_that_is_out_of_step_is_refused(message: Continue) -> None:
    clock = Clock(tick=1.0)
    device = device_of(DeviceStore(), clock)
    device.begin(begin(ORDER, leg_seconds=0.5), START)
    with pytest.raises(DeviceFault, match="unexpected Continue"):
        device.go_on(message)


def test_a_device_at_rest_has_nothing_to_go_on_with() -> None:
    with pytest.raises(DeviceFault, match="no order in progress"):
        device_of(DeviceStore()).go_on(Continue(ticket=4, leg=1, stop=False))


def test_a_budget_ends_between_layers_and_only_those_that_were_reached_travel() -> None:
    """Two layers; the clock is asked before each and jumps a second each time, the budget is 2.5 s from 101 on.

    Looks: arrival 101, leg 102, slice 103, before the last layer 104 (too late: 103.5), so nothing is done. With
    4.5 s: before the last layer 104, before the first layer 105, both in time.
    """
    order = Order(unit="layer", slices=2, batch_size=4, learning_rate=0.1, budget=2.5)
    body, parameters = delivered(device_of(DeviceStore(), Clock(tick=1.0)).begin(begin(order), START))
    assert body.slices == 0 and parameters.size == 0
    order = Order(unit="layer", slices=2, batch_size=4, learning_rate=0.1, budget=3.5)
    body, parameters = delivered(device_of(DeviceStore(), Clock(tick=1.0)).begin(begin(order), START))
    assert body.slices == 1
    assert np.array_equal(parameters, in_one_piece(order, last=1).parameters[-18:])  # the last layer: 15 + 3


def test_a_run_that_may_not_be_partial_uploads_nothing_when_time_is_up() -> None:
    order = Order(unit="layer", slices=2, batch_size=4, learning_rate=0.1, budget=3.5, partial=False)
    body, parameters = delivered(device_of(DeviceStore(), Clock(tick=1.0)).begin(begin(order), START))
    assert body.slices == 1 and parameters.size == 0


def test_a_narrow_model_travels_narrow_both_ways() -> None:
    order = Order(slices=1, batch_size=4, learning_rate=0.1, width=0.4)
    device = device_of(DeviceStore())
    narrow = device.elements(order)  # 2 of 5 hidden units: 12 + 2, and 3 x 2 + 3 of the last layer
    assert narrow == 23
    chosen = submodel(device.trainer.layout, 0.4).chosen
    _, parameters = delivered(device.begin(begin(order), START[chosen]))
    assert np.array_equal(parameters, in_one_piece(order).parameters[chosen])


# Pace ---------------------------------------------------------------------------------------------------------------


def paced(*seconds: float) -> Any:
    def pace(device: int, ticket: int, order: Order) -> Sequence[float]:
        return seconds

    return pace


def test_a_paced_device_takes_the_time_that_the_fleet_says() -> None:
    clock = Clock()
    body, parameters = delivered(device_of(DeviceStore(), clock, pace=paced(2.0, 3.0, 4.0)).begin(begin(ORDER), START))
    assert clock.slept == 9.0 and body.seconds == 9.0
    assert np.array_equal(parameters, in_one_piece(ORDER).parameters)


def test_a_paced_device_does_what_fits_into_its_budget() -> None:
    """2 + 3 seconds fit into 6, the last epoch does not: it is left undone, and the budget is used up."""
    order = Order(slices=3, batch_size=4, learning_rate=0.1, budget=6.0)
    clock = Clock()
    body, parameters = delivered(device_of(DeviceStore(), clock, pace=paced(2.0, 3.0, 4.0)).begin(begin(order), START))
    assert body.slices == 2 and clock.slept == 6.0
    assert np.array_equal(parameters, in_one_piece(order, last=2).parameters)


# Questions and memory -----------------------------------------------------------------------------------------------


class Counting(DeviceRule):
    """Asks after every slice but the last, takes the mean with what comes, and remembers how often."""

    remembers = True

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        if progress.slices == order.slices:
            return Upload()
        return Ask() if progress.slices > fresh_answers else Train(1)

    def merge(self, local: Vector, fresh: Fresh, base: int, order: Order, memory: Memory, probe: Probe) -> Vector:
        memory["merges"] = int(memory.get("merges", 0)) + 1
        return ((local + fresh.parameters) / 2).astype(np.float32)

    def extras(self, order: Order, before: ReadOnlyMemory, memory: ReadOnlyMemory) -> dict[str, Any]:
        return {"before": before.get("merges", 0), "merges": memory.get("merges", 0)}


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Order:
    monkeypatch.setitem(DEVICE_RULES, "counting", Counting())
    return Order(slices=2, batch_size=4, learning_rate=0.1, rule="counting")


def test_a_fresh_model_is_merged_in_the_middle_of_training(counting: Order) -> None:
    device = device_of(DeviceStore())
    body, _ = device.begin(begin(counting), START)
    assert isinstance(body, FreshRequest) and body.slices == 1
    fresh = np.full(START.size, 0.5, dtype=np.float32)
    device = device_of(device.store)
    answer = FreshResponse(ticket=4, leg=1, version=7, newer=True, stop=False)
    body, parameters = delivered(device.answered(answer, fresh))
    first = in_one_piece(counting, last=1)
    merged = ((first.parameters + fresh) / 2).astype(np.float32)
    whole = trainer()
    whole.batches.seed = 9
    work = TrainingState(parameters=merged, steps=first.steps, loss_sum=first.loss_sum, seen=first.seen)
    expected = whole.train(TrainingJob(device=1, ticket=4, order=counting, first=1, last=2, state=work, anchor=START))
    assert np.array_equal(parameters, expected.parameters)
    assert body.extras == {"before": 0, "merges": 1} and body.leg == 2


def test_nothing_newer_means_going_on(counting: Order) -> None:
    device = device_of(DeviceStore())
    device.begin(begin(counting), START)
    answer = FreshResponse(ticket=4, leg=1, version=2, newer=False, stop=False)
    body, parameters = delivered(device_of(device.store).answered(answer, None))
    assert np.array_equal(parameters, in_one_piece(counting).parameters) and body.extras["merges"] == 0


def deliver_with_merge(
    store: DeviceStore, order: Order, *, ticket: int, received: int
) -> tuple[DeviceStore, UpdateReply]:
    device = device_of(store)
    device.begin(begin(order, ticket=ticket, received=received), START)
    device = device_of(device.store)
    body, _ = delivered(device.answered(FreshResponse(ticket=ticket, leg=1, version=7, newer=True, stop=False), START))
    return device.store, body


def test_a_device_remembers_what_the_server_has_received(counting: Order) -> None:
    store, first = deliver_with_merge(DeviceStore(), counting, ticket=4, received=0)
    store, second = deliver_with_merge(store, counting, ticket=6, received=4)
    assert (first.remembered, second.remembered) == (0, 4)
    assert second.extras == {"before": 1, "merges": 2}


def test_what_the_server_never_received_is_forgotten(counting: Order) -> None:
    """Ticket 6 was uploaded but lost on the way: ticket 9 begins with what ticket 4 left."""
    store, _ = deliver_with_merge(DeviceStore(), counting, ticket=4, received=0)
    store, _ = deliver_with_merge(store, counting, ticket=6, received=4)
    _, third = deliver_with_merge(store, counting, ticket=9, received=4)
    assert third.remembered == 4 and third.extras == {"before": 1, "merges": 2}


def test_a_device_that_lost_its_memory_says_so(counting: Order) -> None:
    _, body = deliver_with_merge(DeviceStore(), counting, ticket=9, received=4)
    assert body.remembered == 0 and body.extras == {"before": 0, "merges": 1}


def test_an_order_that_was_given_up_leaves_nothing_behind(counting: Order) -> None:
    device = device_of(DeviceStore())
    device.begin(begin(counting, ticket=4), START)
    store, body = deliver_with_merge(device.store, counting, ticket=5, received=0)
    assert body.ticket == 5 and body.extras == {"before": 0, "merges": 1} and store.paused is None


# Greetings ----------------------------------------------------------------------------------------------------------


def test_a_greeting_tells_number_samples_and_size() -> None:
    body, nothing = device_of(DeviceStore()).greet(Hello(batch_size=4), None)
    assert body == Greeting(device=1, samples=12, elements=START.size) and nothing is None


def test_measuring_gives_samples_per_second_through_a_layer() -> None:
    """The clock jumps half a second a look, a step is looked at before and after: 4 samples x 2 layers / 0.5 s = 16."""
    body, gradient = device_of(DeviceStore(), Clock(tick=0.5)).greet(Hello(batch_size=4, measure=True), START)
    assert isinstance(body, Greeting) and body.speed == pytest.approx(16.0)
    assert gradient is not None and gradient.shape == START.shape
