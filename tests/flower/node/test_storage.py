"""A node unpacks only apps that it has verified, and keeps what apps store beyond their process and its own."""

import errno
import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from standin_superlink import app_folder, run_of

from offbeat.core.errors import InvalidInput
from offbeat.flower.node import storage
from offbeat.flower.node.storage import AppRefused, Installation, NodeStore, load_trusted_entities


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return build_fab_from_disk(app_folder(tmp_path / "app"))


def test_the_right_app_is_unpacked_and_a_second_time_found(content: bytes, tmp_path: Path) -> None:
    installation, run = Installation(tmp_path / "home"), run_of(content)
    folder = installation.install(run, Fab(run.fab_hash, content, {}))
    assert (folder / "told" / "client.py").is_file()
    assert installation.install(run, Fab(run.fab_hash, content, {})) == folder


def test_an_app_with_another_hash_is_refused_and_not_unpacked(content: bytes, tmp_path: Path) -> None:
    run, other = run_of(content), content + b" "
    with pytest.raises(AppRefused, match=r"the app has hash .*, but the run names "):
        Installation(tmp_path / "home").install(run, Fab(run.fab_hash, other, {}))
    assert not (tmp_path / "home").exists()


def test_an_app_with_a_file_that_is_not_what_its_list_says_is_refused(content: bytes, tmp_path: Path) -> None:
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(changed, "w") as after:
        for name in before.namelist():
            after.writestr(name, before.read(name) + (b"\nimport os\n" if name.endswith("client.py") else b""))
    run = run_of(changed.getvalue())
    with pytest.raises(AppRefused, match="cannot be unpacked: File hashes couldn't be verified"):
        Installation(tmp_path / "home").install(run, Fab(run.fab_hash, changed.getvalue(), {}))


def test_bytes_that_are_no_app_are_refused(tmp_path: Path) -> None:
    run = run_of(b"nothing")
    with pytest.raises(AppRefused, match="cannot be unpacked"):
        Installation(tmp_path / "home").install(run, Fab(run.fab_hash, b"nothing", {}))


def test_where_signatures_are_asked_for_an_app_without_one_is_refused(content: bytes, tmp_path: Path) -> None:
    run = run_of(content)
    for verifications in ({}, {"valid_license": "yes"}):
        with pytest.raises(AppRefused, match="no trusted entity has signed the app"):
            Installation(tmp_path / "home", {"fpk_1": "ssh-ed25519 AAAA"}).install(
                run, Fab(run.fab_hash, content, verifications)
            )


def test_a_disk_that_cannot_be_written_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where a folder should be")
    run = run_of(content)
    with pytest.raises(AppRefused, match=r"the app cannot be written to .*home: "):
        Installation(tmp_path / "home").install(run, Fab(run.fab_hash, content, {}))


def test_an_app_for_which_there_was_no_room_is_unpacked_when_there_is(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written before the disk was full is not taken for the app the next time."""

    def full(source: object, target: Path) -> None:
        Path(target).touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    installation, run = Installation(tmp_path / "home"), run_of(content)
    with monkeypatch.context() as patched, pytest.raises(AppRefused, match="home: No space left on device"):
        patched.setattr("shutil.copy2", full)
        installation.install(run, Fab(run.fab_hash, content, {}))
    folder = installation.install(run, Fab(run.fab_hash, content, {}))
    assert "[project]" in (folder / "pyproject.toml").read_text()


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "a: 1\n", "a: [\n"])
def test_a_file_of_trusted_entities_must_be_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "trusted.yaml").write_text(text)
    with pytest.raises(InvalidInput, match="trusted entities: "):
        load_trusted_entities(tmp_path / "trusted.yaml")
    (tmp_path / "trusted.yaml").write_text("fpk_1: ssh-ed25519 AAAA\n")
    assert load_trusted_entities(tmp_path / "trusted.yaml") == {"fpk_1": "ssh-ed25519 AAAA"}


def test_the_last_that_was_kept_under_a_name_is_recalled() -> None:
    kept = NodeStore(None, print)
    assert kept.recall("a") is None
    kept.keep("a", b"1")
    kept.keep("a", b"2")
    kept.keep("b", b"3")
    assert (kept.recall("a"), kept.recall("b")) == (b"2", b"3")


def test_with_a_folder_it_outlives_the_node(tmp_path: Path) -> None:
    NodeStore(tmp_path / "state", print).keep("../../etc/passwd", b"1")
    assert NodeStore(tmp_path / "state", print).recall("../../etc/passwd") == b"1"
    assert [path.parent for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "state"]


def test_on_a_full_disk_it_is_kept_in_memory_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    monkeypatch.setattr(storage, "replace_file", full)
    kept = NodeStore(tmp_path, said.append)
    kept.keep("a", b"1")
    assert kept.recall("a") == b"1"
    assert said == ["state that an app stores is only in memory: [Errno 28] No space left on device"]


def test_only_the_names_written_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOST_NAMES", 2)
    kept = NodeStore(tmp_path, print)
    for name in "abcb":
        kept.keep(name, name.encode())
    assert [kept.recall(name) for name in "abc"] == [None, b"b", b"c"]
    assert len(list(tmp_path.iterdir())) == 2
