"""The algorithms: one file per family, server and device half together, and the registry.

A new algorithm is one file, whose policy has an `about`, and one line here: its import. The order of the imports is the
order of all tables.
"""

import sys
from types import ModuleType

from offbeat.algorithms.about import about_of
from offbeat.algorithms.fedasmu.device import FreshModelRule
from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.policy import DeviceRule, Policy
from offbeat.references import resolve

# isort: off
from offbeat.algorithms.fedavg import FedAvg as FedAvg
from offbeat.algorithms.fedprox import FedProx as FedProx
from offbeat.algorithms.moon import Moon as Moon
from offbeat.algorithms.feddyn import FedDyn as FedDyn
from offbeat.algorithms.fedlws import FedLWS as FedLWS
from offbeat.algorithms.fedasync import FedAsync as FedAsync
from offbeat.algorithms.asofed import AsoFed as AsoFed
from offbeat.algorithms.fedsa import FedSA as FedSA
from offbeat.algorithms.fedbuff import FedBuff as FedBuff
from offbeat.algorithms.fedasmu.server import FedASMU as FedASMU
from offbeat.algorithms.fedasmu.server import FedSSMU as FedSSMU
from offbeat.algorithms.seafl import Seafl as Seafl
from offbeat.algorithms.seafl import Seafl2 as Seafl2
from offbeat.algorithms.seafl import Port as Port
from offbeat.algorithms.safa import Safa as Safa
from offbeat.algorithms.delayed_gradients import Sfl as Sfl
from offbeat.algorithms.delayed_gradients import Audg as Audg
from offbeat.algorithms.delayed_gradients import Psurdg as Psurdg
from offbeat.algorithms.deadlines.adel import Adel as Adel
from offbeat.algorithms.deadlines.salf import Salf as Salf
from offbeat.algorithms.deadlines.stragglers import DropStragglers as DropStragglers
from offbeat.algorithms.deadlines.stragglers import WaitStragglers as WaitStragglers
from offbeat.algorithms.deadlines.heterofl import HeteroFL as HeteroFL
from offbeat.algorithms.ca2fl import Ca2fl as Ca2fl
from offbeat.algorithms.fadas import Fadas as Fadas
from offbeat.algorithms.fadas import FadasLargeStep as FadasLargeStep
from offbeat.algorithms.fedstaleweight import FedStaleWeight as FedStaleWeight
from offbeat.algorithms.area import Area as Area
from offbeat.algorithms.ringmaster import Rennala as Rennala
from offbeat.algorithms.ringmaster import Ringmaster as Ringmaster
from offbeat.algorithms.ringmaster import RingmasterStop as RingmasterStop
from offbeat.algorithms.delay_adaptive import DelayAdaptive as DelayAdaptive
from offbeat.algorithms.ace import Ace as Ace
from offbeat.algorithms.ace import Aced as Aced
from offbeat.algorithms.ringleader import Ringleader as Ringleader
from offbeat.algorithms.fedfa import FedFa as FedFa
from offbeat.algorithms.delayed_nesterov import DelayedNesterov as DelayedNesterov
from offbeat.algorithms.fedstale import FedStale as FedStale
from offbeat.algorithms.fedstale import FedVarp as FedVarp
from offbeat.algorithms.fedcompass import FedCompass as FedCompass
from offbeat.algorithms.refl import Refl as Refl
from offbeat.algorithms.auto import Auto as Auto
# isort: on

POLICIES: dict[str, type[Policy]] = {
    about_of(thing).name: thing
    for thing in list(globals().values())
    if isinstance(thing, type) and issubclass(thing, Policy) and thing is not Policy
}
"""Every algorithm imported above, by the name in its `about`."""

DEVICE_RULES: dict[str, DeviceRule] = {
    "plain": DeviceRule(),
    "fedasmu": FreshModelRule(),
}
"""The device rules, by the name in an order."""


def known_name(name: str) -> str:
    """The registered name of an algorithm that is written another way; any other name unchanged.

    >>> known_name("FedBuff"), known_name("SEAFL²"), known_name("ASOFed"), known_name("my_module:Mine")
    ('fedbuff', 'seafl2', 'aso-fed', 'my_module:Mine')
    """
    if name in POLICIES or ":" in name:
        return name
    return next((known for known in POLICIES if _bare(known) == _bare(name)), name)


def _bare(name: str) -> str:
    return "".join(letter for letter in name.casefold().replace("²", "2") if letter.isalnum())


def policy_class(name: str) -> type[Policy]:
    """A registered policy, or a user's own as "module:Class"."""
    name = known_name(name)
    if ":" not in name:
        if name not in POLICIES:
            raise unknown("algorithm", name, POLICIES)
        return POLICIES[name]
    found = resolve(name)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise InvalidInput(f"algorithm {name!r}: must be a subclass of offbeat.Policy")
    if not hasattr(found, "State"):
        raise InvalidInput(f"algorithm {name!r}: must define State, the dataclass of its state")
    if found.react is Policy.react:
        raise InvalidInput(f"algorithm {name!r}: must define react(event, state, view), which yields actions")
    return found


def device_rule(name: str) -> DeviceRule:
    """A registered device rule, or a user's own as "module:object"."""
    rule = DEVICE_RULES.get(name)
    if rule is not None:
        return rule
    if ":" not in name:
        raise unknown("device rule", name, DEVICE_RULES)
    found = resolve(name)
    if not isinstance(found, DeviceRule):
        raise InvalidInput(f"device rule {name!r}: must be an instance of offbeat.DeviceRule")
    return found


class _Catalogue(ModuleType):
    """This module, which can be called: `offbeat.algorithms()` lists what there is."""

    def __call__(self) -> list[dict[str, str]]:
        """Name, family, paper and provenance of every algorithm; `pandas.DataFrame` makes a table of them."""
        found = {name: policy.about for name, policy in POLICIES.items()}
        return [
            {"name": name, "family": about.family, "paper": about.paper, "provenance": about.provenance}
            for name, about in found.items()
        ]


sys.modules[__name__].__class__ = _Catalogue
