"""Figures: what they show, and that the same figure gives the same file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from offbeat.core.errors import InvalidInput
from offbeat.results.comparison import Comparison
from offbeat.results.files import csv_of
from offbeat.results.plots import accuracy_figure, devices_figure, mean_and_range, run_figure, save
from offbeat.results.result import Result
from offbeat.results.rows import Row


def entry(algorithm: str, seed: int, curve: Sequence[tuple[float, float]], reason: str = "time") -> Result:
    rows: list[Row] = [
        {"time": time, "accuracy": accuracy, "loss": 2.0, "mean_staleness": 1.5, "max_staleness": 3}
        for time, accuracy in curve
    ]
    return Result(
        rows=rows,
        summary={
            "label": algorithm,
            "seed": seed,
            "stopped_by": reason,
            "metrics": ["accuracy", "loss"],
            "time_to_accuracy": {"0.5": None, "0.9": None},
        },
    )


def three_algorithms() -> list[Result]:
    return [
        entry("fedavg", 0, [(0, 0.1), (10, 0.3), (20, 0.6)]),
        entry("fedavg", 1, [(0, 0.2), (15, 0.5)]),
        entry("fedbuff", 0, [(0, 0.1), (5, 0.7)]),
        entry("fedbuff", 1, [(0, 0.1), (5, 0.3)], "diverged: a loss that is not finite"),
        entry("fedasync", 0, [(0, 0.1), (20, 0.2)]),
    ]


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_mean_and_range_hold_the_last_evaluation_and_the_final_model() -> None:
    time, mean, low, high = mean_and_range(three_algorithms()[:2])
    # Seed 0 has 0.1, 0.3, 0.3, 0.6 at these times and seed 1, which ends at 15 s, has 0.2, 0.2, 0.5, 0.5.
    np.testing.assert_allclose(time, [0, 10, 15, 20])
    np.testing.assert_allclose(mean, [0.15, 0.25, 0.4, 0.55])
    np.testing.assert_allclose(low, [0.1, 0.2, 0.3, 0.5])
    np.testing.assert_allclose(high, [0.2, 0.3, 0.5, 0.6])


def test_of_two_evaluations_at_the_same_time_the_later_counts() -> None:
    time, mean, _, _ = mean_and_range([entry("fedavg", 0, [(0, 0.1), (10, 0.2), (10, 0.4)])])
    np.testing.assert_allclose(time, [0, 10])
    np.testing.assert_allclose(mean, [0.1, 0.4])


def test_each_algorithm_has_its_own_colour_and_line_style_and_the_target_a_dotted_line() -> None:
    curves = accuracy_figure(Comparison(three_algorithms(), 0.5)).axes[0]
    lines = {str(line.get_label()): line for line in curves.lines}
    assert lines["fedavg"].get_color() != lines["fedasync"].get_color()
    assert lines["fedavg"].get_linestyle() != lines["fedasync"].get_linestyle()
    assert lines["target 50 %"].get_linestyle() == ":"
    assert "fedbuff (x: diverged)" in lines


def test_twenty_methods_have_twenty_lines_that_can_be_told_apart_and_bars_in_the_same_colours() -> None:
    runs = [entry(f"method {number}", 0, [(0, 0.1), (number + 1, 0.6), (30, 0.7)]) for number in range(20)]
    figure = accuracy_figure(Comparison(runs, 0.5))
    curves, bars = figure.axes
    lines = [line for line in curves.lines if str(line.get_label()).startswith("method")]
    # get_linestyle says '--' of every pattern of dashes, so the pattern itself is looked at.
    looks = [(line.get_color(), str(vars(line)["_unscaled_dash_pattern"]), line.get_marker()) for line in lines]
    assert len(looks) == 20
    for number, look in enumerate(looks):
        for other in looks[:number]:
            # Either another colour, or the same one with both another style and another marker.
            assert look[0] != other[0] or (look[1] != other[1] and look[2] != other[2])
    drawn = [bar.patches[0].get_facecolor() for bar in bars.containers if isinstance(bar, BarContainer)]
    assert drawn == [to_rgba(look[0]) for look in looks]


def test_legends_cover_no_data() -> None:
    runs = [entry(f"a method with a long name, number {number}", 0, [(0, 0.1), (9, 0.6)]) for number in range(20)]
    for figure in (accuracy_figure(Comparison(runs, 0.5)), run_figure(three_algorithms()[0])):
        figure.draw_without_rendering()
        (legend,) = figure.legends
        box = legend.get_window_extent()
        assert all(not box.overlaps(axes.get_window_extent()) for axes in figure.axes)
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1


def test_the_last_evaluation_of_a_run_is_marked_and_inside_the_axes() -> None:
    upper, _, loss = run_figure(three_algorithms()[0]).axes
    assert [texts(upper)] == [["60.0 %"]]
    for axes, value in ((upper, 0.6), (loss, 2.0)):
        marked = axes.lines[-1]
        assert (marked.get_xdata()[0], marked.get_ydata()[0]) == (20, value)  # type: ignore[index]
        assert axes.get_xlim()[1] > 20


def test_a_run_shows_the_metric_that_it_is_named() -> None:
    rows = [{"time": row["time"], "accuracy": row["accuracy"], "f1": 0.25} | row for row in three_algorithms()[0].rows]
    for metric, shown, value in (
        ("accuracy", "accuracy", "60.0 %"),
        ("f1", "f1", "25.0 %"),
        ("absent", "accuracy", "60.0 %"),
    ):
        summary = three_algorithms()[0].summary | {"target_metric": metric}
        upper = run_figure(Result(rows=rows, summary=summary)).axes[0]
        assert (upper.get_ylabel(), texts(upper)) == (f"{shown} on held-out data", [value])


@pytest.mark.parametrize(
    ("real", "clock"),
    [
        ([False, False], "virtual time (s)"),
        ([True, True], "wall-clock time (s)"),
        ([False, True], "time (s), virtual in simulations"),
    ],
)
def test_axes_say_whose_time_they_show(real: list[bool], clock: str) -> None:
    runs = [entry(f"method {number}", 0, [(0, 0.1), (9, 0.6)]) for number in range(2)]
    for run, was_real in zip(runs, real, strict=True):
        run.summary |= {"updates_refused": 0} if was_real else {}
    assert [axes.get_xlabel() for axes in accuracy_figure(Comparison(runs, 0.5)).axes] == [clock] * 2


def test_axes_say_what_they_show() -> None:
    curves, bars = accuracy_figure(Comparison(three_algorithms(), 0.5)).axes
    assert (curves.get_xlabel(), curves.get_ylabel()) == ("virtual time (s)", "accuracy on held-out data")
    assert curves.get_xlim() == (0, 1.01 * 20)
    assert bars.get_title(loc="left") == "Time to 50 % accuracy"
    assert [label.get_text() for label in bars.get_yticklabels()] == ["fedavg", "fedbuff", "fedasync"]


def test_bars_are_medians_and_say_who_did_not_reach_the_target() -> None:
    _, bars = accuracy_figure(Comparison(three_algorithms(), 0.5)).axes
    widths = [bar.patches[0].get_width() for bar in bars.containers if isinstance(bar, BarContainer)]
    # fedavg reached it at 10 + 10 x 2/3 and 15 s, fedbuff in one seed of two after 4/6 of 5 s.
    assert widths == pytest.approx([(10 + 20 / 3 + 15) / 2, 5 * 4 / 6])
    assert texts(bars) == ["15.8 s", "3.33 s\n1 of 2 seeds", "not reached"]


def test_without_a_target_there_are_only_curves() -> None:
    figure = accuracy_figure(Comparison([entry("fedavg", 0, [(0, 0.1), (10, 0.1)])]))
    assert len(figure.axes) == 1


def test_a_run_shows_accuracy_loss_and_staleness_even_after_one_evaluation_or_a_divergence() -> None:
    diverged: Row = {"time": 5.0, "accuracy": 0.1, "loss": float("nan"), "mean_staleness": 0, "max_staleness": 0}
    for rows in (three_algorithms()[0].rows, three_algorithms()[0].rows[:1], [*three_algorithms()[3].rows, diverged]):
        figure = run_figure(Result(rows=rows, summary=three_algorithms()[0].summary))
        assert {axes.get_ylabel() for axes in figure.axes} == {
            "accuracy on held-out data",
            "loss on held-out data",
            "staleness (versions)",
        }
        figure.draw_without_rendering()


def test_a_figure_is_saved_whole_and_with_the_same_bytes_every_time(tmp_path: Path) -> None:
    def drawn(name: str) -> bytes:
        figure: Figure = accuracy_figure(Comparison(three_algorithms(), 0.5))
        save(figure, tmp_path / name)
        return (tmp_path / name).read_bytes()

    first = drawn("first.png")
    assert first.startswith(b"\x89PNG")
    assert b"Software" not in first and b"Creation" not in first
    assert drawn("second.png") == first
    for suffix, start in ((".svg", b"<?xml"), (".PDF", b"%PDF")):
        assert drawn(f"first{suffix}").startswith(start)
        assert drawn(f"second{suffix}") == drawn(f"first{suffix}")
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["first.PDF", "first.png", "first.svg", "second.PDF", "second.png", "second.svg"]


@pytest.mark.parametrize(("name", "kind"), [("plan.jpg", "ends in '.jpg'"), ("plan", "has no suffix")])
def test_another_kind_of_file_is_refused_in_one_sentence(tmp_path: Path, name: str, kind: str) -> None:
    with pytest.raises(InvalidInput, match=f"{kind}: choose .png, .svg or .pdf"):
        save(run_figure(three_algorithms()[0]), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_the_time_of_real_devices_is_stacked_and_their_traffic_is_in_megabytes(tmp_path: Path) -> None:
    devices: list[Row] = [
        {
            "device": number,
            "training_seconds": 10.0 * (number + 1),
            "way_seconds": 5.0,
            "idle_seconds": 1.0,
            "mean_staleness": 0.5,
            "bytes_down": 2e6,
            "bytes_up": 1e6,
        }
        for number in range(2)
    ]
    run = Result(rows=[], summary={"label": "fedbuff", "seed": 0}, directory=tmp_path)
    assert devices_figure(run) is None
    (tmp_path / "devices.csv").write_text(csv_of(devices))
    figure = devices_figure(Result(rows=[], summary=run.summary, directory=tmp_path))
    assert figure is not None
    time, staleness, traffic = figure.axes
    assert [(bar.get_x(), bar.get_width()) for bar in time.patches] == [  # type: ignore[attr-defined]
        (0.0, 10.0),
        (0.0, 20.0),
        (10.0, 5.0),
        (20.0, 5.0),
        (15.0, 1.0),
        (25.0, 1.0),
    ]
    assert [bar.get_width() for bar in traffic.patches] == [2.0, 2.0, 1.0, 1.0]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.asarray(staleness.lines[0].get_xdata()), [0.5, 0.5])
