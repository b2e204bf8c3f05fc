"""What a server may know of its devices before a run begins: how fast they are, how far away, and how long it has."""

from dataclasses import dataclass
from math import inf

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
    horizon: float = inf
    """Seconds after which the run ends."""
