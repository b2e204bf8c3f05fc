"""What selectors by training loss share: the statistical utility of a device, and how many picks explore."""

from math import floor, isfinite
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from offbeat.core.selection import Devices, LossKind, Report, SelectionView, Selector

Floats = npt.NDArray[np.float64]
Share = Annotated[float, Field(ge=0, le=1)]


class LossSelector(Selector):
    """The setting of selectors that read training losses."""

    loss: LossKind = "squared"
    """Loss in the utility. squared: the root of the mean squared loss of the samples, which offbeat's client app
    reports. mean: the mean training loss, which stock Flower client apps report too."""

    @property
    def reads(self) -> LossKind:
        return self.loss


def utility_of(report: Report) -> float:
    """n times the loss of an upload; 0 if its loss is negative or not finite.

    >>> utility_of(Report(device=0, samples=10, seconds=1.0, staleness=0, version=0, loss=0.5))
    5.0
    """
    return report.samples * max(0.0, report.loss) if isfinite(report.loss) else 0.0


def rounded_at_random(number: float, random: np.random.Generator) -> int:
    """One of the two integers next to a number, with that number as the mean."""
    whole = floor(number)
    return whole + (random.random() < number - whole)


def best_first(devices: Devices, scores: Floats, random: np.random.Generator) -> Devices:
    """The devices by falling score; equal scores in random order."""
    shuffled = random.permutation(len(devices))
    return devices[shuffled[np.argsort(-scores[shuffled], kind="stable")]]


def unknown(devices: int) -> Floats:
    """A value for each device that is not known yet (nan)."""
    return np.full(devices, np.nan)


def drawn(count: int, devices: Devices, weights: Floats, view: SelectionView) -> list[int]:
    """Draw up to `count` of the devices without replacement, with probability proportional to weights."""
    share = np.maximum(weights, 1e-12 * max(1.0, float(weights.max(initial=0.0))))
    chosen: list[int] = view.random.choice(
        devices, min(count, len(devices)), replace=False, p=share / share.sum()
    ).tolist()
    return chosen
