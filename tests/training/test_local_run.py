"""The local run: what a device does between two slices."""

import pytest

from offbeat.core.errors import PolicyError
from offbeat.core.orders import Order, Progress
from offbeat.core.policy import Ask, DeviceRule, ReadOnlyMemory, Step, Train, Upload
from offbeat.training.local_run import LocalRun, ends_of, slices_by


class AsksBefore(DeviceRule):
    """Asks once, before slice `order.arguments["slot"]`."""

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        slot = int(order.arguments["slot"])
        if not fresh_answers:
            return Train(slot - progress.slices) if progress.slices < slot else Ask()
        return super().next(progress, fresh_answers, order, memory)


class Wants(DeviceRule):
    """Always wants the same."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        return self.step


def steps(run: LocalRun, rule: DeviceRule) -> list[Step]:
    """Everything up to the upload, each step carried out."""
    done: list[Step] = []
    while True:
        done.append(run.next(rule, {}))
        match done[-1]:
            case Train(slices=slices):
                run.trained(slices, 2 * slices, 0.5 * slices)
            case Ask():
                run.answered()
            case Upload():
                return done


def test_the_plain_rule_trains_everything_and_uploads() -> None:
    run = LocalRun(order=Order(slices=5))
    assert steps(run, DeviceRule()) == [Train(5), Upload()]
    assert run.progress == Progress(slices=5, steps=10, seconds=2.5)


def test_a_run_goes_on_where_it_was() -> None:
    run = LocalRun(order=Order(slices=5), progress=Progress(slices=3))
    assert run.next(DeviceRule(), {}) == Train(2)


def test_a_rule_may_ask_between_slices_and_goes_on_when_answered() -> None:
    run = LocalRun(order=Order(slices=5, arguments={"slot": 2}))
    assert steps(run, AsksBefore()) == [Train(2), Ask(), Train(3), Upload()]
    assert run.answers == 1


def test_a_rule_may_ask_before_it_has_trained_anything() -> None:
    run = LocalRun(order=Order(slices=5, arguments={"slot": 0}))
    assert steps(run, AsksBefore()) == [Ask(), Train(5), Upload()]


def test_told_to_stop_it_uploads_what_it_has() -> None:
    run = LocalRun(order=Order(slices=5))
    run.trained(2, 4, 1.0)
    run.stop_soon()
    assert run.next(DeviceRule(), {}) == Upload()


def test_told_to_stop_it_no_longer_asks() -> None:
    run = LocalRun(order=Order(slices=5, arguments={"slot": 2}))
    run.trained(2, 4, 1.0)
    run.stop_soon()
    assert run.next(AsksBefore(), {}) == Upload()


def test_told_to_stop_before_it_began_it_does_not_upload_nothing() -> None:
    run = LocalRun(order=Order(slices=5))
    run.stop_soon()
    assert isinstance(run.next(DeviceRule(), {}), Train)


def test_told_to_stop_before_it_began_it_trains_one_slice() -> None:
    run = LocalRun(order=Order(slices=5))
    run.stop_soon()
    assert steps(run, DeviceRule()) == [Train(1), Upload()]


def test_out_of_time_it_uploads_even_if_it_has_nothing() -> None:
    run = LocalRun(order=Order(slices=5))
    run.out_of_time()
    assert run.next(DeviceRule(), {}) == Upload()
    assert run.progress == Progress()


def test_what_was_planned_and_not_done_is_taken_back() -> None:
    run = LocalRun(order=Order(slices=5))
    run.trained(5, 10, 2.5)
    run.trained(-3, -6, -1.5)
    assert run.progress == Progress(slices=2, steps=4, seconds=1.0)


@pytest.mark.parametrize("slices", [0, -1, 3, 99])
def test_a_rule_that_wants_more_slices_than_remain_or_none_is_a_bug(slices: int) -> None:
    run = LocalRun(order=Order(slices=5, rule="mine"), progress=Progress(slices=3))
    with pytest.raises(PolicyError, match=f"rule 'mine' returned Train\\({slices}\\): 2 slices remain"):
        run.next(Wants(Train(slices)), {})


def test_two_runs_do_not_share_their_progress() -> None:
    first, second = LocalRun(order=Order()), LocalRun(order=Order())
    first.trained(1, 1, 1.0)
    first.stop_soon()
    assert second.progress == Progress()
    assert not second.stopping


class Counts(DeviceRule):
    """Wants two slices at a time, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def next(self, progress: Progress, fresh_answers: int, order: Order, memory: ReadOnlyMemory) -> Step:
        self.asked += 1
        remaining = order.slices - progress.slices
        return Train(min(2, remaining)) if remaining else Upload()


def test_a_stretch_that_is_cut_into_slices_stays_one_stretch() -> None:
    """Slice by slice the rule is asked only at 0, 2, 4 and 5 slices."""
    run, rule = LocalRun(order=Order(slices=5)), Counts()
    seen = []
    while isinstance(step := run.next(rule, {}), Train):
        seen.append((step.slices, run.goal))
        run.trained(1, 1, 1.0)
    assert seen == [(2, 2), (1, 2), (2, 4), (1, 4), (1, 5)]
    assert rule.asked == 4


def test_told_to_stop_within_a_stretch_it_uploads() -> None:
    run, rule = LocalRun(order=Order(slices=5)), Counts()
    run.next(rule, {})
    run.trained(1, 1, 1.0)
    run.stop_soon()
    assert run.next(rule, {}) == Upload()


def test_slices_are_done_when_they_have_ended() -> None:
    ends = ends_of([1.0, 2.0, 0.5], began=10.0)
    assert ends == [11.0, 13.0, 13.5]
    assert [slices_by(ends, time) for time in (9.0, 10.9, 11.0, 13.4, 13.5, 99.0)] == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize(
    ("drops", "told", "slices", "dropped"),
    [(True, True, 1, True), (True, True, 0, False), (True, False, 1, False), (False, True, 1, False)],
)
def test_a_slice_is_dropped_if_the_order_says_so_the_run_is_told_and_another_is_done(
    drops: bool, told: bool, slices: int, dropped: bool
) -> None:
    run = LocalRun(order=Order(slices=3, drops_unfinished=drops), progress=Progress(slices=slices))
    if told:
        run.stop_soon()
    assert run.drops_slice is dropped
