"""Golden numbers: short scripted traces of every rule, and the model that must come out after each step.

A trace is data (`traces/NAME.toml`): settings of an algorithm, uploads with their bases, and the server's model after
each, with the arithmetic in words. `deviation` plays a trace to an implementation and names the first step whose model
differs. Ours are policies in a scripted session; any other implementation needs an adapter:

    class Mine:
        def start(self, parameters): ...         # the first model, an array of float64
        def upload(self, upload): ...            # an `TraceUpload`; returns the model after it
        def timer(self, name): ...               # only for rules with rounds or iterations of fixed length
        def lost(self, device): ...              # only for traces in which a device is lost

    def adapter(rule, settings, trace):          # an implementation, or None or a reason (str) if there is none
        return Mine(settings["buffer"]) if rule == "fedbuff" else None
"""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, ValidationError, convert, field

from offbeat.algorithms import policy_class
from offbeat.core.errors import InvalidInput, unknown
from offbeat.core.parameters import Layout
from offbeat.testing.scripted import Reaction, ScriptedSession

Floats = npt.NDArray[np.float64]
Number = int | float | str
"""A number of a trace; a string is a fraction such as "7/3"."""
TOLERANCE = 2e-5
"""Largest difference that counts as equal, relative to the larger of 1 and the expected number: models are float32."""


class Step(Struct, kw_only=True, forbid_unknown_fields=True):
    """One event, and what must be true after it."""

    model: list[Number]
    """The server's model after the event."""
    version: int
    """The number of this model: versions made so far, also by aggregations that change nothing."""
    why: str
    """The arithmetic."""
    upload: list[Number] | None = None
    """The model that `device` uploads, trained from version `base`."""
    device: int = 0
    base: int = 0
    slices: int | None = None
    """Completed slices (default: all that were ordered)."""
    timer: str | None = None
    """The timer that fires."""
    lost: int | None = None
    """The device that is lost."""
    fresh: int | None = None
    """The device in training that asks for the fresh model, which it must be sent."""
    discarded: bool = False
    """Whether the upload is discarded."""
    stopped: list[int] = field(default_factory=list)
    """Devices that are told to stop early."""
    orders: dict[str, Any] = field(default_factory=dict)
    """Fields that every order given in this step must have."""

    @property
    def event(self) -> str:
        """The event in words, without the staleness of an upload."""
        if self.timer is not None:
            return f"timer {self.timer!r}"
        if self.lost is not None:
            return f"loss of device {self.lost}"
        return f"request of device {self.fresh}" if self.fresh is not None else "upload"


class Trace(Struct, kw_only=True, forbid_unknown_fields=True):
    """A scripted run of one algorithm."""

    name: str
    settings: dict[str, Any]
    samples: list[int]
    """Samples of each device."""
    start: list[Number]
    """The first model."""
    steps: list[Step]
    orders: dict[str, Any] = field(default_factory=dict)
    """Fields that the first orders must have."""
    local: dict[str, Any] = field(default_factory=dict)
    """Settings of the devices' training (default: 1 epoch, learning rate 0.01)."""
    layers: list[list[int]] = field(default_factory=list)
    """The shape of each layer (default: one layer)."""
    speeds: list[float] | None = None
    """Samples per second of each device, for rules that plan with them."""
    horizon: float = float("inf")
    """Seconds of the run, for rules with a time budget."""
    algorithm: str = ""
    source: str = ""
    provenance: str = ""

    @property
    def title(self) -> str:
        """Algorithm and name."""
        return f"{self.algorithm}, trace {self.name}"


class _TraceFile(Struct, kw_only=True, forbid_unknown_fields=True):
    algorithm: str
    source: str
    provenance: str
    trace: list[Trace]


def load_traces(names: Iterable[str] = ()) -> list[Trace]:
    """The traces of these algorithms, or of all that have some; no code of the files is executed."""
    folder = files("offbeat.testing") / "traces"
    known = {each.name.removesuffix(".toml"): each for each in folder.iterdir() if each.name.endswith(".toml")}
    found = []
    for name in list(names) or sorted(known):
        if name not in known:
            raise unknown("algorithm with traces", name, known)
        found += read_traces(known[name].read_text(encoding="utf-8"), name)
    return found


