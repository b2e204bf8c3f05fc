"""What goes wrong in an app: its devices' faults are named and the run goes on, its own are one sentence."""

import socket
import threading
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import uvicorn

from offbeat.core.errors import InvalidInput
from offbeat.flower import compat
from offbeat.flower.virtual.app import read_app
from offbeat.flower.virtual.run import AppFailed, simulate
from offbeat.flower.virtual.settings import AppSettings
from offbeat.results.result import Result, read_run

APPS = Path(__file__).parents[2] / "flower_apps"
RETURN = (
    '    return Message(RecordDict({"arrays": ArrayRecord({"body": Array(body)}), "metrics": metrics}), reply_to=msg)'
)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return copytree(APPS / "personal-state", tmp_path / "app")


def edit(app: Path, half: str, old: str, new: str) -> None:
    file = app / "personal_state" / f"{half}_app.py"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def start(app: Path, out: Path | None = None, *, nodes: int = 3, **tables: Any) -> Result:
    fleet = {"name": "ratio", "ratio": 1.0}
    return simulate(app, AppSettings.parse({"nodes": nodes, "fleet": fleet} | tables), out)


def test_a_client_that_raises_is_named_and_the_run_goes_on(
    app: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(
        app,
        "client",
        RETURN,
        f"    if partition == 1 and counts['trainings'] == 1:\n        raise OSError('no disk')\n{RETURN}",
    )
    edit(app, "server", "replies = list(replies)", "replies = [each for each in replies if each.has_content()]")
    result = start(app, tmp_path / "run")
    assert result.rows[-1]["version"] == 3
    # It raises in every round: what a message changed in the state before it raised is undone.
    assert (result.summary["updates_used"], result.summary["updates_lost"]) == (6, 3)
    assert result.summary["faults"] == 3
    assert "Device 1, message" in caplog.text
    assert "no disk" in caplog.text
    refused = [line.split(",")[6] for line in (tmp_path / "run" / "devices.csv").read_text().splitlines()]
    assert refused == ["refused", "0", "3", "0"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"num-examples": 1', '"examples": 1', "no metric 'num-examples'"),
        (
            "Array(body)",
            'Array(body.astype("float32"))',
            "has type float32 and shape (4,), but was sent with type float64",
        ),
        ("Array(body)", "Array(body[:3])", "and shape (3,)"),
        ('"body": Array(body)', '"soul": Array(body)', "other names"),
    ],
)
def test_a_reply_that_strategies_cannot_use_is_named(
    app: Path, caplog: pytest.LogCaptureFixture, old: str, new: str, said: str
) -> None:
    edit(app, "client", old, new)
    with suppress(AppFailed):  # what Flower's strategy makes of it is its own matter
        start(app)
    assert said in caplog.text
    assert "Device 0, message" in caplog.text


def test_a_server_that_raises_leaves_what_it_had_come_to(app: Path, tmp_path: Path) -> None:
    edit(app, "server", "replies = list(replies)", "replies = list(replies)\n        assert server_round < 3, 'enough'")
    with pytest.raises(AppFailed, match=r"ServerApp of personal-state raised AssertionError at .* seconds: enough"):
        start(app, tmp_path / "run")
    left = read_run(tmp_path / "run")
    assert [row["version"] for row in left.rows] == [0, 1, 2]
    assert left.summary["stopped_by"] == "AssertionError in the ServerApp"


def test_a_server_that_never_returns_is_ended(app: Path) -> None:
    edit(app, "server", 'num_rounds=context.run_config["num-server-rounds"]', "num_rounds=10**9")
    assert start(app, stop={"time": 50.0}).summary["stopped_by"] == "time"
    result = start(app, stop={"messages": 7})
    assert (result.summary["stopped_by"], result.summary["messages"]) == ("messages", 7)
    assert result.rows[-1]["version"] == 2


def test_a_server_that_wants_more_nodes_than_there_are_is_ended(app: Path) -> None:
    edit(app, "server", "fraction_evaluate=0.0", "fraction_evaluate=0.0, min_available_nodes=5")
    assert start(app).summary["stopped_by"] == "nothing left to happen"


def test_a_client_that_sleeps_takes_virtual_time_and_no_real_time(app: Path) -> None:
    plain = start(app)
    edit(app, "client", "counts = context", "__import__('time').sleep(100.0)\n    counts = context")
    slept = start(app)  # nine messages
    assert slept.rows[-1]["time"] - plain.rows[-1]["time"] == pytest.approx(300.0)


