"""The local run: what a device does with an order, in slices, as logic without numbers and without a clock.

Both drivers run the same logic. A driver asks `next`, does what it says (the simulator on its virtual clock, a
deployment for real) and reports back; between slices the run may have been answered, stopped or run out of time.
"""

from msgspec import Struct

from offbeat.core.errors import PolicyError
from offbeat.core.orders import Order, Progress
from offbeat.core.policy import DeviceRule, ReadOnlyMemory, Step, Train, Upload


class LocalRun(Struct, kw_only=True, eq=False, gc=False):
    """One order on one device. Resumable: its fields are plain data."""

    order: Order
    progress: Progress = Progress()
    answers: int = 0
    stopping: bool = False
    expired: bool = False

    def next(self, rule: DeviceRule, memory: ReadOnlyMemory) -> Step:
        """What to do now. A run that was told to stop uploads as soon as it has a slice to show for itself."""
        if self.expired:
            return Upload()
        if self.stopping:
            return Upload() if self.progress.slices else Train(1)
        step = rule.next(self.progress, self.answers, self.order, memory)
        remaining = self.order.slices - self.progress.slices
        if isinstance(step, Train) and not 1 <= step.slices <= remaining:
            raise PolicyError(f"rule {self.order.rule!r} wants {step.slices} slices of {remaining} that remain")
        return step

    def trained(self, slices: int, steps: int, seconds: float) -> None:
        """So many slices are done (negative: were planned and will not be done)."""
        done = self.progress
        self.progress = Progress(slices=done.slices + slices, steps=done.steps + steps, seconds=done.seconds + seconds)

    def answered(self) -> None:
        """The request was answered, with a newer model or without."""
        self.answers += 1

    def stop_soon(self) -> None:
        """Upload after the slice that is being worked on."""
        self.stopping = True

    def out_of_time(self) -> None:
        """The order's time budget is used up."""
        self.expired = True
