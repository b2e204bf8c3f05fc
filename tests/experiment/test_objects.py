"""Experiments from Python objects, things of the user's own in every table, and files of former versions."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offbeat.algorithms import FedAvg, FedBuff
from offbeat.core.errors import InvalidInput
from offbeat.data import Dataset
from offbeat.data.partition import Dirichlet
from offbeat.data.synthetic import Synthetic
from offbeat.experiment.schema import Experiment
from offbeat.fleet import OnOffAvailable, RatioFleet
from offbeat.models.networks import mlp

OWN = """
import numpy as np
from offbeat import AvailabilitySettings, FleetSettings, Partition, PartitionSettings
from offbeat.fleet.availability import Always
from offbeat.fleet.speeds import FixedSpeeds


class Even(FleetSettings):
    seconds: float = 2.0

    def build(self, workload):
        return FixedSpeeds(np.full(workload.devices, self.seconds), workload)


class InOrder(PartitionSettings):
    skip: int = 0

    def split(self, labels, devices, seed):
        return Partition.of(np.array_split(np.arange(self.skip, len(labels)), devices))


class There(AvailabilitySettings):
    def build(self, workload):
        return Always(workload.devices)


class Unfinished(FleetSettings):
    pass


def divided(seed):
    from offbeat import Dataset
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 2
    return Dataset(train_x=x, train_y=y, test_x=x, test_y=y, classes=2, devices=(np.arange(3), np.arange(3, 6)))
