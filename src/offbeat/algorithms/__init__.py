"""The algorithms: one file per family, server and device half together.

A new one is a file, a line in the registry here, one in `origins` and one in the experiment `smoke`.
"""

from offbeat.algorithms.asofed import AsoFed
from offbeat.algorithms.deadlines.adel import Adel
from offbeat.algorithms.deadlines.heterofl import HeteroFL
from offbeat.algorithms.deadlines.salf import Salf
from offbeat.algorithms.deadlines.stragglers import DropStragglers, WaitStragglers
from offbeat.algorithms.delayed_gradients import Audg, Psurdg, Sfl
from offbeat.algorithms.fedasmu.device import FreshModelRule
from offbeat.algorithms.fedasmu.server import FedASMU, FedSSMU
from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.feddyn import FedDyn
from offbeat.algorithms.fedlws import FedLWS
from offbeat.algorithms.fedprox import FedProx
from offbeat.algorithms.fedsa import FedSA
from offbeat.algorithms.moon import Moon
from offbeat.algorithms.origins import ORIGINS, Origin
from offbeat.algorithms.safa import Safa
from offbeat.algorithms.seafl import Port, Seafl, Seafl2
from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.policy import DeviceRule, Policy
from offbeat.references import resolve

__all__ = [
    "DEVICE_RULES",
    "ORIGINS",
    "POLICIES",
    "Adel",
    "AsoFed",
    "Audg",
    "DropStragglers",
    "FedASMU",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "FedDyn",
    "FedLWS",
    "FedProx",
    "FedSA",
    "FedSSMU",
    "HeteroFL",
    "Moon",
    "Origin",
    "Port",
    "Psurdg",
    "Safa",
    "Salf",
    "Seafl",
    "Seafl2",
    "Sfl",
    "WaitStragglers",
    "device_rule",
    "policy_class",
]

POLICIES: dict[str, type[Policy]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "moon": Moon,
    "feddyn": FedDyn,
    "fedlws": FedLWS,
    "fedasync": FedAsync,
    "aso-fed": AsoFed,
    "fedsa": FedSA,
    "fedbuff": FedBuff,
    "fedasmu": FedASMU,
    "fedssmu": FedSSMU,
    "seafl": Seafl,
    "seafl2": Seafl2,
    "port": Port,
    "safa": Safa,
    "sfl": Sfl,
    "audg": Audg,
    "psurdg": Psurdg,
    "adel": Adel,
    "salf": Salf,
    "drop-stragglers": DropStragglers,
    "wait-stragglers": WaitStragglers,
    "heterofl": HeteroFL,
}

DEVICE_RULES: dict[str, DeviceRule] = {
    "plain": DeviceRule(),
    "fedasmu": FreshModelRule(),
}
"""The device halves, by the name that orders carry."""


def policy_class(name: str) -> type[Policy]:
    """A registered policy, or the user's own as "module:Class"."""
    if ":" not in name:
        if name not in POLICIES:
            raise unknown("algorithm", name, POLICIES)
        return POLICIES[name]
    found = resolve(name)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise InvalidInput(f"algorithm {name!r}: it is not a subclass of offbeat.Policy")
    if not hasattr(found, "State"):
        raise InvalidInput(f"algorithm {name!r}: it has no State, a dataclass of what it remembers")
    return found


def device_rule(name: str) -> DeviceRule:
    """A registered device half, or the user's own as "module:object"."""
    rule = DEVICE_RULES.get(name)
    if rule is not None:
        return rule
    if ":" not in name:
        raise unknown("device rule", name, DEVICE_RULES)
    found = resolve(name)
    if not isinstance(found, DeviceRule):
        raise InvalidInput(f"device rule {name!r}: it is not an instance of offbeat.DeviceRule")
    return found
