"""The metadata of an algorithm: source, family, search space, devices in training, compatibility.

A policy carries it as `about = About(...)`. Tables, comparisons, searches, the experiment `smoke` and the names in
`offbeat.flower` are made from it. The session and the drivers never read it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import LocalWork
from offbeat.core.policy import Policy
from offbeat.core.selection import Selector

Family = Literal["synchronous", "asynchronous", "buffered", "iterations", "time budget"]
"""When a version is made: after a round that waits for its devices; after every upload; after several uploads; after a
fixed time, from whatever was delivered; after rounds of planned length within a time budget."""
Provenance = Literal["published", "authors' code", "restated", "our reading", "ours"]
"""What the rule follows: the paper; its authors' code; descriptions or code by others; our own interpretation, where
the source was silent or unavailable; or no source, because it is a rule of this project."""

MadeFrom = Literal["rounds", "buffers", "iterations", "single uploads"]
"""Which uploads make a version: those of a round, of a buffer or of a fixed time, or each upload its own."""
MADE_FROM: dict[Family | None, MadeFrom] = {
    "synchronous": "rounds",
    "buffered": "buffers",
    "iterations": "iterations",
    "time budget": "rounds",
    "asynchronous": "single uploads",
    None: "single uploads",
}


@dataclass(frozen=True)
class Range:
    """Search a setting between two numbers; integers only if both ends are integers.

    >>> print(Range(1, 20, log=True, at_most="concurrency"), Range(0.1, 10.0, relative=True), sep="; ")
    1 to 20, on a log scale, at most concurrency; 0.1 to 10 times the experiment's
    """

    low: float
    high: float
    log: bool = False
    """Whether to search on a logarithmic scale."""
    relative: bool = False
    """Whether both ends are multiples of the experiment's own value."""
    at_most: str = ""
    """Another setting of the same algorithm that this one may not exceed."""

    @property
    def whole(self) -> bool:
        """Whether the range contains integers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        times = " times the experiment's" if self.relative else ""
        scale = ", on a log scale" if self.log else ""
        most = f", at most {self.at_most}" if self.at_most else ""
        return f"{self.low:g} to {self.high:g}{times}{scale}{most}"


@dataclass(frozen=True)
class Choice:
    """Search a setting among these values.

    >>> str(Choice("constant", "hinge"))
    "'constant' or 'hinge'"
    """

    values: tuple[str | bool, ...]

    def __init__(self, *values: str | bool) -> None:
        object.__setattr__(self, "values", values)

    def __str__(self) -> str:
        return " or ".join(repr(value) for value in self.values)


class SearchSpace(dict[str, Range | Choice]):
    """The settings that a search varies, with the values it tries; all other settings stay fixed.

    >>> SearchSpace(SearchSpace(mu=Range(0.1, 10.0)), temperature=Range(0.1, 1.0)).keys()
    dict_keys(['mu', 'temperature'])
    """


@dataclass(frozen=True, kw_only=True)
class ServerMemory:
    """Models that the server keeps from one version to the next, besides the current one, at the default settings.

    A model is a vector of float32; a vector of float64 counts twice. Uploads that wait for the next version and the
    versions that devices train from come on top, under every algorithm.

    >>> print(ServerMemory(), ServerMemory(models=2, per_device=1), ServerMemory(per_setting="queue"), sep="; ")
    0; 1 per device + 2; 1 per queue
    """

    models: int = 0
    """Whatever the number of devices."""
    per_device: int = 0
    """For each device that has reported."""
    per_base: int = 0
    """For each version that a device in training started from."""
    per_setting: str = ""
    """A setting that is a number of further models."""

    def __str__(self) -> str:
        counts = [(self.per_device, "device"), (self.per_base, "base in use"), (1, self.per_setting)]
        parts = [f"{count} per {what}" for count, what in counts if count and what]
        return " + ".join([*parts, *([str(self.models)] if self.models or not parts else [])])


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """What an algorithm needs of its devices and of the server, at its default settings (`compatibility_of`)."""

    sums_only: bool
    """Whether a version needs only the weighted sum of the uploads that make it, with weights that do not depend on
    their content: it then works with secure aggregation."""
    made_from: MadeFrom
    server_memory: ServerMemory
    needs: tuple[str, ...]
    """What the server must know or be able to do beyond sending models and receiving updates."""
    flower: str
    """Which Flower client apps it works with."""
    combines: bool = False
    """Whether `trust.combine` can replace the weighted mean that makes its versions."""
    mixes: bool = False
    """Whether it takes the rules of `trust.combine` that judge one update at a time."""

    def __str__(self) -> str:
        """One line on each fact, for `offbeat describe`."""
        uses = "only the sum of the updates (secure aggregation)" if self.sums_only else "individual updates"
        return (
            f"versions from {self.made_from}, which need {uses}\n"
            f"server memory, in models: {self.server_memory}\n"
            f"needs: {', '.join(self.needs) or 'nothing else'}\n"
            f"{'takes the robust rules of trust.combine' + chr(10) if self.combines else ''}"
            f"{'takes the rules of trust.combine that judge single updates' + chr(10) if self.mixes else ''}"
            f"Flower: {self.flower}"
        )

    @property
    def brief(self) -> str:
        """The facts that set it apart, in a few words."""
        memory = str(self.server_memory)
        words = (
            "sums only" if self.sums_only else "",
            "robust rules" if self.combines else "rules for single updates" if self.mixes else "",
            "" if memory == "0" else f"models kept: {memory}",
            *self.needs,
            "" if self.flower.startswith("any") else "own client app",
        )
        return "; ".join(filter(None, words))


@dataclass(frozen=True, kw_only=True)
class About:
    """The description of an algorithm. Every field has a default, for policies that are not part of offbeat.

    >>> about = About(family="buffered", in_training="concurrency", search=SearchSpace(buffer=Range(2, 20)))
    >>> about.in_training, about.provenance
    ('concurrency', None)
    """

    name: str = ""
    """The name in the registry, as in `algorithm.name` of an experiment."""
    family: Family | None = None
    paper: str = ""
    """Authors, venue and year."""
    provenance: Provenance | None = None
    in_training: str | None = None
    """The setting that says how many devices are in training at a time, or which share of them; unless it is given,
    `algorithms.sizes` chooses it. Not needed for a setting named `concurrency` or `cohort`."""
    in_proportion: tuple[str, ...] = ()
    """Further settings that follow in proportion to the devices in training, besides buffers and staleness bounds."""
    in_order_seconds: Mapping[str, float] = field(default_factory=dict)
    """Settings that are this multiple of the median duration of an order, where durations are known."""
    trains_all_devices: bool = False
    """Whether all devices train all the time, so that no setting limits their number."""
    names_devices: bool = False
    """Whether it decides itself which device is ordered, so that a `[selection]` would have no effect."""
    local_differences: Callable[[Any, LocalWork], list[str]] = lambda policy, local: []
    """What this policy's devices do differently from the experiment's local training, as phrases for a note under a
    comparison."""
    search: SearchSpace = field(default_factory=SearchSpace)
    """What `offbeat tune` varies besides the learning rate. The number of devices in training is never varied, because
    all algorithms of a comparison share it."""
    flower: Mapping[str, Any] | None = field(default_factory=dict)
    """Settings with which it runs with unchanged Flower client apps; None if there are none."""
    sums_only: bool = False
    """Whether a version needs only the weighted sum of its uploads, at the default settings (`Compatibility`)."""
    made_from: MadeFrom | None = None
    """Which uploads make a version (default: as its family says)."""
    server_memory: ServerMemory = field(default_factory=ServerMemory)
    needs_losses: bool = False
    """Whether it reads the training losses that devices report."""
    needs_training_times: bool = False
    """Whether it reads the training times that devices report."""
    smoke: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Its tables in the experiment `smoke` (20 devices, 100 s)."""


