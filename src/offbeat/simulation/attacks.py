"""Hostile devices in a simulation: what they upload instead of their training, and the data that they poison.

An attack on one upload is computed when the upload is read. Colluding attacks and replays read the attackers' own
uploads when they arrive, in the order of events, so that a run resumes with the same numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as replaced

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import KnownOutcome, Outcome
from offbeat.core.parameters import Mask, Vector, dot, frozen
from offbeat.core.streams import stream
from offbeat.data.dataset import Dataset
from offbeat.data.partition import Partition
from offbeat.fleet import Fleet
from offbeat.fleet.attacks import COLLUDING, POISONING, AttackTable
from offbeat.fleet.overrides import DeviceSettings, with_overrides
from offbeat.running.assembly import ExperimentParts
from offbeat.training.executor import Executor
from offbeat.training.training_state import Evaluation

PATCH = 3
"""Side of the backdoor's trigger in pixels, or its number of features."""


@dataclass
class Knowledge:
    """What the attackers share: their last honest movements, and the models that they replay."""

    honest: dict[int, Vector] = field(default_factory=dict)
    replayed: dict[int, Vector] = field(default_factory=dict)


class Attackers:
    """The hostile devices of a simulation."""

    def __init__(self, settings: AttackTable, devices: int, seed: int) -> None:
        self.settings = settings
        self.members = settings.members(devices, seed)
        self.state = Knowledge()
        self._force = settings.force(devices)
        self._seed = seed

    def marks(self, devices: int) -> list[float]:
        """1 for each device that attacks, else 0."""
        return [float(device in self.members) for device in range(devices)]

    def outcome(
        self, device: int, ticket: int, at: float, base: Vector, mask: Mask | None, inner: Callable[[], Outcome]
    ) -> Callable[[], Outcome]:
        """What this device uploads in place of the outcome of its training."""
        name = self.settings.name
        if name in COLLUDING or name == "stale-replay":
            honest = inner()
            return KnownOutcome(self._known(device, at, base, mask, honest))
        if at < self.settings.start or name == "label-flip":
            return inner
        return HostileOutcome(inner, lambda outcome: self._alone(device, ticket, base, mask, outcome))

    def _known(self, device: int, at: float, base: Vector, mask: Mask | None, honest: Outcome) -> Outcome:
        """The upload of an attack that depends on earlier uploads; notes this one."""
        if self.settings.name == "stale-replay":
            model = self.state.replayed.setdefault(device, honest.parameters)
        else:
            self.state.honest[device] = honest.parameters - base
            known = np.stack([self.state.honest[each] for each in sorted(self.state.honest)]).astype(np.float64)
            mean = known.mean(axis=0)
            moved = -self._force * mean if self.settings.name == "ipm" else mean - self._force * known.std(axis=0)
            model = frozen((base + moved).astype(np.float32))
        return honest if at < self.settings.start else _uploaded(honest, model, base, mask)

    def _alone(self, device: int, ticket: int, base: Vector, mask: Mask | None, outcome: Outcome) -> Outcome:
        """The upload of an attack that depends on this training only."""
        moved, force = outcome.parameters - base, self._force
        match self.settings.name:
            case "sign-flip":
                moved = np.float32(-force) * moved
            case "flooding":
                moved = -moved
            case "gaussian":
                noise = stream(self._seed, "attack", device, ticket).standard_normal(len(base))
                moved = (noise * force * sqrt(dot(moved, moved) / len(base))).astype(np.float32)
            case _:
                moved = np.float32(force) * moved
        return _uploaded(outcome, frozen(base + moved), base, mask)

    def hastened(self, fleet: Fleet) -> Fleet:
        """The fleet in which attackers that flood train faster."""
        if self.settings.name != "flooding":
            return fleet
        own = DeviceSettings(slowdown=1.0 / self._force)
        return with_overrides(fleet, dict.fromkeys(self.members, own))

    def evaluation(self, executor: Executor, parts: ExperimentParts) -> Callable[[Vector], Evaluation] | None:
        """The evaluation with the success rate of a backdoor; None without one.

        It is the share of test samples of other labels that the trigger gives the target label.
        """
        if self.settings.name != "backdoor":
            return None
        data, trainer = parts.dataset, parts.trainer()
        others = np.flatnonzero(np.asarray(data.test_y) != self.settings.target)
        x = triggered(np.asarray(data.test_x)[others], _highest(data))
        wanted = np.full(len(others), self.settings.target, dtype=np.int64)

        def evaluate(parameters: Vector) -> Evaluation:
            found = executor.evaluate(parameters)
            success = trainer.evaluate(parameters, x, wanted).metrics["accuracy"]
            return replaced(found, metrics={**found.metrics, "backdoor_success": success})

        return evaluate


class HostileOutcome:
    """An outcome that is changed when it is first read."""

    __slots__ = ("_change", "_inner", "_value")

    def __init__(self, inner: Callable[[], Outcome], change: Callable[[Outcome], Outcome]) -> None:
        self._inner, self._change = inner, change
        self._value: Outcome | None = None

    def __call__(self) -> Outcome:
        if self._value is None:
            self._value = self._change(self._inner())
        return self._value


def _uploaded(honest: Outcome, model: Vector, base: Vector, mask: Mask | None) -> Outcome:
    """The outcome with this model; elements outside the mask stay as in the base."""
    return replaced(honest, parameters=model if mask is None else frozen(np.where(mask.chosen, model, base)))


# Data -----------------------------------------------------------------------------------------------------------------


def poisoned(dataset: Dataset, partition: Partition, attackers: Attackers) -> Dataset:
    """The data with the attackers' samples changed, if the attack is one on data."""
    settings = attackers.settings
    if settings.name not in POISONING:
        return dataset
    labels, inputs = dataset.train_y, dataset.train_x
    if settings.start:
        raise InvalidInput(f"attack.start = {settings.start:g}: {settings.name} poisons the data from the beginning")
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind != "i":
        raise InvalidInput(f"attack.name = {settings.name!r}: needs data with one label per sample")
    if settings.name == "backdoor" and settings.target >= dataset.classes:
        raise InvalidInput(f"attack.target = {settings.target}: labels go from 0 to {dataset.classes - 1}")
    owned = {device: partition.samples(device) for device in range(partition.devices)}
    theirs = np.concatenate([owned[device] for device in sorted(attackers.members)])
    honest = [owned[device] for device in owned if device not in attackers.members]
    if honest and np.isin(theirs, np.concatenate(honest)).any():
        raise InvalidInput(f"attack.name = {settings.name!r}: devices share samples, which only one of them may poison")
    labels = labels.copy()
    if settings.name == "label-flip":
        labels[theirs] = dataset.classes - 1 - labels[theirs]
        return replace(dataset, train_y=labels)
    if not isinstance(inputs, np.ndarray):
        raise InvalidInput("attack.name = 'backdoor': needs inputs that are one array")
    theirs, inputs = theirs[::2], inputs.copy()
    inputs[theirs] = triggered(inputs[theirs], _highest(dataset))
    labels[theirs] = settings.target
    return replace(dataset, train_x=inputs, train_y=labels)


def triggered(x: npt.NDArray[Any], value: float) -> npt.NDArray[Any]:
    """The inputs with the trigger: a bright corner of an image, or the last features."""
    x = x.copy()
    if x.ndim >= 4:
        x[..., -PATCH:, -PATCH:] = value
    else:
        x[..., -PATCH:] = value
    return x


def _highest(dataset: Dataset) -> float:
    return float(np.asarray(dataset.test_x).max())