def test_an_app_that_reads_real_time_is_told(app: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(app)
    assert "real time" not in caplog.text
    edit(app, "server", "app = ServerApp()", "import datetime\n\nBEGAN = datetime.date.today()\napp = ServerApp()")
    start(app)
    assert "The app reads real time, not virtual time, in server_app.py:" in caplog.text
    assert " date.today" in caplog.text


def test_a_client_in_a_worker_may_have_processes_of_its_own(app: Path) -> None:
    loader = (
        "__import__('multiprocessing').get_context('fork').Process(target=str)\n    loader.start()\n    loader.join()"
    )
    edit(app, "client", "counts = context", f"loader = {loader}\n    counts = context")
    assert start(app, clients={"workers": 1}).summary["faults"] == 0


def test_seeds_of_clients_do_not_reach_the_server(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(app, "client", "counts = context", "import random; random.seed(0)\n    counts = context")
    edit(
        app,
        "server",
        "replies = list(replies)",
        "import random; print('drew', random.random()); replies = list(replies)",
    )
    start(app)
    drawn = [line for line in capsys.readouterr().out.splitlines() if line.startswith("drew")]
    assert len(set(drawn)) == 3


def test_what_is_not_an_app_is_said_in_a_sentence(tmp_path: Path, app: Path) -> None:
    with pytest.raises(InvalidInput, match=r"is not a Flower app: it has no pyproject.toml"):
        read_app(tmp_path)
    with pytest.raises(
        InvalidInput, match="unknown key of the run config 'num-rounds': did you mean 'num-server-rounds'"
    ):
        read_app(app, ["num-rounds=3"])
    with pytest.raises(InvalidInput, match="write it as"):
        read_app(app, ["num-server-rounds"])
    assert read_app(app / "pyproject.toml", ["num-server-rounds=7"]).run_config["num-server-rounds"] == 7
    edit(app, "client", "import numpy", "import nonexistent_module\nimport numpy")
    with pytest.raises(InvalidInput, match="module 'nonexistent_module' is not installed"):
        start(app)
    for moved in ("from flwr.common import Nothing", "import flwr.supernowhere"):
        edit(app, "client", "import nonexistent_module", moved)
        with pytest.raises(InvalidInput, match=rf"This is Flower {version('flwr')}; the app says it is for Flower ==1"):
            start(app)
        edit(app, "client", moved, "import nonexistent_module")
    text = (app / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(text.replace("server_app:app", "server_app:nothing"))
    with pytest.raises(InvalidInput, match="Unable to load attribute nothing"):
        start(app)
    (app / "pyproject.toml").write_text("[project]\nname = 'library'\nversion = '1'\n")
    with pytest.raises(InvalidInput, match=r"is not a Flower app: .*Missing \[tool.flwr.app\] section"):
        read_app(app)


def test_if_every_client_raises_the_run_fails_with_one_traceback_and_a_count(
    app: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit(app, "client", RETURN, f"    raise OSError('no disk')\n{RETURN}")
    edit(app, "server", "replies = list(replies)", "replies = [each for each in replies if each.has_content()]")
    with pytest.raises(AppFailed, match=r"^all 9 calls of the ClientApp raised an exception, first: OSError: no disk"):
        start(app)
    assert caplog.text.count("Traceback") == 1
    assert "in 9 of 9 calls" in caplog.text


def test_the_number_of_nodes_is_that_of_flowers_federation(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    assert read_app(app).nodes is None
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        '[superlink]\ndefault = "mine"\n[superlink.mine]\naddress = ":local:"\noptions.num-supernodes = 12\n'
    )
    assert read_app(app).nodes == 12
    text = (app / "pyproject.toml").read_text()
    table = '\n[tool.flwr.federations]\ndefault = "here"\n[tool.flwr.federations.here]\noptions.num-supernodes = 7\n'
    (app / "pyproject.toml").write_text(text + table)
    assert read_app(app).nodes == 7
    assert read_app(app, federation_config=["num-supernodes=50"]).nodes == 50
    with pytest.raises(InvalidInput, match="num-supernodes=50"):
        read_app(app, federation_config=["verbose=true"])


@pytest.mark.skipif(compat._minor(version("flwr")) < compat.FOR_NODES, reason="needs the Control API over HTTP")
def test_the_number_of_nodes_that_flwr_federation_simulation_config_has_stored_is_asked_for(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.proto.control_pb2 import ConfigureSimulationFederationRequest
    from flwr.proto.federation_config_pb2 import SimulationConfig
    from flwr.superlink import main
    from flwr.superlink.federation import NoOpFederationManager

    monkeypatch.setattr(main, "get_federation_manager", lambda **_: NoOpFederationManager(simulation=True))
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        server = uvicorn.Server(uvicorn.Config(main.create_app(), log_level="warning", ws="none"))
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        serving.start()
        try:
            (tmp_path / "home").mkdir()
            (tmp_path / "home" / "config.toml").write_text(
                f'[superlink]\ndefault = "mine"\n[superlink.mine]\naddress = "{host}:{port}"\ninsecure = true\n'
            )
            with closing(compat.init_http_client_from_connection(compat.read_superlink_connection())) as client:
                config = SimulationConfig(num_supernodes=34)
                client.ConfigureSimulationFederation(ConfigureSimulationFederationRequest(config=config))
            assert read_app(app).nodes == 34
            assert read_app(app, federation_config=["num-supernodes=50"]).nodes == 50
        finally:
            server.should_exit = True
            serving.join()
    assert read_app(app).nodes is None  # the SuperLink is gone, and with it what it had stored


def test_settings_are_checked_before_anything_is_written(app: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"unknown key 'work.epoch': did you mean 'epochs'"):
        AppSettings.parse({"work": {"epoch": 1}})
    with pytest.raises(InvalidInput, match="have no slowness"):
        start(app, tmp_path / "run", work={"seconds": "measured"}, fleet={"name": "bernoulli", "success": 0.5})
    with pytest.raises(InvalidInput, match=r"evaluation\.target_direction"):
        start(app, tmp_path / "run", evaluation={"target_metric": "epsilon"})
    assert not (tmp_path / "run").exists()
    start(app, tmp_path / "run", stop={"messages": 3})
    with pytest.raises(InvalidInput, match="already holds a run: choose another directory or pass overwrite"):
        start(app, tmp_path / "run")
