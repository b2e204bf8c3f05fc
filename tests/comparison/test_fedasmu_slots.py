"""Measuring what the slots are worth, and pre-training the meta model on it."""

import numpy as np
import pytest

from offbeat.algorithms.fedasmu.slots import MetaModel
from offbeat.comparison.slots import measure_slots
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.simulation.run import simulation_of


def small(**algorithm: object) -> Experiment:
    return Experiment.parse(
        {
            "stop": {"time": 60.0},
            "data": {"name": "digits", "devices": 20},
            "partition": {"name": "dirichlet", "alpha": 0.3},
            "model": {"name": "mlp"},
            "local": {"epochs": 3, "learning_rate": 0.1},
            "algorithm": {"name": "fedasmu", **algorithm},
        }
    )


def test_every_slot_has_its_record_and_the_same_one_every_time() -> None:
    seen: list[float] = []
    records = measure_slots(small(), lambda fraction, row: seen.append(fraction))
    assert [record.slot for record in records] == [1, 2, 3]
    assert records[0].merges == 0 and records[0].reward == 0.0  # before the first epoch nothing is newer
    assert records[1].merges > 0 and records[2].merges > 0
    assert records == measure_slots(small())
    assert seen == sorted(seen) and seen[-1] == 1.0


def test_other_algorithms_have_no_slots() -> None:
    with pytest.raises(InvalidInput, match="only fedasmu and fedssmu have slots"):
        measure_slots(Experiment.parse({"stop": {"time": 1.0}}))


def test_a_history_moves_the_first_proposal() -> None:
    with simulation_of(small(history=[0.0, -1.0, 1.0])) as simulation:
        probabilities = MetaModel(3).probabilities(simulation.session.state.meta.theta)
        assert np.argmax(probabilities) == 2


def test_a_history_of_the_wrong_length_is_refused() -> None:
    with (
        pytest.raises(InvalidInput, match="history has 2 rewards: must have one for each of the 3 epochs"),
        simulation_of(small(history=[0.0, 1.0])),
    ):
        pass
