"""How the tests are spread over the machine's cores.

The plain command `pytest` runs the whole suite in as many processes as there are cores. Naming a file or a folder runs
it in this process, without the seconds that it takes to start others; `-n 2` or `-n 0` says otherwise.
"""

import os

import pytest

MOST_WORKERS = 4
"""More would compete for memory: each worker loads torch."""

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is loaded: each worker has a core to itself, and no more
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What `-n auto` means here: one worker for each core if the whole suite is run, else none."""
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    cores = os.cpu_count() or 1
    return min(cores, MOST_WORKERS) if whole and cores > 1 else 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with real processes go to one worker, one after the other: they time out if they compete.

    They come first, because they take longest.
    """
    items.sort(key=lambda item: item.get_closest_marker("processes") is None)
    for item in items:
        if item.get_closest_marker("processes"):
            item.add_marker(pytest.mark.xdist_group("processes"))