def about_of(policy: Policy | Selector | type[Policy] | type[Selector]) -> About:
    """The metadata of a policy or a selector. A subclass without its own `about` inherits all but name and source.

    >>> class Mine(Policy):
    ...     "A policy that says nothing about itself."
    >>> about_of(Mine) == about_of(Mine()) == About()
    True
    """
    kind = policy if isinstance(policy, type) else type(policy)
    about = About() if kind.about is None else kind.about
    if not isinstance(about, About):
        raise InvalidInput(f"{kind.__name__}.about is a {type(about).__name__}: must be an offbeat.policy.About")
    return about if "about" in vars(kind) else replace(about, name="", paper="", provenance=None)


def compatibility_of(policy: Policy | type[Policy]) -> Compatibility:
    """What a policy needs: derived from its flags where possible, otherwise stated in its `about`.

    >>> class Mine(Policy):
    ...     notifies = True
    ...     about = About(family="buffered", flower=None)
    >>> compatibility_of(Mine).needs, compatibility_of(Mine).made_from, compatibility_of(Mine).flower
    (('stop notices',), 'buffers', "offbeat's client app only")
    """
    kind, about = policy if isinstance(policy, type) else type(policy), about_of(policy)
    needs = {
        "device speeds": kind.plans,
        "stop notices": kind.notifies,
        "training losses": about.needs_losses,
        "training times": about.needs_training_times,
        "plain SGD on devices": kind.plain_gradients,
    }
    settings = ", ".join(f"{key} = {value}" for key, value in (about.flower or {}).items())
    clients = "offbeat's client app only" if about.flower is None else "any client app"
    return Compatibility(
        sums_only=about.sums_only,
        made_from=about.made_from or MADE_FROM[about.family],
        server_memory=about.server_memory,
        needs=tuple(need for need, is_needed in needs.items() if is_needed),
        flower=f"{clients} with {settings}" if settings else clients,
        combines=kind.combines,
        mixes=kind.mixes,
    )


def proximal_difference(mu: float, local: LocalWork) -> list[str]:
    """The local difference of an algorithm with a proximal term of its own, which `local.prox` would replace.

    >>> proximal_difference(0.01, LocalWork()), proximal_difference(0.01, LocalWork(prox=0.5))
    (['a proximal term in the local loss (prox = 0.01)'], [])
    """
    return [f"a proximal term in the local loss (prox = {mu:g})"] if mu and local.prox is None else []


def smoke_tables(policies: Iterable[type[Policy]]) -> dict[str, dict[str, Any]]:
    """The tables `[compare.NAME]` of the experiment `smoke`, for each of these policies."""
    tables: dict[str, dict[str, Any]] = {}
    for about in map(about_of, policies):
        tables[about.name] = {table: dict(values) for table, values in about.smoke.items()}
    return tables
