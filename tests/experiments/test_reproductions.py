"""Every reproduction in a tiny shape, and the pages in docs/ against the files that they are made from."""

import re
from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from typer.testing import CliRunner

from experiments import registry, run_cases
from experiments.claims import judged
from experiments.fedasmu_cases import CNN, CONSTANT, LENET, shorter
from experiments.leaderboard_page import NEVER, leaderboard_figure, leaderboard_page
from experiments.leaderboard_ranking import best_of_families, equally_busy, in_words
from experiments.measurements import Measurement, read_measurements
from experiments.page import figure_file, missing, page
from experiments.record import Record, identity
from experiments.registry import CLAIMS, REPRODUCTIONS, keep, results_file, write_pages
from experiments.reproduction import Form, Reproduction
from experiments.run_cases import chosen, reproduce, score
from experiments.tables import part_lines
from offbeat.cli import app
from offbeat.comparison.fairness import fair_experiments
from offbeat.comparison.scheduler import RunScheduler
from offbeat.core.errors import Interrupted, InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import parse_changes
from offbeat.results.result import Result, read_run
from offbeat.results.rows import Row

DOCS = Path(__file__).resolve().parents[3] / "docs"
SHARED = DOCS.parents[1] / "shared" / "data"
ELSEWHERE = {"fleet": {"ratio": 7.0}}
TINY = Form(seeds=2, length=0.01, full=False)


def shortened(name: str, count: int = 2) -> Reproduction:
    """The first cases alone, without a search among candidates."""
    whole = REPRODUCTIONS[name]
    first = [replace(case, candidates=case.candidates[:1]) for case in whole.cases(TINY)[:count]]
    return replace(whole, cases=lambda form: first)


def cached(cache: Path) -> list[Path]:
    """The finished runs of a cache."""
    return sorted(cache.glob("*/summary.json"))


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_the_quick_form_in_a_tiny_shape(name: str, tmp_path: Path) -> None:
    chosen = shortened(name)
    *_, found = reproduce(chosen, TINY, tmp_path / "cache")
    assert [each.seed for each in found] == [0, 1] * 2
    assert all(each.part in chosen.parts and each.method in chosen.methods(each.part) for each in found)
    assert len({each.method for each in found}) == 2


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_claims_and_published_numbers_are_about_cases_that_are_run(name: str) -> None:
    chosen = REPRODUCTIONS[name]
    known = {(part, method) for part in chosen.parts for method in chosen.methods(part)}
    for claim in chosen.claims:
        assert (claim.part, claim.mine) in known
        assert not claim.theirs or (claim.their_part or claim.part, claim.theirs) in known
    assert set(chosen.published) <= known


@pytest.mark.parametrize("name", ["adel-fl", "fedasmu", "seafl", "delays", "leaderboard"])
def test_the_full_form_has_every_method_of_every_part(name: str) -> None:
    chosen = REPRODUCTIONS[name]
    # ADEL-FL's cases are planned on the data: there the parts that need files are left out.
    data = None if name == "adel-fl" else Path("data")
    parts = [part for part in chosen.parts if data is not None or "CIFAR" not in part]
    planned = [(case.part, case.method) for case in chosen.cases(Form(seeds=1, data=data))]
    assert sorted(planned) == sorted((part, method) for part in parts for method in chosen.methods(part))


def test_what_varies_the_regime_keeps_the_settings_that_were_chosen_in_it() -> None:
    made = {(case.part, case.method): case for case in REPRODUCTIONS["fedasmu"].cases(Form(seeds=1, data=Path("data")))}
    tuned = made[CONSTANT, "FedASMU"]
    for part, changed in (("LeNet, ratio 110", "fleet"), ("LeNet, links at 1/50", "network")):
        case = made[part, "FedASMU"]
        assert case.tuned_on == tuned.experiment and case.candidates == tuned.candidates
        before, after = tuned.experiment.changed(shorter(100)).table(), case.experiment.table()
        assert {key for key in before | after if before.get(key) != after.get(key)} == {changed}
    assert made["LeNet, ratio 110", "FedAvg"].experiment.fleet.resolved()["epoch_seconds"] == pytest.approx(6 / 111)


