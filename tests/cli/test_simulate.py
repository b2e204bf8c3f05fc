"""`offbeat simulate`: a Flower app from the command line, and runs of it in one report."""

import sys
from pathlib import Path

import pytest

from offbeat import cli

APP = Path(__file__).parents[1] / "flower_apps" / "quickstart-numpy"


def offbeat(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """Run a command; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["offbeat", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_an_app_is_run_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = ["--fleet", "ratio", "--set", "fleet.ratio=110", "--nodes", "3"]
    for strategy in ("fedavg", "fedadam"):
        config = f"strategy='{strategy}' num-server-rounds=1"
        assert offbeat(monkeypatch, "simulate", str(APP), *fleet, "--run-config", config) == 0
    runs = sorted(path.name for path in Path("runs").iterdir())
    prefix = "quickstart-numpy-seed0-ratio-num-server-rounds1-strategy"
    assert runs == [f"{prefix}fedadam-ratio110", f"{prefix}fedavg-ratio110"]
    assert (Path("runs") / runs[0] / "metrics.png").is_file()
    assert offbeat(monkeypatch, "report", *(f"runs/{name}" for name in runs)) == 0
    assert "fedadam" in capsys.readouterr().out
    assert "fedavg" in Path("report.html").read_text()


def test_a_mistake_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert offbeat(monkeypatch, "simulate", "nowhere") == 2
    assert capsys.readouterr().err == "offbeat: nowhere is not a Flower app: it has no pyproject.toml\n"
