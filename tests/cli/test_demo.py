"""The demo's first look, and how commands end: why, and what comes next."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat import cli
from offbeat.cli import runs
from offbeat.results.metric import percent
from offbeat.results.text_plot import text_plot


def test_the_first_look_draws_all_algorithms_and_tells_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = {"stop": {"time": 60.0}, "data": {"name": "digits", "devices": 20}, "compare": {"in_training": 5}}
    quick = runs.QUICK | small | {"evaluation": {"every_seconds": 5.0}, "local": {"epochs": 1}}
    monkeypatch.setattr(runs, "QUICK", quick)
    said = CliRunner().invoke(cli.app, ["demo", "--quick"])
    assert said.exit_code == 0, said.output
    assert "━ fedavg   ━ fedbuff   ━ fedasmu   ━ seafl2   ━ adel" in said.stdout and "⠤" in said.stdout
    assert "the devices chosen by fedavg stood idle" in " ".join(said.stdout.split())
    assert "Next: offbeat" in said.stderr and list(tmp_path.iterdir()) == []


def test_a_curve_is_drawn_where_its_values_are() -> None:
    drawn = text_plot({"up": [(0.0, 0.0), (10.0, 1.0)]}, across="{:g}".format, upward=percent, width=4, height=2)
    assert drawn.plain.splitlines() == ["100 % ┤  ⡠⠊", "  0 % ┤⡠⠊  ", "      └0 10", "       ━ up   "]
    assert text_plot({"none": [(0.0, float("nan"))]}, across=str, upward=str).plain == "nothing to draw"