"""


def parsed(**tables: Any) -> Experiment:
    return Experiment.parse({"stop": {"versions": 2}} | tables)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_settings.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


# Things of the user's own -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own")
def test_fleets_partitions_and_availability_of_the_users_own_have_settings_in_the_table() -> None:
    experiment = parsed(
        data={"name": "digits", "devices": 3},
        fleet={"name": "own_settings:Even", "seconds": 3.0},
        partition={"name": "own_settings:InOrder", "skip": 4},
        availability={"name": "own_settings:There"},
    )
    assert experiment.table()["fleet"] == {"name": "own_settings:Even", "seconds": 3.0}
    assert experiment.load_data()[1].samples(0)[0] == 4
    assert Experiment.parse(experiment.table()).table() == experiment.table()
    assert set(experiment.own) == {"fleet.name", "partition.name", "availability.name"}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        ({"fleet": {"name": "own_settings:Even", "secnds": 3.0}}, "'fleet.secnds': did you mean 'seconds'?"),
        ({"fleet": {"name": "own_settings:Even", "seconds": "x"}}, "fleet.seconds = 'x': must be a valid number"),
        ({"fleet": {"name": "own_settings:InOrder"}}, "not a subclass of offbeat.FleetSettings"),
        ({"fleet": {"name": "own_settings:Unfinished"}}, "does not define build"),
        ({"partition": {"name": "own_settings:Even"}}, "not a subclass of offbeat.PartitionSettings"),
        ({"availability": {"name": "math:floor"}}, "not a subclass of offbeat.AvailabilitySettings"),
        ({"availability": {"name": "on-of"}}, "did you mean 'on-off'?"),
        ({"partition": {"alpha": 0.3}}, "partition.name is missing"),
        ({"data": {"name": "own_settings:divided", "dir": "x"}}, "unknown key 'data.dir'"),
    ],
)
def test_a_mistake_in_ones_own_is_one_sentence(tables: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parsed(**tables)
    assert complaint in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.usefixtures("own")
def test_data_that_say_who_holds_what_beside_a_partition_are_a_conflict() -> None:
    with pytest.raises(InvalidInput, match="assigns samples to devices itself"):
        parsed(data={"name": "synthetic"}, partition={"name": "dirichlet"})
    experiment = parsed(data={"name": "own_settings:divided", "devices": 2}, partition={"name": "iid"})
    with pytest.raises(InvalidInput, match=r"partition.name = 'iid'.*leave \[partition\] out"):
        experiment.load_data()
    assert parsed(data={"name": "own_settings:divided", "devices": 2}).load_data()[1].sizes.tolist() == [3, 3]


def test_a_partition_that_nobody_chose_gives_way_to_data_that_come_divided() -> None:
    assert "partition" not in parsed(data={"name": "digits"}).changed({"data": {"name": "synthetic"}}).table()
    assert parsed(data={"name": "digits"}).table()["partition"] == {"name": "iid"}


# Former files -------------------------------------------------------------------------------------------------------


def test_the_former_keys_of_a_partition_still_read_with_a_note() -> None:
    former = parsed(data={"name": "digits", "devices": 5, "partition": "dirichlet", "alpha": 0.5})
    today = parsed(data={"name": "digits", "devices": 5}, partition={"name": "dirichlet", "alpha": 0.5})
    assert former.table() == today.table()
    (note,) = former.notes
    assert "[data] partition, alpha" in note and "[partition]" in note and "\n" not in note
    assert today.notes == ()


def test_a_former_key_is_read_also_as_a_change(tmp_path: Path) -> None:
    file = tmp_path / "today.toml"
    file.write_text('[stop]\ntime = 1.0\n[partition]\nname = "dirichlet"\nalpha = 0.3\n')
    changed = Experiment.load(str(file), ["data.alpha=0.5", "compare.fedbuff.data.alpha=9.0"])
    assert changed.table()["partition"] == {"name": "dirichlet", "alpha": 0.5}
    assert changed.for_algorithm("fedbuff", 0).table()["partition"]["alpha"] == 9.0
    assert [each.table()["partition"]["alpha"] for each in changed.swept({"data.alpha": [1.0, 2.0]}, 0)] == [1.0, 2.0]
    assert Experiment.load(file, ["data.partition=iid"]).table()["partition"] == {"name": "iid"}


def test_a_setting_of_the_data_set_is_not_taken_for_one_of_a_partition() -> None:
    former = parsed(data={"name": "synthetic", "alpha": 0.5, "partition": "iid"})
    assert former.table()["data"]["alpha"] == 0.5 and "partition" not in former.table()


def test_a_partition_given_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"data.partition = 'iid' and partition.name = 'shards'"):
        parsed(data={"partition": "iid"}, partition={"name": "shards"})


# Objects --------------------------------------------------------------------------------------------------------------


def test_objects_become_the_tables_of_a_file() -> None:
    experiment = Experiment(
        stop={"versions": 2},
        seed=np.int64(4),  # type: ignore[arg-type]
        data=Synthetic(devices=4, alpha=0.5),
        model=mlp,
        fleet=RatioFleet(ratio=110),
        availability=OnOffAvailable(on_seconds=9.0),
        algorithm=FedBuff(buffer=3),
    )
    table = experiment.table()
    assert (table["seed"], table["model"]["name"], table["fleet"]["ratio"]) == (4, "mlp", 110)
    assert (table["data"]["name"], table["data"]["devices"], table["data"]["alpha"]) == ("synthetic", 4, 0.5)
    assert table["algorithm"]["buffer"] == 3 and table["availability"]["on_seconds"] == 9.0
    assert Experiment.parse(table).table() == table
    assert Experiment(stop={"versions": 2}, algorithm=FedAvg, partition=Dirichlet).algorithm.name == "fedavg"


def test_what_no_import_finds_lives_as_long_as_the_experiment() -> None:
    arrays = np.zeros((6, 2)), np.arange(6) % 2, np.zeros((2, 2)), np.arange(2)
    experiment = Experiment(
        stop={"versions": 2}, data={"name": arrays, "devices": np.int32(3)}, model=lambda: 0
    ).for_algorithm(FedBuff(buffer=2), 7)
    assert experiment.load_data()[1].sizes.tolist() == [2, 2, 2]
    assert experiment.seed == 7 and experiment.algorithm.title == "fedbuff"
    with pytest.raises(InvalidInput, match=r'data.name: .Dataset. exists in this process only.*"module:attribute"'):
        experiment.check_importable()


def test_a_data_set_that_comes_divided_says_how_many_devices_there_are() -> None:
    x, y = np.zeros((6, 2), np.float32), np.arange(6) % 2
    dataset = Dataset(train_x=x, train_y=y, test_x=x, test_y=y, classes=2, devices=(np.arange(2), np.arange(2, 6)))
    assert Experiment(stop={"versions": 1}, data=dataset).data.devices == 2


def test_a_network_that_exists_already_is_refused() -> None:
    with pytest.raises(InvalidInput, match="give the class or a function that makes it"):
        Experiment(stop={"versions": 1}, model=mlp((4,), 2))


def test_a_wrong_table_is_one_sentence_also_from_python() -> None:
    for wrong in ({"fleet": 5}, {"data": None, "stp": 3}, {"algorithm": "fedbuf"}, {"seed": 1.5}):
        with pytest.raises(InvalidInput) as caught:
            Experiment(stop={"versions": 1}, **wrong)
        assert "\n" not in str(caught.value)


def test_an_experiment_travels_to_other_processes() -> None:
    experiment = parsed(algorithm=FedBuff(buffer=3))
    assert pickle.loads(pickle.dumps(experiment)).table() == experiment.table()


# The proximal term ------------------------------------------------------------------------------------------------


def test_the_proximal_term_is_a_setting_of_every_algorithm() -> None:
    assert parsed(local={"prox": 0.2}).local.order(0).prox == 0.2
    assert parsed().local.order(0).prox == 0.0
    assert parsed().local.prox is None  # FedAsync then takes its own
