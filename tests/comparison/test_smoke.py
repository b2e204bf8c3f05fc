"""The smoke experiment in a small form: every registered algorithm learns something in two fifths of the time."""

import pytest

from offbeat import load_experiment, run
from offbeat.algorithms import POLICIES

SMOKE = load_experiment("smoke")


def test_every_registered_algorithm_is_in_the_smoke_experiment() -> None:
    names = [SMOKE.for_algorithm(label, 0).algorithm.name for label in SMOKE.compare]
    assert sorted(set(names)) == sorted(POLICIES)


@pytest.mark.parametrize("label", SMOKE.compare)
def test_it_learns(label: str) -> None:
    experiment = SMOKE.for_algorithm(label, 100)
    changes: dict[str, object] = {"stop": {"time": 40.0}}
    if "rounds" in type(experiment.algorithm.policy).model_fields:  # of the same length as in the whole run
        changes["algorithm"] = {"rounds": 48}
    result = run(experiment.changed(changes))
    best = max(row["accuracy"] for row in result.rows)
    assert best >= 0.5, f"{best:.3f}; ten classes, so chance is 0.1"
