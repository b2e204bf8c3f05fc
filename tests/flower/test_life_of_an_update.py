"""The page that follows one update lists exactly the files it passes, in the simulator and on real devices."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from flwr.app import Message
from loopback import LoopbackGrid, deploy, run_config

import offbeat
from offbeat.experiment.schema import Experiment
from offbeat.simulation.run import simulation_of

PACKAGE = Path(offbeat.__file__).parent
SET_UP = (
    "running/assembly.py",
    "flower/experiment_source.py",
    "experiment/schema.py",
    "training/factory.py",
    "training/torch_device.py",
)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "life-of-an-update.md"


def experiment() -> Experiment:
    return Experiment(
        stop={"versions": 20},
        data={"name": "digits", "devices": 4},
        model="mlp",
        algorithm={"name": "fedbuff", "buffer": 2, "concurrency": 4},
        execution={"executor": "sequential"},
        evaluation={"every_versions": 100},
    )


def files_named(heading: str) -> set[str]:
    """The files listed under a heading of the page."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"`([\w/]+\.py)`", section))


def in_set_up(frame: FrameType | None) -> bool:
    """Whether this call is part of building the experiment, which a stock client does again for every message."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(SET_UP):
            return True
        frame = frame.f_back
    return False


@contextmanager
def files_passed(into: set[str]) -> Iterator[None]:
    """Collect the files of the package whose functions are called."""

    def note(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(PACKAGE)) and not in_set_up(frame):
            into.add(path.removeprefix(f"{PACKAGE}/"))

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_an_update_in_the_simulator() -> None:
    passed: set[str] = set()
    with simulation_of(experiment()) as simulation:
        turns = iter(simulation)
        while simulation.session.version < 2:
            next(turns)
        with files_passed(passed):
            while simulation.session.version < 4:
                next(turns)
    assert passed == files_named("In the simulator")
    assert len(passed) < 30


def test_an_update_from_a_real_device(tmp_path: Path) -> None:
    passed: set[str] = set()
    tracing = files_passed(passed)

    def tamper(_: int, __: Message, reply: Message) -> Message:
        if grid.messages == 12:
            tracing.__enter__()
        if grid.messages == 20:
            tracing.__exit__(None, None, None)
        return reply

    grid = LoopbackGrid({100: 0.1, 101: 0.2, 102: 0.3, 103: 0.4}, run_config(experiment()), tamper=tamper)
    deploy(experiment(), grid, tmp_path / "run")
    assert passed - files_named("In the simulator") == files_named("On real devices")
    assert len(files_named("On real devices")) < 20
