"""The report: honest words, a page that stands alone, everything escaped."""

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from math import nan
from pathlib import Path
from typing import Any

import pytest

from offbeat import Experiment, run
from offbeat.results.comparison import Comparison
from offbeat.results.metric import summarise
from offbeat.results.report import findings, report_html
from offbeat.results.result import Result
from offbeat.results.rows import Row


def entry(
    algorithm: str, seed: int, curve: Sequence[tuple[float, float]], reason: str = "time", bytes_up: int = 1_000_000
) -> Result:
    costs: Row = {
        "updates_used": 80,
        "updates_discarded": 0,
        "updates_lost": 0,
        "mean_staleness": 0,
        "max_staleness": 0,
    }
    more: Row = {"bytes_up": bytes_up, "bytes_down": 0, "in_flight": 0, "busy_seconds": 9.0, "wasted_seconds": 0.0}
    rows: list[Row] = [
        {"time": time, "version": 1, "accuracy": accuracy, "loss": 1.0} | costs | more for time, accuracy in curve
    ]
    summary = summarise(rows, algorithm=algorithm, seed=seed, targets=[0.8], reason=reason, wall_seconds=1.0)
    return Result(rows=rows, summary={"label": algorithm, "seed": seed} | summary)


def reaching(algorithm: str, *times: float, final: float = 0.85, bytes_up: int = 1_000_000) -> list[Result]:
    """One seed per time at which 80 % is reached."""
    return [
        entry(algorithm, seed, [(0, 0.1), (time, 0.8), (300, final)], bytes_up=bytes_up)
        for seed, time in enumerate(times)
    ]


def failing(algorithm: str, reason: str = "time") -> list[Result]:
    return [entry(algorithm, 0, [(0, 0.1), (300, 0.3)], reason)]


