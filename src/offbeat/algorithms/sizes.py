"""How many devices are in training, and the sizes that follow from it: one rule for every command.

A tenth of the devices is in training, at least 10 of them, or all if there are fewer. Sizes that were not set follow:

| setting | value |
|---|---|
| `concurrency`, `cohort`, or what `About.in_training` names | the devices in training |
| `cohort` with `period`, and no `concurrency` | orders that keep this many in training on average |
| `buffer`, `buffer_size` | in proportion to the defaults: FedBuff's 10 of 20 is a half |
| `staleness_limit`, `staleness_bound`, `max_staleness` | in proportion, unless a buffer makes the versions |
| what `About.in_proportion` names | in proportion |
| what `About.in_order_seconds` names: PSURDG's `iteration_seconds` | half the median duration of an order |

Staleness is counted in versions. Where every upload makes a version, it grows with the devices in training; where a
buffer does, and grows too, it stays. A user's own algorithm takes part by the names of its fields. A setting that was
given is never changed.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite
from typing import Any

import numpy as np

from offbeat.algorithms.about import about_of
from offbeat.core.policy import Policy

SHARE, LEAST = 0.1, 10
RULE = "a tenth of the devices, at least 10"
"""The default number of devices in training, in words."""
IN_TRAINING = ("concurrency", "cohort")
BUFFERS = ("buffer", "buffer_size")
STALENESS = ("staleness_limit", "staleness_bound", "max_staleness", "lag_tolerance")
COHORT, PERIOD, MOST = "cohort", "period", "max_in_flight"

OrderSeconds = Callable[[], Sequence[float]]
"""A function that returns how long each device takes for an order, from its dispatch to its upload."""


def default_in_training(devices: int) -> int:
    """Devices in training unless a setting says otherwise.

    >>> [default_in_training(devices) for devices in (5, 12, 20, 100, 1000)]
    [5, 10, 10, 10, 100]
    """
    return min(devices, max(LEAST, round(SHARE * devices)))


def in_training_setting(policy: Policy | type[Policy]) -> str | None:
    """The setting that says how many devices are in training, if one does."""
    kind = policy if isinstance(policy, type) else type(policy)
    about = about_of(kind)
    if about.in_training is not None or about.trains_all_devices or _is_periodic(kind):
        return about.in_training
    return _first(kind, IN_TRAINING)


def in_training_of(policy: type[Policy], given: Mapping[str, Any], devices: int) -> int | None:
    """The number of devices in training that these settings give; None if they do not say."""
    setting = in_training_setting(policy)
    if setting is None or setting not in given:
        return None
    is_share = isinstance(_default(policy, setting), float)
    return min(devices, max(1, round(given[setting] * devices)) if is_share else int(given[setting]))


def settings_for(
    policy: type[Policy],
    in_training: int,
    *,
    devices: int,
    order_seconds: OrderSeconds | None,
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """The sizes of a policy that are not `given`, for this number of devices in training.

    Without `order_seconds` a period keeps its default.
    """
    setting, sizes = in_training_setting(policy), dict[str, Any]()
    if setting is None and _is_periodic(policy):
        sizes = _periodic(in_training, devices, order_seconds, given, most=_default(policy, COHORT))
        setting = COHORT
    elif setting is not None:
        sizes[setting] = in_training if isinstance(_default(policy, setting), int) else in_training / devices
        in_training = in_training_of(policy, given, devices) or in_training
    for name in governed(policy):
        if name in (*BUFFERS, *STALENESS, *about_of(policy).in_proportion) and setting is not None:
            exact = _default(policy, name) * in_training / _default(policy, setting)
            sizes[name] = max(1, ceil(round(exact, 9))) if isinstance(_default(policy, name), int) else max(1.0, exact)
    if order_seconds is not None and (multiples := about_of(policy).in_order_seconds).keys() - given.keys():
        sizes |= {name: round(factor * float(np.median(order_seconds())), 6) for name, factor in multiples.items()}
    return {name: value for name, value in sizes.items() if name in policy.model_fields and name not in given}


def governed(policy: type[Policy]) -> list[str]:
    """The settings of a policy that follow the number of devices in training unless they are given."""
    setting = in_training_setting(policy)
    if setting is None and not _is_periodic(policy):
        return list(about_of(policy).in_order_seconds)
    names = [setting] if setting is not None else [COHORT, PERIOD, *([MOST] if MOST in policy.model_fields else [])]
    if isinstance(_default(policy, names[0]), int):
        names += [name for name in (_first(policy, BUFFERS) or _first(policy, STALENESS),) if name is not None]
        names += about_of(policy).in_proportion
    return names


def sizes_of(policy: Policy) -> dict[str, float]:
    """The buffer and the staleness bound of a policy, where it has them, for tables of results."""
    found = {"buffer": _first(type(policy), BUFFERS), "staleness_bound": _first(type(policy), STALENESS, unset=True)}
    values = {title: getattr(policy, name) for title, name in found.items() if name is not None}
    return {title: value for title, value in values.items() if value is not None and isfinite(value)}


def _default(policy: type[Policy], name: str) -> Any:
    return policy.model_fields[name].default


def _first(policy: type[Policy], names: Sequence[str], *, unset: bool = False) -> str | None:
    """The first of the names that is a field with a number as its default, or if `unset` any field."""
    for name in names:
        if name in policy.model_fields:
            default = _default(policy, name)
            if unset or (isinstance(default, int | float) and not isinstance(default, bool) and default > 0):
                return name
    return None


# Orders at fixed times -----------------------------------------------------------------------------------------------


def _is_periodic(policy: type[Policy]) -> bool:
    """Whether it orders `cohort` devices every `period` seconds."""
    has = policy.model_fields.keys()
    return COHORT in has and PERIOD in has and "concurrency" not in has and not about_of(policy).trains_all_devices


def _periodic(
    in_training: int, devices: int, order_seconds: OrderSeconds | None, given: Mapping[str, Any], *, most: int
) -> dict[str, Any]:
    """`cohort` orders, at most the default, every `period` seconds, that keep `in_training` devices in training."""
    if PERIOD in given and COHORT in given:
        return {}
    if order_seconds is None:
        return {COHORT: min(most, in_training)}
    per_second = orders_per_second(in_training, order_seconds())
    if PERIOD in given:
        sizes = {COHORT: min(devices, max(1, round(given[PERIOD] * per_second)))}
    else:
        cohort = given.get(COHORT, min(most, in_training))
        sizes = {COHORT: cohort, PERIOD: round(cohort / per_second, 6)}
    if 2 * in_training > devices // 2:
        sizes[MOST] = min(devices, 2 * in_training)
    return sizes


def orders_per_second(in_training: int, seconds: Sequence[float]) -> float:
    """Orders per second, each to a random idle device, that keep `in_training` devices in training.

    A device that is picked r times per idle second is in training for the share r T / (1 + r T) of the time and is
    ordered r / (1 + r T) times a second. Bisection finds the r at which the shares sum to `in_training`.

    >>> round(orders_per_second(2, [10.0] * 4), 6)  # half of the time in training: an order every 20 s for each
    0.2
    """
    times = np.asarray(seconds, dtype=np.float64)
    wanted = min(float(in_training), 0.95 * len(times))
    low, high = 0.0, 1e9
    for _ in range(200):
        rate = (low + high) / 2
        if (rate * times / (1 + rate * times)).sum() < wanted:
            low = rate
        else:
            high = rate
    return float((high / (1 + high * times)).sum())
