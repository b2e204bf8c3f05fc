"""An order that a device is working on."""

from offbeat.core.effects import Assignment
from offbeat.core.parameters import Vector


class OrderInFlight(Assignment, frozen=True, kw_only=True, eq=False, gc=False):
    """An order at work: the assignment, and what the device was told since. It keeps the versions that it refers to."""

    notified: bool = False
    fresh: tuple[tuple[int, Vector], ...] = ()
    """The newer versions that the device was given on the way, with their parameters."""

    @property
    def versions(self) -> list[int]:
        """All versions that it was given, its base first."""
        return [self.base, *(version for version, _ in self.fresh)]
