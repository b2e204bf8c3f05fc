"""A node with an app that is not ours is named for what it is."""

from pathlib import Path

import pytest
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from loopback import LoopbackGrid, deploy, run_config

from offbeat.core.errors import OffbeatError
from offbeat.experiment.schema import Experiment

EMPTY = ClientApp()


def test_a_client_that_does_not_speak_to_our_server_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(message: Message, context: Context) -> Message:
        try:
            return EMPTY(message, context)
        except Exception as error:  # as Flower's runtime makes an answer of it
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)

    table = {"stop": {"versions": 1}, "data": {"name": "digits", "devices": 2}, "model": {"name": "logistic"}}
    experiment = Experiment.parse(table | {"algorithm": {"name": "fedavg", "cohort": 2}})
    grid = LoopbackGrid({100: 0.1, 101: 0.1}, run_config(experiment))
    grid.app = answer  # type: ignore[assignment]
    sentence = "it runs no client app of this version of offbeat: see docs/how-to/deployment.md"
    with pytest.raises(OffbeatError, match=f"no device joined within 300 s: node 10[01]: {sentence}"):
        deploy(experiment, grid, tmp_path / "run")
    first = next(line for line in capsys.readouterr().out.splitlines() if "node" in line)
    assert first == f"offbeat: node 100: {sentence}"
