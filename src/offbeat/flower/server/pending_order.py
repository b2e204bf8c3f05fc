"""An order in flight, as far as the server of a deployment has seen."""

from msgspec import Struct

from offbeat.core.orders import Progress
from offbeat.flower.protocol.messages import Merge
from offbeat.results.rows import Span


class PendingOrder(Struct, kw_only=True, eq=False):
    """What the server of a deployment knows of an order in flight, beside what the session knows."""

    device: int
    ticket: int
    base: int
    sent: float
    samples: int
    bytes_down: int
    """What was sent to the device so far."""
    received: int
    """The last ticket that had been received of the device, whose memory it may begin with."""
    leg: int = 0
    """Messages that were sent for it."""
    progress: Progress = Progress()
    remembered: int = 0
    """The ticket whose memory the device began it with."""
    fresh: list[int] = []
    """Newer versions that the device was sent."""
    merges: list[Merge] = []
    """Those that it says it did not wait for, and where they reached it."""
    given_up: bool = False
    """Whether it has failed and the session is about to be told."""

    def span(self, landed: float, outcome: str, bytes_up: int = 0) -> Span:
        """What became of the order. When the device got it only the device knows: it is taken to have trained last."""
        seconds = self.progress.seconds
        return Span(
            device=self.device,
            ticket=self.ticket,
            base=self.base,
            sent=self.sent,
            arrived=max(self.sent, landed - seconds),
            landed=landed,
            slices=self.progress.slices,
            outcome=outcome,
            samples=self.samples,
            seconds=seconds,
            bytes_down=self.bytes_down,
            bytes_up=bytes_up,
        )
