"""The file of measurements as a record: a run that it has is found there again, on any machine, and not run anew.

A line names its run by a digest of everything that determines the numbers, but for where files lie. So a reproduction
goes on from its file alone, without the cache that its runs were made in, and a run whose definition has changed since
is not found and is made again.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from experiments.measurements import Measurement
from offbeat.comparison.run_cache import digest
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import Table, parse_changes

PLACES = (("data", "dir"), ("fleet", "path"))
"""Settings that say where files lie: of these only the last name counts."""


def identity(experiment: Experiment) -> str:
    """What determines a run's numbers, in short; the same for everybody who has the same files somewhere."""
    table = experiment.table()
    named = {
        section: {"name": table[section]["name"], key: Path(table[section][key]).name}
        for section, key in PLACES
        if key in table[section]
    }
    return digest(experiment.changed(named))[:16]


class Record:
    """The measurements that are already there, by the runs that they were made from."""

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self._runs = {each.run: each for each in measurements if each.run}

    def find(self, experiment: Experiment, *, target: float | None, slow: bool) -> Measurement | None:
        """What a run came to, if it is there with this target and, where that is wanted, the share of slow devices."""
        found = self._runs.get(identity(experiment))
        if found is None or found.values.get("target") != target or (slow and "slow_share" not in found.values):
            return None
        return found

    def has(self, experiment: Experiment) -> bool:
        """Whether the run is there."""
        return identity(experiment) in self._runs

    def settings_of(self, part: str, method: str) -> Iterator[Table]:
        """The settings that runs of a method were made with, as changes to its experiment."""
        lines = [each.settings for each in self._runs.values() if (each.part, each.method) == (part, method)]
        for line in dict.fromkeys(filter(None, lines)):
            yield parse_changes(line.split("; "))
