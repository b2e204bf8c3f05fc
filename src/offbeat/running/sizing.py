"""The sizes of an experiment's algorithm that its author left open: devices in training, buffer, period and so on.

Every command that runs an experiment calls `sized` first, so that `run` and `compare` agree and `config.toml` holds the
values. The rule itself is in `algorithms.sizes`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from offbeat.algorithms import policy_class
from offbeat.algorithms.sizes import default_in_training, in_training_of, settings_for
from offbeat.core.errors import InvalidInput
from offbeat.core.policy import Policy
from offbeat.experiment.objects import as_table
from offbeat.experiment.schema import IN_TRAINING, Experiment
from offbeat.experiment.tables import Table
from offbeat.running.assembly import ExperimentParts

Algorithm = str | Policy | type[Policy]
"""An algorithm of a comparison: a name, a policy with its settings, or a policy class."""


def algorithm_settings(base: Experiment, algorithm: Algorithm) -> tuple[str, Table]:
    """The algorithm that a name in a comparison stands for, and those of its settings that were given."""
    table: Table = as_table("algorithm", algorithm)
    changes = base.compared.get(table["name"], {}).get("algorithm", {})
    name = str(changes.get("name", table["name"]))
    own = base.algorithm.others if base.algorithm.name == name else {}
    return name, {key: value for key, value in (own | table | changes).items() if key not in ("name", "label")}


def shared_in_training(base: Experiment, algorithms: Sequence[Algorithm] = ()) -> int | Literal[False]:
    """The number of devices that all algorithms keep in training; False if each has its own.

    It is `compare.in_training`; else the number in the settings of `[algorithm]` or of the first compared algorithm
    that gives one; else that of `default_in_training`.
    """
    number, devices = base.in_training, base.data.devices
    if number is False:
        return False
    if number is not None:
        if number > devices:
            raise InvalidInput(f"compare.{IN_TRAINING} = {number}: there are only {devices} devices")
        return int(number)
    given = [(base.algorithm.name, base.algorithm.others)]
    given += [algorithm_settings(base, each) for each in algorithms or list(base.compared)]
    numbers = (in_training_of(policy_class(name), settings, devices) for name, settings in given)
    return next((each for each in numbers if each is not None), default_in_training(devices))


def order_seconds(experiment: Experiment) -> list[float]:
    """Seconds that a plain order takes on each device: download, training and upload."""
    parts = ExperimentParts.of(experiment)
    fleet, order, size = parts.fleet(), experiment.local.order(0), parts.layout.bytes
    links = fleet.links
    return [
        links.down_seconds(device, size)
        + sum(fleet.speeds.slice_seconds(device, 0, order))
        + links.up_seconds(device, size)
        for device in range(parts.partition.devices)
    ]


def sized(
    experiment: Experiment,
    shared: int | Literal[False] | None = None,
    *,
    seconds: Callable[[Experiment], Sequence[float]] | None = order_seconds,
) -> Experiment:
    """The experiment with all sizes of its algorithm set, for `shared` devices in training (default: its own number).

    If that is False, as with `compare.in_training = false`, sizes that are not given have the algorithm's defaults.
    `seconds` returns how long each device takes for an order; None if that is unknown.
    """
    name, policy = experiment.algorithm.name, experiment.algorithm.policy
    open_sizes = experiment.algorithm.open_sizes
    if not open_sizes:
        return experiment
    shared = shared_in_training(experiment) if shared is None else shared
    if shared is False:
        defaults = {each: getattr(policy, each) for each in open_sizes}
        sizes = {each: value for each, value in defaults.items() if value is not None}
    else:
        given, iteration = experiment.algorithm.others, getattr(experiment.fleet.settings, "iteration_seconds", None)
        sizes = settings_for(
            type(policy),
            shared,
            devices=experiment.data.devices,
            order_seconds=None if seconds is None else partial(seconds, experiment),
            given=given if iteration is None else {"iteration_seconds": iteration, **given},
        )
    return experiment.changed({"algorithm": {"name": name} | sizes}) if sizes else experiment
