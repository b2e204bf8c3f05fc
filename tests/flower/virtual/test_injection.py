"""Several strategies and seeds of an unmodified app in one command."""

import csv
import sys
from pathlib import Path

import pytest

from offbeat import cli
from offbeat.core.errors import InvalidInput
from offbeat.flower.virtual.app import read_app
from offbeat.flower.virtual.injection import Injection, policy_named
from offbeat.flower.virtual.run import simulate, simulate_strategies
from offbeat.flower.virtual.settings import AppSettings
from offbeat.results.result import read_run

APPS = Path(__file__).parents[2] / "flower_apps"
SETTINGS = AppSettings.parse({"nodes": 5, "fleet": {"name": "ratio", "ratio": 20.0}})


def test_one_command_compares_strategies_and_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    fleet = ["--fleet", "ratio", "--set", "fleet.ratio=20", "--nodes", "5"]
    command = ["simulate", str(APPS / "quickstart-numpy"), *fleet]
    chosen = ["--strategies", "fedavg,app,krum", "--seeds", "2", "--run-config", "num-server-rounds=2"]
    monkeypatch.setattr(sys, "argv", ["offbeat", *command, *chosen, "--out", str(out)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("fedavg", "app", "krum")) and "report.html (with all notes)" in printed
    assert "Speed-up: over fedavg" in (out / "report.html").read_text()
    table = (out / "comparison.csv").read_text().splitlines()
    lines = {line["algorithm"]: line for line in csv.DictReader(table)}
    assert list(lines) == ["fedavg", "app", "krum"]
    assert {path.name for path in out.iterdir() if path.is_dir()} == {
        f"{name}-seed{seed}" for name in lines for seed in (0, 1)
    }
    assert (out / "report.html").is_file() and (out / "accuracy.png").is_file()
    # FedAvg trains every node in both rounds, whether it is ours or the app's own; batches differ.
    ours, own = ([row["accuracy"] for row in read_run(out / f"{name}-seed0").rows] for name in ("fedavg", "app"))
    assert ours == pytest.approx(own, abs=0.05) and len(own) == 3


def test_all_get_the_time_of_the_first(tmp_path: Path) -> None:
    first, second = simulate_strategies(
        read_app(APPS / "quickstart-numpy"), SETTINGS, tmp_path, ["fedavg", "fedasync"], 1
    )
    assert second.summary["time"] == pytest.approx(first.summary["time"])
    assert second.summary["updates_used"] > first.summary["updates_used"] == 15
    # FedAsync makes a version per update, and five nodes train: every fifth version is evaluated.
    assert {row["version"] % 5 for row in second.rows[:-1]} == {0}


def test_a_project_with_a_server_fn_is_compared_too() -> None:
    injection = Injection(policy_named("fedbuff"), seed=0)
    result = simulate(APPS / "before-messages", SETTINGS, injection=injection)
    assert (result.summary["label"], injection.used) == ("fedbuff", True)


def test_what_cannot_be_replaced_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"named-actions starts no strategy of Flower's that FedBuff could replace"):
        simulate(APPS / "named-actions", SETTINGS, injection=Injection(policy_named("fedbuff"), seed=0))
    with pytest.raises(InvalidInput, match=r"seafl2 does not run with stock Flower client apps"):
        policy_named("seafl2")
    with pytest.raises(InvalidInput, match="fedbuf"):
        simulate_strategies(read_app(APPS / "quickstart-sklearn"), SETTINGS, tmp_path, ["fedbuf"], 1)
    assert not list(tmp_path.iterdir())