def test_the_rate_decays_where_the_page_says_so_and_nowhere_else() -> None:
    made = REPRODUCTIONS["fedasmu"].cases(Form(seeds=1, data=Path("data")))
    for case in made:
        work = case.experiment.local
        shares = [work.rate(time) / work.rate(0.0) for time in (9.9, 10.0, 500.0, 2000.0)]
        decaying = case.part in (LENET, CNN)
        assert shares == pytest.approx([1, 0.9886, 0.9886**50, 0.1009] if decaying else [1] * 4, rel=1e-3), case.part


def test_all_twelve_methods_are_tuned_alike_and_the_paper_s_rate_is_tried() -> None:
    made = REPRODUCTIONS["fedasmu"].cases(Form(seeds=1, data=Path("data")))
    for part, rate, tried in ((LENET, 0.005, 6), (CNN, 0.028, 4), (CONSTANT, 0.005, 4)):
        cases = [case for case in made if case.part == part]
        assert len(cases) == 12 and {len(case.candidates) for case in cases} == {tried}
        assert all(rate in {each["local"]["learning_rate"] for each in case.candidates} for case in cases)


def test_numbers_that_could_not_be_read_are_neither_claimed_nor_shown() -> None:
    cnn = [claim for claim in REPRODUCTIONS["fedasmu"].claims if claim.part == CNN]
    gaps = {(claim.theirs, claim.measure): claim.gap for claim in cnn}
    assert gaps["FedAsync", "time_to_target"] == pytest.approx(24931 / 10109)
    assert gaps["MOON", "final_accuracy"] == pytest.approx(0.15)
    assert gaps["PORT", "time_to_target"] is None  # published as never
    assert gaps["FedDyn", "final_accuracy"] is None and gaps["FedLWS", "final_accuracy"] is None
    # There the paper has FedDyn a little sooner, and of FedLWS nothing is legible.
    assert ("FedDyn", "time_to_target") not in gaps and ("FedLWS", "time_to_target") not in gaps
    assert REPRODUCTIONS["fedasmu"].published[CNN, "FedDyn"] == {"time_to_target": 43974}


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_every_run_in_the_files_is_one_of_the_present_definitions(name: str) -> None:
    """Definitions that change make the runs of before outdated: they must be run again, or removed."""
    data = SHARED if SHARED.is_dir() else None
    if name == "fedasmu-regime" and data is None:
        pytest.skip("how fast devices are depends on Fashion-MNIST, which is not in ../shared/data")
    chosen = REPRODUCTIONS[name]
    at_hand = name in ("adel-fl", "fedasmu-regime", "leaderboard")  # their cases are made with the data themselves
    cases = {(case.part, case.method): case for case in chosen.cases(Form(seeds=1, data=data if at_hand else DOCS))}
    found = read_measurements(results_file(DOCS, name))
    assert all(each.run for each in found)
    first = {(each.part, each.method): each for each in found if each.seed == 0}
    assert {(each.part, each.method, each.settings) for each in found} == {(*key, first[key].settings) for key in first}
    for key, each in first.items():
        if key not in cases:
            assert data is None, key
            continue
        case = cases[key]
        base = fair_experiments(case.experiment, [case.method], [0])[0] if case.trials else case.experiment
        changes = parse_changes(each.settings.split("; ") if each.settings else [])
        assert identity(base.changed(changes)) == each.run, key
        assert each.values.get("target") == chosen.targets.get(each.part, chosen.target), key


