"""The page docs/conformance.md, from real runs of other frameworks.

    python -m experiments.conformance.page run NAME     plays all traces to a framework and keeps what came out
    python -m experiments.conformance.page              writes the page from what is kept

Frameworks have conflicting requirements: run each in an environment of its own that also has offbeat.
"""

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.conformance import adapters
from offbeat.testing.verification import checked, load_traces

KEPT = Path(__file__).parent / "results"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
FRAMEWORKS = {
    "flower": ("Flower", "flwr"),
    "flgo": ("FLGo", "flgo"),
    "appfl": ("APPFL", "appfl"),
    "fedlab": ("FedLab", "fedlab"),
    "nvflare": ("NVIDIA FLARE (edge)", "nvflare"),
}
"""Title and package of each adapter."""
CAUSES = {
    ("flower", "server-adam"): "v starts at 0 instead of tau^2, and the step is bias-corrected as in Adam",
    ("flower", "server-adagrad"): "v starts at 0 instead of tau^2",
    ("flower", "server-yogi"): "v starts at 0 instead of tau^2",
    ("flgo", "hinge-beyond"): "the hinge is 1 / (a (s - b)), without + 1",
    ("appfl", "staleness-3"): "movements from the current model instead of the device's base",
    ("appfl", "buffers-of-two"): "movements from the current model instead of the device's base",
    ("fedlab", "hinge-beyond"): "the hinge is 1 / (a (s - b + 1))",
    ("fedlab", "weighted-by-samples"): "all clients have equal weights",
    ("fedlab", "two-of-three-devices"): "h subtracts the old model once, not once per client",
    **{
        ("nvflare", trace): "the weight is 1 / (1 + sqrt(1 + s)), a half for a fresh update"
        for trace in ("fresh", "staleness-3", "buffers-of-two", "server-learning-rate")
    },
}
"""Our reading of the framework's code, for each trace that deviates."""
TEXT = """# Conformance

`offbeat verify` plays short traces to every rule: uploads with their bases, and the model that must come out. The
numbers come from exact arithmetic that shares no code with the algorithms (`experiments/conformance`), and each step
says why (TOML files in `offbeat/testing/traces`).

## Check your own implementation

An adapter plays the traces to any implementation:

```python
class Mine:
    def __init__(self, size):
        self.size, self.waiting = size, []

    def start(self, parameters):
        self.model = parameters

    def upload(self, upload):  # has device, model, movement, base_version, base_parameters, staleness, samples
        self.waiting.append(upload.movement / (1 + upload.staleness) ** 0.5)
        if len(self.waiting) == self.size:
            self.model, self.waiting = self.model + sum(self.waiting) / self.size, []
        return self.model


def adapter(rule, settings, trace):
    return Mine(settings["buffer"]) if rule == "fedbuff" else None
```

`offbeat verify fedbuff --against my_module:adapter` names the first step that deviates, by how much, and the expected
arithmetic; the exit code is then 1. `timer(name)` and `lost(device)` are optional: traces that need them are skipped.
The number of devices is `len(trace.samples)`.
`offbeat verify my_policy:Mine` checks a policy of your own for determinism, resume, bounded memory and losses.

## Other frameworks

What their server code does with the same uploads, configured as close to the published rule as their options allow
(`experiments/conformance/adapters.py`), on the rules that they have. Differences may be intended. The factor compares
the first movement that differs with the expected one.

{table}

FLSim 0.1.0 does not import with Python 3.11. Plato's asynchronous algorithms are not part of its package. {python}; to
repeat a run, install the framework beside offbeat: `python -m experiments.conformance.page run NAME`.
"""


def run(name: str) -> None:
    """Play all traces to a framework and keep the outcomes."""
    results = []
    for trace in load_traces():
        outcome, words = checked(trace, getattr(adapters, name))
        if words.endswith("is not installed"):
            raise SystemExit(f"{name}: {words}")
        if outcome != "skipped":
            results.append({"rule": trace.algorithm, "trace": trace.name, "outcome": outcome, "words": words})
    kept = {"version": version(FRAMEWORKS[name][1]), "python": platform.python_version(), "results": results}
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def text() -> str:
    """The page from the kept outcomes."""
    rows = ["| framework | traces that hold | what differs |", "|---|---|---|"]
    pythons = set[str]()
    for name, (title, _) in FRAMEWORKS.items():
        kept: dict[str, Any] = json.loads((KEPT / f"{name}.json").read_text(encoding="utf-8"))
        pythons.add(kept["python"])
        counts: dict[str, list[int]] = {}
        causes: dict[str, str] = {}
        for each in kept["results"]:
            count = counts.setdefault(each["rule"], [0, 0])
            count[0] += each["outcome"] == "holds"
            count[1] += 1
            if each["outcome"] == "deviates":
                found = each["words"].partition(": expected")[2].partition(". The trace")[0].rpartition("]: ")[2]
                size = f" ({found.split()[0]})" if "x the expected" in found else ""
                causes.setdefault(f"{each['rule']}: {CAUSES.get((name, each['trace']), 'cause not found yet')}", size)
        held = ", ".join(f"{rule} {count}/{total}" for rule, (count, total) in counts.items())
        rows.append(f"| {title} {kept['version']} | {held} | {'; '.join(map(''.join, causes.items()))} |")
    return TEXT.format(table="\n".join(rows), python=f"Python {', '.join(sorted(pythons))}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        for framework in sys.argv[2:]:
            run(framework)
    else:
        PAGE.write_text(text(), encoding="utf-8")
