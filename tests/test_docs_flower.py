"""What the page for users of Flower says is so: its code runs, and its table has every algorithm."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from app_grid import AppGrid, adding_app
from flwr.app import Context, RecordDict
from torch import nn

from offbeat.algorithms import POLICIES
from offbeat.flower.strategy.settings import StrategySettings

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "how-to" / "flower.md").read_text()


def test_the_one_line_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    task = ModuleType("my_project.task")
    task.network = lambda: nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_project", ModuleType("my_project"))
    monkeypatch.setitem(sys.modules, "my_project.task", task)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    short = block.replace("num_rounds=100", "num_rounds=2") + "    return result\n"
    names: dict[str, object] = {}
    exec(short, names)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={}, series_id=1)
    main = names["main"]
    assert callable(main)
    result = main(AppGrid(dict.fromkeys(range(5), 1.0), adding_app({})), context)
    state = result.arrays.to_torch_state_dict()
    assert state["1.num_batches_tracked"].dtype == torch.int64
    task.network().load_state_dict(state)


def test_the_table_has_every_algorithm_once() -> None:
    table = PAGE.partition("## What each policy needs")[2].partition("\n## ")[0]
    named = {name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)", row)}
    assert named == {kind.__name__ for kind in POLICIES.values()}


def test_the_page_names_every_setting() -> None:
    internal = {"target_metric", "target_direction", "checkpoint_seconds"}
    assert all(f"`{name}`" in PAGE for name in StrategySettings.model_fields if name not in internal)
