"""The children of a node as real processes: whatever an app does there ends at most its own process.

No SuperLink is needed for this: a stand-in hands out the messages.
"""

import ast
import contextlib
import os
import pwd
import resource
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from textwrap import dedent
from threading import Event, Thread
from typing import Any

import numpy as np
import psutil
import pytest
from standin_superlink import RUN, StandinConnection, app_folder, model_of, with_model

import offbeat
from offbeat.flower.launch.certificates import make_credentials
from offbeat.flower.node.cgroups import delegated
from offbeat.flower.node.children import ForkServer
from offbeat.flower.node.node import Polling, WarmNode
from offbeat.flower.node.sandbox import SCOPED, AppLimits, can_cut_network, landlock_version
from offbeat.flower.node.storage import Installation, NodeStore

pytestmark = pytest.mark.processes

MEMORY_MB = 1500
PROCESSES = 500
UID_AND_GID = ("Uid:", "Gid:")


LANDLOCK = pytest.mark.skipif(
    not landlock_version(), reason="the kernel has no Landlock: --child-user is the way there"
)
SIGNALS = pytest.mark.skipif(
    landlock_version() < SCOPED, reason=f"Landlock {landlock_version()}: signals are scoped from version {SCOPED} on"
)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_credentials(tmp_path_factory.mktemp("keys") / "certificates", 1).directory


@pytest.fixture(scope="module")
def key(keys: Path) -> Path:
    return keys / "node-0"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("home")
    (made / "apps").mkdir()
    return made


@pytest.fixture(scope="module")
def fork_server(home: Path) -> Iterator[ForkServer]:
    made = forks(home, memory_mb=MEMORY_MB, processes=PROCESSES, network=False)
    made.start()
    yield made
    made.close()


def forks(home: Path, **limits: Any) -> ForkServer:
    scratch = Path(mkdtemp(dir=home))
    scratch.chmod(0o711)
    return ForkServer(AppLimits(readable=[str(home / "apps")], **limits), scratch)


@pytest.fixture
def link(fork_server: ForkServer, tmp_path: Path, home: Path) -> Iterator[StandinConnection]:
    with node_at_work(fork_server, tmp_path, home) as connection:
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


def do(link: StandinConnection, code: str, **more: Any) -> str:
    """What a hostile app gets out of this; it sets `result`."""
    return str(link.ask("execute", text=dedent(code), **more)["result"])


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


# Hostile apps ---------------------------------------------------------------------------------------------------------

PLANT = """
import os, pathlib
package = pathlib.Path.cwd() / "offbeat"
try:
    package.mkdir()
    (package / "__init__.py").write_text("open('MARK', 'w').write(open('KEY').read())")
except OSError as error:
    result = type(error).__name__
"""
KILL = """
import os, signal
keeper = os.getppid()
server = int(open(f"/proc/{keeper}/stat").read().rpartition(")")[2].split()[1])
def signalled(pid, number):
    try:
        os.kill(pid, number)
    except PermissionError:
        return "refused"
    return "sent"
result = " ".join([signalled(keeper, 9), signalled(server, 9), signalled(NODE, 0), signalled(OTHER, 0)])
"""


