"""The panel of what devices did: who takes which place, and what is drawn there."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from offbeat.core.errors import InvalidInput
from offbeat.results.occupation import LOOKS, draw_occupation, lanes_of, read_timeline
from offbeat.results.rows import Span
from offbeat.results.timeline import Timeline


def order(device: int, ticket: int, sent: float, landed: float) -> Span:
    """Half a second down, half a second up, and training between."""
    return Span(
        device=device,
        ticket=ticket,
        base=0,
        sent=sent,
        arrived=sent + 0.5,
        landed=landed,
        slices=1,
        outcome="uploaded",
        trained_until=landed - 0.5,
    )


def test_orders_that_begin_together_are_sorted_by_length_and_a_free_lane_is_taken_again() -> None:
    # Two rounds of two: the shorter order of each has the first lane.
    assert lanes_of([(0, 9, 1), (0, 4, 2), (9, 12, 1), (9, 20, 3)]) == [1, 0, 0, 1]
    assert lanes_of([(0, 9, 1), (0, 4, 2), (4, 6, 3), (5, 8, 4)]) == [1, 0, 0, 2]


def test_bars_show_training_transfers_and_lanes_without_an_order(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.json")
    for span in (order(7, 1, 0.0, 3.0), order(2, 2, 0.0, 6.0), order(7, 3, 6.0, 9.0)):
        timeline.write(span)
    timeline.mark(1, 6.0)
    timeline.finish([], 9.0)
    timeline.close()
    axes = Figure().subplots()
    draw_occupation(axes, read_timeline(tmp_path / "timeline.json"), "two at a time", 8.0)
    drawn: dict[str, list[tuple[float, float, float]]] = {}
    for bar in axes.patches:
        centre = round(bar.get_y() + bar.get_height() / 2, 6)  # type: ignore[attr-defined]
        where = (centre, bar.get_x(), bar.get_width())  # type: ignore[attr-defined]
        drawn.setdefault(to_hex(bar.get_facecolor()), []).append(where)
    of = {name: drawn[colour.lower()] for name, colour in LOOKS.items()}
    assert of["no order"] == [(0, 0.0, 8.0), (1, 0.0, 8.0)]
    assert of["training"] == [(0, 0.5, 2.0), (1, 0.5, 5.0), (0, 6.5, 2.0)]
    assert of["transfer"] == [(0, 0.0, 0.5), (0, 2.5, 0.5), (1, 0.0, 0.5), (1, 5.5, 0.5), (0, 6.0, 0.5)]
    assert axes.get_ylabel() == "2 orders at a time"
    assert np.asarray(axes.lines[0].get_xdata()).tolist() == [6.0]


def test_a_timeline_that_is_not_finished_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "timeline.json").write_text(json.dumps([{"name": "x"}])[:-1] + ",")
    with pytest.raises(InvalidInput, match="is not the timeline of a finished run"):
        read_timeline(tmp_path / "timeline.json")