def read_traces(text: str, where: str) -> list[Trace]:
    """The traces of a file's text."""
    try:
        file = convert(tomllib.loads(text), _TraceFile)
    except (ValidationError, tomllib.TOMLDecodeError) as error:
        raise InvalidInput(f"traces of {where}: {error}") from None
    for trace in file.trace:
        trace.algorithm, trace.source, trace.provenance = file.algorithm, file.source, file.provenance
    return file.trace


def numbers(values: Sequence[Number]) -> Floats:
    """The numbers of a trace.

    >>> numbers([1, 0.5, "1/3"]).round(3).tolist()
    [1.0, 0.5, 0.333]
    """
    return np.array([float(Fraction(value)) if isinstance(value, str) else float(value) for value in values])


# Implementations ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TraceUpload:
    """An upload, as an adapter sees it."""

    device: int
    model: Floats
    base_version: int
    """The version that the device trained from."""
    base_parameters: Floats
    staleness: int
    """Versions since then."""
    samples: int
    """Samples of the device."""
    slices: int | None
    """Completed slices; None: all that were ordered."""

    @property
    def movement(self) -> Floats:
        """The model minus its base."""
        return self.model - self.base_parameters


Adapter = Callable[[str, dict[str, Any], Trace], Any]
"""Makes an implementation of a rule with some settings; None, or the reason as a string, if there is none."""


class TraceSession(ScriptedSession):
    """A scripted session whose random choices are those that the trace needs."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.done = trace, 0
        shapes = [(f"layer{number}.weight", tuple(shape), True) for number, shape in enumerate(trace.layers)]
        super().__init__(
            policy_class(trace.algorithm)(**trace.settings),
            samples=trace.samples,
            start=numbers(trace.start).tolist(),
            layout=Layout.of(shapes) if shapes else None,
            speeds=trace.speeds,
            horizon=trace.horizon,
            **trace.local,
        )

    def pick(self, count: int, excluding: Iterable[int] = ()) -> list[int]:
        """The idle devices that upload next in the trace."""
        coming = [step.device for step in self.trace.steps[self.done :] if step.upload is not None]
        order = list(dict.fromkeys([*coming, *range(self.devices)]))
        return [device for device in order if self.is_idle(device) and device not in excluding][: max(count, 0)]


class PolicyUnderTest:
    """Our own implementation: a policy in a session."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def start(self, parameters: Floats) -> None:
        """Start the session."""
        self.session = TraceSession(self.trace)
        self.reaction = self.session.first

    def upload(self, upload: TraceUpload) -> Floats:
        """TraceUpload a model for the order that the device holds."""
        self.session.done += 1
        self.ticket = self.session.ticket_of(upload.device)
        self.reaction = self.session.upload(*upload.model.tolist(), device=upload.device, slices=upload.slices)
        return self.session.parameters.astype(np.float64)

    def timer(self, name: str) -> Floats:
        """Fire a timer."""
        self.session.done += 1
        self.reaction = self.session.fire(name)
        return self.session.parameters.astype(np.float64)

    def lost(self, device: int) -> Floats:
        """Lose a device."""
        self.session.done += 1
        self.reaction = self.session.lose(device=device)
        return self.session.parameters.astype(np.float64)

    def fresh(self, device: int) -> Floats:
        """Return the model that a device in training is sent, without elements if there is none."""
        self.session.done += 1
        self.reaction = Reaction()
        sent = self.session.ask(device=device).parameters
        return np.zeros(0) if sent is None else sent.astype(np.float64)


# Checking -------------------------------------------------------------------------------------------------------------


def deviation(trace: Trace, implementation: Any) -> str | None:
    """Play a trace to an implementation, and describe the first step whose outcome differs; None if none does."""
    model = numbers(trace.start)
    versions = [model]
    implementation.start(model.copy())
    policy = implementation if isinstance(implementation, PolicyUnderTest) else None
    if policy is not None and (wrong := _wrong_orders(policy, trace.orders)):
        return f"{trace.title}, at the start: {wrong}"
    for number, step in enumerate(trace.steps, 1):
        expected = numbers(step.model)
        where = f"{trace.title}, after step {number} ({_event(step, len(versions) - 1)})"
        if policy is not None and step.upload is not None:
            held = policy.session.bases.get(step.device)
            if held != step.base:
                state = "is idle" if held is None else f"trains from version {held}"
                return f"{where}: device {step.device} {state}; the trace has an upload from version {step.base}"
        found = np.asarray(_play(step, trace, versions, implementation), dtype=np.float64).ravel()
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
            difference = _difference(model, expected, found)
            return f"{where}: expected {_shown(expected)}, got {_shown(found)}: {difference}. The trace: {step.why}"
        if policy is not None and (wrong := _wrong_reaction(policy, step)):
            return f"{where}: {wrong}. The trace: {step.why}"
        model = expected
        if step.version == len(versions):
            versions.append(model)
    return None