def test_what_the_file_has_is_neither_tuned_nor_run_again(tmp_path: Path) -> None:
    whole = REPRODUCTIONS["fedasmu-regime"]
    case = replace(whole.cases(TINY)[0], candidates=whole.cases(TINY)[0].candidates[:2])
    varied = replace(case, part=whole.parts[1], tuned_on=case.experiment, experiment=case.experiment.changed(ELSEWHERE))
    both = replace(whole, cases=lambda form: [case, varied])
    *_, found = reproduce(both, TINY, tmp_path / "first")
    assert len(cached(tmp_path / "first")) == 2 + 2 + 2  # two candidates, then two seeds of each case
    assert len({each.run for each in found}) == 4 and len({each.settings for each in found}) == 1
    *_, again = reproduce(both, TINY, tmp_path / "second", known=found)
    assert again == found and cached(tmp_path / "second") == []
    # The settings are known from the first case's runs, also where the second's are not.
    *_, rest = reproduce(both, TINY, tmp_path / "third", known=found[:2])
    assert rest == found and len(cached(tmp_path / "third")) == 2
    # A run that was measured with another target is measured again.
    *_, other = reproduce(replace(both, target=0.1), TINY, tmp_path / "fourth", known=found)
    assert [each.values["target"] for each in other] == [0.1] * 4 and len(cached(tmp_path / "fourth")) == 4


@pytest.mark.processes
def test_several_jobs_take_several_cases_at_a_time_and_measure_the_same(tmp_path: Path) -> None:
    whole = REPRODUCTIONS["fedasmu-regime"]
    three = replace(whole, cases=lambda form: whole.cases(TINY)[:3])
    one_by_one = list(reproduce(three, TINY, tmp_path / "one"))
    told: list[tuple[str, float]] = []
    in_pairs = list(reproduce(three, TINY, tmp_path / "two", jobs=2, watch=lambda *what: told.append(what)))
    assert [len(found) for found in one_by_one] == [2, 4, 6] and [len(found) for found in in_pairs] == [4, 6]
    assert in_pairs[-1] == one_by_one[-1]
    first, second, _ = (case.method for case in whole.cases(TINY)[:3])
    assert told[0] == (f"{whole.parts[0]}: {first}, {second}", 0.0) and told[1][1] == pytest.approx(2 / 3)


def test_settings_that_a_search_found_are_taken_from_the_file(tmp_path: Path) -> None:
    chosen = shortened("leaderboard", 1)
    *_, found = reproduce(chosen, TINY, tmp_path / "first")
    *_, again = reproduce(chosen, TINY, tmp_path / "second", known=found[:1])
    assert again == found and len(cached(tmp_path / "second")) == 1  # the other seed, and no trial


def test_candidates_may_be_compared_by_the_first_part_of_a_run(tmp_path: Path) -> None:
    case = replace(REPRODUCTIONS["fedasmu-regime"].cases(replace(TINY, length=0.1))[0], tuned_share=0.4)
    with RunScheduler(tmp_path) as runs:
        chosen(case, runs, tmp_path, Record())
    ends = [read_run(path).rows[-1]["time"] for path in tmp_path.iterdir()]
    # 150 s with an evaluation every 6 s: stopped at the first that is not before 60 s
    assert case.experiment.stop.time == 150.0 and ends == [60.0, 60.0]


def test_candidates_are_scored_by_their_loss_where_it_is_measured_and_else_by_their_mean_accuracy() -> None:
    rows: list[Row] = [{"time": 0.0, "accuracy": 0.1}, {"time": 10.0, "accuracy": 0.5}, {"time": 20.0, "accuracy": 0.7}]
    assert score(Result(rows=rows, summary={})) == pytest.approx(0.45)  # (0.3 + 0.6) / 2
    assert score(Result(rows=rows, summary={}), 10.0) == pytest.approx(0.3)
    assert score(Result(rows=rows, summary={"training_loss": 2.0})) == -2.0
    assert score(Result(rows=rows, summary={"training_loss": nan})) == -inf
    diverged = Result(rows=rows, summary={"stopped_by": "diverged: version 3 is not finite"})
    assert score(diverged) == score(diverged, 30.0) == -inf and score(diverged, 20.0) == pytest.approx(0.45)
    assert score(Result(rows=rows, summary={"training_loss": 2.0}), 10.0) == pytest.approx(0.3)  # not the end's loss


def test_where_the_files_lie_makes_no_difference_to_which_run_it_is() -> None:
    here, there = (
        Experiment(stop={"time": 1.0}, data={"name": "mnist", "dir": f"{place}/mnist"}) for place in ("a", "b/c")
    )
    assert identity(here) == identity(there) != identity(here.changed({"seed": 1}))
    assert identity(here) != identity(here.changed({"data": {"dir": "a/other"}}))


