"""Every study in a tiny form, and the pages in docs/ against the files that they are made from."""

import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer
from typer.testing import CliRunner

from experiments import adel_fl, delays, robustness
from experiments.fedasmu import CNN, CONSTANT, LENET, shorter
from experiments.harness import command_line, pages
from experiments.harness.measurements import Measurement, Record, identity, read_measurements
from experiments.harness.running import chosen, run_study, score
from experiments.harness.study import Form, Study
from experiments.harness.tables import part_lines
from experiments.leaderboard_ranking import NEVER, best_of_families, equally_busy, findings, winners
from experiments.leaderboard_ranking import figure as leaderboard_figure
from offbeat import Interrupted, InvalidInput, Result, fair_experiments, read_run
from offbeat.comparison.scheduler import RunScheduler
from offbeat.experiment.tables import parse_changes
from offbeat.results.rows import Row

STUDIES = {study.name: study for study in pages.all_studies()}
DOCS = Path(__file__).resolve().parents[2] / "docs"
SHARED = DOCS.parents[1] / "shared" / "data"
ELSEWHERE = {"fleet": {"ratio": 7.0}}
TINY = Form(seeds=2, length=0.01, full=False)


def shortened(name: str, count: int = 2) -> Study:
    """The first cases alone, without a search among candidates."""
    whole = STUDIES[name]
    first = [replace(case, candidates=case.candidates[:1]) for case in whole.cases(TINY)[:count]]
    return replace(whole, cases=lambda form: first)


def cached(cache: Path) -> list[Path]:
    """The finished runs of a cache."""
    return sorted(cache.glob("*/summary.json"))


@pytest.mark.parametrize("name", STUDIES)
def test_the_quick_form_runs_in_a_tiny_version(name: str, tmp_path: Path) -> None:
    chosen = shortened(name)
    *_, found = run_study(chosen, TINY, tmp_path / "cache")
    assert [each.seed for each in found] == [0, 1] * 2
    assert all(each.part in chosen.parts and each.method in chosen.parts[each.part] for each in found)
    assert len({each.method for each in found}) == 2


@pytest.mark.parametrize("name", STUDIES)
def test_claims_and_published_numbers_are_about_cases_that_are_run(name: str) -> None:
    chosen = STUDIES[name]
    known = {(part, method) for part in chosen.parts for method in chosen.parts[part]}
    for claim in chosen.claims:
        assert (claim.part, claim.mine) in known
        assert not claim.theirs or (claim.their_part or claim.part, claim.theirs) in known
    assert {(part, method) for part, methods in chosen.published.items() for method in methods} <= known
    assert chosen.claims or chosen.table is not None


@pytest.mark.parametrize("name", ["adel-fl", "fedasmu", "seafl", "delays", "leaderboard", "fairness"])
def test_the_full_form_has_every_method_of_every_part(name: str) -> None:
    chosen = STUDIES[name]
    # ADEL-FL's cases are planned on the data: there the parts that need files are left out.
    data = None if name == "adel-fl" else Path("data")
    parts = [part for part in chosen.parts if data is not None or "CIFAR" not in part]
    planned = [(case.part, case.method) for case in chosen.cases(Form(seeds=1, data=data))]
    assert sorted(planned) == sorted((part, method) for part in parts for method in chosen.parts[part])


def test_the_study_of_defences_leaves_out_only_what_the_algorithm_refuses() -> None:
    cases = STUDIES["robustness"].cases(Form(seeds=1))
    undefended = {case.part: case.experiment for case in cases if case.method == "none"}
    for algorithm in robustness.ALGORITHMS:
        experiment = undefended[robustness.title(algorithm, robustness.HONEST)]
        taken = robustness.defences(algorithm)
        for defence in robustness.DEFENCES.keys() - set(taken):
            with pytest.raises(InvalidInput, match="uses one update at a time"):
                experiment.changed({"trust": robustness.DEFENCES[defence]})
    assert taken == ["none", "clip", "THROTTLE", "AFLGuard", "Zeno++"]  # FedASMU's
    table = robustness.accuracy_table(read_measurements(DOCS / "results" / "robustness.csv"))
    (krum,) = (line for line in table.splitlines() if line.startswith("| Krum "))
    assert krum.endswith("| - |")


