"""Fair comparisons: the same number of devices in training for all algorithms, and notes on what differs.

Searches and races use seeds that are never reported.
"""

from collections.abc import Mapping, Sequence
from itertools import count, islice
from typing import Any

from offbeat.algorithms import policy_class
from offbeat.algorithms.about import about_of, settings_for
from offbeat.core.errors import InvalidInput
from offbeat.core.policy import Policy
from offbeat.experiment.objects import as_table
from offbeat.experiment.schema import IN_TRAINING, Experiment
from offbeat.experiment.tables import Table
from offbeat.running.assembly import ExperimentParts

Algorithm = str | Policy | type[Policy]
"""An algorithm of a comparison: a name, a policy with its settings, or a policy class."""
SHARE = 0.1
LEAST = 2
"""Default number of devices in training: this share of all devices, and at least `LEAST`."""
NOT_COMPARED = ("seed", "algorithm", "execution", "evaluation", "deployment", "compare", "sweep")
"""Tables in which the experiments of a comparison may differ without a note."""


def algorithm_settings(base: Experiment, algorithm: Algorithm) -> tuple[str, Table]:
    """The algorithm that a name in a comparison stands for, and those of its settings that were given."""
    table: Table = as_table("algorithm", algorithm)
    changes = base.compared.get(table["name"], {}).get("algorithm", {})
    name = str(changes.get("name", table["name"]))
    own = base.algorithm.others if base.algorithm.name == name else {}
    return name, {key: value for key, value in (own | table | changes).items() if key not in ("name", "label")}


def shared_in_training(base: Experiment, algorithms: Sequence[Algorithm]) -> int | None:
    """The number of devices that all algorithms keep in training; None if each has its own.

    It is `compare.in_training`; else the number in the settings of `[algorithm]` or of the first compared algorithm
    that gives one; else a tenth of the devices.
    """
    number, devices = base.in_training, base.data.devices
    if number is False:
        return None
    if number is not None:
        if number > devices:
            raise InvalidInput(f"compare.{IN_TRAINING} = {number}: there are only {devices} devices")
        return int(number)
    given = [(base.algorithm.name, base.algorithm.others), *(algorithm_settings(base, each) for each in algorithms)]
    for algorithm, settings in given:
        setting = about_of(policy_class(algorithm)).in_training
        if setting in settings:
            return min(int(settings[setting]), devices)
    return min(devices, max(LEAST, round(SHARE * devices)))


def fair_experiments(base: Experiment, algorithms: Sequence[Algorithm], seeds: Sequence[int]) -> list[Experiment]:
    """The experiment under each algorithm and seed, with the shared number of devices in training."""
    shared, experiments = shared_in_training(base, algorithms), []
    for algorithm in algorithms:
        same = [base.for_algorithm(algorithm, seed) for seed in seeds]
        settings = {} if shared is None or not same else _translated(base, algorithm, same[0], shared)
        experiments += [each.changed({"algorithm": {"name": each.algorithm.name} | settings}) for each in same]
    return experiments


def _translated(base: Experiment, algorithm: Algorithm, experiment: Experiment, in_training: int) -> Table:
    name, given = algorithm_settings(base, algorithm)
    return settings_for(
        policy_class(name),
        in_training,
        devices=base.data.devices,
        order_seconds=lambda: order_seconds(experiment),
        given=given,
    )


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


def spread_settings(base: Experiment, names: Sequence[str], settings: Mapping[str, Any]) -> Experiment:
    """The experiment with settings for every compared algorithm that has them."""
    compared: dict[str, Table] = dict(base.compare)
    for name in names:
        known = policy_class(algorithm_settings(base, name)[0]).model_fields
        theirs = {key: value for key, value in settings.items() if key in known}
        if theirs:
            changes = compared.get(name, {})
            compared[name] = changes | {"algorithm": changes.get("algorithm", {}) | theirs}
    return Experiment.parse(base.given_table() | {"compare": compared}) if settings else base


def known_by(settings: Mapping[str, Any], algorithms: Mapping[str, str]) -> list[str]:
    """For each setting a sentence that names the algorithms (by label) that have it; InvalidInput if none has."""
    sentences = []
    for key, value in settings.items():
        known = [label for label, name in algorithms.items() if key in policy_class(name).model_fields]
        others = [label for label in algorithms if label not in known]
        if not known:
            raise InvalidInput(f"algorithm.{key} = {value}: no such setting in {', '.join(others)}")
        without = f"; no such setting in {', '.join(others)}" if others else ""
        sentences.append(f"algorithm.{key} = {value}: set for {', '.join(known)}{without}.")
    return sentences


