"""A run says when its numbers come from more than one kind of processor."""

from pathlib import Path

import pytest
import torch

from offbeat.core.errors import Interrupted
from offbeat.experiment.schema import Experiment
from offbeat.running.loop import ProcessorKinds
from offbeat.simulation.run import run
from offbeat.training import executor as executors
from offbeat.training.torch_device import processor_kind


def test_one_kind_of_processor_is_noted_in_silence_and_a_second_is_said(caplog: pytest.LogCaptureFixture) -> None:
    kinds = ProcessorKinds()
    kinds.note({"A"})
    kinds.note({"A"})
    assert caplog.messages == []
    kinds.note({"A", "B"})
    kinds.note({"B"})
    assert len(caplog.messages) == 1
    assert "computed on A and continues on B: the last bits of its results may differ" in caplog.messages[0]
    assert kinds.known == {"A", "B"}


def test_a_kind_names_the_processor_and_the_build_of_torch() -> None:
    assert processor_kind().endswith(f"torch {torch.__version__}")


class AtOnce:
    """A flag that is set."""

    def is_set(self) -> bool:
        return True


def test_a_run_that_is_resumed_on_another_kind_of_processor_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tables = {"stop": {"versions": 1}, "data": {"name": "digits", "devices": 4}, "model": {"name": "logistic"}}
    experiment = Experiment.parse(tables | {"algorithm": {"name": "fedavg", "cohort": 2}})
    monkeypatch.setattr(executors, "processor_kind", lambda place: "an old processor")
    with pytest.raises(Interrupted):
        run(experiment, tmp_path / "run", interrupted=AtOnce())
    monkeypatch.setattr(executors, "processor_kind", lambda place: "a new processor")
    result = run(experiment, tmp_path / "run", resume=True)
    assert "computed on an old processor and continues on a new processor" in caplog.text
    assert result.summary["processors"] == ["a new processor", "an old processor"]
