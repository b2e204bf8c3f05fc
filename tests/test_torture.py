"""The campaign of random cases: a part of it in every test run, and the cases that it has found, kept."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from offbeat.algorithms import POLICIES
from offbeat.core.errors import DeviceFault
from offbeat.core.policy import Policy
from offbeat.core.session import Session
from offbeat.flower.protocol.messages import OrderReply
from offbeat.flower.server.reply_checks import Expected
from offbeat.results.rows import Span
from offbeat.running.accounts import Accounts
from offbeat.running.directory import RunRecord
from offbeat.testing.torture.__main__ import main
from offbeat.testing.torture.campaign import attempt
from offbeat.testing.torture.cases import HOSTILE, Case, case_of, random_case, text_of
from offbeat.testing.toy import ToyExecutor
from offbeat.training.training_state import TrainingJob, TrainingState

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


# A bug in each of the things that are checked ------------------------------------------------------------------------

VIRTUAL = Case(
    settings={"concurrency": 4}, updates=20, kills=(0.5,), failures={"lost_upload": 0.5, "detect_seconds": 1.0}
)
GRID = Case(driver="grid", settings={"concurrency": 6}, devices=6, updates=40)


DELIVER, LOSE = "offbeat.running.accounts.Accounts.delivered", "offbeat.running.accounts.Accounts.lost"
DELIVERED, WRITE, TRAIN = Accounts.delivered, RunRecord.write, ToyExecutor._train


def span_twice(self: Accounts, span: Span) -> None:
    DELIVERED(self, span)
    self.spans.append(span)


def record_twice(self: RunRecord, line: Any) -> None:
    WRITE(self, line)
    WRITE(self, line)


def as_before_the_kill(self: ToyExecutor, job: TrainingJob) -> TrainingState:
    return TRAIN(self, structs.replace(job, ticket=job.ticket + len(self.given)))


def refuse(body: OrderReply, expected: Expected) -> None:
    raise DeviceFault("nobody trains that fast")


def idle(self: Policy, event: Any, state: Any, view: Any) -> Iterator[Any]:
    yield from ()


@pytest.mark.parametrize(
    ("place", "bug", "case", "found"),
    [
        ("offbeat.simulation.engine.heappop", lambda entries: entries.pop(len(entries) // 2), VIRTUAL, "back"),
        (DELIVER, span_twice, VIRTUAL, "tickets ended twice: "),
        (LOSE, lambda self, span: None, VIRTUAL, "orders ended, but"),
        (
            LOSE,
            lambda self, span: self.spans.append(span),
            VIRTUAL,
            "busy_seconds is",
        ),
        (
            DELIVER,
            lambda self, span: DELIVERED(self, structs.replace(span, sent=span.landed + 1)),
            VIRTUAL,
            "an order ends before it begins",
        ),
        ("offbeat.testing.toy.ToyExecutor._train", as_before_the_kill, VIRTUAL, "a run that was killed and resumed"),
        ("offbeat.testing.torture.invariants.ROUNDS", ("fedasync",), VIRTUAL, "fedasync used an update of staleness"),
        ("offbeat.testing.torture.invariants.BOUNDED", {"fedasync": "alpha"}, VIRTUAL, "exceeds 0.6"),
        ("offbeat.testing.torture.virtual.MOST_TURNS", 20, VIRTUAL, "the run hangs"),
        ("offbeat.testing.torture.grid.MOST_TURNS", 20, GRID, "the run hangs"),
        ("offbeat.algorithms.fedasync.FedAsync.react", idle, structs.replace(VIRTUAL, failures={}), "deadlock"),
        ("offbeat.algorithms.fedasync.FedAsync.react", idle, GRID, "deadlock"),
        ("offbeat.flower.server.reply_checks.has_not_moved_too_far", lambda *_: 0.0, "far", "a hostile update (far)"),
        ("offbeat.running.directory.RunRecord.write", record_twice, GRID, "tickets ended twice in the record"),
        ("offbeat.flower.server.reply_checks.OF_EVERY_REPLY", (refuse,), GRID, "honest device"),
        ("offbeat.flower.server.exchange.one_line", str, "refusal", "a log line that a device can forge"),
    ],
)
def test_every_invariant_finds_its_bug(
    monkeypatch: pytest.MonkeyPatch, place: str, bug: Any, case: Case | str, found: str
) -> None:
    case = structs.replace(GRID, hostile=case) if isinstance(case, str) else case
    assert attempt(case) == ("updates", "")
    monkeypatch.setattr(place, bug)
    assert found in attempt(case)[1]
