"""`offbeat plan`: the plan is the policy's own, printed and drawn before anything is trained."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import offbeat
from offbeat.cli import app
from offbeat.comparison.deadline_plan import gradient_constants, plan_of
from offbeat.core.errors import InvalidInput
from offbeat.experiment.schema import Experiment
from offbeat.experiment.shipped import experiment_from
from offbeat.simulation.run import simulation_of

TABLE = {
    "stop": {"time": 40.0},
    "data": {"name": "digits", "devices": 8},
    "model": {"name": "mlp"},
    "local": {"batch_size": 16, "learning_rate": 0.5, "schedule": "inverse"},
    "fleet": {"name": "exponential", "slowest": 10.0, "fastest": 60.0},
}


@pytest.mark.parametrize("name", ["adel", "salf", "drop-stragglers", "heterofl"])
def test_the_plan_is_what_the_policy_will_do(name: str) -> None:
    experiment = Experiment.parse(TABLE | {"algorithm": {"name": name, "rounds": 15}})
    plan = plan_of(experiment)
    assert plan.deadlines.shape == (15,) and plan.batches.shape == plan.depth.shape == (15, 8)
    assert plan.deadlines.sum() <= 40.0 and (np.diff(plan.deadlines) <= 0).all()
    assert (plan.depth > 0).all() and (plan.depth <= 3).all()
    with simulation_of(experiment) as simulation:
        next(iter(simulation))  # the first round is ordered
        session = simulation.session
        assert session.timers == pytest.approx({"deadline": plan.deadlines[0]})
        orders = {flight.device: flight.order for flight in session.in_flight.values()}
    assert {device: order.batch_size for device, order in orders.items()} == dict(enumerate(plan.batches[0].tolist()))


def test_on_a_trace_depths_are_those_of_its_fixed_times_and_the_run_comes_as_deep(tmp_path: Path) -> None:
    trace = tmp_path / "devices.csv"
    trace.write_text("device,epoch_seconds\n" + "".join(f"{k},{5 + 20 * k}\n" for k in range(8)))
    fleet = {"name": "trace", "path": str(trace)}
    experiment = Experiment.parse(TABLE | {"fleet": fleet, "algorithm": {"name": "salf", "rounds": 15}})
    plan = plan_of(experiment)
    with simulation_of(experiment) as simulation:
        for _ in simulation:
            if simulation.session.version == 1:
                break
        done = {span.device: span.slices for span in simulation.spans if span.base == 0}
    assert done == {device: int(depth) for device, depth in enumerate(plan.depth[0])}
    assert len(set(done.values())) > 1
    assert any("fixed times" in remark for remark in plan.remarks)


def test_the_command_prints_draws_and_overwrites_nothing(tmp_path: Path) -> None:
    file, out = tmp_path / "experiment.toml", tmp_path / "plan.png"
    file.write_text(Experiment.parse(TABLE | {"algorithm": {"name": "adel", "rounds": 15}}).toml())
    result = CliRunner().invoke(app, ["plan", "deadlines", str(file), "--out", str(out), "--estimate", "2"])
    assert result.exit_code == 0, result.output
    assert "15 rounds in 40 s" in result.output and "gradient_variance" in result.output
    assert out.read_bytes().startswith(b"\x89PNG")
    for suffix, start in (("pdf", b"%PDF"), ("svg", b"<?xml")):
        drawn = CliRunner().invoke(app, ["plan", "deadlines", str(file), "--out", str(out.with_suffix(f".{suffix}"))])
        assert drawn.exit_code == 0 and out.with_suffix(f".{suffix}").read_bytes().startswith(start)
    refused = CliRunner().invoke(app, ["plan", "deadlines", str(file), "--out", str(out.with_suffix(".jpg"))])
    assert isinstance(refused.exception, InvalidInput) and ".png, .svg or .pdf" in str(refused.exception)
    again = CliRunner().invoke(app, ["plan", "deadlines", str(file), "--out", str(out)])
    assert isinstance(again.exception, InvalidInput) and "use --overwrite" in str(again.exception)


def test_what_has_no_plan_or_no_time_is_one_sentence() -> None:
    with pytest.raises(InvalidInput, match="'fedavg': it plans no deadlines"):
        plan_of(Experiment.parse(TABLE))
    with pytest.raises(InvalidInput, match="must exceed"):
        plan_of(Experiment.parse(TABLE | {"stop": {"time": 2.0}, "algorithm": {"name": "adel"}}))


def test_constants_are_measured_at_the_first_model() -> None:
    found = gradient_constants(Experiment.parse(TABLE | {"algorithm": {"name": "adel"}}), 3)
    assert found is not None
    assert found.gradient_variance > 0 and found.gradient_bound > 0


@pytest.mark.parametrize(
    "path", sorted((Path(offbeat.__file__).parent / "experiment" / "shipped_files").glob("deadlines-*.toml"))
)
def test_the_shipped_experiments_are_fair_and_feasible(path: Path) -> None:
    experiment = Experiment.load(path)
    names = list(experiment.compared) or experiment.sweep["algorithm.name"]
    times = experiment.sweep.get("stop.time", [experiment.stop.time])
    for time in times:
        each = [experiment.changed({"stop": {"time": time}}).for_algorithm(name, 0) for name in names]
        assert len({(str(one.local), str(one.fleet), str(one.network), str(one.data)) for one in each}) == 1
        with simulation_of(each[0]) as simulation:  # ADEL-FL, whose budget could be too short
            assert sum(simulation.session.state.deadlines) <= time


def test_the_page_on_deadlines_says_what_is_planned() -> None:
    plan = plan_of(experiment_from("deadlines-mlp"))
    page = (Path(__file__).parents[2] / "docs" / "algorithms" / "deadlines.md").read_text(encoding="utf-8")
    length, batch, share = plan.deadlines, plan.batches, plan.depth / plan.layers
    assert (
        f"`offbeat plan deadlines deadlines-mlp`: rounds shrink from {length[0]:.1f} s to {length[-1]:.1f} s, depth "
        f"from {100 * share[0].mean():.0f} % of the layers to {100 * share[-1].mean():.0f} %; batch sizes "
        f"{batch.min()} to {batch.max()}, by speed."
    ) in " ".join(page.split())
