"""The `[attack]` table: devices that harm the model, as a failure of a simulated fleet.

A share of the devices, drawn by the seed, attacks from `start` on. D is the movement that the device's training gives.

| name | upload | strength | source |
|---|---|---|---|
| sign-flip | -s D | s | common baseline |
| scaling | s D | s | common baseline |
| gaussian | noise of the norm s \\|\\|D\\|\\| | s | common baseline |
| label-flip | honest training on the labels C - 1 - y | | Tolpegin et al., ESORICS 2020 |
| alie | mean - z std of each coordinate | z | Baruch, Baruch, Goldberg, NeurIPS 2019 (A Little Is Enough) |
| ipm | -s mean | s | Xie, Koyejo, Gupta, UAI 2019 (Fall of Empires) |
| backdoor | s D, half of the samples with a trigger and the label `target` | s | Bagdasaryan et al., AISTATS 2020 |
| flooding | -D, and trains s times as fast, also before `start` | s | our reading |
| stale-replay | the model of its first upload, again and again | | our reading |

The mean and std of alie and ipm are over the movements that all attackers would have uploaded last if they were honest:
attackers share what they know and see nothing of honest devices. z is by default the largest that the paper's formula
allows, for n devices and m attackers:  Phi(z) = (n - m - h) / (n - m),  h = floor(n / 2 + 1) - m.
"""

from math import floor
from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import Field, model_validator

from offbeat.core.errors import InvalidInput
from offbeat.core.settings import Settings
from offbeat.core.streams import stream

AttackName = Literal[
    "none", "sign-flip", "scaling", "gaussian", "label-flip", "alie", "ipm", "backdoor", "flooding", "stale-replay"
]


class AttackKind:
    """One attack: what it does, as its docstring, and its default strength."""

    def __init__(self, does: str, strength: float = 1.0) -> None:
        self.__doc__ = does
        self.strength = strength


ATTACKS = {
    "sign-flip": AttackKind("Uploads the negative of its movement, times strength (5).", 5.0),
    "scaling": AttackKind("Uploads its movement times strength (10).", 10.0),
    "gaussian": AttackKind("Uploads noise whose norm is strength (5) times that of its movement.", 5.0),
    "label-flip": AttackKind("Trains on the labels C - 1 - y."),
    "alie": AttackKind("Uploads the attackers' mean movement minus strength standard deviations (A Little Is Enough)."),
    "ipm": AttackKind("Uploads the negative of the attackers' mean movement, times strength (5; Empire).", 5.0),
    "backdoor": AttackKind("Trains half of its samples with a trigger and the label `target`; scales by 3.", 3.0),
    "flooding": AttackKind("Trains strength (20) times as fast, so that it is heard more often, and flips.", 20.0),
    "stale-replay": AttackKind("Uploads the model of its first upload again and again."),
}
"""The attacks by name; the strength of alie follows from the paper's formula."""
POISONING = ("label-flip", "backdoor")
"""Attacks on the data, in effect from the beginning."""
COLLUDING = ("alie", "ipm")


class AttackTable(Settings):
    """Hostile devices; a simulation only."""

    name: AttackName = "none"
    """The attack (`offbeat list attacks`)."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the devices that attack."""
    start: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Seconds after which uploads are hostile."""
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """How strong the attack is (default: by attack, see `offbeat describe attack`)."""
    target: Annotated[int, Field(ge=0)] = 0
    """The label that the backdoor's trigger shall give."""

    @model_validator(mode="after")
    def _has_a_name(self) -> "AttackTable":
        if self.model_fields_set and "name" not in self.model_fields_set:
            raise InvalidInput(f"attack.{min(self.model_fields_set)} has no effect: set attack.name too")
        return self

    def members(self, devices: int, seed: int) -> frozenset[int]:
        """The devices that attack: round(share * devices) of them, at least one."""
        number = max(1, round(self.share * devices))
        chosen = stream(seed, "attackers").choice(devices, size=min(number, devices), replace=False)
        return frozenset(chosen.tolist())

    def force(self, devices: int) -> float:
        """The strength, or its default."""
        if self.strength is not None:
            return self.strength
        if self.name == "alie":
            return little_is_enough(devices, max(1, round(self.share * devices)))
        return ATTACKS[self.name].strength


def little_is_enough(devices: int, attackers: int) -> float:
    """The largest z with which the attackers and h honest devices form a majority.

    >>> round(little_is_enough(50, 12), 3)  # h = 26 - 12 = 14: Phi(z) = (38 - 14) / 38
    0.336
    """
    honest, needed = devices - attackers, floor(devices / 2 + 1) - attackers
    share = (honest - needed) / honest if honest > 0 else 0.0
    return max(0.0, NormalDist().inv_cdf(min(max(share, 0.01), 0.99)))
