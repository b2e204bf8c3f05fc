"""What a server may know of its devices before a run begins: how fast they are and how far away."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """Averages, from the simulator's fleet or from measurements; policies that plan ahead plan with these."""

    speeds: Floats
    """P_u: samples per second that each device takes through one layer of the model, forward and backward."""
    communication: Floats
    """B_u: seconds that each device needs to receive the whole model and to send it back."""
    random_layers: bool = True
    """Whether the time of a layer is drawn anew each time (exponentially distributed in ADEL-FL's model), so that
    everybody comes through all layers now and then; with fixed speeds a slow device never does."""
