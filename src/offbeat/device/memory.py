"""What a device remembers from one order to the next, committed by ticket."""

from msgspec import Struct

from offbeat.core.policy import ReadOnlyMemory

NOTHING: ReadOnlyMemory = {}


class DeviceMemory(Struct, kw_only=True, eq=False):
    """The memory that the server knows of, and the one after the last delivery, of which it may not know yet.

    A delivery may be lost on its way. So the server names with every order the last ticket that it has received, and
    the device takes up the memory of that ticket, or none if it has lost it.
    """

    settled: int = 0
    """The ticket that `memory` is from; 0: none."""
    memory: ReadOnlyMemory = NOTHING
    latest_ticket: int = 0
    """The ticket that `latest` is from; 0: none."""
    latest: ReadOnlyMemory = NOTHING

    def settle(self, ticket: int) -> ReadOnlyMemory:
        """The memory to begin an order with, where the server has received this ticket last; forget any other."""
        if self.latest_ticket == ticket:
            self.memory, self.settled = self.latest, self.latest_ticket
        elif self.settled != ticket:
            self.memory, self.settled = NOTHING, 0
        self.latest, self.latest_ticket = self.memory, self.settled
        return self.memory

    def learned(self, ticket: int, memory: ReadOnlyMemory) -> None:
        """Keep what the device remembers after an order, until it is known whether the server has received it."""
        self.latest, self.latest_ticket = memory, ticket
