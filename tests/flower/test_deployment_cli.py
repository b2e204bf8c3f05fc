"""The commands for real runs: what they refuse before any process is started, and how they read a growing log."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offbeat import cli
from offbeat.cli.deployment import Tail

EXPERIMENT = """
[stop]
versions = 2
[data]
name = "digits"
devices = 10
[model]
name = "mlp"
[algorithm]
cohort = 2
"""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["local-cluster", "e.toml", "--nodes", "3", "--set", "data.devices=5"], "the run would wait for 5 devices"),
        (["local-cluster", "e.toml", "--nodes", "6", "--set", "data.devices=5"], "more than 5 nodes have no data"),
        (
            ["local-cluster", "flower", "--nodes", "2", "--set", "algorithm.concurrency=3"],
            "algorithm.concurrency = 3: there are only 2 devices",
        ),
        (["local-cluster", "flower", "--nodes", "2", "--out", "taken"], "taken exists and is not a run directory"),
        (["local-cluster", "e.toml", "--out", "taken"], "taken exists and is not a run directory"),
        (["local-cluster", "e.toml", "--set", "fleet.ratio=x"], "fleet.ratio"),
        (["deploy", "e.toml", "--superlink", "here"], "must be HOST:PORT"),
        (["deploy", "e.toml", "--superlink", "127.0.0.1:1", "--insecure", "--out", "taken"], "is not a run directory"),
        (["node", "certificates", "taken"], "taken exists and is not empty"),
        (["node", "register", "no.pub", "--superlink", "127.0.0.1:1"], "no.pub: no such file"),
        (["node", "--superlink", "here"], "must be HOST:PORT"),
        (["node", "--superlink", "127.0.0.1:1", "--insecure", "--node-config", "x"], "node config 'x'"),
        (["node", "--superlink", "127.0.0.1:1", "--root-certificates", "no.pem"], "no such file"),
        (
            ["node", "--superlink", "127.0.0.1:1", "--insecure", "--auth-supernode-private-key", "taken/something"],
            "need TLS",
        ),
        (
            ["node", "--superlink", "127.0.0.1:1", "--auth-supernode-private-key", "taken/something"],
            "not a private key of SSH",
        ),
        (
            ["node", "--superlink", "127.0.0.1:1", *2 * ["--auth-supernode-private-key", "taken/something"]],
            "2 keys for 1 nodes",
        ),
        (["node", "--superlink", "127.0.0.1:1", "--insecure", "--child-user", "nobody-at-all"], "no such user"),
        (["node", "--superlink", "127.0.0.1:1", "--insecure", "--health", "9"], "--health 9: must be HOST:PORT"),
        (["node", "--superlink", "127.0.0.1:1", "--insecure", "--trusted-entities", "no.yaml"], "cannot be read"),
    ],
)
def test_bad_arguments_are_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "something").write_text("")
    monkeypatch.setattr(sys, "argv", ["offbeat", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 2
    assert sentence in said
    assert "Traceback" not in said


def test_without_flower_the_commands_say_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("offbeat.flower.compat.flower_version", lambda: None)
    monkeypatch.setattr(sys, "argv", ["offbeat", "node", "certificates", str(tmp_path / "new")])
    with pytest.raises(SystemExit):
        cli.main()
    assert "pip install 'offbeat[flower]'" in capsys.readouterr().err


class Endless:
    """A run at which the user loses patience."""

    run_id = 7
    stopped = False

    def follow(self) -> Iterator[str | None]:
        yield "offbeat: version 1"
        raise KeyboardInterrupt

    def stop(self) -> None:
        self.stopped = True


def test_ctrl_c_stops_a_deployed_run_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Endless()
    monkeypatch.setattr("offbeat.flower.launch.superlink.submit", lambda *_: run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    monkeypatch.setattr(sys, "argv", ["offbeat", "deploy", "e.toml", "--superlink", "127.0.0.1:1", "--insecure"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    assert end.value.code == 130
    assert run.stopped
    assert "offbeat: version 1" in said.out
    assert "run 7 was stopped" in " ".join(said.err.split()) and "--resume" in said.err


def test_the_tail_of_a_log_comes_once_and_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.new() == []
    path.write_text('{"time": 1}\n{"ti')
    assert tail.new() == [{"time": 1}]
    path.write_text('{"time": 1}\n{"time": 2}\n')
    assert tail.new() == [{"time": 2}]
    assert tail.new() == []


def test_the_tail_leaves_out_what_was_there_before_and_follows_a_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"time": 1}\n{"time": 2}\n')
    tail = Tail(path)
    assert tail.new() == []
    path.write_text('{"time": 7}\n')  # shorter: begun anew
    assert tail.new() == [{"time": 7}]
