"""What a notebook does: experiments by name, file, tables and objects; comparisons that leave no files."""

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer
from torch import nn

import offbeat
from offbeat import cli
from offbeat.algorithms import FedBuff
from offbeat.core.errors import InvalidInput

TABLES = {
    "stop": {"versions": 2},
    "data": {"name": "digits", "devices": 4},
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg", "cohort": 2},
}
EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_an_experiment_is_run_from_a_file_and_from_tables_alike(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(offbeat.Experiment.parse(TABLES).toml())
    assert offbeat.run(str(file)).rows == offbeat.run(file).rows == offbeat.run(TABLES).rows
    assert list(tmp_path.iterdir()) == [file]


def test_objects_that_no_import_finds_run_in_this_process_and_say_so_to_others() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Linear(64, 10)

        def forward(self, x: object) -> object:
            return self.only(nn.functional.tanh(nn.Flatten()(x)))

    experiment = offbeat.Experiment(
        stop={"versions": 2},
        data={"name": "digits", "devices": 4},
        model=lambda: Net(),
        algorithm=FedBuff(buffer=1, concurrency=2),
    )
    result = offbeat.run(experiment)
    assert list(result.state_dict()) == ["only.weight", "only.bias"]
    assert offbeat.run(experiment.changed({"model": Net})).rows == result.rows
    with pytest.raises(InvalidInput, match=r'model.name: .*refer to it as "module:attribute"'):
        offbeat.run(experiment.changed({"execution": {"workers": 2}}))


def test_a_comparison_without_a_directory_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    comparison = offbeat.compare(TABLES | {"compare": {"fedavg": {"algorithm": {"cohort": 2}}}}, "fedavg", np.int64(2))
    assert [(each.algorithm, each.seed, each.directory) for each in comparison] == [
        ("fedavg", 0, None),
        ("fedavg", 1, None),
    ]
    assert len(comparison) == 2 and comparison[0].parameters is not None
    assert set(comparison.frame()["seed"]) == {0, 1}
    assert "fedavg" in repr(comparison) and "<td>fedavg</td>" in comparison._repr_html_()
    assert comparison.plot().axes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seeds", ["three", 1.5, [0.5], 0, []])
def test_seeds_are_a_count_or_whole_numbers(seeds: object) -> None:
    with pytest.raises(InvalidInput, match=r"seeds =|at least one"):
        offbeat.compare(TABLES, "fedavg", seeds)  # type: ignore[arg-type]


def test_what_is_no_experiment_is_one_sentence() -> None:
    for wrong in (3, None, "nowhere.toml"):
        with pytest.raises(InvalidInput):
            offbeat.run(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="did you mean 'demo'"):
        offbeat.load_experiment("dmo")
    with pytest.raises(InvalidInput, match="path of a file"):
        offbeat.Experiment.load(TABLES)  # type: ignore[arg-type]


def losses(local_prox: float | None, **algorithm: object) -> list[float]:
    local = {"epochs": 2} if local_prox is None else {"epochs": 2, "prox": local_prox}
    result = offbeat.run(TABLES | {"algorithm": algorithm, "local": local})
    return [row["loss"] for row in result.rows]


def test_a_proximal_term_of_the_experiment_goes_before_that_of_the_algorithm() -> None:
    assert losses(5.0, name="fedavg", cohort=2) != losses(None, name="fedavg", cohort=2)
    assert losses(0.0, name="fedavg", cohort=2) == losses(None, name="fedavg", cohort=2)
    own = losses(None, name="fedasync", concurrency=2)
    assert losses(0.005, name="fedasync", concurrency=2, prox=1.0) == own
    assert losses(0.0, name="fedasync", concurrency=2) == losses(None, name="fedasync", concurrency=2, prox=0.0) != own


def test_every_public_name_is_there() -> None:
    assert all(hasattr(offbeat, name) for name in offbeat.__all__)
    assert offbeat.__version__[0].isdigit()


def test_names_are_checked_without_torch() -> None:
    code = (
        "import sys, offbeat, offbeat.cli, offbeat.policy\n"
        "offbeat.load_experiment('demo'), offbeat.read_run, offbeat.cli.catalogue.list_('models')\n"
        "assert not {'torch', 'matplotlib', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_examples_for_clusters_are_well_formed() -> None:
    subprocess.run(["bash", "-n", str(EXAMPLES / "cluster" / "slurm.sh")], check=True)
    job = pytest.importorskip("yaml").safe_load((EXAMPLES / "cluster" / "kuberay.yaml").read_text())["spec"]
    (line,) = (line for line in (EXAMPLES / "cluster" / "slurm.sh").read_text().splitlines() if "offbeat run" in line)
    for command in (job["entrypoint"], line.removesuffix(" &")):
        program, name, *arguments = shlex.split(command)
        assert program == "offbeat"
        given = typer.main.get_command(cli.app).commands[name].make_context(name, arguments).params  # type: ignore[attr-defined]
        assert given["resume"] and given["address"]
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())["project"]
    assert [f"ray[client]=={job['rayClusterSpec']['rayVersion']}"] == project["optional-dependencies"]["ray"]


@pytest.mark.parametrize("name", ["own_policy", "own_data_model_and_fleet"])
def test_the_examples_run(name: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "<Result of" in ended.stdout and ended.stderr == ""
    assert list(tmp_path.iterdir()) == []