# Notes on what differs -----------------------------------------------------------------------------------------------


def notes_on(experiments: Mapping[str, Experiment]) -> list[str]:
    """Sentences on what differs between the experiments under these labels, apart from the algorithm itself."""
    flat = {label: flattened(experiment.table(), NOT_COMPARED) for label, experiment in experiments.items()}
    keys = dict.fromkeys(key for table in flat.values() for key in table)
    notes = [f"Not the same for all: {_values(key, flat)}." for key in keys if _differs(key, flat)]
    policies = {label: each.algorithm.policy for label, each in experiments.items()}
    about = {label: about_of(policy) for label, policy in policies.items()}
    chosen = {
        label: {"in training": getattr(policies[label], each.in_training)}
        for label, each in about.items()
        if each.in_training is not None
    }
    if _differs("in training", chosen):
        notes.append(f"Not the same for all: devices {_values('in training', chosen)}.")
    all_devices = [label for label, each in about.items() if each.trains_all_devices]
    if all_devices and len(all_devices) < len(experiments):
        notes.append(f"All devices train all the time in {', '.join(all_devices)}.")
    work: dict[str, list[str]] = {}
    for label, each in experiments.items():
        for difference in about[label].local_differences(policies[label], each.local):
            work.setdefault(difference, []).append(label)
    notes += [
        f"Only {', '.join(labels)}: {difference}."
        for difference, labels in work.items()
        if len(labels) < len(experiments)
    ]
    uncertain: dict[str, list[str]] = {}
    for label, known in about.items():
        if known.provenance in ("restated", "our reading"):
            uncertain.setdefault(known.provenance, []).append(label)
    notes += [
        f"Rules that are {provenance} (see `offbeat list algorithms`): {', '.join(labels)}."
        for provenance, labels in uncertain.items()
    ]
    return notes


def flattened(table: Mapping[str, Any], but: Sequence[str]) -> Table:
    """Settings by "table.key", without those of some tables."""
    return {
        f"{section}.{key}": value
        for section, values in table.items()
        if section not in but and isinstance(values, Mapping)
        for key, value in values.items()
    }


def _differs(key: str, tables: Mapping[str, Table]) -> bool:
    return len({repr(table.get(key)) for table in tables.values()}) > 1


def _values(key: str, tables: Mapping[str, Table]) -> str:
    """The values of a setting, each with its labels."""
    labels: dict[str, list[str]] = {}
    for label, table in tables.items():
        labels.setdefault("none" if table.get(key) is None else str(table[key]), []).append(label)
    return f"{key} = " + ", ".join(f"{value} ({', '.join(each)})" for value, each in labels.items())


SEEDS = (1000, 1001)
"""Default tuning seeds, with which settings are tried."""
REPORTED = 5
"""Default number of seeds, from the experiment's on, that are kept for reporting."""


def check_seeds(experiment: Experiment, seeds: Sequence[int], reported: Sequence[int] | None = None) -> None:
    """Refuse tuning seeds that are also reported: such results would favour the longest search."""
    if reported is None:
        reported = range(experiment.seed, experiment.seed + REPORTED)
    both = sorted(set(seeds) & set(reported))
    if not seeds or len(set(seeds)) < len(seeds):
        raise InvalidInput(f"tuning seeds = {list(seeds)}: give at least one seed, and each only once")
    if both:
        raise InvalidInput(
            f"tuning seeds {', '.join(map(str, both))} are also reported: tune on seeds other than "
            f"{', '.join(map(str, reported))}"
        )


def fresh_seeds(reported: Sequence[int]) -> list[int]:
    """Tuning seeds, none of which is reported; as many as in `SEEDS`.

    >>> fresh_seeds(range(3)), fresh_seeds(range(999, 1002))
    ([1000, 1001], [1002, 1003])
    """
    return list(islice((seed for seed in count(SEEDS[0]) if seed not in reported), len(SEEDS)))


def alike(experiment: Experiment, algorithms: Sequence[str]) -> Experiment:
    """The experiment with `compare.in_training` set to the number that these algorithms share."""
    shared = shared_in_training(experiment, algorithms)
    compared = {**experiment.compare, IN_TRAINING: False if shared is None else shared}
    return Experiment.parse(experiment.given_table() | {"compare": compared})
