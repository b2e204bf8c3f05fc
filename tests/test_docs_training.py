"""The examples of the page on other tasks run, and train."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import offbeat

PAGE = Path(__file__).resolve().parents[1] / "docs" / "how-to" / "training.md"


def examples() -> dict[str, tuple[str, str]]:
    """The module and the experiment of each example, by the module's name."""
    text = PAGE.read_text()
    pairs = re.findall(r"```python\n# (\w+)\.py\n(.*?)```\n+```toml\n(.*?)```", text, re.DOTALL)
    return {name: (module, toml) for name, module, toml in pairs}


@pytest.mark.parametrize(
    ("name", "metric", "enough"),
    [
        ("my_reviews", "accuracy", 0.8),
        ("my_language", "perplexity", 2.0),
        ("my_alarms", "f1", 0.6),
    ],
)
def test_an_example_trains(
    name: str, metric: str, enough: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, toml = examples()[name]
    (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        experiment = offbeat.Experiment.parse(tomllib.loads(toml))
        result = offbeat.run(experiment, tmp_path / "run")
    finally:
        sys.modules.pop(name, None)
    assert experiment.target_metric == metric
    best = result.summary[f"best_{metric}"]
    assert best <= enough if experiment.target_direction == "min" else best >= enough
    assert result.summary[f"time_to_{metric}"]
    assert metric in result.rows[-1]
    if experiment.stop.target is not None:
        assert result.summary["stopped_by"] == metric


def test_there_are_three_examples() -> None:
    assert list(examples()) == ["my_reviews", "my_language", "my_alarms"]
