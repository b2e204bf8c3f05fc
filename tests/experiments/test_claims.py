"""The rule by which runs agree with a paper or not, on numbers that are worked out by hand."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from experiments.harness.claims import Claim, Kind, judged, read_claims
from experiments.harness.figure import COLOUR_OF, claims_figure
from experiments.harness.measurements import Measurement


def runs(method: str, name: str, *values: float) -> list[Measurement]:
    return [Measurement(part="p", method=method, seed=seed, values={name: v}) for seed, v in enumerate(values)]


def claim(kind: Kind = "better", gap: float | None = None, measure: str = "final_accuracy") -> Claim:
    return Claim(
        where="Table 1",
        says="A beats B",
        part="p",
        kind=kind,
        mine="A",
        theirs="B",
        gap=gap,
        measure=measure,
    )


@pytest.mark.parametrize(
    ("mine", "gap", "verdict"),
    [
        ((0.60, 0.65, 0.62), 0.20, "agrees"),  # differences 0.10, 0.15, 0.12: the median 0.12 is over half of 0.20
        ((0.60, 0.65, 0.62), 0.30, "same order, smaller gap"),  # and under half of 0.30
        ((0.60, 0.65, 0.62), None, "agrees"),  # no gap was published
        ((0.60, 0.49, 0.62), 0.20, "does not reproduce here"),  # the second seed is at -0.01: the interval includes 0
        ((0.40, 0.45, 0.42), 0.20, "does not reproduce here"),  # the other way round
    ],
)
def test_a_difference_is_judged_by_its_interval_and_by_half_of_the_published_gap(
    mine: tuple[float, ...], gap: float | None, verdict: str
) -> None:
    found = judged(claim(gap=gap), runs("A", "final_accuracy", *mine) + runs("B", "final_accuracy", 0.5, 0.5, 0.5))
    assert found.verdict == verdict and found.seeds == 3


@pytest.mark.parametrize(
    ("theirs", "gap", "verdict"),
    [
        ((120.0, 130.0, 125.0), 1.4, "agrees"),  # ratios 1.2, 1.3, 1.25: 0.25 is over half of 0.4
        ((120.0, 130.0, 125.0), 2.0, "same order, smaller gap"),  # and under half of 1
        ((120.0, 90.0, 125.0), 1.4, "does not reproduce here"),  # once I was slower
        ((inf, inf, 150.0), 1.4, "agrees"),  # where they never get there I am infinitely faster
        ((inf, inf, inf), 1.4, "agrees"),
    ],
)
def test_times_are_judged_by_their_ratio(theirs: tuple[float, ...], gap: float, verdict: str) -> None:
    found = runs("A", "time_to_target", 100.0, 100.0, 100.0) + runs("B", "time_to_target", *theirs)
    assert judged(claim(gap=gap, measure="time_to_target"), found).verdict == verdict


def test_if_neither_gets_there_nothing_reproduces() -> None:
    never = runs("A", "time_to_target", inf, inf) + runs("B", "time_to_target", inf, inf)
    assert judged(claim(measure="time_to_target"), never).verdict == "does not reproduce here"


def test_seeds_with_which_neither_gets_there_are_counted_in_words() -> None:
    some = runs("A", "time_to_target", inf, inf, 200.0) + runs("B", "time_to_target", inf, inf, 100.0)
    found = judged(claim(measure="time_to_target"), some)
    assert found.measured == "0.50 (one seed); neither reaches it with 2 of 3 seeds"


def test_alike_means_that_the_interval_includes_no_difference() -> None:
    others = runs("B", "final_accuracy", 0.5, 0.5, 0.5)
    assert judged(claim("alike"), runs("A", "final_accuracy", 0.49, 0.5, 0.52) + others).verdict == "agrees"
    assert (
        judged(claim("alike"), runs("A", "final_accuracy", 0.6, 0.6, 0.6) + others).verdict == "does not reproduce here"
    )


def test_never_means_that_no_seed_gets_there() -> None:
    assert judged(claim("never"), runs("A", "time_to_target", inf, inf)).verdict == "agrees"
    found = judged(claim("never"), runs("A", "time_to_target", inf, 90.0))
    assert (found.verdict, found.measured) == ("does not reproduce here", "1 of 2 seeds reach it")


def test_a_single_seed_is_not_enough_for_a_verdict() -> None:
    one = runs("A", "final_accuracy", 0.9) + runs("B", "final_accuracy", 0.1)
    assert judged(claim(), one).verdict == "not yet run"
    assert judged(claim(), []).seeds == 0


def test_a_claim_may_be_about_two_parts() -> None:
    mine = runs("A", "time_to_target", 100.0, 100.0)
    theirs = [
        Measurement(part=part, method="B", seed=seed, values={"time_to_target": time})
        for part, time in (("p", 50.0), ("q", 150.0))
        for seed in (0, 1)
    ]
    across = replace(claim(measure="time_to_target"), their_part="q")
    assert judged(across, mine + theirs).verdict == "agrees"  # 150 / 100
    assert judged(claim(measure="time_to_target"), mine + theirs).verdict == "does not reproduce here"  # 50 / 100


def test_a_comparison_without_a_claim_is_reported_without_a_verdict() -> None:
    found = judged(claim("measured"), runs("A", "final_accuracy", 0.6, 0.7) + runs("B", "final_accuracy", 0.5, 0.5))
    assert (found.verdict, found.measured, found.claim.published) == ("no claim", "+15.0 (+10.0 to +20.0)", "-")
    neither = runs("A", "time_to_target", inf, inf) + runs("B", "time_to_target", inf, inf)
    assert judged(claim("measured", measure="time_to_target"), neither).verdict == "no claim"


def test_a_published_gap_follows_from_what_the_file_gives() -> None:
    entry = {"where": "Table 1", "says": "{mine} beats {theirs}", "part": "p", "mine": "A", "theirs": "B"}
    published = {"p": {"A": {"time_to_target": 50.0}, "B": {"time_to_target": 100.0}, "C": {"time_to_target": inf}}}

    def gap(**others: object) -> float | None:
        (made,) = read_claims([entry | {"measure": "time_to_target"} | others], published)
        return made.gap

    assert gap() == 2.0  # 100 / 50
    assert gap(theirs="C") is None  # published as never: no number
    assert gap(theirs="D") is None  # not published
    assert gap(values=[40.0, 60.0]) == 1.5
    assert gap(time_saved=0.2) == pytest.approx(1.25)  # 1 / (1 - 0.2)
    assert gap(measure="final_accuracy", values=[0.75, 0.5]) == 0.25
    assert gap(gap=3.0) == 3.0
    assert gap(kind="measured") is None


def test_an_entry_stands_for_a_claim_per_combination() -> None:
    entry = {
        "for_each": {"part": ["p", "q"], "rule": ["paper", "code"]},
        "where": "Fig. 2",
        "says": "{part}: A beats B ({rule})",
        "mine": "A ({rule})",
        "theirs": "B ({rule})",
    }
    made = list(read_claims([entry], {}))
    assert [(each.part, each.mine, each.theirs) for each in made] == [
        (part, f"A ({rule})", f"B ({rule})") for part in ("p", "q") for rule in ("paper", "code")
    ]
    assert made[1].says == "p: A beats B (code)"
    with pytest.raises(TypeError, match="headlin"):
        list(read_claims([entry | {"headlin": True}], {}))


def test_the_figure_has_a_panel_for_each_kind_of_number_and_the_verdict_as_the_colour() -> None:
    found = runs("A", "final_accuracy", 0.6, 0.7) + runs("B", "final_accuracy", 0.5, 0.5)
    found += runs("A", "time_to_target", 100.0, 100.0) + runs("B", "time_to_target", inf, inf)
    verdicts = [judged(each, found) for each in (claim(gap=0.2), claim(measure="time_to_target"))]
    figure = claims_figure([*verdicts, judged(claim(measure="mean_accuracy"), found)])  # the last is not yet run
    assert figure is not None
    accuracy, time = figure.axes
    _, _, interval, median, published = accuracy.lines  # after the line of no difference and that of the row
    assert np.asarray(interval.get_xdata()) == pytest.approx([10.0, 20.0])  # points
    assert np.asarray(median.get_xdata()) == pytest.approx([15.0])
    assert np.asarray(published.get_xdata()) == pytest.approx([20.0])
    assert median.get_color() == COLOUR_OF["agrees"]  # 15 points are over half of 20
    assert [line.get_marker() for line in time.lines][-1] == ">"  # B never gets there
    assert claims_figure([judged(claim(), [])]) is None
