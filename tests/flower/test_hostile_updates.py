"""One hostile device among honest ones: its update is refused, it is named everywhere, and the others go on."""

import re
from pathlib import Path

import numpy as np
import pytest
from faulty import BAD, NEVER, Change, Tampering, experiment, grid_for, run
from flwr.app import ConfigRecord, Message, RecordDict
from loopback import deploy
from msgspec.structs import replace
from recorded import recorded
from safetensors.numpy import load_file

from offbeat.core.combining import RunningMedian
from offbeat.flower.protocol.codec import BODY, pack
from offbeat.results.result import read_run

HUGE = np.float32(3e38)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d, v: pack(d, np.full_like(v, HUGE)), r"norm 1.58\d*e\+40"),
        (lambda d, v: pack(d, v + 30.0), r"norm 1581.\d*, more than 20 times the median 0\.\d+|norm 1581"),
    ],
    ids=["finite and absurd", "thousand-fold"],
)
def test_an_update_far_beyond_the_others_is_refused_and_its_device_named(
    change: Change, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = experiment(stop={"updates": 24})
    quick = {100: 0.4, 101: 0.45, 102: 0.5, BAD: 0.7}
    found = run(tmp_path, grid_for(setting, tamper=Tampering(change, times=NEVER), delays=quick), setting)
    assert found.summary["stopped_by"] == "updates" and found.summary["updates_refused"] >= 2
    assert all(re.search(why, fault) and fault.startswith("refused: ") for fault in found.faults)
    assert f"device 3: {found.faults[0]}" in capsys.readouterr().out
    assert {(line["device"], line["node"]) for line in found.of("fault")} == {(3, BAD)}
    assert found.summary["refused_devices"] == {"3": found.summary["updates_refused"]}
    assert [device["refused"] for device in found.devices] == [0, 0, 0, found.summary["updates_refused"]]
    norms = [line["norm"] for line in found.of("Uploaded")]
    assert len(norms) >= 24 and all(0 < norm < 10 for norm in norms)
    assert max(np.abs(array).max() for array in load_file(tmp_path / "run" / "model.safetensors").values()) < 10


def test_the_first_update_of_a_run_cannot_be_absurd(tmp_path: Path) -> None:
    setting = experiment()
    delays = {100: 1.0, 101: 1.1, 102: 1.2, BAD: 0.1}  # the hostile device reports first, and again before two others
    hostile = Tampering(lambda d, v: pack(d, np.full_like(v, HUGE)), times=NEVER)
    found = run(tmp_path, grid_for(setting, tamper=hostile, delays=delays), setting)
    assert "which no training explains" in found.faults[0]
    assert found.devices[3]["used"] == 0 and found.summary["refused_devices"].keys() == {"3"}


def test_without_a_bound_the_run_diverges_and_names_the_culprit_not_the_honest_devices(tmp_path: Path) -> None:
    setting = experiment(deployment={"norm_factor": float("inf")}, algorithm={"name": "fedasync", "concurrency": 4})
    grid = grid_for(setting, tamper=Tampering(lambda d, v: pack(d, np.full_like(v, HUGE))))
    out = tmp_path / "run"
    deploy(setting, grid, out)
    summary = read_run(out).summary
    assert summary["stopped_by"].startswith("diverged: version")
    assert "largest of the last updates: device 3, ticket" in summary["stopped_by"]
    assert "refused_devices" not in summary, "honest devices are not blamed for a model that nobody can train"


def test_claimed_steps_are_refused_and_claimed_seconds_capped(tmp_path: Path) -> None:
    setting = experiment()
    boasts = Tampering(lambda d, v: pack(replace(d, steps=2**53), v))
    found = run(tmp_path / "steps", grid_for(setting, tamper=boasts), setting)
    assert "it claims 9007199254740992 steps, more than the 361 that its order can take" in found.faults[0]
    slow = Tampering(lambda d, v: pack(replace(d, seconds=1e9), v), times=NEVER)
    found = run(tmp_path / "seconds", grid_for(setting, tamper=slow), setting)
    assert not found.faults and all(line["seconds"] <= line["at"] for line in found.of("Uploaded", device=3))
    assert found.summary["busy_seconds"] <= 4 * found.record[-1]["at"]
    assert found.devices[3]["training_seconds"] <= found.record[-1]["at"]


def test_a_greeting_that_is_no_message_names_its_node(tmp_path: Path) -> None:
    setting = experiment(deployment={"start_with": 3, "answer_seconds": 6.5}, stop={"updates": 5})

    def tamper(node: int, question: Message, answer: Message) -> Message:
        if node == BAD and "hello" in str(question.content.config_records):
            return Message(RecordDict({BODY: ConfigRecord({"json": "["})}), reply_to=question)
        return answer

    delays = {100: 6.0, 101: 6.0, 102: 6.0, BAD: 7.0}
    out = tmp_path / "run"
    deploy(setting, grid_for(setting, tamper=tamper, delays=delays), out)
    faults = [line for line in recorded(out) if line["what"] == "fault"]
    assert faults and all(line["why"].startswith("node 103: ") and line["node"] == BAD for line in faults)


def test_one_device_has_one_vote_in_the_median() -> None:
    norms = RunningMedian()
    for device, norm in ((0, 1.0), (1, 2.0)):
        norms.note(device, norm)
    assert norms.median is None, "two devices are too few"
    for norm in (1e30, 1e31, 1e32):
        norms.note(2, norm)
    assert norms.median == 2.0
    for device, norm in ((0, 40.0), (1, 50.0)):
        norms.note(device, norm)
    assert RunningMedian(norms.last).median == norms.median == 50.0, "it follows if most norms grow"
