"""The children of a node as real processes: whatever an app does there ends at most its own process.

No SuperLink is needed for this: a stand-in hands out the messages.
"""

import contextlib
import os
import pwd
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import numpy as np
import psutil
import pytest
from standin_superlink import StandinConnection, app_folder, model_of, with_model

import offbeat
from offbeat.flower.launch.certificates import make_credentials
from offbeat.flower.node.children import ForkServer
from offbeat.flower.node.node import Polling, WarmNode
from offbeat.flower.node.sandbox import Limits, landlock_version
from offbeat.flower.node.storage import Installation, NodeStore

pytestmark = pytest.mark.processes

MEMORY_MB = 1500
UID_AND_GID = ("Uid:", "Gid:")


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_credentials(tmp_path_factory.mktemp("keys") / "certificates", 1).node_key(0)


@pytest.fixture(scope="module")
def fork_server(key: Path) -> Iterator[ForkServer]:
    made = ForkServer(Limits(memory_mb=MEMORY_MB, hidden=[str(key)]))
    made.start()
    yield made
    made.close()


@pytest.fixture
def link(fork_server: ForkServer, tmp_path: Path) -> Iterator[StandinConnection]:
    with node_at_work(fork_server, tmp_path, tmp_path / "home") as connection:
        yield connection


@contextlib.contextmanager
def node_at_work(fork_server: ForkServer, folder: Path, home: Path) -> Iterator[StandinConnection]:
    """A node with an app that does what it is told."""
    connection = StandinConnection(app_folder(folder / "app"))
    node = WarmNode(
        connection,
        fork_server,
        Installation(home),
        NodeStore(None, print),
        config={"partition-id": 3},
        polling=Polling(busy=0.01, idle=0.1),
        log=print,
    )
    stop = Event()
    thread = Thread(target=node.run, args=(stop,), daemon=True)
    thread.start()
    yield connection
    stop.set()
    thread.join(60.0)
    assert not thread.is_alive()


def test_a_child_runs_the_app_in_a_process_of_its_own(link: StandinConnection) -> None:
    first, second = link.ask("echo"), link.ask("echo")
    assert (first["count"], second["count"]) == (1, 2)
    assert first["pid"] == second["pid"] != os.getpid()


@pytest.mark.parametrize(("what", "why"), [("exit", "it ended with exit code 3"), ("kill", "it was ended by SIGKILL")])
def test_an_app_that_ends_its_process_ends_only_that(link: StandinConnection, what: str, why: str) -> None:
    before = link.ask("echo")
    assert link.error(what) == (8, f"the app's process is gone: {why}")
    after = link.ask("echo")
    assert after["pid"] != before["pid"] and after["count"] == 2


def test_an_app_that_never_returns_is_ended(link: StandinConnection) -> None:
    assert link.error("hang", ttl=5.0) == (8, "the app's process is gone: it was ended by SIGKILL")
    assert link.ask("echo")["count"] == 1


def test_an_app_that_allocates_without_end_gets_no_more_than_its_share(link: StandinConnection) -> None:
    code, reason = link.error("eat")
    assert code in (2, 8) and ("MemoryError" in reason or "process is gone" in reason)
    assert link.ask("echo")["device"] == 3


@pytest.mark.skipif(not landlock_version(), reason="the kernel has no Landlock: --child-user is the way there")
def test_an_app_has_no_way_to_the_node_s_key(link: StandinConnection, key: Path) -> None:
    assert b"BEGIN OPENSSH PRIVATE KEY" in key.read_bytes()
    said = link.ask("open", text=str(key))
    assert said["secrets"] == "", "the app found a way"
    body = b"".join(key.read_bytes().splitlines()[2:4])
    assert not any(body[:64] in content for content in memory(said["pid"])), "it is in the memory of the child"


def why_not_as_another_user() -> str:
    """Why an app cannot be run as `nobody` here; nothing if it can."""
    if os.geteuid() != 0:
        return "only root may run the app as another user"
    wanted = [Path(sysconfig.get_path("stdlib")), Path(np.__file__), Path(offbeat.__file__)]
    closed = [path for file in wanted for path in file.parents if not path.stat().st_mode & 0o001]
    return f"{closed[0]}, which Python needs here, is closed to other users" if closed else ""


@pytest.mark.skipif(bool(why_not_as_another_user()), reason=why_not_as_another_user())
def test_an_app_that_runs_as_another_user_has_no_way_to_the_node_s_key_either(key: Path, tmp_path: Path) -> None:
    """`--child-user`, for kernels without Landlock: nothing is hidden from it but by the rights of files."""
    made = ForkServer(Limits(user="nobody"))
    with TemporaryDirectory() as home, node_at_work(made, tmp_path, Path(home)) as link:
        Path(home).chmod(0o755)
        said = link.ask("open", text=str(key))
        ids = [line for line in Path(f"/proc/{said['pid']}/status").read_text().splitlines() if line[:4] in UID_AND_GID]
        account = pwd.getpwnam("nobody")
        assert [set(line.split()[1:]) for line in ids] == [{str(account.pw_uid)}, {str(account.pw_gid)}]
        assert said["secrets"] == "", "the app found a way"
        assert link.ask("echo")["count"] == 2
    made.close()


def memory(pid: int) -> Iterator[bytes]:
    """What a process could find in itself."""
    with Path(f"/proc/{pid}/mem").open("rb") as content:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(each, 16) for each in line.split()[0].split("-"))
            if "[v" not in line:
                content.seek(start)
                with contextlib.suppress(OSError):  # pages without rights
                    yield content.read(end - start)


def test_a_large_model_is_not_held_more_often_than_needed(link: StandinConnection) -> None:
    """100 MB there and back. The child has the message, and numpy's copy of it; and then the answer with its copy."""
    pid = link.ask("echo")["pid"]
    model = np.zeros(25_000_000, dtype=np.float32)
    model[::1000] = np.arange(25_000)
    reply = link.reply(link.send_content(with_model(model)))
    assert (model_of(reply) == model).all()
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    print(f"peak memory of the child: {peak:.0f} MB")
    assert peak < 300 + 4 * 100


def test_all_end_with_the_node(tmp_path: Path) -> None:
    """Also when it is killed."""
    script = (
        "import sys, time\n"
        "from offbeat.flower.node.children import ForkServer\n"
        "from offbeat.flower.node.sandbox import Limits\n"
        "from offbeat.flower.node.frames import OpenApp\n"
        "fork_server = ForkServer(Limits())\n"
        "opening = OpenApp(run_id=1, node_id=1, series_id=1, node_config={}, run_config={}, app_id='a/b',\n"
        "                  app_version='1', app_hash='c', directory='nowhere')\n"
        "fork_server.child(opening, None, lambda _, body, parts: print(body, flush=True), lambda *_: None)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None and node.stdout.readline() == "Warm()\n"
        below = psutil.Process(node.pid).children(recursive=True)
        assert len(below) == 2, "the fork server and a child"
        node.kill()
        _, alive = psutil.wait_procs(below, timeout=30)
        deadline = time.monotonic() + 30
        while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in alive):
            assert time.monotonic() < deadline, "left behind"
            time.sleep(0.1)