def test_variations_keep_the_settings_chosen_in_the_regime_that_they_vary() -> None:
    made = {(case.part, case.method): case for case in STUDIES["fedasmu"].cases(Form(seeds=1, data=Path("data")))}
    tuned = made[CONSTANT, "FedASMU"]
    for part, changed in (("LeNet, ratio 110", "fleet"), ("LeNet, links at 1/50", "network")):
        case = made[part, "FedASMU"]
        assert case.tuned_on == tuned.experiment and case.candidates == tuned.candidates
        before, after = tuned.experiment.changed(shorter(100)).table(), case.experiment.table()
        assert {key for key in before | after if before.get(key) != after.get(key)} == {changed}
    assert made["LeNet, ratio 110", "FedAvg"].experiment.fleet.resolved()["epoch_seconds"] == pytest.approx(6 / 111)


def test_the_rate_decays_where_the_page_says_so_and_nowhere_else() -> None:
    made = STUDIES["fedasmu"].cases(Form(seeds=1, data=Path("data")))
    for case in made:
        local = case.experiment.local
        shares = [local.rate(time) / local.rate(0.0) for time in (9.9, 10.0, 500.0, 2000.0)]
        decaying = case.part in (LENET, CNN)
        assert shares == pytest.approx([1, 0.9886, 0.9886**50, 0.1009] if decaying else [1] * 4, rel=1e-3), case.part


def test_all_twelve_methods_are_tuned_alike_and_the_published_rate_is_tried() -> None:
    made = STUDIES["fedasmu"].cases(Form(seeds=1, data=Path("data")))
    for part, rate, tried in ((LENET, 0.005, 8), (CNN, 0.028, 8), (CONSTANT, 0.005, 8)):
        cases = [case for case in made if case.part == part]
        assert len(cases) == 12 and {len(case.candidates) for case in cases} == {tried}
        assert all(rate in {each["local"]["learning_rate"] for each in case.candidates} for case in cases)


