"""The numbers of an order in flight on its device: training, merging a newer model, and what is reported in the end.

The logic of an order is `device.local_run`; here is what the logic leads to. The simulator carries it out when somebody
reads the numbers, a real device as it goes.
"""

from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from offbeat.core.effects import Assignment
from offbeat.core.orders import Outcome
from offbeat.core.parameters import Vector
from offbeat.core.policy import DeviceRule, Fresh, ReadOnlyMemory, copied
from offbeat.device.carry_over import remember
from offbeat.device.memory import NOTHING
from offbeat.device.training_state import TrainingJob, TrainingState


class GradientSource(Protocol):
    """Whoever can say how good a model is on one batch of a device's data, and where it would become better."""

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        """Loss and gradient of a model on a batch, drawn for this device, ticket and number."""
        ...


class LocalTraining(Struct, kw_only=True, eq=False, gc=False):
    """The numbers of one order on one device, how far they have come and what they came from."""

    assignment: Assignment
    work: TrainingState
    performed: int = 0
    """Stretches of training and merges that are behind it. They number the batches on which a merge looks."""
    remembered: ReadOnlyMemory
    """What the device remembered when the run began."""
    memory: ReadOnlyMemory
    """What the device remembered when the run began, with what the run has added; a copy as soon as it has."""

    def job(self, first: int, last: int, beyond: int = 0) -> TrainingJob:
        """Slices `first` to `last - 1`, and so many steps of the next, for a trainer."""
        given = self.assignment
        return TrainingJob(
            device=given.device,
            ticket=given.ticket,
            order=given.order,
            first=first,
            last=last,
            beyond=beyond,
            work=self.work,
            anchor=given.parameters,
            memory=self.remembered if self.remembered and given.order.remembers else NOTHING,
        )

    def merge(self, rule: DeviceRule, fresh: Fresh, source: GradientSource) -> None:
        """Take in a newer model as the order's device rule says."""
        given, work, memory, number = self.assignment, self.work, copied(self.memory), self.performed

        def probe(parameters: Vector) -> tuple[float, Vector]:
            return source.loss_and_gradient(parameters, given.device, given.ticket, number, given.order.batch_size)

        merged = rule.merge(work.parameters, fresh, given.base, given.order, memory, probe)
        self.memory = memory
        self.work = replace(work, parameters=merged, start=None)
        self.performed += 1

    def report(self, rule: DeviceRule) -> Outcome:
        """What the device delivers: the parameters, the training loss, and what its rule has to say beside them."""
        given, work = self.assignment, self.work
        extras = rule.extras(given.order, self.remembered, self.memory)
        if given.order.remembers:
            memory = copied(self.memory)
            remember(given.order, given.parameters, work, memory)
            self.memory = memory
        return Outcome(parameters=work.parameters, loss=work.loss, extras=extras)
