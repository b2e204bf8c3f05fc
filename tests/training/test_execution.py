"""The `[execution]` table: what a cluster needs, and what makes no sense without one."""

from typing import Any

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.training import execution
from offbeat.training.execution import ExecutionTable


def experiment(**table: Any) -> Experiment:
    return Experiment.parse({"stop": {"versions": 1}, "execution": table})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"address": "auto"}, 'execution.address is for a Ray cluster: also set execution.executor = "ray"'),
        ({"gpus_per_worker": 0.5}, "execution.gpus_per_worker is for a Ray cluster"),
        ({"executor": "ray", "device": "cuda"}, "with execution.gpus_per_worker"),
        ({"executor": "ray", "address": "http://somewhere"}, "execution.address"),
    ],
)
def test_settings_that_do_not_fit_are_said_in_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        experiment(**given)


def test_an_address_on_the_command_line_takes_all_workers_unless_their_number_was_given() -> None:
    for given, workers in ((ExecutionTable(), "auto"), (ExecutionTable(workers=3), 3)):
        changes = given.on_cluster("ray://head:10001")
        assert changes == {"execution": {"executor": "ray", "address": "ray://head:10001", "workers": workers}}
        assert experiment(**changes["execution"]).execution.processes() == 0


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_more_workers_than_cores_are_refused_on_the_processor(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "available_cores", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert ExecutionTable(workers=2, device=device).processes() == 2
    with pytest.raises(
        InvalidInput, match=r"execution.workers = 99 exceeds the 2 cores of this machine: use at most 2"
    ):
        ExecutionTable(workers=99, device=device).processes()


def test_with_gpus_on_the_cluster_this_process_takes_what_it_has() -> None:
    assert ExecutionTable(executor="ray", gpus_per_worker=0.25).local_torch_device == "auto"
    assert ExecutionTable(executor="ray").local_torch_device == "cpu"
