"""What an update must satisfy before it may touch the model."""

import numpy as np

from offbeat.core.books import Flight
from offbeat.core.errors import DeviceFault
from offbeat.core.messages import Done, Update
from offbeat.core.parameters import Layout, Vector


def check_update(update: Update, flight: Flight, layout: Layout) -> None:
    """What a delivered update must satisfy before it may touch the model; raises DeviceFault."""
    who = f"device {flight.device}, ticket {flight.ticket}"
    if (update.device, update.ticket, update.base) != (flight.device, flight.ticket, flight.base):
        raise DeviceFault(f"{who}: the update says device {update.device}, ticket {update.ticket}, base {update.base}")
    if update.samples < 1 or not 0 <= update.progress.slices <= flight.order.slices:
        raise DeviceFault(f"{who}: the update claims {update.samples} samples, {update.progress.slices} slices")
    chosen = None if update.mask is None else update.mask.chosen
    if chosen is not None and (chosen.shape != (layout.size,) or chosen.dtype != np.bool_):
        raise DeviceFault(f"{who}: the mask is {chosen.shape} {chosen.dtype}, not ({layout.size},) bool")
    if isinstance(update.outcome, Done):  # a simulation's come to be when read; a commit that is not finite is refused
        check_numbers(update.outcome().parameters, layout, who)


def check_numbers(parameters: Vector, layout: Layout, who: str) -> None:
    if parameters.shape != (layout.size,) or parameters.dtype != np.float32:
        raise DeviceFault(f"{who}: parameters of shape {parameters.shape} {parameters.dtype}, not ({layout.size},)")
    if not np.isfinite(parameters).all():
        raise DeviceFault(f"{who}: the parameters are not finite")