def test_only_the_parts_that_are_asked_for_are_run(tmp_path: Path) -> None:
    chosen = shortened("adel-fl", 10)  # nine methods on the MLP, and the first on the CNN
    *_, found = reproduce(chosen, TINY, tmp_path / "cache", part="CNN")
    assert {each.part for each in found} == {"CNN, rounds of 4 s"}
    with pytest.raises(InvalidInput, match="--part VGG-12: adel-fl has MLP, rounds of 3 s; CNN"):
        next(reproduce(chosen, TINY, tmp_path / "cache", part="VGG-12"))
    with pytest.raises(InvalidInput, match="--part VGG: --full runs it, with --data: a directory with cifar-10"):
        next(reproduce(chosen, TINY, tmp_path / "cache", part="VGG"))


def test_the_pages_are_those_of_the_files_of_measurements() -> None:
    found = {name: read_measurements(results_file(DOCS, name)) for name in REPRODUCTIONS}
    again = "write the pages anew: offbeat reproduce NAME --out docs"
    assert (DOCS / "reproduction.md").read_text() == page(CLAIMS, found), again
    assert (DOCS / "leaderboard.md").read_text() == leaderboard_page(found["leaderboard"]), again
    assert all((DOCS / figure_file(each)).is_file() for each in CLAIMS), again


def test_claims_that_are_some_of_many_are_counted_in_the_overview() -> None:
    chosen = REPRODUCTIONS["delays"]
    first, second = chosen.claims[:2]
    found = [
        Measurement(part=claim.part, method=method, seed=seed, values={claim.measure: value})
        for claim, higher in ((first, 2.0), (second, 0.5))
        for method, value in ((claim.mine, higher), (claim.theirs, 1.0))
        for seed in (0, 1)
    ]
    text = page([chosen], {"delays": found})
    overview = text[: text.index("**The rule.**")]
    assert overview.count("1 of 2 comparisons of Tables III to V") == 2 and first.says not in overview


def test_what_does_not_reproduce_comes_first_and_what_is_missing_is_listed() -> None:
    chosen = REPRODUCTIONS["adel-fl"]
    part = chosen.parts[0]

    def runs(method: str, *values: float) -> list[Measurement]:
        return [
            Measurement(part=part, method=method, seed=seed, values={"final_accuracy": value})
            for seed, value in enumerate(values)
        ]

    found = runs("ADEL-FL (paper)", 0.5, 0.6) + runs("SALF (paper)", 0.55, 0.5)
    found += runs("ADEL-FL (code)", 0.8, 0.9) + runs("SALF (code)", 0.5, 0.5)
    text = page([chosen], {"adel-fl": found})
    assert text.index("Does not reproduce here") < text.index("**Agrees**") < text.index("## adel-fl")
    assert f"| [adel-fl](#adel-fl) | 1 | 0 | 1 | {len(chosen.claims) - 2} |" in text
    assert "+35.0 (+30.0 to +40.0)" in text  # 0.8 - 0.5 and 0.9 - 0.5
    lacking = missing(chosen, found)
    assert set(lacking) == set(chosen.parts) and "ADEL-FL (paper)" in lacking[part]  # two of three seeds
    assert [judged(claim, found).verdict for claim in chosen.claims[:1]] == ["does not reproduce here"]


def test_measurements_replace_older_ones_of_the_same_runs_and_leave_the_others(tmp_path: Path) -> None:
    chosen = REPRODUCTIONS["adel-fl"]
    part, (first, second, *_) = chosen.parts[0], chosen.methods(chosen.parts[0])

    def one(method: str, seed: int, value: float) -> Measurement:
        return Measurement(part=part, method=method, seed=seed, values={"final_accuracy": value})

    keep(tmp_path, chosen, [one(second, 0, 0.1), one(first, 1, 0.2), one("no longer there", 0, 0.3)])
    keep(tmp_path, chosen, [one(first, 0, 0.4), one(first, 1, 0.5)])
    kept = read_measurements(results_file(tmp_path, "adel-fl"))
    assert [(each.method, each.seed, each.values["final_accuracy"]) for each in kept] == [
        (first, 0, 0.4),
        (first, 1, 0.5),
        (second, 0, 0.1),
    ]
    write_pages(tmp_path)
    assert (tmp_path / "reproduction.md").is_file() and (tmp_path / "leaderboard.md").is_file()


