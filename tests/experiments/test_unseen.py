"""Ratios of `auto` to the best tuned rival, worked out by hand."""

from math import inf

from experiments import unseen
from experiments.harness.measurements import Measurement

PART = "digits, Zipf"


def runs(method: str, *times: float, part: str = PART) -> list[Measurement]:
    return [
        Measurement(part=part, method=method, seed=seed, values={"time_to_target": time})
        for seed, time in enumerate(times)
    ]


def test_auto_is_held_against_the_fastest_tuned_rival() -> None:
    found = runs("fedbuff", 100.0, 80.0, 60.0) + runs("fedavg", 90.0, 70.0, inf) + runs("auto, the rate", 40.0, 88.0)
    found += runs("auto, polyak", inf) + runs("fedbuff", inf, part="digits, exponential")  # nothing to compare with
    found += runs("auto, the rate", 10.0, part="digits, exponential")
    assert unseen.best_rival(found, PART) == ("fedbuff", 80.0)
    assert unseen.over_best(found, PART, "auto, the rate") == 64 / 80
    assert unseen.over_best(found, "digits, exponential", "auto, the rate") is None
    assert "| digits, Zipf | fedbuff | 80 | - | 0.80 | - | never |" in unseen.table(found)
    assert unseen.findings(found).splitlines() == [
        "- `auto`, the rate: 0.80 (0.80 to 0.80) times the time of the best tuned rival.",
        "- `auto`, polyak: never (never to never) times the time of the best tuned rival.",
    ]
