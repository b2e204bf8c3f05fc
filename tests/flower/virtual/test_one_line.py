"""Users' apps with the one line of offbeat's, on a virtual clock: their clients stay as they are."""

from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from one_line import LINES, with_the_one_line

from offbeat.core.errors import InvalidInput
from offbeat.flower import AsyncServer, FedBuff
from offbeat.flower.virtual.run import simulate
from offbeat.flower.virtual.settings import AppSettings
from offbeat.results.result import Result


def run(app: Path, *run_config: str, **tables: Any) -> Result:
    given = {"nodes": 4, "fleet": {"name": "ratio", "ratio": 20.0}} | tables
    return simulate(app, AppSettings.parse(given), run_config=run_config)


SECOND = (1 + 1 / sqrt(2)) / 2
"""Of two equal devices each makes the same step; in the second version one of the two is stale by 1."""


def edit(app: Path, half: str, old: str, new: str) -> Path:
    (file,) = app.glob(f"*/{half}_app.py")
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return app


@pytest.mark.parametrize("name", LINES)
def test_users_apps_run_with_the_one_line(name: str, tmp_path: Path) -> None:
    result = run(with_the_one_line(name, tmp_path))
    assert (result.summary["label"], result.summary["faults"]) == ("fedbuff", 0)
    assert result.summary["updates_used"] >= 4
    assert [row["version"] for row in result.rows] == sorted({row["version"] for row in result.rows})


def test_mods_of_the_clients_are_called(tmp_path: Path) -> None:
    line = ("strategy.start(", "Async(FedBuff(buffer=2)).start(train_config={'clipping_norm': 0.05}, ")
    result = run(with_the_one_line("client-mods", tmp_path, line), nodes=2, fleet={"name": "ratio", "ratio": 1.0})
    assert [row["norm"] for row in result.rows] == pytest.approx([0.05, 0.05 * (1 + SECOND)], rel=1e-5)
    assert result.rows[-1]["by-mod"] == pytest.approx(1.0)


def test_named_trainings_are_called(tmp_path: Path) -> None:
    line = (
        "    nodes = list(grid.get_node_ids())\n",
        "    first = ArrayRecord({'w': Array(np.zeros(3))})\n"
        "    return Async(FedBuff(buffer=2), train_action='warm_up').start(grid, first, num_rounds=2)\n"
        "    nodes = []\n",
    )
    result = run(with_the_one_line("named-actions", tmp_path, line), nodes=2, fleet={"name": "ratio", "ratio": 1.0})
    assert [row["accuracy"] for row in result.rows] == pytest.approx([0.05, 0.05 * (1 + SECOND)])


# Before messages ------------------------------------------------------------------------------------------------------


def before_messages(tmp_path: Path, policy: str = "FedAvg()") -> Path:
    app = with_the_one_line("before-messages", tmp_path)
    return edit(app, "server", "FedBuff(buffer=2)", f"flower.{policy}")


def test_clients_that_fit_and_evaluate_give_the_means_of_flowers_own_server(tmp_path: Path) -> None:
    app = edit(before_messages(tmp_path), "client", ", 10, {", ", 10 * int(self.goal + 1), {")
    result = run(app, "num-server-rounds=1")
    assert result.summary["label"] == "fedavg"
    # Clients 0 to 3 move half of the way to their number, and weigh 1 to 4: the mean is (0 + 1 + 3 + 6) / 10 = 1.
    assert [row["loss"] for row in result.rows] == pytest.approx([(1 + 0 + 3 + 16) / 10])
    accuracy = (1 / 2 + 2 + 3 / 2 + 4 / 5) / 10  # 1 / (1 + loss)
    assert [row["accuracy"] for row in result.rows] == pytest.approx([accuracy])
    edit(app, "server", "= FedAvg(", "= FedAvg(evaluate_fn=lambda number, arrays, config: (float(arrays[0][0]), {}), ")
    # From 1 they move to (1 + number) / 2: the mean is (1 + 4 + 9 + 16) / 20.
    assert [row["loss"] for row in run(app).rows] == pytest.approx([0.0, 1.0, 1.5])


