"""Every reproduction in a tiny shape, and the pages in docs/ against the files that they are made from."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat.cli import app
from offbeat.core.errors import InvalidInput
from offbeat.studies.reproductions import fedasmu, registry
from offbeat.studies.reproductions.claims import judged
from offbeat.studies.reproductions.leaderboard_page import best_of_families, leaderboard_figure, leaderboard_page
from offbeat.studies.reproductions.measurements import Measurement, read_measurements
from offbeat.studies.reproductions.page import missing, page
from offbeat.studies.reproductions.registry import CLAIMS, REPRODUCTIONS, keep, results_file
from offbeat.studies.reproductions.reproduction import Form, Reproduction, reproduce

DOCS = Path(__file__).resolve().parents[3] / "docs"
TINY = Form(seeds=2, length=0.01, full=False)


def shortened(name: str, count: int = 2) -> Reproduction:
    """The first cases alone, without a search among candidates."""
    whole = REPRODUCTIONS[name]
    first = [replace(case, candidates=case.candidates[:1]) for case in whole.cases(TINY)[:count]]
    return replace(whole, cases=lambda form: first)


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
        assert not claim.theirs or (claim.part, claim.theirs) in known
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
    tuned = made[fedasmu.LENET, "FedASMU"]
    for part, changed in (("LeNet, ratio 110", "fleet"), ("LeNet, links at 1/50", "network")):
        case = made[part, "FedASMU"]
        assert case.tuned_on == tuned.experiment and case.candidates == tuned.candidates
        before, after = tuned.experiment.table(), case.experiment.table()
        assert {key for key in before | after if before.get(key) != after.get(key)} == {changed}
    assert made["LeNet, ratio 110", "FedAvg"].experiment.fleet.resolved()["epoch_seconds"] == pytest.approx(6 / 111)


def test_only_the_parts_that_are_asked_for_are_run(tmp_path: Path) -> None:
    chosen = shortened("adel-fl", 10)  # nine methods on the MLP, and the first on the CNN
    *_, found = reproduce(chosen, TINY, tmp_path / "cache", part="CNN")
    assert {each.part for each in found} == {"CNN, rounds of 4 s"}
    with pytest.raises(InvalidInput, match="--part VGG-12: adel-fl has MLP, rounds of 3 s; CNN"):
        next(reproduce(chosen, TINY, tmp_path / "cache", part="VGG-12"))


def test_the_pages_are_those_of_the_files_of_measurements() -> None:
    found = {name: read_measurements(results_file(DOCS, name)) for name in REPRODUCTIONS}
    again = "write the pages anew: offbeat reproduce NAME --out docs"
    assert (DOCS / "reproduction.md").read_text() == page(CLAIMS, found), again
    assert (DOCS / "leaderboard.md").read_text() == leaderboard_page(found["leaderboard"]), again


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
    assert len(leaderboard_figure(found).axes) == 2


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
