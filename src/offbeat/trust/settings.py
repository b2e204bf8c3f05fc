"""The `[trust]` table: bounds on the influence of devices, and the rule that combines updates."""

from functools import cached_property
from typing import Any

from pydantic import ConfigDict

from offbeat.algorithms import POLICIES
from offbeat.core.combining import Combiner, Screen
from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.policy import Policy
from offbeat.core.selection import Selector
from offbeat.core.settings import InvalidSettings, explain
from offbeat.references import resolve
from offbeat.trust.filters import AsyncFilter, Throttle
from offbeat.trust.influence import InfluenceLimits
from offbeat.trust.privacy import Level
from offbeat.trust.robust import Bucketing, CentredClipping, CoordinateMedian, Krum, MultiKrum, RobustRule, TrimmedMean
from offbeat.trust.trusted import AflGuard, TrustedRule, ZenoPlusPlus

COMBINERS: dict[str, type[Combiner]] = {
    "median": CoordinateMedian,
    "trimmed-mean": TrimmedMean,
    "centred-clipping": CentredClipping,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "bucketing": Bucketing,
    "asyncfilter": AsyncFilter,
    "throttle": Throttle,
    "aflguard": AflGuard,
    "zeno++": ZenoPlusPlus,
}
"""The rules that `trust.combine` can name besides "mean"."""
LIMITS = tuple(InfluenceLimits.model_fields)


class TrustTable(InfluenceLimits):
    """How far the server trusts its devices. The settings of the combining rule belong here too."""

    model_config = ConfigDict(extra="allow")

    combine: str = "mean"
    """The rule that combines the updates of a buffer or round (`offbeat list defences`), or your own as
    "module:Class"."""
    sums_only: bool = False
    """Add each update to a running sum when it arrives and keep nothing else of it. The algorithm makes the same
    versions from the sums (fedavg, fedbuff and others) and never sees a single update."""

    @property
    def is_default(self) -> bool:
        """Whether the table changes nothing."""
        return self.screen is None and self.combiner is None and not self.sums_only

    @cached_property
    def screen(self) -> Screen | None:
        """The bounds on the influence of each update; None if there are none."""
        limits = InfluenceLimits(**{name: getattr(self, name) for name in LIMITS})
        off = limits.clip == "off" and limits.repeats == 1.0
        return None if off and limits.most_samples is None and limits.most_samples_factor is None else limits

    @cached_property
    def combiner(self) -> Combiner | None:
        """The rule that replaces the weighted mean; None for "mean"."""
        others = dict(self.model_extra or {})
        if self.combine == "mean":
            if others:
                raise unknown("key of [trust] without a combining rule,", min(others), TrustTable.model_fields)
            return None
        kind = combiner_class(self.combine)
        if wrong := sorted(others.keys() - kind.model_fields.keys()):
            known = sorted([*kind.model_fields, *TrustTable.model_fields])
            raise unknown(f"key of [trust] with combine = {self.combine!r},", wrong[0], known)
        try:
            return kind(**others)
        except InvalidSettings as invalid:
            raise InvalidInput(explain(invalid.error, "trust", list(kind.model_fields))) from None

    @property
    def trusted_samples(self) -> int:
        """The number of samples that the server trains on itself; 0 for most rules."""
        return self.combiner.trusted_samples if isinstance(self.combiner, TrustedRule) else 0

    def check(self, policy: Policy, name: str, *, privacy: Level | None, selector: Selector | None) -> None:
        """Raise InvalidInput if the algorithm does not take the rule, or a private run would mix devices.

        `privacy` is what the run protects by noise; None if nothing.
        """
        mixing = {
            "combine": self.combiner,
            "clip": self.clip == "auto",
            "most_samples_factor": self.most_samples_factor,
        }
        if privacy and (wrong := next((key for key, value in mixing.items() if value), None)) is not None:
            raise InvalidInput(
                f"trust.{wrong} = {getattr(self, wrong)!r}: with [privacy] the bound on an update may not depend on "
                "other devices; use privacy.clip"
            )
        if self.combiner is not None and policy.mixes and not self.combiner.singly:
            others = ", ".join(rule for rule, kind in COMBINERS.items() if kind.singly)
            raise InvalidInput(
                f"trust.combine = {self.combine!r}: {name!r} uses one update at a time, and the rule compares several; "
                f"use {others}, or set trust.clip instead, which every algorithm takes"
            )
        if self.combiner is not None and not (policy.combines or policy.mixes):
            raise InvalidInput(
                f"trust.combine = {self.combine!r}: {name!r} does not make its versions from a weighted mean of "
                "several updates, which the rule would replace; set trust.clip instead, which every algorithm takes"
            )
        size = next((each for each in ("buffer", "buffer_size", "cohort") if each in type(policy).model_fields), None)
        number = getattr(policy, size) if size else None
        least = self.combiner.least if isinstance(self.combiner, RobustRule) else 1
        if number is not None and number < least:
            raise InvalidInput(
                f"algorithm.{size} = {number}: trust.combine = {self.combine!r} withstands no hostile update among "
                f"fewer than {least}; increase it, or use trust.clip"
            )
        if self.sums_only:
            self._check_sums(policy, name, privacy, selector)

    def _check_sums(self, policy: Policy, name: str, privacy: Level | None, selector: Selector | None) -> None:
        """Raise InvalidInput if anything needs a single update."""
        if not policy.sums_suffice:
            others = ", ".join(each for each, kind in POLICIES.items() if kind().sums_suffice)
            raise InvalidInput(
                f"trust.sums_only = true: {name!r} needs individual updates with these settings; use one of {others} "
                "with its default variant"
            )
        readers = {
            f"trust.combine = {self.combine!r}": self.combiner is not None,
            f"trust.clip = {self.clip!r}": self.clip != "off",
            f"trust.repeats = {self.repeats}": self.repeats != 1.0,
            "privacy.level = 'device'": privacy == "device",
            f"selection of {type(selector).__name__}": selector is not None and selector.reads is not None,
        }
        if (wrong := next((setting for setting, reads in readers.items() if reads), None)) is not None:
            raise InvalidInput(f"{wrong}: needs individual updates, leave it out or set trust.sums_only = false")

    def written(self) -> dict[str, Any]:
        """The table as a file has it; empty if it changes nothing."""
        if self.is_default:
            return {}
        own = {} if self.combiner is None else self.combiner.model_dump(exclude_none=True)
        given = {*LIMITS, "combine", "sums_only"}
        return self.model_dump(exclude_none=True, exclude_defaults=True, include=given) | own


def combiner_class(name: str) -> type[Combiner]:
    """A registered combining rule, or a user's own as "module:Class"."""
    if ":" not in name:
        if name not in COMBINERS:
            raise unknown("value of trust.combine", name, ["mean", *COMBINERS])
        return COMBINERS[name]
    found = resolve(name)
    if not (isinstance(found, type) and issubclass(found, Combiner)):
        raise InvalidInput(f"trust.combine = {name!r}: must be a subclass of offbeat.policy.Combiner")
    return found