def test_the_strategy_gives_configs_evaluations_and_numbers_of_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = before_messages(tmp_path, "FedAsync(prox=0.25)")
    edit(
        app,
        "server",
        "        min_available_clients=2,\n",
        "        min_available_clients=2,\n"
        "        min_fit_clients=3,\n"
        "        fraction_evaluate=0.0,\n"
        "        on_fit_config_fn=lambda number: {'rate': 0.5 / number},\n"
        "        fit_metrics_aggregation_fn=lambda found: print('fit', found) or {'far': found[0][1]['distance']},\n"
        "        evaluate_fn=lambda number, arrays, config: (float(arrays[0][0]), {'accuracy': number / 10}),\n",
    )
    edit(app, "client", '"""Half of the way."""', 'print("config", sorted(config.items()))')
    edit(app, "server", 'context.run_config["fraction-fit"]', "0.0")
    result = run(app, "num-server-rounds=4", fleet={"name": "ratio", "ratio": 1.0})
    said = capsys.readouterr().out
    assert "config [('proximal_mu', 0.25), ('rate', 0.5), ('server-round', 1)]" in said
    assert "config [('proximal_mu', 0.25), ('rate', 0.25), ('server-round', 2)]" in said
    assert "fit [(10, {'distance': " in said
    assert [row["accuracy"] for row in result.rows] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert max(row["in_flight"] for row in result.rows) == 3  # of the four


def test_what_a_client_does_wrong_costs_only_its_own_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = before_messages(tmp_path, "FedBuff(buffer=2)")
    edit(
        app,
        "client",
        '"""Half of the way."""',
        "if self.goal == 0:\n            raise OSError('no disk')\n"
        "        if self.goal == 1:\n            return [np.zeros(2)], 10, {}\n"
        "        if self.goal == 2:\n            return [np.zeros(3, np.float32)], 10, {}",
    )
    result = run(app, fleet={"name": "ratio", "ratio": 1.0})
    assert result.rows[-1]["version"] == 2
    assert "no disk" in caplog.text
    assert "the array '0' is (2,) float64, not (3,) float64" in caplog.text
    assert "the array '0' is (3,) float32, not (3,) float64" in caplog.text


def test_the_strategys_own_rounds_are_said_not_to_be_called(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = before_messages(tmp_path)
    edit(
        app,
        "server",
        "def parts(context):",
        "class Saving(FedAvg):\n    def aggregate_fit(self, *given):\n        assert False\n\n\ndef parts(context):",
    )
    edit(app, "server", "strategy = FedAvg(", "strategy = Saving(")
    run(app)
    assert "aggregate_fit of Saving will not be called" in caplog.text


@pytest.mark.parametrize("name", ["quickstart-numpy", "before-messages"])
def test_a_users_server_compares_updates_with_its_own_training(name: str, tmp_path: Path) -> None:
    """A server that does not move counts every update as no movement."""
    defended = with_the_one_line(name, tmp_path / "defended")
    made = "AsyncServer(FedBuff(buffer=2), strategy" if name == "before-messages" else "Async(FedBuff(buffer=2)"
    trust = "trust={'combine': 'zeno++'}, trusted_fn=lambda version, arrays: arrays"
    edit(defended, "server", made, f"{made}, {trust}")
    plain = run(with_the_one_line(name, tmp_path / "plain"))
    result = run(defended)
    assert result.rows[-1]["updates_used"] == plain.rows[-1]["updates_used"] > 0
    assert len({row["loss"] for row in result.rows}) == 1 < len({row["loss"] for row in plain.rows})


def test_async_in_the_place_of_an_old_strategy_is_refused_in_a_sentence(tmp_path: Path) -> None:
    app = before_messages(tmp_path)
    edit(app, "server", "server=AsyncServer(flower.FedAvg(), strategy)", "strategy=Async(flower.FedAvg())")
    with pytest.raises(InvalidInput, match=r"ServerAppComponents\(server=AsyncServer\(policy, strategy\)"):
        run(app)


def test_a_strategy_that_adds_noise_in_rounds_is_refused() -> None:
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 2)
    with pytest.raises(InvalidInput, match="cannot use DifferentialPrivacyServerSideFixedClipping"):
        AsyncServer(FedBuff(buffer=2), private)
