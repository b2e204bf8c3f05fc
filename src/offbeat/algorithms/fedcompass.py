"""FedCompass: gives fast devices more steps than slow ones, so that groups of them arrive at the same time.

Li, Chaturvedi, He, Chen, Bhatia, Singh, Madduri, Kim: *FedCompass: Efficient Cross-Silo Federated Learning on
Heterogeneous Client Devices Using a Computing Power-Aware Scheduler*, ICLR 2024 (arXiv 2309.14675), Algorithms 1-3. The
constants are those of the authors' framework APPFL.

| paper | here |
|---|---|
| Q_min, Q_max, limits of local steps (20 and 100) | `min_steps`, `max_steps`; by default in proportion to `[local]` |
| S_i, seconds per step, from order to upload | `state.seconds[i]` |
| momentum of S_i | `speed_momentum` |
| lambda, latest time factor | `latest_factor` |
| T_g, T_max,g | `ArrivalGroup.expected`, `ArrivalGroup.latest` |
| alpha, st(t - tau) = (t - tau + 1)^-a | `alpha`, a = `exponent` |

    first order of a device   Q_max steps without a group; its upload makes a version at once
    S_i      <- 0.1 S_i + 0.9 (seconds since the order) / (steps done)
    join     the group with the largest  q = floor((T_g - now) / S_i)  in [Q_min, Q_max], else open one:
             q = the largest floor((T_max,g + S_fastest,g Q_max - now) / S_i) <= Q_max, at least Q_min; Q_max if none
             T_g = now + q S_i,   T_max,g = now + lambda q S_i
    w        <- (1 - sum_i a_i) w + sum_i a_i w_i,   a_i = alpha (1/n) st(t - tau_i),   n devices
             when all of a group have arrived, or at T_max,g; the devices then get new orders, the fastest first.
             A later upload waits for the next such version, and its device is ordered at once.

A lost device leaves its group, which is complete if all others have arrived; it is ordered again when it returns.
Deviations: at T_max,g late uploads make a version even if no device of the group has arrived, so that they never wait
for ever; two late uploads of one device both count, where APPFL keeps the second.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import floor, inf
from typing import Annotated

import numpy as np
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace
from offbeat.algorithms.arrivals import Floats, local_steps
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Dispatch, Event, Lost, Ready, SetTimer, Started, TimerFired, Uploaded
from offbeat.core.orders import LocalWork, Update
from offbeat.core.parameters import by_block
from offbeat.core.policy import Policy, View

Ordering = Generator[Action, None, list[int]]
"""Actions, and the devices that are to be ordered after them."""
LEAST_SECONDS = 1e-6
"""Lower bound of S_i: a clock may not have advanced between order and upload."""


@dataclass
class ArrivalGroup:
    """Devices that are to arrive together."""

    expected: float
    latest: float
    training: list[int] = field(default_factory=list)
    arrived: list[Update] = field(default_factory=list)


@dataclass
class CompassState:
    """What is known of the devices' speeds, the groups, and the uploads that came too late for theirs."""

    seconds: dict[int, float] = field(default_factory=dict)
    """S_i of each device that has uploaded."""
    sent: dict[int, float] = field(default_factory=dict)
    """When each device in training was ordered."""
    groups: dict[int, ArrivalGroup] = field(default_factory=dict)
    opened: int = 0
    """Number of groups so far."""
    group_of: dict[int, int] = field(default_factory=dict)
    """The group of each device in training that has one."""
    late: list[Update] = field(default_factory=list)
    most: int = 1
    """Q_max."""
    fewest: int = 1
    """Q_min."""


def local_differences(policy: "FedCompass", local: LocalWork) -> list[str]:
    """What its devices do differently from `[local]`."""
    return [f"local steps by measured speed instead of local.{local.unit}s"]


