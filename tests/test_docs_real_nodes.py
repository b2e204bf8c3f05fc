"""The tutorial for operators is true: its commands, with real processes on loopback."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from offbeat.cli import main

pytestmark = pytest.mark.processes
PAGE = (Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "real-nodes.md").read_text()
OFFBEAT = [sys.executable, "-c", "import sys; from offbeat.cli import main; sys.argv[0] = 'offbeat'; main()"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_the_tutorial_on_real_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.replace("9100", str(free_port()))
    (experiment,) = re.findall(r"```toml\n# experiment.toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "experiment.toml").write_text(experiment)
    lines = [
        shlex.split(line) for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]
    assert [line[:2] for line in lines if line[0] == "offbeat"] == [
        ["offbeat", word] for word in ("node", "node", "node", "node", "deploy", "replay", "report")
    ]
    binaries = Path(sys.executable).parent  # where Flower's programs are, which start each other
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    said: dict[str, str] = {}
    with ExitStack() as running:
        for number, (program, *rest) in enumerate(lines):
            if program == "pip":
                continue
            if program == "offbeat" and not rest[1].startswith("--superlink"):  # a command that ends, in this process
                monkeypatch.setattr(sys, "argv", ["offbeat", *rest])
                with suppress(SystemExit):
                    main()
                said[rest[0]] = capsys.readouterr().out
                continue
            command = [*OFFBEAT, *rest] if program == "offbeat" else [str(binaries / program), *rest]
            log = running.enter_context((tmp_path / f"process-{number}.log").open("w"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            running.callback(process.wait, 60)
            running.callback(process.send_signal, signal.SIGTERM)
            if program == "flower-superlink":
                wait_until_it_listens(rest, process)
    assert "versions match the record bit for bit" in said["replay"]
    assert (tmp_path / "report.html").is_file()


def wait_until_it_listens(words: list[str], process: "subprocess.Popen[bytes]") -> None:
    address = words[words.index("--host") + 1], int(words[words.index("--port") + 1])
    while process.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(address) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the SuperLink ended")
