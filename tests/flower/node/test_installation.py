"""An app is unpacked only if it is the one that the run says, whole, and signed where signatures are asked for."""

import errno
import io
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab import Fab
from standin_superlink import app_folder, run_of

from offbeat.core.errors import InvalidInput
from offbeat.flower.node.installation import AppRefused, Installation, load_trusted_entities


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
    with pytest.raises(AppRefused, match=r"the app's hash is .*, not .*, as the run says"):
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
    with pytest.raises(InvalidInput, match="--trusted-entities"):
        load_trusted_entities(tmp_path / "trusted.yaml")
    (tmp_path / "trusted.yaml").write_text("fpk_1: ssh-ed25519 AAAA\n")
    assert load_trusted_entities(tmp_path / "trusted.yaml") == {"fpk_1": "ssh-ed25519 AAAA"}