@LANDLOCK
@SIGNALS
def test_an_app_cannot_plant_code_for_the_node_nor_kill_it(
    fork_server: ForkServer, link: StandinConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attack that stole the key: write `offbeat/__init__.py` in the node's working directory, kill the parent."""
    monkeypatch.chdir(tmp_path)
    other, server = link.ask("echo", run_id=RUN + 1)["pid"], fork_server.pid
    assert do(link, PLANT) == "PermissionError"
    attack = KILL.replace("NODE", str(os.getpid())).replace("OTHER", str(other))
    assert do(link, attack) == "refused refused refused refused"
    assert fork_server.alive and fork_server.pid == server
    assert link.ask("echo", run_id=RUN + 1)["pid"] == other and not (tmp_path / "offbeat").exists()


def test_planted_code_is_not_run_and_other_runs_go_on_when_the_fork_server_is_killed(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an app could do where the kernel does not prevent it; here the test does it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "offbeat").mkdir()
    (tmp_path / "offbeat" / "__init__.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').write('planted')")
    made = forks(home)
    with node_at_work(made, tmp_path, home) as link:
        before = link.ask("echo")
        first = made.pid
        os.kill(first, signal.SIGKILL)
        while made.alive:
            time.sleep(0.01)
        after, new = link.ask("echo"), link.ask("echo", run_id=RUN + 1)
        assert (after["pid"], after["count"]) == (before["pid"], 2), "the run goes on"
        assert new["count"] == 1 and made.pid != first, "and new ones start"
        link.error("kill")
        assert link.ask("echo")["count"] == 3, "and a child without a fork server is still replaced"
    made.close()
    assert not (tmp_path / "mark").exists()


@LANDLOCK
def test_an_app_reads_and_writes_only_what_it_was_given(
    link: StandinConnection, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = do(link, "import os; result = os.environ['TMPDIR']", run_id=RUN + 1)
    mine = tmp_path / ".ssh" / "id_ecdsa"
    mine.parent.mkdir()
    mine.write_text("secret")
    secrets = ["/etc/shadow", str(mine), str(keys / "superlink.key"), str(keys / "node-0"), other]
    packages = [str(Path(np.__file__).with_name("planted.py")), str(Path(offbeat.__file__).with_name("planted.py"))]
    places = [*packages, str(tmp_path / "x"), "/tmp/offbeat-planted", f"{other}/x", "/proc/sys/kernel/core_pattern"]
    found = do(
        link,
        f"""
        import os, tempfile
        result = []
        for path, mode in [(path, "rb") for path in {secrets!r}] + [(path, "ab") for path in {places!r}]:
            try:
                os.listdir(path) if os.path.isdir(path) else open(path, mode).close()
                result.append(path)
            except PermissionError:
                pass
        with tempfile.TemporaryFile() as own:
            own.write(b"1")
        assert os.environ["HOME"] == os.environ["TMPDIR"] == tempfile.gettempdir()
        """,
    )
    assert found == "[]"


def test_nothing_of_a_run_outlives_it(link: StandinConnection) -> None:
    """Processes in sessions of their own, orphans, and one that replaces itself by a new process all the time."""
    pids = do(
        link,
        """
        import os, subprocess, sys, time
        sleep, again = ["sleep", "600"], "import os; [os._exit(0) for _ in iter(int, 1) if os.fork()]"
        found = [subprocess.Popen(sleep, start_new_session=True).pid]
        orphan = subprocess.check_output(["sh", "-c", "setsid sleep 601 >/dev/null 2>&1 & echo $!"])
        found += [int(orphan), subprocess.Popen([sys.executable, "-I", "-S", "-c", again]).pid]
        result = " ".join(map(str, found))
        """,
    )
    processes = [psutil.Process(int(pid)) for pid in pids.split()[:2]]
    assert all(process.is_running() for process in processes)
    assert link.error("kill") == (8, "the app's process is gone: it was ended by SIGKILL")
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


@pytest.mark.skipif(not can_cut_network(), reason="no filter for system calls on this machine")
def test_an_app_without_network_has_none(link: StandinConnection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        found = do(
            link,
            f"""
            import socket
            result = []
            for family, kind in [(2, 1), (2, 2), (10, 1), (10, 2), (16, 3), (17, 3)]:
                try:
                    socket.socket(family, kind).connect(("127.0.0.1", {door.getsockname()[1]}))
                    result.append(family)
                except PermissionError:
                    pass
            socket.socketpair()[0].close()  # between its own processes
            """,
        )
    assert found == "[]"


def test_an_app_gets_no_more_than_its_share(link: StandinConnection) -> None:
    """As root, the kernel enforces the number of processes only in a control group: the app is in one if it may be."""
    code = "import resource as r; result = r.getrlimit(r.RLIMIT_DATA)[1], r.getrlimit(r.RLIMIT_NPROC)[1]"
    data, processes = ast.literal_eval(do(link, code))
    assert data == MEMORY_MB * 2**20 and PROCESSES < processes != resource.getrlimit(resource.RLIMIT_NPROC)[1]
    capabilities = do(link, "result = open('/proc/self/status').read().partition('CapEff:')[2].split()[0]")
    assert int(capabilities, 16) == 0
    groups = do(link, "result = open('/proc/self/cgroup').read()")
    assert delegated() is None or groups.count(f"/offbeat-{os.getpid()}-") == len(delegated() or ())


@LANDLOCK
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
    with TemporaryDirectory() as name:
        home = Path(name)
        home.chmod(0o755)
        (home / "apps").mkdir()
        made = forks(home, user="nobody")
        as_another_user(made, tmp_path, home, key)
        made.close()


def as_another_user(made: ForkServer, tmp_path: Path, home: Path, key: Path) -> None:
    with node_at_work(made, tmp_path, home) as link:
        said = link.ask("open", text=str(key))
        ids = [line for line in Path(f"/proc/{said['pid']}/status").read_text().splitlines() if line[:4] in UID_AND_GID]
        account = pwd.getpwnam("nobody")
        assert [set(line.split()[1:]) for line in ids] == [{str(account.pw_uid)}, {str(account.pw_gid)}]
        assert said["secrets"] == "", "the app found a way"
        assert link.ask("echo")["count"] == 2


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
    """100 MB there and back. The child has the message, and numpy's copy of it; and then the reply with its copy."""
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
        "from offbeat.flower.node.sandbox import AppLimits\n"
        "from offbeat.flower.node.frames import OpenApp\n"
        "from pathlib import Path\n"
        f"fork_server = ForkServer(AppLimits(), Path({str(tmp_path)!r}))\n"
        "opening = OpenApp(run_id=1, node_id=1, series_id=1, node_config={}, run_config={}, app_id='a/b',\n"
        "                  app_version='1', app_hash='c', directory='nowhere')\n"
        "fork_server.child(opening, None, lambda _, body, parts: print(body, flush=True), lambda *_: None)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None and node.stdout.readline() == "Warm()\n"
        below = psutil.Process(node.pid).children(recursive=True)
        assert len(below) == 3, "the fork server, a keeper and its app"
        node.kill()
        _, alive = psutil.wait_procs(below, timeout=30)
        deadline = time.monotonic() + 30
        while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in alive):
            assert time.monotonic() < deadline, "left behind"
            time.sleep(0.1)
