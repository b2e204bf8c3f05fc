"""An order in flight: one that a device is working on."""

from collections.abc import Callable

from offbeat.core.effects import Assignment
from offbeat.core.orders import Outcome, Progress, Update
from offbeat.core.parameters import Mask, Vector


class OrderInFlight(Assignment, frozen=True, kw_only=True, eq=False, gc=False):
    """The assignment and what the device was told since. It keeps the versions of the model that it refers to."""

    notified: bool = False
    """Whether the device was told to stop soon."""
    fresh: tuple[tuple[int, Vector], ...] = ()
    """The newer versions that the device was given on the way, with their parameters."""

    @property
    def versions(self) -> list[int]:
        """All versions that the device was given, its base first."""
        return [self.base, *(version for version, _ in self.fresh)]

    def update(self, samples: int, progress: Progress, outcome: Callable[[], Outcome], mask: Mask | None) -> Update:
        """The update that this order ends with."""
        return Update(
            device=self.device,
            ticket=self.ticket,
            base=self.base,
            base_parameters=self.parameters,
            samples=samples,
            progress=progress,
            outcome=outcome,
            mask=mask,
        )