def test_the_best_of_each_family_is_the_one_that_is_sooner_at_the_target() -> None:
    times = {"fedavg": 90.0, "fedprox": 80.0, "fedbuff": 40.0, "seafl": 60.0}
    found = [
        Measurement(
            part="ratio 5",
            method=name,
            seed=seed,
            values={"time_to_target": time + seed, "final_accuracy": 0.9, "device_seconds": 10 * time},
        )
        for name, time in times.items()
        for seed in (0, 1)
    ]
    assert best_of_families(found, "ratio 5") == {"buffered": "fedbuff", "synchronous": "fedprox"}
    text = leaderboard_page(found)
    # 80 / 40 = 2 and 81 / 41 = 1.98
    fastest, second = "fedbuff, buffered | 40.5 (40-41) | 400 (400-400)", "fedprox, synchronous | 800 (800-800)"
    assert text.count(f"| ratio 5 | {fastest} | {second} | 1.99 (1.98-2.00) |") == 2
    everybody = [
        replace(each, values=each.values | {"in_training": 100.0}) for each in found if each.method == "fedbuff"
    ]
    busy = leaderboard_page([each for each in found if each.method != "fedbuff"] + everybody)
    fair, whole = busy.split("Of all, also")
    assert "fedbuff, buffered" not in fair and "fedbuff, buffered" in whole  # it had five times the devices
    assert len(leaderboard_figure(found).axes) == 4


def test_the_leaderboard_says_in_words_when_which_family_wins() -> None:
    # On the first fleet FedBuff is ahead with both seeds, on the second not with the first; SALF has all devices.
    times = {
        "ratio 5": {"fedavg": (80.0, 90.0), "fedbuff": (40.0, 41.0), "salf": (30.0, 31.0)},
        "Pareto": {"fedavg": (50.0, inf), "fedbuff": (51.0, 60.0), "salf": (70.0, 71.0)},
        "bimodal": {"fedavg": (inf, inf), "fedasync": (10.0, 11.0)},
    }
    found = [
        Measurement(
            part=part,
            method=name,
            seed=seed,
            values={
                "time_to_target": time,
                "final_accuracy": 0.9,
                "device_seconds": 500.0 if name == "salf" else 100.0,
                "in_training": 100.0 if name == "salf" else 20.0,
            },
        )
        for part, methods in times.items()
        for name, both in methods.items()
        for seed, time in enumerate(both)
    ]
    assert in_words(found, list(times)).splitlines()[2:] == [
        "- With about 20 devices in training the fastest algorithm is of the family *buffered* on 2, *asynchronous* on "
        "1 of 3 fleets; it is ahead of the next family beyond the spread on 2 (ratio 5; bimodal).",
        "- The best of a family gets to the target, in the median over seeds: *buffered* on 2, *synchronous* on 1, "
        "*asynchronous* on 1 of 3.",
        "- Keeping every device in training is sooner than that, beyond the spread, on 1 (ratio 5), for 5.0 to 5.0 "
        "times the device seconds.",
    ]
    times_shown = leaderboard_figure(found).axes[0]
    errorbars = [each for each in times_shown.containers if isinstance(each, ErrorbarContainer)]
    drawn = {each.get_label(): np.asarray(each.lines[0].get_ydata()).tolist() for each in errorbars}
    assert drawn["synchronous"] == pytest.approx([85.0, NEVER, NEVER]) and drawn["asynchronous"] == [10.5]
    assert [label.get_text() for label in times_shown.get_yticklabels()][-1] == "never"
    # The algorithm with all devices is on the right only.
    labels = [{each.get_label() for each in axes.containers} for axes in leaderboard_figure(found).axes]
    assert ["time budget" in each for each in labels] == [False, True] * 2