class Page(HTMLParser):
    """Collects what a page is made of and checks that its elements close in order."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_words_name_the_winner_its_factor_over_fedavg_and_its_price() -> None:
    words = findings(
        Comparison([*reaching("fedavg", 100, 120, 200), *reaching("fedbuff", 50, 60, 80, bytes_up=3_000_000)])
    )
    assert "fedbuff reached 80 % accuracy first, after 60.0 s of virtual time (median of 3 seeds)" in words
    # Seed by seed 100 / 50, 120 / 60 and 200 / 80.
    assert "2 times as fast as fedavg (paired by seed, range 2-2.5)." in words
    assert "fedavg took 120 s." in words
    assert "fedbuff uploaded 3 times as many bytes as fedavg" in words
    assert "chance" not in words


def test_words_say_when_fedavg_wins() -> None:
    words = findings(Comparison([*reaching("fedavg", 100, 110), *reaching("fedbuff", 150, 176, final=0.95)]))
    assert "fedavg reached 80 % accuracy first" in words
    assert "no other algorithm was faster" in words
    # Seed by seed 100 / 150 and 110 / 176, so 1.5 and 1.6 times as long; halfway between 2 / 3 and 5 / 8 is 0.646.
    assert "fedbuff took 163 s, 1.55 times as long as fedavg (paired by seed, range 1.5-1.6)." in words
    assert "The highest final accuracy was that of fedbuff: 95.0 ± 0.0 %." in words


def test_words_name_who_missed_the_target_and_who_diverged() -> None:
    runs = [*reaching("fedbuff", 50), *failing("fedavg"), *failing("fedasync", "diverged: a loss that is not finite")]
    words = findings(Comparison([*runs, *reaching("other", 40), entry("other", 1, [(0, 0.1), (300, 0.2)])], 0.8))
    assert "times as fast" not in words
    assert "fedavg did not reach the target within 300 s." in words
    assert "other reached the target in only 1 of 2 seeds." in words
    assert "fedasync diverged in 1 of 1 seeds." in words


def test_words_doubt_what_few_seeds_show() -> None:
    one = findings(Comparison([*reaching("fedavg", 100), *reaching("fedbuff", 50)]))
    assert "With one seed each, differences may be due to chance." in one
    # Ranges overlap, but with each seed fedbuff was the faster one.
    paired = findings(Comparison([*reaching("fedavg", 100, 120), *reaching("fedbuff", 50, 110)]))
    assert "chance" not in paired
    assert "fedbuff was ahead of fedavg on all of 2 seeds; a 95 % interval takes at least 5." in paired
    many = findings(Comparison([*reaching("fedavg", *5 * [100]), *reaching("fedbuff", 50, 55, 60, 50, 45)]))
    assert "2 times as fast as fedavg (paired by seed, 95 % interval 1.69-2.21)." in many and "on all" not in many
    undecided = findings(Comparison([*reaching("fedavg", 100, 120), *reaching("fedbuff", 50, 130)]))
    unsure = "not distinguishable from fedavg with these seeds (1.46 times as fast, range 0.923-2, paired by seed)."
    assert unsure in undecided
    assert "With 2 seeds, fedbuff is not distinguishable from fedavg: their order may be due to chance." in undecided


def test_words_for_a_tie_for_no_target_and_for_a_single_algorithm() -> None:
    tie = findings(Comparison([*reaching("fedavg", 50), *reaching("a", 50), *reaching("b", 50)]))
    assert "fedavg, a and b were equally fast" in tie
    stuck = [entry("fedavg", 0, [(0, 0.1), (300, 0.1)])]
    assert findings(Comparison(stuck)).startswith("No algorithm improved in all of its seeds.")
    assert findings(Comparison(failing("fedavg"), 0.7)).startswith("No algorithm reached 70 % accuracy")
    alone = findings(Comparison(reaching("fedavg", 50)))
    assert alone == (
        "fedavg reached 80 % accuracy after 50.0 s of virtual time (one seed). Its final accuracy was 85.0 %."
    )


def test_words_say_whose_time_it_was() -> None:
    (run,) = reaching("fedavg", 50)
    run.summary["updates_refused"] = 0
    assert "after 50.0 s of real time" in findings(Comparison([run]))


def embedded(text: str) -> dict[str, Any]:
    """The data of a page, as its script reads them."""
    start = text.index('<script type="application/json" id="data">')
    data: dict[str, Any] = json.loads(text[text.index(">", start) + 1 : text.index("</script>", start)])
    return data


def test_the_page_stands_alone_and_is_well_formed() -> None:
    text = report_html(Comparison([*reaching("fedavg", 100), *reaching("fedbuff", 50)]), ["seed = 0\n"], "Race")
    page = Page(text)
    assert {"title", "table", "canvas", "details", "noscript"} <= page.tags
    assert not {"link", "img", "iframe", "object"} & page.tags
    assert all(link.startswith("#") for link in page.links)
    assert "default-src 'none'" in text and "connect-src 'none'" in text
    assert "Permission is hereby granted" in text  # the licence of the chart library
    assert len(text) < 200_000


def test_the_page_has_a_line_for_every_run_and_every_distinct_experiment_once() -> None:
    text = report_html(
        Comparison([*reaching("fedavg", 100, 120), *failing("fedbuff")], 0.8), ["a = 1", "b = 2", "a = 1"], ""
    )
    assert text.count('<td class="text">time</td>') == 3
    assert "<td>120 s</td>" in text
    assert "<td>not reached</td>" in text
    assert text.count("<pre>") == 2


def test_the_data_of_the_page_are_those_of_the_runs() -> None:
    comparison = Comparison([*reaching("fedavg", 100, 120), *reaching("fedbuff", 50)], 0.8)
    data = embedded(report_html(comparison, [], "Race"))
    assert [(each["name"], each["runs"]) for each in data["methods"]] == [("fedavg", [0, 1]), ("fedbuff", [2])]
    assert data["runs"][1]["columns"]["accuracy"] == [0.1, 0.8, 0.85]
    assert data["runs"][1]["columns"]["time"] == [0.0, 120.0, 300.0]
    assert data["runs"][0]["columns"]["megabytes"] == [1.0, 1.0, 1.0]
    assert data["times"][0]["median"] == 110.0 and data["target"] == 0.8
    assert data["first_run"] == 2  # the fastest
    assert [key for key, _ in data["axes"]] == ["time", "version", "updates_used", "megabytes", "busy_seconds"]
    assert "no order log" in data["runs"][0]["missing"] and data["runs"][0]["views"] is None


def test_bounds_that_never_act_leave_the_shares_of_the_fifths(tmp_path: Path) -> None:
    def heard(name: str, trust: dict[str, Any], fleet: str) -> dict[str, Any]:
        experiment = Experiment(
            stop={"versions": 20},
            data={"name": "digits", "devices": 12},
            model="logistic",
            local={"steps": 3},
            algorithm="fedbuff",
            fleet={"name": fleet},
            failures={"vanish": 0.3, "rejoin_seconds": 5.0},
            trust=trust,
        )
        result = run(experiment, out=tmp_path / name)
        shown: dict[str, Any] = embedded(report_html(Comparison([result], None), [], ""))["runs"][0]["views"]["heard"]
        return shown

    assert "influence" not in heard("plain", {}, "ratio")
    for fleet in ("ratio", "exponential"):
        found = heard(fleet, {"clip": 1e9}, fleet)
        assert found["influence"] == pytest.approx(found["used"], abs=1e-3)
    clipped = heard("clipped", {"clip": 0.01}, "ratio")
    assert clipped["influence"] != clipped["used"] and sum(clipped["influence"]) == pytest.approx(1.0, abs=1e-3)


def test_a_long_run_is_thinned_out_and_keeps_its_ends() -> None:
    long = entry("fedavg", 0, [(float(second), second / 20_000) for second in range(20_000)])
    columns = embedded(report_html(Comparison([long], 0.5), [], ""))["runs"][0]["columns"]
    assert 1_000 < len(columns["time"]) < 20_000
    assert (columns["time"][0], columns["time"][-1]) == (0.0, 19_999.0)


def test_numbers_that_are_not_finite_are_left_out() -> None:
    broken = entry("fedavg", 0, [(0, 0.1), (10, nan), (20, 0.2)], "diverged: a loss that is not finite")
    assert embedded(report_html(Comparison([broken], 0.5), [], ""))["runs"][0]["columns"]["accuracy"] == [
        0.1,
        None,
        0.2,
    ]


def test_everything_from_outside_is_escaped() -> None:
    evil = "</script><script>alert('&')</script>"
    text = report_html(Comparison([*reaching(evil, 50), *failing("fedavg", evil)]), [evil], evil, [evil])
    assert evil not in text and "<script>alert" not in text
    assert text.count("<script") == text.count("</script>") == 3
    assert embedded(text)["methods"][0]["name"] == evil
    Page(text)


def test_the_same_results_give_the_same_page() -> None:
    comparison = Comparison([*reaching("fedavg", 100, 120), *reaching("fedbuff", 50, 60)])
    assert report_html(comparison, ["seed = 0"], "Race") == report_html(comparison, ["seed = 0"], "Race")


def test_a_search_of_many_settings_is_told_in_few_sentences() -> None:
    runs = [run for number in range(15) for run in reaching(f"rate={number}", 50 + number)]
    words = findings(Comparison([*runs, *(failing(f"bad={number}")[0] for number in range(12))], 0.7))
    assert words.startswith("rate=0 reached 70 % accuracy first") and "rate=8 took" in words and "rate=9" not in words
    assert "6 others took longer." in words and "12 others did not reach the target in all of their seeds." in words
