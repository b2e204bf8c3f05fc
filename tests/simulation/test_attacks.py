"""Hostile devices in a simulation: what they upload, by hand, and that runs with them stay reproducible."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import offbeat
from offbeat.algorithms import FedBuff
from offbeat.core.errors import InvalidInput
from offbeat.core.orders import KnownOutcome, Outcome
from offbeat.core.parameters import Mask, frozen
from offbeat.core.snapshot import decode, encode
from offbeat.fleet.attacks import ATTACKS, AttackTable
from offbeat.simulation.attacks import Attackers, triggered
from offbeat.simulation.engine import Simulation
from offbeat.testing.toy import toy_simulation

BASE = frozen([1.0, 1.0])


def uploaded(
    attackers: Attackers, *moved: float, device: int = 0, at: float = 0.0, mask: Mask | None = None
) -> list[float]:
    """The movement that an attacker uploads when its training moved the model by `moved`."""
    honest = KnownOutcome(Outcome(parameters=frozen(BASE + np.array(moved, dtype=np.float32))))
    return (attackers.outcome(device, 1, at, BASE, mask, honest)().parameters - BASE).tolist()  # type: ignore[no-any-return]


def attackers(name: str, **settings: Any) -> Attackers:
    return Attackers(AttackTable.model_validate({"name": name} | settings), 10, 0)


def test_single_attacks_by_hand() -> None:
    assert uploaded(attackers("sign-flip", strength=2.0), 3.0, -1.0) == [-6.0, 2.0]
    assert uploaded(attackers("scaling"), 3.0, -1.0) == [30.0, -10.0]
    assert uploaded(attackers("flooding"), 3.0, -1.0) == [-3.0, 1.0]
    assert uploaded(attackers("label-flip"), 3.0, -1.0) == [3.0, -1.0]  # its data are poisoned, not its upload
    noise = uploaded(attackers("gaussian", strength=4.0), 3.0, 4.0)
    assert noise == uploaded(attackers("gaussian", strength=4.0), 4.0, -3.0)  # keyed by device and ticket; norm 5 both
    assert 1.0 < np.linalg.norm(noise) < 100.0  # about 4 * 5


def test_colluders_share_what_they_would_have_uploaded() -> None:
    ipm = attackers("ipm", strength=2.0)
    assert uploaded(ipm, 2.0, 0.0, device=3) == [-4.0, 0.0]
    assert uploaded(ipm, 4.0, 2.0, device=5) == [-6.0, -2.0]  # mean [3, 1]
    assert uploaded(ipm, 6.0, 2.0, device=3) == [-10.0, -4.0]  # the last of each: mean [5, 2]
    alie = attackers("alie", strength=1.5)
    assert uploaded(alie, 2.0, 0.0, device=3) == [2.0, 0.0]
    assert uploaded(alie, 4.0, 0.0, device=5) == [1.5, 0.0]  # mean 3, std 1


def test_a_replay_uploads_its_first_model_again() -> None:
    replay = attackers("stale-replay")
    assert uploaded(replay, 2.0, 0.0) == [2.0, 0.0]
    assert uploaded(replay, 7.0, 7.0) == [2.0, 0.0]
    assert uploaded(replay, 7.0, 7.0, device=1) == [7.0, 7.0]


def test_attacks_begin_at_their_start_and_respect_masks() -> None:
    late = attackers("sign-flip", start=10.0, strength=1.0)
    assert uploaded(late, 2.0, 2.0, at=9.9) == [2.0, 2.0]
    assert uploaded(late, 2.0, 2.0, at=10.0) == [-2.0, -2.0]
    assert uploaded(late, 2.0, 0.0, at=10.0, mask=Mask(np.array([True, False]))) == [-2.0, 0.0]


def test_attackers_are_drawn_by_the_seed() -> None:
    table = AttackTable(name="scaling", share=0.3)
    assert len(table.members(50, 0)) == 15
    assert table.members(50, 0) == table.members(50, 0) != table.members(50, 1)
    assert len(AttackTable(name="scaling", share=0.01).members(10, 0)) == 1


def test_the_trigger_is_a_corner_of_an_image() -> None:
    images = triggered(np.zeros((2, 1, 5, 5)), 1.0)
    assert images[0, 0].sum() == 9 and images[0, 0, 4, 4] == 1 and images[0, 0, 1, 4] == 0
    assert triggered(np.zeros((1, 5)), 1.0)[0].tolist() == [0, 0, 1, 1, 1]


def hostile(name: str) -> Simulation:
    simulation = toy_simulation(FedBuff(buffer=4, concurrency=8))
    simulation.attackers = Attackers(AttackTable.model_validate({"name": name, "share": 0.3}), 24, 0)
    return simulation


def run(simulation: Simulation, turns: int | None = None) -> None:
    iterator: Iterator[Any] = iter(simulation)
    for number, _ in enumerate(iterator, 1):
        if number == turns:
            return


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in ("label-flip", "backdoor")])
def test_a_run_with_attackers_resumes_with_the_same_numbers(name: str) -> None:
    whole, first, second = hostile(name), hostile(name), hostile(name)
    run(whole)
    run(first, 60)
    tree, arrays = encode(first.snapshot())
    second.restore(decode(tree, {key: array.copy() for key, array in arrays.items()}, second.snapshot_types))
    run(second)
    honest = toy_simulation(FedBuff(buffer=4, concurrency=8))
    run(honest)
    assert second.session.parameters.tobytes() == whole.session.parameters.tobytes()
    assert whole.session.parameters.tobytes() != honest.session.parameters.tobytes()


TINY = offbeat.Experiment(
    stop={"versions": 4},
    data={"name": "digits", "devices": 10},
    model="logistic",
    local={"epochs": 1},
    algorithm={"name": "fedbuff", "buffer": 4, "concurrency": 5},
)


def test_devices_csv_marks_attackers_and_a_backdoor_has_a_success_rate(tmp_path: Any) -> None:
    result = offbeat.run(TINY.replace(attack={"name": "backdoor", "share": 0.5, "target": 3}), tmp_path / "run")
    assert sum(row["attacker"] for row in result.devices) == 5
    assert 0.0 <= result.rows[-1]["backdoor_success"] <= 1.0
    assert TINY.replace(attack={"name": "none"}).table() == TINY.table()


def test_label_flip_poisons_the_data_of_attackers() -> None:
    honest, hostile = (
        offbeat.run(TINY.replace(attack={"name": name, "share": 0.9})) for name in ("none", "label-flip")
    )
    assert hostile.summary["final_accuracy"] < honest.summary["final_accuracy"]


def test_flooding_devices_are_heard_more_often(tmp_path: Any) -> None:
    experiment = TINY.replace(attack={"name": "flooding", "share": 0.2}, stop={"versions": 15})
    used = {True: 0.0, False: 0.0}
    for row in offbeat.run(experiment, tmp_path / "run").devices:
        used[row["attacker"] == 1] += row["used"]
    assert used[True] > used[False] / 4 * 1.5  # two of ten devices


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ({"name": "label-flip", "start": 5.0}, "attack.start = 5: label-flip poisons the data from the beginning"),
        ({"name": "backdoor", "target": 10}, "attack.target = 10: labels go from 0 to 9"),
        ({"name": "sign-flop"}, "attack.name"),
        ({"name": "scaling", "share": 1.5}, "attack.share"),
        ({"share": 0.5}, "attack.share has no effect: set attack.name too"),
    ],
)
def test_a_bad_attack_is_refused(attack: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        offbeat.run(TINY.replace(attack=attack))
