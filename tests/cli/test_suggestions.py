"""What a user types nearly right: names, settings and options get one sentence that helps."""

import pickle
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat import cli
from offbeat.algorithms import POLICIES, FedBuff
from offbeat.core.errors import InvalidInput, unknown
from offbeat.experiment.schema import Experiment
from offbeat.fleet.speeds import RatioFleet


def said(*words: str) -> str:
    result = CliRunner().invoke(cli.app, list(words))
    return " ".join((result.output + str(result.exception or "")).split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["describe", "seed"], "Seed of all random choices"),
        (["describe", "learning_rate"], "local.learning_rate"),
        (["describe", "fleet.ratio"], "fleet.ratio (ratio)"),
        (["describe", "SEAFL²"], "seafl2: SEAFL that notifies devices"),
        (["describe", "own_rules:Halfway"], "A rule of the user"),
        (["run", "demo", "--set", "ratio=5"], "unknown key 'ratio': did you mean 'fleet.ratio'?"),
        (["compare", "demo", "--set", "algorithm.bufer=3"], "did you mean 'buffer'?"),
        (["tune", "demo", "--range", "algorithm.bufer=1:3"], "did you mean 'buffer'?"),
        (["tune", "demo", "--range", "local.epochs=3"], "as table.key=low:high"),
        (["run", "dmo"], "there is no experiment file dmo: did you mean 'demo'?"),
        (["node", "register", "own_rules.py", "--superlink", "localhost:1"], "own_rules.py is no public key"),
        (["describe", "own_rules:Halfway"], "Next: offbeat run demo --set algorithm.name=own_rules:Halfway"),
        (["tune", "demo", "--objective", "area,seconds"], "after the first must come one of device_seconds, megabytes"),
        (["run", "-h"], "Run one experiment and write its metrics"),
        (["report", ".", "--out", "x.pdf"], "x.pdf: a report is an HTML page"),
        (["compare", "demo", "--format", "word"], "--format word: must be markdown, latex or csv"),
    ],
    ids=" ".join,
)
def test_what_is_nearly_right_is_understood(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = 'from offbeat.algorithms import FedBuff\n\n\nclass Halfway(FedBuff):\n    """A rule of the user."""\n'
    (tmp_path / "own_rules.py").write_text(rule)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert expected in said(*words)
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["own_rules.py"]


@pytest.mark.parametrize("name", ["FedBuff", "fed-buff", "FEDBUFF"])
def test_an_algorithm_may_be_written_another_way(name: str) -> None:
    tables = {"stop": {"versions": 1}, "algorithm": {"name": name, "buffer": 3}}
    assert (
        Experiment.parse(tables).table()["algorithm"]
        == Experiment.parse(tables | {"algorithm": {"name": "fedbuff", "buffer": 3}}).table()["algorithm"]
    )
    assert Experiment.parse(tables).for_algorithm("seafl²", 0).algorithm.name == "seafl2"


def test_no_message_lists_a_hundred_names() -> None:
    text = str(unknown("name", "zzzz", [f"name{number}" for number in range(100)]))
    assert len(text) < 400 and "(100 in all)" in text
    with pytest.raises(InvalidInput) as caught:
        raise unknown("name", "nam3", ["name1", "name3"])
    assert "did you mean 'name3'" in str(caught.value)


@pytest.mark.parametrize("name", POLICIES)
def test_a_misspelt_setting_of_a_policy_is_answered_as_in_a_file(name: str) -> None:
    policy, field = POLICIES[name], next(iter(POLICIES[name].model_fields))
    with pytest.raises(InvalidInput, match=f"unknown key '{policy.__name__}.x{field}': did you mean '{field}'"):
        policy(**{f"x{field}": 3})


def test_settings_say_what_is_allowed_before_what_is_missing() -> None:
    with pytest.raises(InvalidInput, match=r"^RatioFleet.ratio = 0.5: must be greater than or equal to 1$"):
        RatioFleet(ratio=0.5)
    with pytest.raises(InvalidInput, match=r"^unknown key 'modle': did you mean 'model'\?$"):
        Experiment(modle="mlp")
    with pytest.raises(InvalidInput, match=r"^algorithm.buffer = 0: must be greater"):  # in a file, the table's name
        Experiment(stop={"time": 1.0}, algorithm={"name": "fedbuff", "buffer": 0})
    with pytest.raises(InvalidInput) as caught:
        FedBuff(buffer=0)
    # errors travel between processes
    assert str(pickle.loads(pickle.dumps(caught.value))) == "FedBuff.buffer = 0: must be greater than or equal to 1"