class FedCompass(Policy):
    """Buffered asynchronous: local steps by speed, so that groups arrive together (Li et al. 2024).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedCompass(alpha=0.5), devices=2)
    >>> session.upload(8.0, 0.0, device=0).used  # the first upload of a device: 1/2 * 1/2 [8, 0]
    [1]
    >>> session.parameters.tolist()
    [2.0, 0.0]
    """

    State = CompassState
    Records = (ArrivalGroup,)

    min_steps: Annotated[int, Field(ge=1)] | None = None
    """Q_min, the fewest steps of an order (default: a fifth of Q_max, as published: 20 of 100)."""
    max_steps: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Q_max, the most steps of an order (default: those of `[local]` on a device with the mean number of samples)."""
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Mixing weight of all devices together."""
    exponent: Annotated[float, Field(ge=0)] = 0.5
    """a, the exponent of the staleness factor."""
    speed_momentum: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Weight of the newest measurement in a device's seconds per step."""
    latest_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5
    """lambda: a group waits this many times as long as its devices are expected to take."""

    about = About(
        name="fedcompass",
        family="buffered",
        paper="Li et al., ICLR 2024",
        provenance="authors' code",
        trains_all_devices=True,
        names_devices=True,
        local_differences=local_differences,
        search=SearchSpace(alpha=Range(0.3, 1.0, log=True), exponent=Range(0.0, 1.0), latest_factor=Range(1.0, 3.0)),
        flower=None,
    )

    def check(self, devices: int) -> None:
        if self.min_steps is not None and self.max_steps is not None and self.min_steps > self.max_steps:
            raise InvalidInput(f"algorithm.min_steps = {self.min_steps} exceeds max_steps = {self.max_steps}")

    def init(self, view: View) -> CompassState:
        most = self.max_steps or local_steps(view)
        fewest = self.min_steps or max(1, most // 5)
        return CompassState(most=max(most, fewest), fewest=fewest)

    def react(self, event: Event, state: CompassState, view: View) -> Iterator[Action]:
        free: Iterable[int] = ()
        match event:
            case Started():
                free = range(view.devices)
            case Ready(device=device):
                waiting = any(update.device == device for group in state.groups.values() for update in group.arrived)
                free = () if waiting else [device]
            case Uploaded():
                free = yield from self.receive(event.update, state, view)
            case Lost(device=device):
                free = yield from self.drop(device, state, view)
            case TimerFired(name=name):
                group = state.groups.get(int(name))
                if group is not None and (group.arrived or state.late):
                    free = yield from self.aggregate(int(name), state, view)
        fastest_first = sorted(free, key=lambda device: (state.seconds.get(device, 0.0), device))
        for device in fastest_first:
            if view.is_idle(device):
                yield from self.assign(device, state, view)

    # Uploads ----------------------------------------------------------------------------------------------------------

    def receive(self, update: Update, state: CompassState, view: View) -> Ordering:
        """Use an upload, or keep it for its group or for the next version; returns the devices to order."""
        device, progress = update.device, update.progress
        measured = max((view.now - state.sent.pop(device)) / max(progress.slices, 1), LEAST_SECONDS)
        share, known = self.speed_momentum, state.seconds.get(device, measured)
        state.seconds[device] = (1 - share) * known + share * measured
        number = state.group_of.pop(device, None)
        if number is None:
            yield self.version([update], view)
            return [device]
        group = state.groups[number]
        group.training.remove(device)
        if view.now > group.latest:
            state.late.append(update)
            self.close(number, state)
            return [device]
        group.arrived.append(update)
        if group.training:
            return []
        return (yield from self.aggregate(number, state, view))

    def drop(self, device: int, state: CompassState, view: View) -> Ordering:
        """Take a lost device out of its group, which may be complete now."""
        del state.sent[device]
        number = state.group_of.pop(device, None)
        if number is None:
            return []
        group = state.groups[number]
        group.training.remove(device)
        if group.arrived and not group.training:
            return (yield from self.aggregate(number, state, view))
        self.close(number, state)
        return []

    def aggregate(self, number: int, state: CompassState, view: View) -> Ordering:
        """Make a version from what has arrived of a group and from late uploads; returns the group's devices."""
        group = state.groups[number]
        updates, state.late = state.late + group.arrived, []
        devices = [update.device for update in group.arrived]
        group.arrived, group.expected, group.latest = [], -inf, -inf
        self.close(number, state)
        yield self.version(updates, view)
        return devices

    def close(self, number: int, state: CompassState) -> None:
        """Forget a group without devices."""
        if not state.groups[number].training and not state.groups[number].arrived:
            del state.groups[number]

    def version(self, updates: Sequence[Update], view: View) -> Commit:
        """(1 - sum_i a_i) w + sum_i a_i w_i."""
        now = view.parameters
        weights = [self.alpha / view.devices * self.scale(view.version - update.base) for update in updates]
        models = [update.parameters for update in updates]
        kept = 1.0 - sum(weights)

        def mixed(block: slice) -> Floats:
            total = kept * now[block].astype(np.float64)
            for weight, model in zip(weights, models, strict=True):
                total += weight * model[block]
            return total

        return Commit(parameters=by_block(len(now), mixed), used=tuple(update.ticket for update in updates))

    def scale(self, staleness: int) -> float:
        """st(t - tau), the factor of an update of this staleness."""
        return float((staleness + 1) ** -self.exponent)

    def weight_at(self, staleness: int) -> float | None:
        """st(t - tau)."""
        return self.scale(staleness)

    # Orders -----------------------------------------------------------------------------------------------------------

    def assign(self, device: int, state: CompassState, view: View) -> Iterator[Action]:
        """Order a device: into the group in which it can do most steps, or into a new one."""
        steps, seconds = state.most, state.seconds.get(device)
        if seconds is not None:
            number, steps = self.joined(seconds, state, view.now)
            if number is None:
                steps = self.steps_alone(seconds, state, view.now)
                state.opened = number = state.opened + 1
                duration = steps * seconds
                state.groups[number] = ArrivalGroup(view.now + duration, view.now + self.latest_factor * duration)
                yield SetTimer(name=str(number), after=self.latest_factor * duration)
            state.groups[number].training.append(device)
            state.group_of[device] = number
        state.sent[device] = view.now
        yield Dispatch(device=device, order=view.order(unit="step", slices=steps))

    def joined(self, seconds: float, state: CompassState, now: float) -> tuple[int | None, int]:
        """The group in which a device can do most steps, and their number; None if there is none."""
        best: tuple[int | None, int] = (None, state.fewest)
        for number, group in state.groups.items():
            steps = whole(group.expected - now, seconds)
            if best[1] <= steps <= state.most:
                best = (number, steps)
        return best

    def steps_alone(self, seconds: float, state: CompassState, now: float) -> int:
        """The steps of a device in a new group: so many that devices of another group may join it at their best."""
        possible = []
        for group in state.groups.values():
            if now < group.latest:
                members = [*group.training, *(update.device for update in group.arrived)]
                fastest = min(state.seconds[member] for member in members)
                possible.append(whole(group.latest + fastest * state.most - now, seconds))
        fitting = [steps for steps in possible if steps <= state.most]
        return max(state.fewest, *fitting) if fitting else state.most


def whole(duration: float, seconds: float) -> int:
    """The number of steps that end within a duration, robust against rounding errors; negative if it is over."""
    return floor(duration / seconds + 1e-9) if duration > -inf else -1
