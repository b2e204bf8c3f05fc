"""While the package is rearranged: every shipped experiment gives the same `metrics.jsonl` bytes as before."""

import hashlib
import json
from pathlib import Path

import pytest

import offbeat

DIGESTS = Path(__file__).parent / "digests.json"
SHIPPED = sorted(next(Path(offbeat.__file__).parent.rglob("demo.toml")).parent.glob("*.toml"))
SHIPPED = [path for path in SHIPPED if path.stem != "smoke"]  # whose own test is tests/comparison/test_smoke.py
KNOWN: dict[str, str] = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}


def runs() -> "dict[str, offbeat.Experiment]":
    found = {}
    for path in SHIPPED:
        experiment = offbeat.Experiment.load(path)
        short = {"stop": {"updates": 100}, "execution": {"executor": "sequential"}}
        for name in experiment.compared:
            found[f"{path.stem} {name}"] = experiment.for_algorithm(name, 0).changed(short)
        if experiment.sweep:
            for name in experiment.sweep.get("algorithm.name", [experiment.algorithm.name]):
                found[f"{path.stem} {name}"] = experiment.changed({"algorithm": {"name": name}, **short})
        if not experiment.compared and not experiment.sweep:
            found[path.stem] = experiment.changed({"execution": {"executor": "sequential"}})
    return found


RUNS = runs()


@pytest.mark.parametrize("name", RUNS)
def test_metrics_are_the_same_bytes_as_before(name: str, tmp_path: Path) -> None:
    offbeat.run(RUNS[name], tmp_path / "run")
    digest = hashlib.sha256((tmp_path / "run" / "metrics.jsonl").read_bytes()).hexdigest()
    if name not in KNOWN:
        KNOWN[name] = digest
        DIGESTS.write_text(json.dumps(KNOWN, indent=1) + "\n")
    assert digest == KNOWN[name]
