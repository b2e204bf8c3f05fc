"""The example of secure aggregation: Flower's SecAgg+ gives the model that the plain mean of the updates would give."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from offbeat.flower.virtual.run import simulate
from offbeat.flower.virtual.settings import AppSettings

EXAMPLE = Path(__file__).parents[3] / "examples" / "secure-aggregation"


def test_the_sum_of_masked_updates_is_that_of_the_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulate(EXAMPLE, AppSettings.parse({"nodes": 5}), run_config=["num-server-rounds=1"])
    monkeypatch.syspath_prepend(str(EXAMPLE))
    model = import_module("secure_aggregation.model")
    own = [model.samples(device, 5) for device in range(5)]
    trained = [model.train(np.zeros((65, 10)), x, y) for x, y in own]
    mean = np.average(trained, axis=0, weights=[len(x) for x, _ in own])
    assert found.rows[-1]["accuracy"] == pytest.approx(model.accuracy(mean, *model.samples()))
    assert found.summary["updates_lost"] == 0
    for name in [name for name in sys.modules if name.startswith("secure_aggregation")]:
        monkeypatch.delitem(sys.modules, name)
