"""A run that made no version, diverged or stood still says so in words, in its summary and to the shell."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from offbeat import compare, run
from offbeat.cli import app
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import Action, Commit, Discard, Dispatch, Event, Started, Uploaded
from offbeat.core.policy import Policy, View
from offbeat.experiment.schema import Experiment


@dataclass
class Nothing:
    """No state."""


class Idle(Policy):
    """Orders the devices as often as it is told to, and then no more."""

    State = Nothing

    rounds: int = 0
    discards: bool = False

    def react(self, event: Event, state: Nothing, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            if self.discards:
                yield Discard(ticket=event.ticket, reason="never good enough")
            else:
                yield Commit(parameters=event.update.parameters, used=(event.ticket,))
        if isinstance(event, Started) or (isinstance(event, Uploaded) and view.version < self.rounds):
            for device in view.pick(1 if self.rounds or self.discards else 0):
                yield Dispatch(device=device, order=view.order())


def experiment(**tables: Any) -> Experiment:
    plain: dict[str, Any] = {
        "stop": {"time": 8.0},
        "data": {"name": "digits", "devices": 4},
        "model": "logistic",
        "local": {"epochs": 1},
        "fleet": {"name": "ratio", "ratio": 1.0, "epoch_seconds": 1.0},
        "evaluation": {"every_seconds": 2.0},
        "execution": {"save_model": False},
    }
    return Experiment.parse(plain | tables)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"algorithm": Idle()}, "no version was made in 8 s: the algorithm ordered none of the 4 idle devices"),
        (
            {"algorithm": Idle(), "stop": {"versions": 3}},
            "no version was made in 0 s: the algorithm ordered none of the 4 idle devices",
        ),
        ({"algorithm": Idle(discards=True)}, "no version was made in 8 s: all 1 updates were discarded"),
        (
            {"algorithm": Idle(rounds=2)},
            "the run stood still from 4 s on, after 2 used updates: none of the 4 idle devices was ordered",
        ),
        (
            {"algorithm": {"name": "fedbuff", "buffer": 99}},
            "no version was made in 8 s: only 28 updates were received, and the buffer holds 99; decrease it",
        ),
        (
            {"fleet": {"name": "ratio", "ratio": 1.0, "epoch_seconds": 9.0}},
            "no version was made in 8 s: none of the 4 orders was completed; increase the stop time or give shorter "
            "orders",
        ),
        ({"local": {"learning_rate": 1e6}, "model": "mlp"}, "training diverged at "),
        ({}, None),
        ({"stop": {"time": 8.0, "accuracy": 0.001}}, None),  # untrained models are better: nothing to do
    ],
)
def test_what_went_wrong_is_in_the_summary(tables: dict[str, Any], problem: str | None) -> None:
    found = run(experiment(**tables)).summary.get("problem")
    assert found == problem or (str(found).startswith("training diverged at") and problem == "training diverged at ")


def test_devices_that_vanish_for_good_are_missed() -> None:
    gone = experiment(availability={"name": "on-off", "on_seconds": 1.5, "off_seconds": 1e6}, stop={"time": 40.0})
    problem = run(gone).summary["problem"]
    assert "no device was available" in problem


def test_a_run_that_did_nothing_ends_with_exit_code_1_and_a_comparison_marks_it(tmp_path: Path) -> None:
    file = tmp_path / "nothing.toml"
    file.write_text(experiment(algorithm={"name": "fedbuff", "buffer": 99}).toml())
    ended = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "run")])
    assert ended.exit_code == 1
    assert "only 28 updates were received" in " ".join(ended.output.split())
    compared = compare(experiment(), ["fedavg", Idle], seeds=1, jobs=1)
    label = compared[1].algorithm
    assert compared.cells(compared.by_algorithm[1])["algorithm"] == f"{label} †"
    assert f"† {label}, seed 0: no version was made in 8 s: the algorithm ordered none" in compared.caption
    assert "no version was made" in compared.csv_text()
    ended = CliRunner().invoke(
        app, ["compare", str(file), "--algorithms", "fedbuff", "--seeds", "2", "--out", str(tmp_path / "compared")]
    )
    assert ended.exit_code == 1
    assert "2 of 2 runs made no version, diverged or stood still: see †" in " ".join(ended.output.split())


@pytest.mark.parametrize("algorithm", [{"name": "seafl", "buffer": 9}, {"name": "fedbuff", "variant": "plato"}])
def test_a_buffer_that_could_never_fill_is_refused_before_the_run(algorithm: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"algorithm\.buffer = 9 exceeds algorithm\.concurrency = 4"):
        run(experiment(algorithm=algorithm | {"buffer": 9}))