def test_how_busy_a_method_is_goes_by_its_median_and_keeps_all_its_seeds() -> None:
    def runs(method: str, *in_training: float) -> list[Measurement]:
        return [
            Measurement(part="Pareto", method=method, seed=seed, values={"in_training": count})
            for seed, count in enumerate(in_training)
        ]

    few, many = runs("sfl", 10.0, 24.0, 60.0), runs("salf", 10.0, 24.1, 60.0)
    assert equally_busy(few + many) == few


def test_tables_count_the_runs_that_diverged() -> None:
    chosen = REPRODUCTIONS["adel-fl"]
    part, method = chosen.parts[0], "SALF (code)"
    values = [{"final_accuracy": 0.1, "diverged": 1.0}, {"final_accuracy": 0.5}]
    found = [Measurement(part=part, method=method, seed=seed, values=each) for seed, each in enumerate(values)]
    assert [line[-1] for line in part_lines(chosen, part, found) if line[0].startswith(method)] == ["2, 1 diverged"]


def test_tables_show_the_settings_that_were_chosen() -> None:
    chosen = REPRODUCTIONS["adel-fl"]
    part, method = chosen.parts[0], "SALF (code)"
    settings = "local.learning_rate=0.1; algorithm.rounds=3"
    found = [Measurement(part=part, method=method, seed=0, values={"final_accuracy": 0.5}, settings=settings)]
    heading, *lines = part_lines(chosen, part, found)
    assert heading[-1] == "chosen"
    assert {line[-1] for line in lines} == {"-", "learning_rate 0.1, rounds 3"}


def test_the_quick_form_says_what_it_is_and_shows_the_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = [["part", "SEAFL above FedBuff"], ["Pareto", "+2.0"]]
    whole = replace(shortened("seafl"), remark=lambda found: "**Remark**", in_short=lambda found: short)
    monkeypatch.setitem(registry.REPRODUCTIONS, "seafl", whole)
    done = CliRunner().invoke(app, ["reproduce", "seafl", "--quick", "--cache", str(tmp_path / "cache")])
    assert done.exit_code == 0, done.output
    assert re.search(r"part +Pareto", done.output) and re.search(r"SEAFL above FedBuff +\+2\.0", done.output)
    assert "Remark" in done.output and "This was the quick form: runs of 40 % of the length, 2 seeds." in done.output


def test_the_command_writes_measurements_and_pages_and_the_same_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.REPRODUCTIONS, "seafl", shortened("seafl"))
    command = ["reproduce", "seafl", "--out", str(tmp_path), "--cache", str(tmp_path / "cache")]
    first = CliRunner().invoke(app, [*command, "--full", "--seeds", "2"])
    assert first.exit_code == 0, first.output
    files = {path.name: path.read_bytes() for path in (results_file(tmp_path, "seafl"), tmp_path / "reproduction.md")}
    runs = sorted((tmp_path / "cache").glob("*/summary.json"))
    written = [path.stat().st_mtime_ns for path in runs]
    assert CliRunner().invoke(app, [*command, "--full", "--seeds", "2"]).exit_code == 0
    assert [path.stat().st_mtime_ns for path in runs] == written  # nothing was run again
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0 and "FedAvg" in shown.output
    for path in (results_file(tmp_path, "seafl"), tmp_path / "reproduction.md"):
        assert path.read_bytes() == files[path.name]


def test_an_interrupted_command_leaves_the_measurements_and_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = REPRODUCTIONS["seafl"]
    part = chosen.parts[0]
    one = Measurement(part=part, method=chosen.methods(part)[0], seed=0, values={"final_accuracy": 0.5})

    def interrupted(*_: object, **__: object) -> Iterator[list[Measurement]]:
        yield [one]
        raise Interrupted("interrupted", number=15)

    monkeypatch.setattr(run_cases, "reproduce", interrupted)
    ended = CliRunner().invoke(app, ["reproduce", "seafl", "--full", "--out", str(tmp_path)])
    assert isinstance(ended.exception, Interrupted) and "give the same command again" in str(ended.exception)
    assert read_measurements(results_file(tmp_path, "seafl")) == [one]
    assert f"| {one.method} | " in (tmp_path / "reproduction.md").read_text()
