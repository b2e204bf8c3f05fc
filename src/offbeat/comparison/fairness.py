"""Fair comparisons: the same number of devices in training for all algorithms, and notes on what differs.

Searches and races use seeds that are never reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import count, islice
from statistics import fmean
from typing import Any

from offbeat.algorithms import policy_class
from offbeat.algorithms.about import about_of
from offbeat.algorithms.sizes import RULE, default_in_training
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import IN_TRAINING, Experiment
from offbeat.experiment.tables import Table, flattened
from offbeat.results.result import Result
from offbeat.running.sizing import Algorithm, algorithm_settings, shared_in_training, sized

NOT_COMPARED = ("seed", "algorithm", "execution", "evaluation", "deployment", "compare", "sweep")
"""Tables in which the experiments of a comparison may differ without a note."""


def fair_experiments(base: Experiment, algorithms: Sequence[Algorithm], seeds: Sequence[int]) -> list[Experiment]:
    """The experiment under each algorithm and seed, with the shared number of devices in training."""
    shared = shared_in_training(base, algorithms)
    return [sized(base.for_algorithm(algorithm, seed), shared) for algorithm in algorithms for seed in seeds]


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
            names = {field for name in algorithms.values() for field in policy_class(name).model_fields}
            near = get_close_matches(key, sorted(names), n=1, cutoff=0.5)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise InvalidInput(f"algorithm.{key} = {value}: no such setting in {', '.join(others)}{hint}")
        without = f"; no such setting in {', '.join(others)}" if others else ""
        sentences.append(f"algorithm.{key} = {value}: set for {', '.join(known)}{without}.")
    return sentences


# Notes on what differs -----------------------------------------------------------------------------------------------


FOLLOW = "unset buffers, cohorts, periods and staleness bounds follow in proportion"
SELECTION = "selection.name"
ALIKE = 1.1
"""Measured numbers of devices in training that differ by a factor of at most this count as the same."""


def note_on_sizes(base: Experiment, algorithms: Sequence[Algorithm]) -> str:
    """A sentence on the number of devices in training that all algorithms share, and what follows from it."""
    shared = shared_in_training(base, algorithms)
    if shared is False:
        return "Each algorithm has its own number of devices in training (compare.in_training = false)."
    devices = base.data.devices
    why = RULE if shared == default_in_training(devices) else "as set"
    return (
        f"Devices in training: {shared} of {devices} ({'compare.in_training' if base.in_training else why}); {FOLLOW}."
    )


def notes_on(experiments: Mapping[str, Experiment], results: Iterable[Result]) -> list[str]:
    """Sentences on what differs between the experiments under these labels, apart from the algorithm itself.

    The number of devices in training is the one measured in the results.
    """
    flat = {label: flattened(experiment.table(), but=NOT_COMPARED) for label, experiment in experiments.items()}
    for label, experiment in experiments.items():
        flat[label][SELECTION] = experiment.selection.name
    keys = dict.fromkeys(key for table in flat.values() for key in table)
    if _differs(SELECTION, flat):  # then their other settings differ anyway
        keys = {key: None for key in keys if key == SELECTION or not key.startswith("selection.")}
    notes = [f"Not the same for all: {_values(key, flat)}." for key in keys if _differs(key, flat)]
    policies = {label: each.algorithm.policy for label, each in experiments.items()}
    about = {label: about_of(policy) for label, policy in policies.items()}
    measured: dict[str, list[float]] = {}
    for result in results:
        measured.setdefault(result.algorithm, []).append(result.in_training)
    means = {label: fmean(each) for label, each in measured.items()}
    if means and max(means.values()) > ALIKE * min(means.values()):
        shown = {
            label: {"in training": f"{mean:.0f}" if mean > 9.95 else f"{mean:.1f}"} for label, mean in means.items()
        }
        waiting = [label for label in means if label in about and about[label].family == "synchronous"]
        why = f"; rounds of {', '.join(waiting)} wait for their slowest device" if waiting else ""
        notes.append(f"Not the same for all: devices {_values('in training', shown)}, measured{why}.")
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
    compared = {**experiment.compare, IN_TRAINING: shared_in_training(experiment, algorithms)}
    return Experiment.parse(experiment.given_table() | {"compare": compared})
