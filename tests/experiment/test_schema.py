"""The experiment file: what is good comes out as it went in, what is bad is one sentence."""

import sys
from pathlib import Path
from typing import Any

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.experiment.locations import modules_line
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import parse_changes

README = """
seed = 0
[stop]
time = 600.0
[data]
name = "mnist5k"
devices = 100
[partition]
name = "dirichlet"
alpha = 0.3
[model]
name = "lenet5"
[local]
epochs = 5
batch_size = 32
learning_rate = 0.03
[fleet]
name = "ratio"
ratio = 5.0
epoch_seconds = 1.0
[network]
uplink_mbps = 10.0
downlink_mbps = 100.0
latency = 0.05
[algorithm]
name = "fedbuff"
buffer = 10
concurrency = 20
[evaluation]
every_seconds = 20.0
[execution]
executor = "auto"
workers = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(README)
    return path


def test_the_documented_file_is_read(file: Path) -> None:
    experiment = Experiment.load(file)
    written = {"name": "fedbuff", "buffer": 10, "concurrency": 20}
    defaults = {"server_learning_rate": 1.0, "normaliser": "K", "variant": "paper"}
    algorithm = experiment.table()["algorithm"]
    assert {key: algorithm[key] for key in written | defaults} == written | defaults
    assert experiment.table()["data"] == {"name": "mnist5k", "devices": 100}
    assert experiment.table()["partition"] == {"name": "dirichlet", "alpha": 0.3}


def test_a_resolved_experiment_reads_as_itself(file: Path) -> None:
    experiment = Experiment.load(file, ["failures.rejoin_seconds=inf", "compare.fedavg.algorithm.cohort=3"])
    path = file.with_name("again.toml")
    path.write_text(experiment.toml())
    assert Experiment.load(path).table() == experiment.table()


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_every_kind_of_data_survives_resolving(name: str) -> None:
    experiment = Experiment.parse({"stop": {"time": 1.0}, "data": {"name": name, "devices": 7}})
    again = Experiment.parse(experiment.table())
    assert again.table() == experiment.table()
    assert again.load_data()[1].devices == 7


def test_changes_come_before_the_file_and_a_new_name_starts_anew(file: Path) -> None:
    experiment = Experiment.load(file, ["fleet.ratio=110", "algorithm.name=fedavg", "algorithm.cohort=7"])
    assert experiment.table()["fleet"]["ratio"] == 110
    algorithm = experiment.table()["algorithm"]
    assert (algorithm["name"], algorithm["cohort"], algorithm["weighting"]) == ("fedavg", 7, "samples")
    assert "buffer" not in algorithm


def test_what_belongs_to_an_exchanged_partition_or_data_set_goes_with_it(file: Path) -> None:
    assert Experiment.load(file, ["partition.name=shards"]).table()["partition"]["labels_per_device"] == 2
    assert Experiment.load(file, ["partition.name=iid"]).table()["partition"] == {"name": "iid"}
    changed = Experiment.load(file, ["data.name=mnist", "data.dir=somewhere"]).changed({"data": {"name": "digits"}})
    assert changed.table()["data"] == {"name": "digits", "devices": 100}
    assert changed.table()["partition"] == {"name": "dirichlet", "alpha": 0.3}


def test_an_algorithm_of_a_comparison_has_its_own_changes(file: Path) -> None:
    experiment = Experiment.load(file, ["compare.fedasync.algorithm.alpha=0.5", "compare.fedasync.local.epochs=1"])
    fedasync = experiment.for_algorithm("fedasync", 3)
    assert (fedasync.seed, fedasync.local.epochs) == (3, 1)
    assert fedasync.table()["algorithm"]["alpha"] == 0.5
    assert "compare" not in fedasync.table()
    assert experiment.for_algorithm("fedbuff", 0).table()["algorithm"]["buffer"] == 10


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("fleet.ratoi=5", "unknown key 'fleet.ratoi': did you mean 'ratio'?"),
        ("algorithm.bufer=5", "unknown key 'algorithm.bufer': did you mean 'buffer'?"),
        ("local.lr=0.1", "unknown key 'local.lr'"),
        ("flet.ratio=5", "unknown key 'flet': did you mean 'fleet'?"),
        ("data.alhpa=1", "unknown key 'data.alhpa'"),
        ("algorithm.buffer='ten'", "algorithm.buffer = 'ten': must be a valid integer"),
        ("algorithm.buffer=0", "algorithm.buffer = 0: must be greater than or equal to 1"),
        ("local.learning_rate=-1.0", "local.learning_rate = -1.0: must be greater than 0"),
        ("local.epochs=2.5", "local.epochs = 2.5: must be a valid integer"),
        ("algorithm.normaliser='L'", "algorithm.normaliser = 'L': must be 'K' or 'weights'"),
        ("execution.executor='gpu'", "execution.executor = 'gpu'"),
        ("algorithm.name=fedbuf", "unknown algorithm 'fedbuf': did you mean 'fedbuff'?"),
        ("model.name=lenet", "unknown model 'lenet': did you mean 'lenet5'?"),
        ("data.name=mnist6k", "unknown data set 'mnist6k': did you mean 'mnist5k'?"),
        ("data.partition=dirichle", "unknown partition 'dirichle': did you mean 'dirichlet'?"),
        ("fleet.name=ration", "unknown fleet 'ration': did you mean 'ratio'?"),
        ("algorithm.name=nowhere:Policy", "no module 'nowhere'"),
        ("data.name=mnist", "data.dir is missing"),
        ("seed=-1", "seed = -1: must be greater than or equal to 0"),
        ("stop=5", "stop = 5"),
        ("failures.vanish=1.5", "failures.vanish = 1.5: must be less than or equal to 1"),
        ("evaluation.targets=[2.0]", "evaluation.targets.0 = 2.0"),
    ],
)
def test_a_mistake_is_one_sentence(file: Path, change: str, complaint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Experiment.load(file, [change])
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({}, "stop is missing"),
        ({"stop": {}}, "give at least one of stop.time"),
        ({"stop": {"time": 0.0}}, "stop.time = 0.0: must be greater than 0"),
    ],
)
def test_a_run_must_know_when_to_stop(table: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Experiment.parse(table)


def test_what_is_not_toml_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("seed = = 3")
    with pytest.raises(InvalidInput, match="is not valid TOML"):
        Experiment.load(path)
    with pytest.raises(InvalidInput, match="there is no experiment file"):
        Experiment.load(tmp_path / "none.toml")


def test_a_change_must_have_a_value() -> None:
    with pytest.raises(InvalidInput, match=r"write it as table\.key=value"):
        parse_changes(["fleet.ratio"])


def test_the_model_is_evaluated_on_as_many_held_out_samples_as_the_experiment_says() -> None:
    small = Experiment(stop={"versions": 1}, data="digits", evaluation={"samples": 25})
    dataset, _ = small.load_data()
    whole, _ = small.changed({"evaluation": {"samples": 10_000}}).load_data()
    assert len(dataset.test_y) == 25 < len(whole.test_y)
    assert len(dataset.train_y) == len(whole.train_y)


@pytest.mark.parametrize(
    ("local", "said"),
    [
        (
            {"learning_rate_decay": 0.1, "decay_every": 200.0, "schedule_over": "time"},
            "first at time 200, but",
        ),
        ({"learning_rate_decay": 0.1, "decay_every": 199.0, "schedule_over": "time"}, ""),
        ({"learning_rate_decay": 0.1, "decay_every": 30}, "first at versions 30, but stop.versions = 30"),
        (
            {"learning_rate_decay": 0.1, "decay_every": 300, "schedule_over": "updates"},
            "",
        ),  # stop has no updates
        ({"learning_rate_decay": 0.1, "decay_every": 300, "schedule_over": "steps"}, ""),
        ({"learning_rate_decay": 0.1, "schedule": "step", "milestones": [80, 40]}, "first at versions 40"),
        ({"learning_rate_decay": 0.1, "schedule": "step", "milestones": [80, 20]}, ""),
        ({"learning_rate_decay": 0.1, "schedule": "cosine", "decay_every": 300}, ""),
        ({"decay_every": 300}, ""),
    ],
)
def test_a_decay_that_would_begin_after_the_end_is_said(local: dict[str, Any], said: str, tmp_path: Path) -> None:
    experiment = Experiment(stop={"time": 200.0, "versions": 30}, local=local)
    path = tmp_path / "experiment.toml"
    path.write_text(experiment.toml())
    for notes in (experiment.notes, Experiment.load(path).notes):
        assert len(notes) == bool(said) and all(said in note for note in notes)


def test_relative_paths_are_relative_to_the_file_and_a_file_elsewhere_names_the_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "own_fleet_module.py").write_text("from offbeat.fleet import RatioFleet as Own\n")
    (home / "sites.csv").write_text("device,epoch_seconds\n0,1\n")
    (elsewhere / "links.csv").write_text("time,uplink_mbps\n0,1\n")
    text = '[stop]\ntime = 5.0\n[data]\nname = "folder"\ndir = "arrays"\n[fleet]\nname = "trace"\npath = "sites.csv"\n'
    (home / "experiment.toml").write_text(text + '[network.trace]\npath = "links.csv"\n')
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr("sys.path", list(sys.path))
    experiment = Experiment.load(home / "experiment.toml")
    table = experiment.table()
    assert table["fleet"]["path"] == str(home / "sites.csv")
    assert table["data"]["dir"] == str(home / "arrays")  # not there yet: the message will name this place
    assert table["network"]["trace"]["path"] == str(elsewhere / "links.csv")  # the former rule, with a note
    assert [note.partition(" is found")[0] for note in experiment.notes] == ["network.trace.path = 'links.csv'"]
    changed = Experiment.load(home / "experiment.toml", ["fleet.name=own_fleet_module:Own", "data.dir=here"])
    assert changed.table()["data"]["dir"] == str(elsewhere / "here")  # on the command line: where the user stands
    # A file that is written elsewhere finds the module by its first line.
    (elsewhere / "recommended.toml").write_text(modules_line(changed.own.values()) + changed.toml())
    sys.path.remove(str(home))
    del sys.modules["own_fleet_module"]
    monkeypatch.chdir(tmp_path)
    assert Experiment.load(elsewhere / "recommended.toml").fleet.name == "own_fleet_module:Own"


def step_size(table: dict[str, Any] | None = None) -> tuple[str, float]:
    """The optimiser and learning rate of an experiment with these tables."""
    local = Experiment.parse({"stop": {"versions": 1}} | (table or {})).local
    return local.optimiser, local.learning_rate


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, ("polyak", 0.1)),
        ({"local": {"epochs": 2, "weight_decay": 0.01}}, ("polyak", 0.1)),
        ({"local": {"optimiser": "polyak"}}, ("polyak", 0.1)),
        ({"local": {"learning_rate": 0.2}}, ("sgd", 0.2)),
        ({"local": {"optimiser": "sgd"}}, ("sgd", 0.03)),
        ({"local": {"momentum": 0.9}}, ("sgd", 0.03)),
        ({"local": {"clip_norm": 1.0}}, ("sgd", 0.03)),
        ({"local": {"learning_rate_decay": 0.5}}, ("sgd", 0.03)),
        ({"local": {"warmup": 3}}, ("sgd", 0.03)),
        ({"local": {"schedule": "constant", "decay_every": 5}}, ("polyak", 0.1)),
        ({"local": {"schedule": "inverse"}}, ("sgd", 0.03)),
        ({"algorithm": {"name": "adel", "rounds": 9}}, ("polyak", 0.1)),
        ({"algorithm": {"name": "adel", "rounds": 9, "warmup_rounds": 3}}, ("sgd", 0.03)),
        ({"local": {"optimiser": "adam"}}, ("adam", 0.03)),
        ({"task": {"name": "regression"}, "data": {"name": "synthetic"}}, ("sgd", 0.03)),
        ({"task": {"name": "classification", "label_smoothing": 0.1}}, ("sgd", 0.03)),
        ({"privacy": {"noise_multiplier": 1.0, "level": "example"}}, ("sgd", 0.03)),
    ],
)
def test_classifiers_train_with_polyak_unless_the_step_size_is_given(
    table: dict[str, Any], expected: tuple[str, float]
) -> None:
    assert step_size(table) == expected


def test_a_policy_that_measures_gradients_refuses_polyak() -> None:
    with pytest.raises(InvalidInput, match=r"local\.optimiser = 'polyak'.*'adel', .*, measures gradients .* needs sgd"):
        step_size({"algorithm": {"name": "adel", "rounds": 9, "warmup_rounds": 3}, "local": {"optimiser": "polyak"}})


def test_a_step_size_that_was_chosen_by_default_stays_open_until_the_experiment_is_resolved() -> None:
    chosen = Experiment(stop={"versions": 1})
    assert chosen.changed({"seed": 1}).local == chosen.local
    assert chosen.changed({"local": {"learning_rate": 0.2}}).local.optimiser == "sgd"
    assert chosen.changed({"task": {"label_smoothing": 0.1}}).local.optimiser == "sgd"
    resolved = Experiment.parse(chosen.table())  # as config.toml of a run has it
    assert resolved.changed({"local": {"learning_rate": 0.2}}).local.optimiser == "polyak"