def test_numbers_that_could_not_be_read_are_neither_claimed_nor_shown() -> None:
    cnn = [claim for claim in STUDIES["fedasmu"].claims if claim.part == CNN]
    gaps = {(claim.theirs, claim.measure): claim.gap for claim in cnn}
    assert gaps["FedAsync", "time_to_target"] == pytest.approx(24931 / 10109)
    assert gaps["MOON", "final_accuracy"] == pytest.approx(0.15)
    assert gaps["PORT", "time_to_target"] is None  # published as never
    assert gaps["FedDyn", "final_accuracy"] is None and gaps["FedLWS", "final_accuracy"] is None
    # In the paper FedDyn is a little faster; FedLWS is not legible.
    assert ("FedDyn", "time_to_target") not in gaps and ("FedLWS", "time_to_target") not in gaps
    assert STUDIES["fedasmu"].published[CNN]["FedDyn"] == {"time_to_target": 43974}


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_in_the_files_is_one_of_the_present_definitions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a definition changes, its runs are outdated: they must be run again, or removed from the file."""
    data = SHARED if SHARED.is_dir() else None
    left_out = list(adel_fl.VGG.values())  # planning them reads all of CIFAR-10
    monkeypatch.setattr(adel_fl, "VGG", {})
    if name == "fedasmu-regime" and data is None:
        pytest.skip("the speeds of devices depend on Fashion-MNIST, which is not in ../shared/data")
    chosen = STUDIES[name]
    at_hand = name in ("adel-fl", "fedasmu-regime", "leaderboard", "defaults")  # making their cases reads the data
    cases = {(case.part, case.method): case for case in chosen.cases(Form(seeds=1, data=data if at_hand else DOCS))}
    found = read_measurements(pages.results_file(DOCS, chosen))
    assert all(each.run for each in found)
    first = {(each.part, each.method): each for each in found if each.seed == 0}
    assert {(each.part, each.method, each.settings) for each in found} == {(*key, first[key].settings) for key in first}
    for key, each in first.items():
        if key not in cases:
            assert data is None or key[0] in left_out, key
            continue
        case = cases[key]
        base = fair_experiments(case.experiment, [case.method], [0])[0] if case.trials else case.experiment
        changes = parse_changes(each.settings.split("; ") if each.settings else [])
        assert (identity(base.changed(changes)) == each.run) == (case.method not in chosen.outdated), key
        assert each.values.get("target") == chosen.targets.get(each.part, chosen.target), key


def test_what_the_file_has_is_neither_tuned_nor_run_again(tmp_path: Path) -> None:
    whole = STUDIES["fedasmu-regime"]
    case = replace(whole.cases(TINY)[0], candidates=whole.cases(TINY)[0].candidates[:2])
    varied = replace(
        case, part=list(whole.parts)[1], tuned_on=case.experiment, experiment=case.experiment.changed(ELSEWHERE)
    )
    both = replace(whole, cases=lambda form: [case, varied])
    *_, found = run_study(both, TINY, tmp_path / "first")
    assert len(cached(tmp_path / "first")) == 2 + 2 + 2  # two candidates, then two seeds of each case
    assert len({each.run for each in found}) == 4 and len({each.settings for each in found}) == 1
    *_, again = run_study(both, TINY, tmp_path / "second", known=found)
    assert again == found and cached(tmp_path / "second") == []
    # The settings are known from the first case's runs, also where the second's are not.
    *_, rest = run_study(both, TINY, tmp_path / "third", known=found[:2])
    assert rest == found and len(cached(tmp_path / "third")) == 2
    # A run that was measured with another target is measured again.
    *_, other = run_study(replace(both, target=0.1), TINY, tmp_path / "fourth", known=found)
    assert [each.values["target"] for each in other] == [0.1] * 4 and len(cached(tmp_path / "fourth")) == 4


@pytest.mark.processes
def test_several_jobs_take_several_cases_at_a_time_and_measure_the_same(tmp_path: Path) -> None:
    whole = STUDIES["fedasmu-regime"]
    three = replace(whole, cases=lambda form: whole.cases(TINY)[:3])
    one_by_one = list(run_study(three, TINY, tmp_path / "one"))
    told: list[tuple[str, int, int]] = []
    in_pairs = list(run_study(three, TINY, tmp_path / "two", jobs=2, watch=lambda *what: told.append(what)))
    assert [len(found) for found in one_by_one] == [2, 4, 6] and [len(found) for found in in_pairs] == [4, 6]
    assert in_pairs[-1] == one_by_one[-1]
    first, second, _ = (case.method for case in whole.cases(TINY)[:3])
    assert told[0] == (f"{next(iter(whole.parts))}: {first}, {second}", 0, 3) and told[1][1:] == (2, 3)


def test_settings_that_a_search_found_are_taken_from_the_file(tmp_path: Path) -> None:
    chosen = shortened("leaderboard", 1)
    *_, found = run_study(chosen, TINY, tmp_path / "first")
    *_, again = run_study(chosen, TINY, tmp_path / "second", known=found[:1])
    assert again == found and len(cached(tmp_path / "second")) == 1  # the other seed, and no trial


def test_candidates_may_be_compared_by_the_first_part_of_a_run(tmp_path: Path) -> None:
    case = replace(STUDIES["fedasmu-regime"].cases(replace(TINY, length=0.1))[0], tuned_share=0.4)
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


def test_only_the_parts_that_are_asked_for_are_run(tmp_path: Path) -> None:
    chosen = shortened("adel-fl", 10)  # nine methods on the MLP, and the first on the CNN
    *_, found = run_study(chosen, TINY, tmp_path / "cache", part="CNN")
    assert {each.part for each in found} == {"CNN, rounds of 4 s"}
    with pytest.raises(InvalidInput, match="adel-fl has no part 'VGG-12'; its parts: MLP, rounds of 3 s; CNN"):
        next(run_study(chosen, TINY, tmp_path / "cache", part="VGG-12"))
    with pytest.raises(InvalidInput, match="part 'VGG' is run by the full form only, with a data directory"):
        next(run_study(chosen, TINY, tmp_path / "cache", part="VGG"))


def test_the_pages_are_those_of_the_files_of_measurements() -> None:
    found = [pages.Results(study, read_measurements(pages.results_file(DOCS, study))) for study in STUDIES.values()]
    again = "write the pages again: python -m experiments.seafl"
    made = pages.texts(found)
    figures = {pages.figure_file(study) for study in STUDIES.values()}
    assert {path.name for path in (DOCS / pages.PAGES).iterdir()} == {*made, *figures}, again
    for name, text in made.items():
        assert (DOCS / pages.PAGES / name).read_text() == text, again


def test_a_page_has_the_headline_claims_and_says_what_is_missing() -> None:
    chosen = STUDIES["adel-fl"]
    part = next(iter(chosen.parts))

    def runs(method: str, *values: float) -> list[Measurement]:
        return [
            Measurement(part=part, method=method, seed=seed, values={"final_accuracy": value})
            for seed, value in enumerate(values)
        ]

    found = runs("ADEL-FL (paper)", 0.5, 0.6) + runs("SALF (paper)", 0.55, 0.5)
    found += runs("ADEL-FL (code)", *6 * [0.8]) + runs("SALF (code)", *5 * [0.5])  # compared on five seeds
    text = pages.page([pages.Results(chosen, found)])
    total = sum(claim.kind != "measured" for claim in chosen.claims)
    assert f"Of {total} claims, 1 agree, 1 are undecided, {total - 2} are not yet run." in text
    assert "| +20.0 points | +30.0 (+30.0 to +30.0) | agrees | - |" in text
    # Against the margin of 10 points: differences -5 and +10 have mean 2.5 and standard deviation 10.6.
    assert "| +20.0 points | +2.5 (range -5.0 to +10.0), includes 0 | undecided | 11 |" in text
    lacking = pages.missing(chosen, found)
    some, others = lacking.split("; ")
    assert some.endswith(f"({part})")
    assert "ADEL-FL (paper)" in some and "ADEL-FL (code)" not in some  # two and six of three seeds
    assert others == f"all methods ({', '.join(other for other in chosen.parts if other != part)})"
    *top, line = [it for it in pages.overview([pages.Results(chosen, found)]).splitlines() if "adel-fl.md" in it]
    assert [each.split(" | ")[-3:] for each in top] == [["2", "undecided", "11 |"], ["5", "agrees", "- |"]]
    assert line.endswith(f"| 3 | 1 | 1 | {total - 2} |")  # seeds, agrees, undecided, not yet run


def test_two_studies_of_one_paper_share_a_page() -> None:
    studies = [STUDIES["fedasmu"], STUDIES["fedasmu-regime"]]
    made = pages.texts([pages.Results(study, []) for study in studies])
    assert "fedasmu-regime.md" not in made
    assert made["fedasmu.md"].index(f"# {studies[0].title}") < made["fedasmu.md"].index(f"## {studies[1].title}")


def test_measurements_replace_older_ones_of_the_same_runs_and_leave_the_others(tmp_path: Path) -> None:
    chosen = STUDIES["adel-fl"]
    part, (first, second, *_) = next(iter(chosen.parts.items()))

    def one(method: str, seed: int, value: float) -> Measurement:
        return Measurement(part=part, method=method, seed=seed, values={"final_accuracy": value})

    pages.keep(tmp_path, chosen, [one(second, 0, 0.1), one(first, 1, 0.2), one("no longer there", 0, 0.3)])
    pages.keep(tmp_path, chosen, [one(first, 0, 0.4), one(first, 1, 0.5)])
    kept = read_measurements(pages.results_file(tmp_path, chosen))
    assert [(each.method, each.seed, each.values["final_accuracy"]) for each in kept] == [
        (first, 0, 0.4),
        (first, 1, 0.5),
        (second, 0, 0.1),
    ]
    pages.write_pages(tmp_path)
    written = {path.name for path in (tmp_path / pages.PAGES).iterdir()}
    assert {"index.md", "adel-fl.md", "adel-fl-claims.csv", "adel-fl-methods.csv", "leaderboard.md"} <= written


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
    # 80 / 40 = 2 and 81 / 41 = 1.98
    assert winners(found).splitlines()[2:] == [
        "| ratio 5 | fedbuff | 40.5 (range 40-41) | 1.99 (range 1.98-2.00), fedprox | fedbuff | 40.5 (range 40-41) |"
    ]
    busy = [
        replace(each, values=each.values | {"in_training": 100.0}) if each.method == "fedbuff" else each
        for each in found
    ]
    (line,) = winners(busy).splitlines()[2:]
    assert line.startswith("| ratio 5 | seafl |") and "| fedbuff |" in line  # it had five times the devices
    drawn = leaderboard_figure(found)
    assert drawn is not None and len(drawn.axes) == 4 and leaderboard_figure([]) is None


def test_the_leaderboard_says_in_words_when_which_family_wins() -> None:
    # On the first fleet FedBuff is ahead with all six seeds, on the second not with three; SALF has all devices.
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
        for seed, time in enumerate(3 * both)
    ]
    assert findings(found).splitlines() == [
        "- With about 20 devices in training, the fastest family is *buffered* on 2, *asynchronous* on 1 of 3 fleets. "
        "Its lead over the next family exceeds the spread over seeds on 2 (ratio 5; bimodal).",
        "- The fastest algorithm of a family reaches the target: *buffered* on 2, *synchronous* on 1, *asynchronous* "
        "on 1 of 3.",
        "- Algorithms that keep every device in training are faster still on 1 (ratio 5), for 5.0 times the "
        "device seconds.",
    ]
    drawn_figure = leaderboard_figure(found)
    assert drawn_figure is not None
    times_shown = drawn_figure.axes[0]
    errorbars = [each for each in times_shown.containers if isinstance(each, ErrorbarContainer)]
    drawn = {each.get_label(): np.asarray(each.lines[0].get_ydata()).tolist() for each in errorbars}
    assert drawn["synchronous"] == pytest.approx([85.0, NEVER, NEVER]) and drawn["asynchronous"] == [10.5]
    assert [label.get_text() for label in times_shown.get_yticklabels()][-1] == "never"
    # The algorithm with all devices is on the right only.
    labels = [{each.get_label() for each in axes.containers} for axes in drawn_figure.axes]
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
    chosen = STUDIES["adel-fl"]
    part, method = next(iter(chosen.parts)), "SALF (code)"
    values = [{"final_accuracy": 0.1, "diverged": 1.0}, {"final_accuracy": 0.5}]
    found = [Measurement(part=part, method=method, seed=seed, values=each) for seed, each in enumerate(values)]
    assert [line[-1] for line in part_lines(chosen, part, found) if line[0].startswith(method)] == ["2, 1 diverged"]


def test_tables_show_the_settings_that_were_chosen() -> None:
    chosen = STUDIES["adel-fl"]
    part, method = next(iter(chosen.parts)), "SALF (code)"
    settings = "local.learning_rate=0.1; algorithm.rounds=3"
    found = [Measurement(part=part, method=method, seed=0, values={"final_accuracy": 0.5}, settings=settings)]
    heading, *lines = part_lines(chosen, part, found)
    assert heading[-1] == "chosen"
    assert {line[-1] for line in lines} == {"-", "learning_rate 0.1, rounds 3"}


def test_the_quick_form_says_what_it_is_and_shows_the_findings(tmp_path: Path) -> None:
    whole = replace(shortened("seafl"), findings=lambda found: "**Finding**")
    done = CliRunner().invoke(command_line.command_line(whole), ["--quick", "--cache", str(tmp_path / "cache")])
    assert done.exit_code == 0, done.output
    assert "Finding" in done.output and "Quick form: 40 % of the length, 2 seeds." in done.output
    assert "docs/experiments/seafl.md" in done.output and "FedAvg" in done.output
    assert "not yet run" not in done.output and "SEAFL 10" not in done.output


def test_the_command_writes_measurements_and_pages_and_the_same_again(tmp_path: Path) -> None:
    short = shortened("seafl")
    app, options = command_line.command_line(short), ["--out", str(tmp_path), "--cache", str(tmp_path / "cache")]
    first = CliRunner().invoke(app, [*options, "--full", "--seeds", "2"])
    assert first.exit_code == 0, first.output
    kept = (pages.results_file(tmp_path, short), tmp_path / pages.PAGES / "seafl.md")
    files = {path: path.read_bytes() for path in kept}
    runs = sorted((tmp_path / "cache").glob("*/summary.json"))
    written = [path.stat().st_mtime_ns for path in runs]
    assert CliRunner().invoke(app, [*options, "--full", "--seeds", "2"]).exit_code == 0
    assert [path.stat().st_mtime_ns for path in runs] == written  # nothing was run again
    shown = CliRunner().invoke(app, options)
    assert shown.exit_code == 0 and "FedAvg" in shown.output
    assert {path: path.read_bytes() for path in kept} == files


def test_an_interrupted_command_leaves_the_measurements_and_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = STUDIES["seafl"]
    part, (method, *_) = next(iter(chosen.parts.items()))
    one = Measurement(part=part, method=method, seed=0, values={"final_accuracy": 0.5})

    def interrupted(*_: object, **__: object) -> Iterator[list[Measurement]]:
        yield [one]
        raise Interrupted("interrupted", number=15)

    monkeypatch.setattr(command_line, "run_study", interrupted)
    ended = CliRunner().invoke(command_line.command_line(chosen), ["--full", "--out", str(tmp_path)])
    assert isinstance(ended.exception, Interrupted) and "repeat the command to continue" in str(ended.exception)
    assert read_measurements(pages.results_file(tmp_path, chosen)) == [one]
    assert f"{part},{method}," in (tmp_path / pages.PAGES / "seafl-methods.csv").read_text()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--quick", "--full"], "--quick excludes --full and --headline"),
        (["--quick", "--rate", "0.1"], "--rate: seafl chooses a learning rate for each method"),
        (["--out", "nowhere"], "has no measurements: give --quick or --full"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: list[str], sentence: str) -> None:
    done = CliRunner().invoke(command_line.command_line(STUDIES["seafl"]), options)
    assert isinstance(done.exception, InvalidInput) and sentence in str(done.exception)


def test_a_study_is_run_as_a_module_and_its_errors_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["delays", "--out", str(tmp_path)])
    monkeypatch.delitem(sys.modules, "experiments.delays")
    with pytest.raises(SystemExit) as end:
        runpy.run_module("experiments.delays", run_name="__main__")
    said = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 2 and said.startswith("error: ") and said.endswith("give --quick or --full")


# Delays --------------------------------------------------------------------------------------------------------------


def test_published_differences_are_those_of_their_rows_but_for_the_misprint() -> None:
    for number, rows in delays.TABLES.items():
        if "Difference" not in rows:
            continue
        for place, printed in enumerate(rows["Difference"]):
            off = abs(rows["PSURDG"][place] - rows["AUDG"][place] - printed)
            assert off < 0.00015 or (number, place) == ("V", 0)


def test_the_figure_of_delays_has_measured_and_published_losses() -> None:
    group = delays.GROUPS[1]
    found = [
        Measurement(part=group.title, method=f"AUDG, delay {delay}", seed=seed, values={"training_loss": loss})
        for delay, losses in ((1, (0.5, 0.7)), (9, (1.0, inf)))
        for seed, loss in enumerate(losses)
    ]
    drawn = delays.figure(found)
    assert drawn is not None
    (axes,) = drawn.axes
    measured, published = axes.lines[0], axes.lines[3]  # after the caps of the interval
    assert np.asarray(measured.get_xdata()).tolist() == [1, 9]
    assert np.asarray(measured.get_ydata())[0] == pytest.approx(0.6)
    assert np.asarray(published.get_ydata()).tolist() == delays.TABLES["V"]["AUDG"]
    assert delays.figure([]) is None


def test_the_headline_form_runs_only_the_methods_of_the_claims_that_the_overview_lists(tmp_path: Path) -> None:
    whole = STUDIES["seafl"]
    assert whole.headline_methods == {(part, name) for part in ("Pareto", "Zipf") for name in ("SEAFL² 3", "FedBuff")}
    first = [case for case in whole.cases(TINY) if case.part == "Pareto"][:5]  # FedBuff is the fourth
    few = replace(whole, cases=lambda form: [replace(case, candidates=case.candidates[:1]) for case in first])
    *_, found = run_study(few, TINY, tmp_path / "cache", headline=True)
    assert {each.method for each in found} == {"FedBuff"}
    # With more candidates than before, settings are chosen again, from the runs that are there already.
    more = replace(few, cases=lambda form: [replace(case, candidates=case.candidates[:2]) for case in first])
    *_, again = run_study(more, TINY, tmp_path / "second", headline=True, known=found)
    assert {each.candidates for each in found} == {1} and {each.candidates for each in again} == {2}
    assert len(cached(tmp_path / "second")) in (2, 2 + TINY.seeds)  # both candidates, and new seeds of another choice
    assert sum(len(STUDIES[name].headline_methods) for name in STUDIES) > 12
    assert sum(claim.top for study in STUDIES.values() for claim in study.claims) == 12
