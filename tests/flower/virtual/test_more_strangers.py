"""Apps in the style of strangers: Hydra and Lightning, a `server_fn`, a `start_simulation` script; then with ours."""

from pathlib import Path
from shutil import copytree

import pytest

from offbeat.core.errors import InvalidInput
from offbeat.flower import AsyncServer, FedBuff
from offbeat.flower.compat import ClientProxy
from offbeat.flower.virtual.app import read_app
from offbeat.flower.virtual.injection import Injection, policy_named
from offbeat.flower.virtual.run import simulate
from offbeat.flower.virtual.script import Script
from offbeat.flower.virtual.settings import AppSettings

APPS = Path(__file__).parents[2] / "flower_apps"
SETTINGS = AppSettings.parse({"nodes": 3, "fleet": {"name": "ratio", "ratio": 20.0}})


@pytest.mark.filterwarnings("ignore::Warning")  # theirs
def test_hydra_and_lightning() -> None:
    pytest.importorskip("hydra", reason="needs hydra-core: pip install hydra-core")
    pytest.importorskip("lightning", reason="needs lightning: pip install lightning")
    rounds = simulate(APPS / "hydra-lightning", SETTINGS, run_config=["overrides='fl.rounds=2 model.hidden=8'"])
    assert [row["version"] for row in rounds.rows] == [1, 2]
    ours = simulate(APPS / "hydra-lightning", SETTINGS, injection=Injection(policy_named("fedbuff"), seed=0))
    assert (ours.summary["label"], ours.summary["target_metric"], ours.rows[-1]["version"]) == ("fedbuff", "val_acc", 2)
    assert ours.rows[-1]["evaluators"] == 3


def test_a_server_fn_with_a_strategy_of_its_own(tmp_path: Path) -> None:
    app = read_app(APPS / "server-fn")
    assert app.nodes == 4
    rounds = simulate(app, SETTINGS)
    assert rounds.rows[-1]["accuracy"] > rounds.rows[0]["accuracy"] > 0.3
    changed = copytree(APPS / "server-fn", tmp_path / "app")
    server = changed / "server_fn_app" / "server.py"
    line = "ServerAppComponents(server=AsyncServer(FedBuff(buffer=2), strategy), config=config)"
    text = server.read_text().replace("ServerAppComponents(strategy=strategy, config=config)", line)
    server.write_text("from offbeat.flower import AsyncServer, FedBuff\n" + text)
    ours = simulate(changed, SETTINGS, run_config=["num-server-rounds=8"])
    assert (ours.summary["label"], ours.rows[-1]["version"]) == ("fedbuff", 8)
    assert ours.rows[-1]["accuracy"] > 0.5


def test_a_start_simulation_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rounds,) = Script(APPS / "start-simulation" / "sim.py", SETTINGS).run(["--rounds", "2"])
    assert [row["version"] for row in rounds.rows] == [1, 2]
    text = (APPS / "start-simulation" / "sim.py").read_text()
    line = "server=AsyncServer(FedBuff(buffer=2), strategy),"
    text = "from offbeat.flower import AsyncServer, FedBuff\n" + text.replace("strategy=strategy,", line)
    (tmp_path / "sim.py").write_text(text)
    (ours,) = Script(tmp_path / "sim.py", SETTINGS).run(["--rounds", "6"])
    assert (ours.summary["label"], ours.rows[-1]["version"]) == ("fedbuff", 6)
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("accuracies")]
    assert len(printed) == 2


def test_flowers_own_start_simulation_has_no_grid_and_says_so() -> None:
    server = AsyncServer(FedBuff(buffer=2))
    server.client_manager().register(_client("0"))  # what start_simulation registers: a proxy without a grid
    with pytest.raises(InvalidInput, match=r"start_simulation has none: call run_simulation"):
        server.fit(1, None)


def _client(name: str) -> ClientProxy:
    class Proxy(ClientProxy):
        """A client that is not behind a grid."""

    Proxy.__abstractmethods__ = frozenset()
    return Proxy(name)  # type: ignore[abstract]
