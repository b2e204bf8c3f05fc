"""Files from elsewhere: reading them runs no code, takes no unbounded memory, and fails with one sentence."""

import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs
from scipy.io import savemat

import offbeat
from offbeat.algorithms import POLICIES
from offbeat.cli import _print_error
from offbeat.comparison.gathered import comparison_of
from offbeat.core.errors import Diverged, Interrupted, InvalidInput, OffbeatError
from offbeat.core.orders import Order
from offbeat.core.record import read_record
from offbeat.core.terms import PastGradients
from offbeat.data.images import read
from offbeat.data.leaf import read_users
from offbeat.data.svhn import parse_mat
from offbeat.experiment.schema import Experiment
from offbeat.experiment.tables import parse_changes, read_toml
from offbeat.results.checkpoint import load_checkpoint, save_checkpoint, write_checkpoint
from offbeat.results.lock import DirectoryLock, is_locked
from offbeat.results.report import report_html
from offbeat.results.result import read_run
from offbeat.running.directory import RunDirectory
from offbeat.simulation.run import run as run_experiment
from offbeat.testing import ToyExecutor, toy_simulation
from offbeat.training.terms import remembered

SMALL = {"data": {"devices": 2}, "model": {"name": "logistic"}, "local": {"epochs": 1}, "stop": {"versions": 2}}
FUZZ = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run."""
    out = tmp_path_factory.mktemp("run") / "run"
    experiment = Experiment.parse(SMALL | {"algorithm": {"name": "fedavg", "cohort": 2}})
    offbeat.run(experiment, out=out)
    return out


def copied(finished: Path, tmp_path: Path, **changed: str) -> Path:
    """A copy of the run with the text of some files replaced; a dot in a name is written as two underscores."""
    out = tmp_path / "copy"
    out.mkdir(exist_ok=True)
    for name in ("config.toml", "metrics.jsonl", "summary.json", "devices.csv"):
        text = changed.get(name.replace(".", "__"))
        (out / name).write_text(
            (finished / name).read_text() if text is None else text, encoding="utf-8", errors="replace"
        )
    return out


def looked_at(out: Path) -> None:
    """Read a run and everything that is shown of it; InvalidInput is fine, anything else is not."""
    try:
        run = read_run(out)
        _ = repr(run), run._repr_html_(), run.devices, run.in_training, run.diverged, run.metrics
    except InvalidInput as error:
        assert "\n" not in str(error)


# Reading results runs no code -----------------------------------------------------------------------------------------


def test_a_report_imports_nothing_that_a_run_names_and_no_file_shadows_a_library(
    finished: Path, tmp_path: Path
) -> None:
    (tmp_path / "planted.py").write_text("open('planted-ran', 'w')\nclass Policy: ...\n")
    (tmp_path / "statistics.py").write_text("open('shadow-ran', 'w')\n")
    config = (finished / "config.toml").read_text().replace('"fedavg"', '"planted:Policy"')
    assert "planted:Policy" in config
    copied(finished, tmp_path, config__toml=config)
    command = [str(Path(sys.executable).parent / "offbeat"), "report", "copy", "--out", "report.html"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").is_file()
    assert not list(tmp_path.glob("*-ran")), "code from the working directory has run"


def test_reading_a_run_resolves_only_what_this_process_has_imported(finished: Path, tmp_path: Path) -> None:
    config = (finished / "config.toml").read_text()
    out = copied(finished, tmp_path, config__toml=config.replace('"fedavg"', '"nowhere_to_be_found:Policy"'))
    assert read_run(out).experiment is None and "nowhere_to_be_found" not in sys.modules
    assert read_run(finished).experiment is not None


# Fuzzing --------------------------------------------------------------------------------------------------------------


@FUZZ
@given(value=JSON, place=st.integers(0, 100))
@example(value=[None], place=0)
@example(value={"algorithm": [], "label": {}, "seed": "x", "stopped_by": 3, "wall_seconds": None}, place=1)
def test_any_summary_is_read_or_refused_in_a_sentence(value: Any, place: int, finished: Path, tmp_path: Path) -> None:
    looked_at(copied(finished, tmp_path, summary__json=json.dumps(value)))
    known = json.loads((finished / "summary.json").read_text())
    looked_at(copied(finished, tmp_path, summary__json=json.dumps(known | {list(known)[place % len(known)]: value})))


@FUZZ
@given(value=JSON)
@example(value=[1, 2])
@example(value="text")
def test_any_metrics_are_read_or_refused_in_a_sentence(value: Any, finished: Path, tmp_path: Path) -> None:
    first = json.loads((finished / "metrics.jsonl").read_text().splitlines()[0])
    rows = [json.dumps(value), *(json.dumps(first | {name: value}) for name in ("time", "accuracy", "version"))]
    for row in rows:
        looked_at(copied(finished, tmp_path, metrics__jsonl=row + "\n"))


@pytest.mark.parametrize("name", ["summary__json", "metrics__jsonl", "config__toml"])
@pytest.mark.parametrize("text", [DEEP + "\n", "\x00\n", "{\n", "a = " + DEEP])
def test_nonsense_in_a_run_is_one_sentence(name: str, text: str, finished: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_run(copied(finished, tmp_path, **{name: text}))


@FUZZ
@given(text=st.text(max_size=60))
@example(text="a = " + "[" * 2000)
@example(text="a = " + "{a = " * 2000)
@example(text='[stop]\nversions = "x"')
@example(text="seed = 1\nstop = 3\n[fleet]\nname = []")
def test_any_experiment_file_is_read_or_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for attempt in (lambda: Experiment.parse(read_toml(path)), lambda: parse_changes([f"a={text}"])):
        try:
            attempt()
        except InvalidInput as error:
            assert "Traceback" not in str(error)


@FUZZ
@given(lines=st.lists(JSON.map(json.dumps) | st.text(max_size=20), max_size=3))
@example(lines=['{"what": "run", "format": 3}'])
@example(lines=[DEEP])
def test_any_record_is_read_or_refused(lines: list[str]) -> None:
    with suppress(InvalidInput):
        read_record("\n".join(lines) + "\n", "record.jsonl")


@FUZZ
@given(value=JSON)
@example(value={"type": "Order", "fields": {"slices": "x"}})
@example(value={"array": "array-0"})
@example(value={"array": "stored-1"})
@example(value={"set": [[1]]})
@example(value={"map": [1, 2]})
@example(value={"map": [[[], 1]]})
@example(value={"tuple": 3})
def test_a_checkpoint_with_a_valid_checksum_and_any_content_is_refused_or_decoded(value: Any, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "latest", value, {"array-0": np.zeros(2), "stored-1": np.zeros(2)}, "f")
    try:
        load_checkpoint(tmp_path / "latest", "f", ())
    except OffbeatError as error:
        assert "damaged" in str(error)


def test_a_checkpoint_of_something_else_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    experiment = Experiment.parse(SMALL | {"algorithm": {"name": "fedavg", "cohort": 2}, "stop": {"versions": 50}})
    stopping = iter([False] * 3)

    class Flag:
        number = 2

        def is_set(self) -> bool:
            return next(stopping, True)

    with pytest.raises(Interrupted):
        run_experiment(experiment, out=tmp_path / "run", interrupted=Flag())
    path = tmp_path / "run" / "checkpoint" / "latest.safetensors"
    mark = RunDirectory(tmp_path / "run", experiment.table(), resume=True).fingerprint
    wrong: list[Any] = [
        {},
        [],
        {"metrics": 0, "timeline": 0, "driver": {"session": 3}},
        {"metrics": "x", "timeline": None},
    ]
    for content in wrong:
        save_checkpoint(path, content, mark)
        with pytest.raises(InvalidInput, match=r"does not hold its state|has lost lines"):
            run_experiment(experiment, out=tmp_path / "run", resume=True)


# Data -----------------------------------------------------------------------------------------------------------------


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.data.images.LEAST_BYTES", 2**16)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "all.json.gz").write_bytes(gzip.compress(bytes(10**7)))
    with pytest.raises(InvalidInput, match=r"all.json.gz has more than .* bytes when decompressed"):
        list(read_users(str(tmp_path), "train"))
    (tmp_path / "b.xz").write_bytes(lzma.compress(bytes(10**7)))
    with pytest.raises(InvalidInput, match="when decompressed"):
        read(str(tmp_path), "b")


def test_deep_json_is_not_one_of_leafs_files(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.json").write_text(DEEP)
    with pytest.raises(InvalidInput, match="is not one of LEAF's files"):
        list(read_users(str(tmp_path), "train"))


@settings(max_examples=60, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=4), length=st.integers(0, 4000))
@pytest.mark.parametrize("packed", [True, False])
def test_changed_bytes_of_an_svhn_file_never_crash(packed: bool, changes: list[tuple[int, int]], length: int) -> None:
    file = io.BytesIO()
    tables = {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": np.array([[10]], np.uint8)}
    savemat(file, tables, do_compression=packed)
    images, labels = parse_mat(Path("train_32x32.mat"), file.getvalue())
    assert images.shape == (1, 3, 32, 32) and labels.tolist() == [10]
    damaged = bytearray(file.getvalue())
    for place, value in changes:
        damaged[place % len(damaged)] = value
    try:
        parse_mat(Path("train_32x32.mat"), bytes(damaged[: length or None]))
    except InvalidInput as error:
        assert "train_32x32.mat" in str(error)


# Labels and locks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["[/red]<script>alert(1)</script>", r"$\frac{"])
def test_a_label_is_text_in_tables_plots_and_reports(label: str, finished: Path) -> None:
    run = read_run(finished).relabelled(label)
    comparison = comparison_of([run], None)
    page = report_html(comparison, [run.config], "report")
    assert "<script>alert" not in page
    run.plot().savefig(io.BytesIO(), format="png")
    assert label in str(comparison)


def test_an_error_message_with_markup_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    _print_error(InvalidInput("label = [/red] [bold]x"))
    assert "label = [/red] [bold]x" in capsys.readouterr().err


def test_a_lock_is_never_opened_through_a_symbolic_link(tmp_path: Path) -> None:
    victim, out = tmp_path / "victim", tmp_path / "run"
    out.mkdir()
    (out / ".lock").symlink_to(victim)
    with pytest.raises(InvalidInput, match="is a symbolic link: remove it"):
        DirectoryLock(out).take()
    assert not victim.exists() and not is_locked(out)
    (out / ".lock").unlink()
    os.mkfifo(out / ".lock")
    assert not is_locked(out), "a named pipe must not keep a reader waiting"


# Algorithms -----------------------------------------------------------------------------------------------------------


def test_adels_warm_up_with_an_absurd_update_diverges_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    train = ToyExecutor._train

    def hostile(self: ToyExecutor, job: Any) -> Any:
        state = train(self, job)
        huge = np.full_like(state.parameters, 3e38)
        return structs.replace(state, parameters=huge) if job.device == 0 else state

    monkeypatch.setattr(ToyExecutor, "_train", hostile)
    policy = POLICIES["adel"](warmup_rounds=2, time_budget=400.0, rounds=10)  # type: ignore[call-arg]
    with pytest.raises(Diverged, match="the gradients of the warm-up have variance"):
        list(toy_simulation(policy, troubled=False))


def test_past_gradients_of_a_rate_that_underflows_are_zero() -> None:
    model = np.ones(3, np.float32)
    for rate in (0.0, 1e-60):
        found = remembered(Order(terms=(PastGradients(beta=0.1),)), {}, model, model, rate)
        assert found and all(np.isfinite(vector).all() for vector in found.values())
