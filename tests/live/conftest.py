"""One browser for all tests of pages, and one comparison that they look at."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offbeat import Experiment, run

EVIL = "<script>document.title='owned'</script>"


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with runs of two algorithms, one of them with a name that is a script."""
    root = tmp_path_factory.mktemp("results")
    base: dict[str, Any] = {
        "stop": {"time": 40.0},
        "data": {"name": "digits", "devices": 12},
        "model": {"name": "logistic"},
        "failures": {"vanish": 0.1, "rejoin_seconds": 5.0},
        "evaluation": {"every_seconds": 4.0},
        "execution": {"executor": "sequential"},
    }
    for algorithm in (
        {"name": "fedavg", "cohort": 4},
        {"name": "fedbuff", "buffer": 2, "concurrency": 4, "label": EVIL},
    ):
        for seed in (0, 1):
            table = base | {"seed": seed, "algorithm": algorithm}
            run(Experiment.parse(table), root / "both" / f"{algorithm['name']}-seed{seed}")
    (root / "both" / "config.toml").write_text("seed = 0\n")
    return root


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium; tests that need it are skipped where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()
