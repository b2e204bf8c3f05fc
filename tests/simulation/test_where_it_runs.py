"""Training on another torch device: the CPU treated as one, and a GPU if there is one."""

from typing import Any

import numpy as np
import pytest
import torch

import offbeat
from offbeat.data import Dataset
from offbeat.data.samples import Ragged
from offbeat.data.transforms import InputPipeline, Standardisation
from offbeat.experiment.tables import merge
from offbeat.models import flat
from offbeat.training import batches, stacked

BASE: dict[str, Any] = {
    "stop": {"updates": 6},
    "data": {"devices": 3},
    "local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.05},
    "algorithm": {"name": "fedavg", "cohort": 3},
    "execution": {"executor": "sequential"},
}


def pixels(seed: int) -> Dataset:
    """Images that are kept as bytes; bright ones are of class 1."""
    random = np.random.default_rng(7)
    x = random.integers(0, 256, (60, 1, 12, 12), dtype=np.uint8)
    y = random.integers(0, 2, 60)
    x[y == 1] |= 128
    norm = InputPipeline(standardisation=Standardisation(mean=(0.5,), std=(0.25,)))
    return Dataset(train_x=x[:45], train_y=y[:45], test_x=x[45:], test_y=y[45:], pipeline=norm)


def texts(seed: int) -> Dataset:
    """Sentences of any length; those with a seven in them are of class 1."""
    random = np.random.default_rng(7)
    rows = [random.integers(1, 9, random.integers(2, 9)) for _ in range(60)]
    y = np.array([int(7 in row) for row in rows])
    return Dataset(train_x=Ragged.of(rows[:45]), train_y=y[:45], test_x=Ragged.of(rows[45:]), test_y=y[45:])


CASES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adam": {"local": {"optimiser": "adam", "clip_norm": 1.0, "terms": [{"name": "distillation"}]}},
    "terms": {"local": {"prox": 0.1, "terms": [{"name": "contrastive"}, {"name": "linear-quadratic", "alpha": 0.1}]}},
    "stacked": {"execution": {"executor": "stacked"}, "model": {"name": "mlp"}},
    "stacked convolutions": {"execution": {"executor": "stacked"}},
    "transforms": {"data": {"transforms": [{"name": "flip"}]}},
    "text": {"model": {"name": "textcnn", "embedding": 4, "filters": 4}},
}


def final(case: str, **execution: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    data, model = (texts, "textcnn") if case == "text" else (pixels, "lenet5")
    tables = merge(BASE | {"data": {"name": data, "devices": 3}, "model": {"name": model}}, CASES[case])
    parameters = offbeat.run(offbeat.Experiment(**merge(tables, {"execution": execution}))).parameters
    assert parameters is not None
    return parameters


@pytest.mark.parametrize("case", CASES)
def test_the_processor_as_a_device_of_its_own_trains_to_the_same_bits(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All data and parameters take the way that they take to a GPU."""
    here = final(case)
    for module in (batches, flat, stacked):
        monkeypatch.setattr(module, "on_processor", lambda place: False)
    assert final(case).tobytes() == here.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_trains_to_the_same_numbers_within_tolerance(case: str) -> None:
    gpu = "cuda" if torch.cuda.is_available() else "mps"
    assert final(case, device=gpu) == pytest.approx(final(case), rel=1e-3, abs=1e-4)


@pytest.mark.gpu
def test_a_gpu_trains_in_half_precision() -> None:
    gpu = "cuda" if torch.cuda.is_available() else "mps"
    assert np.isfinite(final("sgd", device=gpu, precision="bfloat16")).all()
