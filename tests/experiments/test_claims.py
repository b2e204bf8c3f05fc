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
    ("gap", "verdict"),
    [
        (0.10, "agrees"),  # margin 0.05
        (0.20, "undecided"),  # margin 0.10
        (0.30, "contradicts"),  # margin 0.15, although the order is the published one
        (None, "agrees"),  # no gap was published: the margin is 0
    ],
)
def test_a_difference_is_judged_by_its_interval_against_half_of_the_published_gap(
    gap: float | None, verdict: str
) -> None:
    """Differences 0.08, 0.10, 0.12, 0.09, 0.11: mean 0.10, standard deviation 0.0158, interval 0.10 -+ 0.0196."""
    mine = runs("A", "final_accuracy", 0.58, 0.60, 0.62, 0.59, 0.61)
    found = judged(claim(gap=gap), mine + runs("B", "final_accuracy", *5 * [0.5]))
    assert (found.verdict, found.seeds) == (verdict, 5)
    assert found.measured == "+10.0 (+8.0 to +12.0)"


def test_fewer_than_five_seeds_decide_nothing_and_the_seeds_that_would_are_estimated() -> None:
    """Differences 0.10, 0.15, 0.20 against 0.05: five seeds would do, 2.776 x 0.05 / sqrt(5) = 0.062 < 0.10. Against
    0.13 the half-width must be below 0.02: 26 seeds, 2.060 x 0.05 / sqrt(26) = 0.0202; 27 give 0.0198."""
    three = runs("A", "final_accuracy", 0.60, 0.65, 0.70) + runs("B", "final_accuracy", 0.5, 0.5, 0.5)
    near, far = judged(claim(gap=0.26), three), judged(claim(gap=0.10), three)
    assert (far.verdict, far.needed_text, far.measured) == ("undecided", "5", "+15.0 (range +10.0 to +20.0)")
    assert (near.verdict, near.needed_text) == ("undecided", "27")
    assert judged(claim(gap=0.30), three).needed_text == "over 1,000"  # the margin is the mean


@pytest.mark.parametrize(
    ("theirs", "gap", "verdict"),
    [
        ((120.0, 130.0, 125.0, 120.0, 130.0), 1.3, "agrees"),  # interval 1.19 to 1.31, margin 1.15
        ((120.0, 130.0, 125.0, 120.0, 130.0), 2.0, "contradicts"),  # margin 1.5
        ((120.0, 90.0, 125.0, 160.0, 130.0), 1.4, "undecided"),  # interval 0.94 to 1.61, margin 1.2
        ((inf, inf, 150.0, 140.0, 160.0), 1.4, "undecided"),  # order statistics need a sixth seed
        ((inf, inf, 150.0, 140.0, 160.0, inf), 1.4, "agrees"),  # 1.4 or more on all six
    ],
)
def test_times_are_judged_by_their_ratio(theirs: tuple[float, ...], gap: float, verdict: str) -> None:
    found = runs("A", "time_to_target", *len(theirs) * [100.0]) + runs("B", "time_to_target", *theirs)
    assert judged(claim(gap=gap, measure="time_to_target"), found).verdict == verdict


def test_if_neither_gets_there_nothing_is_decided() -> None:
    never = runs("A", "time_to_target", inf, inf) + runs("B", "time_to_target", inf, inf)
    assert judged(claim(measure="time_to_target"), never).verdict == "undecided"


def test_seeds_with_which_neither_gets_there_are_counted_in_words() -> None:
    some = runs("A", "time_to_target", inf, inf, 200.0) + runs("B", "time_to_target", inf, inf, 100.0)
    found = judged(claim(measure="time_to_target"), some)
    assert found.measured == "0.50 (one seed); neither reaches it with 2 of 3 seeds"


def test_alike_means_that_the_interval_lies_within_a_point() -> None:
    others = runs("B", "final_accuracy", *5 * [0.5])

    def found(*mine: float) -> str:
        return judged(claim("alike"), runs("A", "final_accuracy", *mine) + others).verdict

    assert found(0.501, 0.502, 0.499, 0.5, 0.501) == "agrees"
    assert found(0.55, 0.56, 0.57, 0.58, 0.54) == "contradicts"
    assert found(0.45, 0.56, 0.5, 0.48, 0.54) == "undecided"


def test_never_means_that_no_seed_gets_there() -> None:
    assert judged(claim("never"), runs("A", "time_to_target", *5 * [inf])).verdict == "agrees"
    few = judged(claim("never"), runs("A", "time_to_target", inf, inf))
    assert (few.verdict, few.needed_text) == ("undecided", "5")
    found = judged(claim("never"), runs("A", "time_to_target", inf, 90.0))
    assert (found.verdict, found.measured) == ("contradicts", "1 of 2 seeds reach it")


def test_a_single_seed_is_not_enough_for_a_verdict() -> None:
    one = runs("A", "final_accuracy", 0.9) + runs("B", "final_accuracy", 0.1)
    assert judged(claim(), one).verdict == "not yet run"
    assert judged(claim(), []).seeds == 0


def test_a_claim_may_be_about_two_parts() -> None:
    mine = runs("A", "time_to_target", *5 * [100.0])
    theirs = [
        Measurement(part=part, method="B", seed=seed, values={"time_to_target": time})
        for part, time in (("p", 50.0), ("q", 150.0))
        for seed in range(5)
    ]
    across = replace(claim(measure="time_to_target"), their_part="q")
    assert judged(across, mine + theirs).verdict == "agrees"  # 150 / 100
    assert judged(claim(measure="time_to_target"), mine + theirs).verdict == "contradicts"  # 50 / 100


def test_a_comparison_without_a_claim_is_reported_without_a_verdict() -> None:
    found = judged(claim("measured"), runs("A", "final_accuracy", 0.6, 0.7) + runs("B", "final_accuracy", 0.5, 0.5))
    assert (found.verdict, found.measured, found.claim.published) == ("no claim", "+15.0 (range +10.0 to +20.0)", "-")
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
    found = runs("A", "final_accuracy", 0.64, 0.65, 0.66, 0.65, 0.65) + runs("B", "final_accuracy", *5 * [0.5])
    found += runs("A", "time_to_target", 100.0, 100.0) + runs("B", "time_to_target", inf, inf)
    verdicts = [judged(each, found) for each in (claim(gap=0.2), claim(measure="time_to_target"))]
    figure = claims_figure([*verdicts, judged(claim(measure="mean_accuracy"), found)])  # the last is not yet run
    assert figure is not None
    accuracy, time = figure.axes
    _, _, interval, median, published = accuracy.lines  # after the line of no difference and that of the row
    assert np.asarray(interval.get_xdata()) == pytest.approx([14.12, 15.88], abs=0.01)  # points
    assert np.asarray(median.get_xdata()) == pytest.approx([15.0])
    assert np.asarray(published.get_xdata()) == pytest.approx([20.0])
    assert median.get_color() == COLOUR_OF["agrees"]  # 15 points are over half of 20
    assert [line.get_marker() for line in time.lines][-1] == ">"  # B never gets there
    assert claims_figure([judged(claim(), [])]) is None
