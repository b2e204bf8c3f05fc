"""Moments: the times at which a session may be told of an event, whole nanoseconds since the beginning of the run.

Every time that a driver gives a session, or that a timer is set to, is made by one of these functions. Both are
monotonic, so a driver that computes a time from the current moment can never go back in time.
"""

NANOSECOND = 9
"""Decimals of a moment in seconds: the tenth firing of a timer of 0.1 s is at 1 s, not a rounding error before it."""


def moment(seconds: float) -> float:
    """The nearest moment."""
    return round(seconds, NANOSECOND)


def moment_after(seconds: float) -> float:
    """The first moment that is not before this time: what changes at this time has changed by then."""
    nearest = round(seconds, NANOSECOND)
    return nearest if nearest >= seconds else round(nearest + 1e-9, NANOSECOND)
