"""The examples that the page on other tasks names run, and train."""

import sys
from pathlib import Path

import pytest

import offbeat

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "tasks"


@pytest.mark.parametrize(
    ("name", "metric", "enough"),
    [
        ("reviews", "accuracy", 0.8),
        ("language", "perplexity", 2.0),
        ("alarms", "f1", 0.6),
    ],
)
def test_an_example_trains(
    name: str, metric: str, enough: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    try:
        result = offbeat.run(EXAMPLES / f"{name}.toml", tmp_path / "run")
    finally:
        sys.modules.pop(name, None)
    experiment = result.experiment
    assert experiment is not None
    assert experiment.target_metric == metric
    best = result.summary[f"best_{metric}"]
    assert best <= enough if experiment.target_direction == "min" else best >= enough
    assert result.summary[f"time_to_{metric}"]
    assert metric in result.rows[-1]
    if experiment.stop.target is not None:
        assert result.summary["stopped_by"] == metric


def test_the_page_names_every_example() -> None:
    page = (ROOT / "docs" / "how-to" / "training.md").read_text()
    assert all(f"`examples/tasks/{path.name}`" in page for path in EXAMPLES.glob("*.py"))
