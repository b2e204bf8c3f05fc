"""Selection of devices, an exchangeable part of every algorithm that draws devices: one file each, and the registry."""

from offbeat.algorithms.about import about_of
from offbeat.core.policy import Policy
from offbeat.core.selection import Selector
from offbeat.selection.balanced import Balanced as Balanced
from offbeat.selection.oort import Oort as Oort
from offbeat.selection.pisces import Pisces as Pisces
from offbeat.selection.refl import LeastAvailable as LeastAvailable
from offbeat.selection.tifl import Tifl as Tifl
from offbeat.selection.uniform import Uniform as Uniform

SELECTORS: dict[str, type[Selector]] = {
    kind.about.name: kind for kind in (Uniform, Balanced, Oort, Pisces, LeastAvailable, Tifl)
}
"""Every selector, by the name in its `about`."""


def why_no_selection(policy: Policy) -> str | None:
    """Why a selector would have no effect on this policy; None if it has one."""
    about = about_of(policy)
    if about.trains_all_devices:
        return "keeps all devices in training"
    return "decides itself which device is ordered" if about.names_devices else None
