"""The campaign of random cases: a part of it in every test run, and the cases that it has found, kept."""

import json
from pathlib import Path

import pytest

from offbeat.algorithms import POLICIES
from offbeat.core.session import Session
from offbeat.testing import torture

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
    assert torture.attempt(torture.case_of(text))[1] == ""


def test_random_cases_pass_and_are_not_run_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--runs", "40", "--seed", "1000", "--out", str(tmp_path / "cases.jsonl")]
    assert torture.main(arguments) == 0, capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text().splitlines()]
    assert [line["seed"] for line in lines] == list(range(1000, 1040))
    assert torture.main(arguments) == 0 and "0 cases" in capsys.readouterr().out


def test_a_case_is_the_same_in_its_command_line_and_covers_everything() -> None:
    cases = [torture.random_case(seed) for seed in range(400)]
    assert [torture.case_of(torture.text_of(case)) for case in cases] == cases
    assert {case.algorithm for case in cases} == set(POLICIES)
    assert {case.hostile for case in cases} == {"", *torture.HOSTILE}
    assert {case.driver for case in cases} == {"grid", "virtual"}


def test_a_bug_is_found_and_shrunk_to_one_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Session, "audit", lambda session: ["an update is missing"] if session.version > 2 else [])
    assert torture.main(["--runs", "1", "--seed", "1000"]) == 1
    said = capsys.readouterr().out
    text = said.partition("--case '")[2].partition("'")[0]
    assert "Broken: an update is missing" in said and len(text) < 250
    assert torture.main(["--case", text]) == 1
    monkeypatch.undo()
    assert torture.main(["--case", text]) == 0
