"""The picture of a comparison: made from finished runs alone, in the order and the colours that were asked for."""

from pathlib import Path

import pytest

from offbeat import Experiment, run
from offbeat.results import occupation
from offbeat.results.comparison import Comparison
from offbeat.results.occupation import overview_figure


def test_the_picture_shows_all_algorithms_and_the_devices_of_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[list[str], list[str]]] = []

    def watched(comparison: Comparison, timelines: dict[str, list[dict[str, object]]], until: float) -> object:
        seen.append(([results.algorithm for results in comparison.by_algorithm], list(timelines)))
        return overview_figure(comparison, timelines, until)

    monkeypatch.setattr(occupation, "overview_figure", watched)
    table = {"stop": {"time": 6.0}, "data": {"name": "digits", "devices": 12}, "model": {"name": "logistic"}}
    for name in ("fedavg", "fedasync"):
        run(Experiment.parse(table | {"algorithm": {"name": name}}), tmp_path / f"{name}-seed0")
    occupation.draw_overview(tmp_path, ("fedavg", "fedasync"), ("fedasync",), 5.0, tmp_path / "picture.png")
    assert seen == [(["fedavg", "fedasync"], ["fedasync"])]
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
