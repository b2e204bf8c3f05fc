"""A Flower app made from an experiment: what is in it, and what cannot be."""

import json
import tomllib
from pathlib import Path

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.flower.launch.bundle import own_modules, write_bundle

MODEL = """
import numpy
import bundled_helper
from torch import nn


def network(input_shape, classes):
    return nn.Linear(bundled_helper.INPUTS, classes)
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the user's own modules, on the Python path."""
    folder = tmp_path / "beside"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    return folder


def experiment(model: str = "mlp", **tables: dict[str, object]) -> Experiment:
    return Experiment.parse({"stop": {"versions": 2}, "model": {"name": model}} | tables)


def test_the_experiment_travels_whole_in_the_run_config(app: Path) -> None:
    sent = experiment(failures={"vanish": 0.1, "rejoin_seconds": float("inf")})
    assert write_bundle(app, sent, out="results/here", resume=True) == []
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    received = Experiment.parse(json.loads(config.pop("experiment")))
    assert received.table() == sent.table() and received.given_table() == sent.given_table()
    assert config == {"out": "results/here", "resume": True, "overwrite": False}


def test_a_file_beside_a_module_that_its_code_names_is_reported_as_left_behind(app: Path, beside: Path) -> None:
    (beside / "bundled_reader.py").write_text("PLACE = 'sites.csv'\n\n\ndef network(input_shape, classes): ...\n")
    for name in ("sites.csv", "unrelated.csv"):
        (beside / name).write_text("1\n")
    left = write_bundle(app, experiment("bundled_reader:network"), out="x")
    assert left == [str(beside / "sites.csv")]


def test_the_apps_are_where_flower_looks_for_them(app: Path) -> None:
    write_bundle(app, experiment(), out="x")
    components = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    assert components == {"serverapp": "offbeat_app.server_app:app", "clientapp": "offbeat_app.client_app:app"}
    for name in ("server_app", "client_app"):
        scope: dict[str, object] = {}
        exec((app / "offbeat_app" / f"{name}.py").read_text(), scope)
        assert type(scope["app"]).__name__ == name.replace("_", " ").title().replace(" ", "")


def test_own_modules_travel_with_what_they_import_from_beside_them(beside: Path, app: Path) -> None:
    (beside / "bundled_model.py").write_text(MODEL)
    (beside / "bundled_helper.py").write_text("INPUTS = 64\n")
    (beside / "bystander.py").write_text("")
    write_bundle(app, experiment("bundled_model:network"), out="x")
    assert {path.name for path in app.glob("*.py")} == {"bundled_model.py", "bundled_helper.py"}


def test_own_optimisers_terms_and_transforms_travel_too(beside: Path, app: Path) -> None:
    for name in ("bundled_optimiser", "bundled_term", "bundled_transform"):
        (beside / f"{name}.py").write_text("def thing(*_): ...\n")
    terms = [{"name": "proximal", "mu": 1.0}, {"name": "bundled_term:thing"}]
    local: dict[str, object] = {"optimiser": "bundled_optimiser:thing", "terms": terms}
    transforms = [{"name": "flip"}, {"name": "bundled_transform:thing"}]
    write_bundle(app, experiment(local=local, data={"transforms": transforms}), out="x")
    assert {path.stem for path in app.glob("*.py")} == {"bundled_optimiser", "bundled_term", "bundled_transform"}


def test_a_package_travels_whole_and_what_flower_leaves_behind_is_told(beside: Path, app: Path) -> None:
    package = beside / "bundled_package"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "nets.py", "inner/__init__.py"):
        (package / name).write_text("")
    (package / "weights.npy").write_bytes(b"x")
    assert write_bundle(app, experiment("bundled_package.nets:network"), out="x") == ["bundled_package/weights.npy"]
    assert (app / "bundled_package" / "inner" / "__init__.py").is_file()


def test_installed_modules_stay_where_they_are() -> None:
    assert own_modules(experiment("sklearn.datasets:load_digits")) == []
    assert own_modules(experiment("math:floor")) == []


@pytest.mark.parametrize(
    ("module", "files", "sentence"),
    [
        ("nowhere_at_all", {}, "module 'nowhere_at_all' is not on the Python path"),
        ("bundled_namespace", {"bundled_namespace/nets.py": ""}, "the package has no __init__.py"),
        ("offbeat_app", {"offbeat_app.py": ""}, "the app itself has this name; rename the module"),
        ("test_bundled", {"test_bundled.py": ""}, "Flower excludes modules of this name"),
        ("bundled_broken", {"bundled_broken.py": "def"}, "is not valid Python"),
        ("bundled_large", {"bundled_large.py": ""}, "Flower refuses the app"),
    ],
)
def test_what_cannot_be_bundled_is_said_in_a_sentence(
    beside: Path, app: Path, module: str, files: dict[str, str], sentence: str
) -> None:
    for name, text in files.items():
        (beside / name).parent.mkdir(exist_ok=True)
        (beside / name).write_text(text)
    if module == "bundled_large":  # more than Flower's 10 MB, and not compressible
        import random

        (beside / "bundled_large.py").write_text(f"x = {random.Random(0).randbytes(11_000_000).hex()!r}\n")
    with pytest.raises(InvalidInput, match=sentence):
        write_bundle(app, experiment(f"{module}:network"), out="x")
