"""The local run: what a device does with an order, in slices, as logic without numbers and without a clock.

All drivers run the same logic. A driver asks `next`, does what it says (the simulator on its virtual clock, a device
for real, a replay as the record has it) and reports back; between slices the run may have been answered, stopped or run
out of time. A *stretch* is the training between two questions to the device rule. It may be cut into pieces, and it
stays one stretch.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from msgspec import Struct

from offbeat.core.errors import PolicyError
from offbeat.core.orders import Order, Progress
from offbeat.core.policy import Ask, DeviceRule, ReadOnlyMemory, Step, Train, Upload


class LocalRun(Struct, kw_only=True, eq=False, gc=False):
    """One order on one device. It can be saved between any two slices: its fields are plain data."""

    order: Order
    progress: Progress = Progress()
    goal: int = 0
    """The slice with which the present stretch ends. Only there is the rule asked again."""
    answers: int = 0
    asking: bool = False
    """Whether it trains on while its question is not answered yet."""
    stopping: bool = False
    expired: bool = False

    def next(self, rule: DeviceRule, memory: ReadOnlyMemory) -> Step:
        """What to do now. A run that was told to stop uploads as soon as it has a slice to show for itself."""
        if self.expired:
            return Upload()
        order, done = self.order, self.progress.slices
        if self.stopping:
            step: Step = Upload() if done else Train(1)
        elif done < self.goal:
            return Train(self.goal - done)
        else:
            step = rule.next(self.progress, self.answers + self.asking, order, memory)
        if type(step) is Train:  # faster than `isinstance`, and this is asked for every order
            self.goal = goal = done + step.slices
            if not done < goal <= order.slices:
                remaining = order.slices - done
                raise PolicyError(f"rule {order.rule!r} wants {step.slices} slices of {remaining} that remain")
        return step

    def trained(self, slices: int, steps: int, seconds: float) -> None:
        """Note that so many slices are done (negative: were planned and will not be done)."""
        done = self.progress
        self.progress = Progress(slices=done.slices + slices, steps=done.steps + steps, seconds=done.seconds + seconds)

    def ask(self, step: Ask) -> None:
        """The request is on its way. A slice that a budget or a notice may cut short has no merge in its midst."""
        order = self.order
        self.asking = not (step.waits or order.unit == "layer" or order.budget is not None or order.drops_unfinished)

    def answered(self) -> None:
        """The request was answered, with a newer model or without."""
        self.answers += 1
        self.asking = False

    def stop_soon(self) -> None:
        """Upload after the slice that is being worked on, or, if the order drops what is unfinished, without it."""
        self.stopping = True

    @property
    def drops_slice(self) -> bool:
        """Whether the slice that is being worked on is not to be finished, because the run was told to stop."""
        return self.stopping and self.order.drops_unfinished and self.progress.slices > 0

    def out_of_time(self) -> None:
        """The order's time budget is used up."""
        self.expired = True


def ends_of(seconds: Sequence[float], began: float) -> list[float]:
    """When each of some slices ends that take so long and are worked on one after another."""
    return list(accumulate(seconds, initial=began))[1:]


def slices_by(ends: Sequence[float], time: float) -> int:
    """How many of the slices that end at these times are done at a time."""
    return bisect_right(ends, time)