def our_adapter(rule: str, settings: dict[str, Any], trace: Trace) -> PolicyUnderTest:
    """The adapter of offbeat's own algorithms."""
    return PolicyUnderTest(trace)


def checked(trace: Trace, adapter: Adapter) -> tuple[str, str]:
    """The outcome of a trace ("holds", "deviates" or "skipped"), and the deviation or the reason in words."""
    implementation = adapter(trace.algorithm, dict(trace.settings), trace)
    if (reason := missing(trace, implementation)) is not None:
        return "skipped", reason
    words = deviation(trace, implementation)
    return ("holds", "") if words is None else ("deviates", words)


def missing(trace: Trace, implementation: Any) -> str | None:
    """Why a trace cannot be played to an implementation; None if it can."""
    if implementation is None:
        return "no implementation"
    if isinstance(implementation, str):
        return implementation
    for step in trace.steps:
        kind = "timer" if step.timer else "lost" if step.lost is not None else "fresh" if step.fresh is not None else ""
        if kind and not hasattr(implementation, kind):
            return f"the adapter has no {kind}()"
    return None


def _play(step: Step, trace: Trace, versions: list[Floats], implementation: Any) -> Any:
    if step.timer is not None:
        return implementation.timer(step.timer)
    if step.lost is not None:
        return implementation.lost(step.lost)
    if step.fresh is not None:
        return implementation.fresh(step.fresh)
    assert step.upload is not None
    upload = TraceUpload(
        device=step.device,
        model=numbers(step.upload),
        base_version=step.base,
        base_parameters=versions[step.base].copy(),
        staleness=len(versions) - 1 - step.base,
        samples=trace.samples[step.device],
        slices=step.slices,
    )
    return implementation.upload(upload)


def _event(step: Step, version: int) -> str:
    if step.upload is None:
        return step.event
    return f"upload of device {step.device}, base {step.base}, staleness {version - step.base}"


def _wrong_reaction(policy: PolicyUnderTest, step: Step) -> str | None:
    reaction, version = policy.reaction, policy.session.version
    if version != step.version:
        return f"the model is version {version}, expected version {step.version}"
    if step.upload is not None and (policy.ticket in reaction.discarded) != step.discarded:
        return f"the upload is {'used or kept' if step.discarded else 'discarded'}"
    if sorted(reaction.notified) != sorted(step.stopped):
        return f"devices {reaction.notified} are told to stop, expected {step.stopped}"
    return _wrong_orders(policy, step.orders)


def _wrong_orders(policy: PolicyUnderTest, fields: dict[str, Any]) -> str | None:
    for given in policy.reaction.orders if fields else ():
        for key, expected in fields.items():
            found: Any = getattr(given.order, key)
            found = [str(each) for each in found] if isinstance(found, tuple) else found
            same = abs(found - expected) < TOLERANCE if isinstance(expected, float) else found == expected
            if not same:
                return f"the order of device {given.device} has {key} = {found}, expected {expected}"
    return "no order is given" if fields and not policy.reaction.orders else None


def _difference(before: Floats, expected: Floats, found: Floats) -> str:
    """How the found movement differs from the expected one, in words.

    >>> before, expected = np.zeros(2), np.array([1.0, 2.0])
    >>> _difference(before, expected, np.array([1.41, 2.82]))
    '1.41x the expected movement'
    >>> _difference(before, expected, before), _difference(before, before, expected)
    ('the model did not move', 'the model moved, but nothing may change in this step')
    """
    if found.shape != expected.shape:
        return f"the model has {found.size} elements instead of {expected.size}"
    if not np.isfinite(found).all():
        return "the model is not finite"
    wanted, got = expected - before, found - before
    if not wanted.any():
        return "the model moved, but nothing may change in this step"
    if np.allclose(got, 0.0, atol=TOLERANCE):
        return "the model did not move"
    factor = float(got @ wanted / (wanted @ wanted))
    if np.allclose(got, factor * wanted, rtol=1e-3, atol=TOLERANCE):
        return f"{factor:.4g}x the expected movement"
    return "a movement in another direction"


def _shown(values: Floats) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"
