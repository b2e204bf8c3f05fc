"""The campaign of random cases: a part of it in every test run, and the cases that it has found, kept."""

import json
from pathlib import Path

import pytest

from offbeat.algorithms import POLICIES
from offbeat.core.session import Session
from offbeat.testing.torture.__main__ import main
from offbeat.testing.torture.campaign import attempt
from offbeat.testing.torture.cases import HOSTILE, case_of, random_case, text_of

FOUND: list[str] = [
    '{"algorithm": "seafl2", "settings": {"on_notice": "last-finished", "staleness_limit": 1.0, "buffer": 2, '
    '"concurrency": 12}, "devices": 16, "updates": 40, "epochs": 3, "on_off": [60.0, 20.0], '
    '"network": {"uplink_mbps": Infinity, "downlink_mbps": Infinity, "latency": 0.0}}',
    '{"driver": "grid", "algorithm": "fedbuff", "settings": {"concurrency": 5}, "seed": 1649442242, "devices": 8, '
    '"hostile": "huge"}',
]
"""Cases that once failed."""


@pytest.mark.parametrize("text", FOUND)
def test_a_case_that_was_found_passes(text: str) -> None:
    assert attempt(case_of(text))[1] == ""


def test_random_cases_pass_and_an_interrupted_campaign_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cases.jsonl"
    arguments = ["--seed", "1000", "--out", str(path)]
    assert main([*arguments, "--runs", "25"]) == 0, capsys.readouterr().out
    path.write_text(path.read_text()[:-9])  # the process was killed within the last line
    assert main([*arguments, "--runs", "40"]) == 0, capsys.readouterr().out
    assert "40 cases, 0 failed" in (said := capsys.readouterr().out) and "16 of them" in said
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == list(range(1000, 1040))
    assert main([*arguments, "--runs", "40"]) == 0 and "0 of them" in capsys.readouterr().out


def test_a_case_is_the_same_in_its_command_line_and_covers_everything() -> None:
    cases = [random_case(seed) for seed in range(400)]
    assert [case_of(text_of(case)) for case in cases] == cases
    assert {case.algorithm for case in cases} == set(POLICIES)
    assert {case.hostile for case in cases} == {"", *HOSTILE}
    assert {case.driver for case in cases} == {"grid", "virtual"}


def test_a_bug_is_found_and_shrunk_to_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Session, "audit", lambda session: ["an update is missing"] if session.version > 2 else [])
    assert main(["--runs", "1", "--seed", "1000"]) == 1
    said = capsys.readouterr().out
    text = said.partition("--case '")[2].partition("'")[0]
    assert "Broken: an update is missing" in said and len(text) < 250
    assert main(["--case", text]) == 1
    monkeypatch.undo()
    assert main(["--case", text]) == 0
