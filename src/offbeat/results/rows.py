"""What a run leaves behind while it goes on: rows of metrics, and the span of every order."""

from msgspec import Struct

Row = dict[str, float]
"""A line of metrics."""


class Span(Struct, frozen=True, kw_only=True, gc=False):
    """What became of an order, for the timeline."""

    device: int
    ticket: int
    base: int
    sent: float
    arrived: float
    landed: float
    slices: int
    outcome: str
