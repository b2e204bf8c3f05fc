"""How the tests are spread over the machine's cores.

The plain command `pytest` runs the whole suite in one process more than there are cores. Naming a file or a folder runs
it in this process, without the seconds that it takes to start others; `-n 2` or `-n 0` says otherwise.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

MOST_WORKERS = 4
"""More would compete for memory: each worker loads torch."""

LONG = (
    "tests/test_docs_real_nodes.py",
    "tests/test_contributing.py",
    "tests/test_docs.py",
    "tests/training/test_processes.py",
    "tests/test_notebook.py",
    "tests/simulation/test_run.py",
    "tests/results/test_lock.py",
    "tests/test_cli.py",
    "tests/test_compare.py",
    "tests/test_api.py",
    "tests/experiments/",
    "tests/test_torture.py",
    "tests/data/test_published_files.py",
    "tests/flower/test_warm_devices.py",
)
"""Tests that run commands as users do: they are begun early, so that none is left to one worker at the end."""

TOGETHER = ("tests/comparison/",)
"""Files whose tests look at one and the same search, which is made once if they are on one worker."""

collect_ignore_glob = ["tests/flower_apps/*"]
"""Apps that tests run; they are imported as Flower does it, each from its own directory."""

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is loaded: each worker has a core to itself, and no more
    os.environ.setdefault("OMP_NUM_THREADS", "1")


settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # no test is timed: another worker may have the core


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` where torch finds none; `pytest -m gpu` runs them wherever one is."""
    if item.get_closest_marker("gpu"):
        import torch

        if not (torch.cuda.is_available() or torch.backends.mps.is_available()):
            pytest.skip("torch finds no GPU here")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long tests come first, in the order above."""
    rank = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: min((rank[name] for name in LONG if item.nodeid.startswith(name)), default=len(LONG)))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` means here, if the whole suite is run: a worker for each core, and one that mostly waits.

    That is the one with the tests of real processes.
    """
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return min((os.cpu_count() or 1) + 1, MOST_WORKERS) if whole else 0


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests with real processes go to one worker, one after the other: they time out if they compete.

    The scheduler gives out the largest scope first, so they come first: they take longest. (The group marks of xdist do
    the same, but not with every version of pytest.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class ProcessesApart(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/processes/"):
                return "processes"
            return nodeid.split("::")[0] if nodeid.startswith(TOGETHER) else nodeid

    return ProcessesApart(config, log)
