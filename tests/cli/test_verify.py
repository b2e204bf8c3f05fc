"""`offbeat verify`: golden numbers of ours and of others, and the conformance of an own policy."""

import json
import sys
from pathlib import Path

import pytest

from offbeat import cli

ADAPTER = """
class Mean:
    def start(self, parameters):
        self.model, self.waiting = parameters, []

    def upload(self, upload):
        self.waiting.append(upload.movement)
        if len(self.waiting) == 2:
            self.model, self.waiting = self.model + sum(self.waiting) / 2, []
        return self.model


def adapter(rule, settings, trace):
    return Mean() if settings.get("buffer") == 2 else None
"""
POLICY = """
from offbeat.algorithms import FedBuff

ASKED = []


class Mine(FedBuff):
    "Weights that depend on how often this process has asked for one."

    def scale(self, staleness):
        ASKED.append(staleness)
        return 1 / len(ASKED)
"""


def offbeat(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["offbeat", "verify", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_our_own_rules_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert offbeat(monkeypatch, "fedbuff", "FedAvg", "--format", "markdown") == 0
    assert "| fedbuff | staleness-3 | holds |" in capsys.readouterr().out


def test_a_deviation_is_named_and_ends_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "their_adapter.py").write_text(ADAPTER)
    monkeypatch.chdir(tmp_path)
    assert offbeat(monkeypatch, "fedbuff", "--against", "their_adapter:adapter") == 1
    said = capsys.readouterr().out
    assert "fedbuff, trace buffers-of-two, after step 4 (upload of device 1, base 1, staleness 0): expected" in said
    assert "7 checks of 1 algorithm: 2 hold, 4 deviate, 1 skipped." in said
    assert offbeat(monkeypatch, "fedbuff", "--against", "their_adapter:adapter", "--format", "json") == 1
    results = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    assert results["fresh"]["outcome"] == "holds" and results["staleness-3"]["words"] == "no implementation"


def test_an_own_policy_is_checked_for_conformance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "unsteady_policy.py").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    assert offbeat(monkeypatch, "unsteady_policy:Mine", "--format", "csv") == 1
    rows = capsys.readouterr().out.splitlines()
    assert "unsteady_policy:Mine,the same seed gives the same bytes,deviates" in rows
    assert "unsteady_policy:Mine,lost devices and uploads never hang a run,holds" in rows
