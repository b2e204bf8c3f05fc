"""What an update must satisfy before it may touch the model."""

import numpy as np

from offbeat.core.errors import DeviceFault
from offbeat.core.in_flight import OrderInFlight
from offbeat.core.orders import KnownOutcome, Update
from offbeat.core.parameters import Layout, Vector


def check_update(update: Update, given: OrderInFlight, layout: Layout) -> None:
    """What a delivered update must satisfy before it may touch the model; raises DeviceFault."""
    if update.device != given.device or update.ticket != given.ticket or update.base != given.base:
        says = f"device {update.device}, ticket {update.ticket}, base {update.base}"
        raise _fault(given, f"the update says {says}")
    if update.samples < 1 or not 0 <= update.progress.slices <= given.order.slices:
        raise _fault(given, f"the update claims {update.samples} samples, {update.progress.slices} slices")
    if update.mask is not None:
        chosen = update.mask.chosen
        if chosen.shape != (layout.size,) or chosen.dtype != np.bool_:
            raise _fault(given, f"the mask is {chosen.shape} {chosen.dtype}, not ({layout.size},) bool")
    if isinstance(update.outcome, KnownOutcome):  # else they are made when read, and a commit checks what comes of it
        _check_numbers(update.outcome().parameters, given, layout)


def _check_numbers(parameters: Vector, given: OrderInFlight, layout: Layout) -> None:
    if parameters.shape != (layout.size,) or parameters.dtype != np.float32:
        raise _fault(given, f"parameters of shape {parameters.shape} {parameters.dtype}, not ({layout.size},)")
    if not np.isfinite(parameters).all():
        raise _fault(given, "the parameters are not finite")


def _fault(given: OrderInFlight, what: str) -> DeviceFault:
    return DeviceFault(f"device {given.device}, ticket {given.ticket}: {what}")
