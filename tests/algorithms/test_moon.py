"""MOON: the contrastive term travels with every order, and changes training from a device's second order on."""

from typing import Any

from offbeat import run
from offbeat.algorithms.moon import Moon
from offbeat.core.terms import Contrastive
from offbeat.testing import ScriptedSession


def test_every_order_has_the_contrastive_term() -> None:
    session = ScriptedSession(Moon(cohort=2, mu=3.0, temperature=0.25), devices=2)
    assert [order.order.terms for order in session.first.orders] == [(Contrastive(mu=3.0, temperature=0.25),)] * 2


def accuracies(name: str, **settings: Any) -> list[float]:
    table = {
        "stop": {"versions": 3},
        "data": {"name": "digits", "devices": 4},
        "model": {"name": "mlp"},
        "local": {"epochs": 1, "learning_rate": 0.2},
        "algorithm": {"name": name, "cohort": 4, **settings},
        "evaluation": {"every_versions": 1},
        "execution": {"executor": "sequential"},
    }
    return [row["loss"] for row in run(table).rows]


def test_the_term_has_an_effect_from_a_devices_second_training_on() -> None:
    plain, contrastive = accuracies("fedavg"), accuracies("moon", mu=5.0)
    assert plain[:2] == contrastive[:2], "there is no model of last time in a first training"
    assert plain[2] != contrastive[2]


def test_without_weight_it_is_fedavg() -> None:
    assert accuracies("moon", mu=0.0) == accuracies("fedavg")
