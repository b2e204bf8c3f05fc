"""Golden numbers of every rule: ours agree, the files are those of exact arithmetic, and deviations are named."""

import json
from collections import Counter
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from experiments.conformance import adapters, page, scripts
from offbeat.algorithms import POLICIES
from offbeat.algorithms.about import about_of
from offbeat.core.errors import InvalidInput
from offbeat.testing.verification import (
    PolicyUnderTest,
    Trace,
    TraceUpload,
    checked,
    deviation,
    load_traces,
    our_adapter,
    read_traces,
)

TRACES = {f"{trace.algorithm}-{trace.name}": trace for trace in load_traces()}
TWICE = (
    "fedavg", "fedbuff", "ca2fl", "fadas", "delay-adaptive", "ringmaster", "fedstaleweight", "fedfa",
    "delayed-nesterov", "area", "ace", "fedstale", "fedasmu", "fedssmu", "seafl", "seafl2", "sfl", "audg", "psurdg",
    "adel",
)  # fmt: skip
"""Algorithms with at least two traces."""


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_our_rules_give_the_golden_numbers(trace: Trace) -> None:
    assert deviation(trace, PolicyUnderTest(trace)) is None


def test_every_algorithm_has_traces() -> None:
    count = Counter(trace.algorithm for trace in TRACES.values())
    missing = POLICIES.keys() - count.keys()
    assert not missing, f"{missing}: add a rule to experiments/conformance/exact.py and a script to scripts.py"
    assert all(count[name] > 1 for name in TWICE)


def test_the_page_is_made_from_the_kept_runs() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.text()


@pytest.mark.filterwarnings("ignore")
def test_flowers_own_strategies_are_played() -> None:
    kept = json.loads((page.KEPT / "flower.json").read_text())
    outcomes = {trace.name: checked(trace, adapters.flower) for trace in load_traces(["fedavg"])}
    assert outcomes == {each["trace"]: (each["outcome"], each["words"]) for each in kept["results"]}
    assert checked(TRACES["fedbuff-fresh"], adapters.flower) == ("skipped", "no such strategy")


@pytest.mark.parametrize("name", sorted(page.FRAMEWORKS.keys() - {"flower"}))
def test_a_framework_that_is_not_installed_is_skipped_with_a_reason(name: str) -> None:
    if find_spec(page.FRAMEWORKS[name][1]):
        pytest.skip(f"{name} is installed")
    outcome, reason = checked(TRACES["fedbuff-fresh"], getattr(adapters, name))
    assert outcome == "skipped" and reason.endswith("is not installed")


def test_the_files_come_from_exact_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["scripts", "--check"])
    assert scripts.main() == 0


@pytest.mark.parametrize("name", sorted({trace.algorithm for trace in TRACES.values()}))
def test_a_file_names_the_provenance_of_its_algorithm(name: str) -> None:
    assert {trace.provenance for trace in load_traces([name])} == {about_of(POLICIES[name]).provenance}


# Implementations that deviate -----------------------------------------------------------------------------------------


class Buffered:
    """FedBuff as others wrote it, with a choice of mistakes."""

    def __init__(self, size: int, mistake: str) -> None:
        self.size, self.mistake, self.waiting = size, mistake, list[Any]()

    def start(self, parameters: Any) -> None:
        self.model = parameters

    def upload(self, upload: TraceUpload) -> Any:
        base = self.model if self.mistake == "current model" else upload.base_parameters
        scale = {"no staleness": 1.0, "1 + sqrt": 1 / (1 + upload.staleness**0.5)}
        self.waiting.append(scale.get(self.mistake, (1 + upload.staleness) ** -0.5) * (upload.model - base))
        if len(self.waiting) == self.size:
            divisor = self.size**2 if self.mistake == "K twice" else self.size
            self.model, self.waiting = self.model + sum(self.waiting) / divisor, []
        return self.model


@pytest.mark.parametrize(
    ("mistake", "name", "words"),
    [
        ("no staleness", "staleness-3", "after step 4 (upload of device 1, base 0, staleness 3): expected [8, 6], got"),
        ("no staleness", "staleness-3", "[12, 10]: 2x the expected movement. The trace: [4, 2] + (1/sqrt(1+3)"),
        ("1 + sqrt", "staleness-3", "0.7321x the expected movement"),
        (
            "K twice",
            "fresh",
            "after step 2 (upload of device 1, base 0, staleness 0): expected [2, 2], got [1, 1]: 0.5x",
        ),
        ("current model", "staleness-3", "a movement in another direction"),
    ],
)
def test_the_first_deviation_is_named(mistake: str, name: str, words: str) -> None:
    trace = TRACES[f"fedbuff-{name}"]
    found = deviation(trace, Buffered(trace.settings["buffer"], mistake))
    assert found is not None and found.startswith(f"fedbuff, trace {name}, ") and words in found


def test_an_implementation_without_mistakes_holds() -> None:
    for name in ("fresh", "staleness-3", "buffers-of-two"):
        assert deviation(TRACES[f"fedbuff-{name}"], Buffered(TRACES[f"fedbuff-{name}"].settings["buffer"], "")) is None


@pytest.mark.parametrize(
    ("algorithm", "method", "wrong"),
    [
        ("fedbuff", "scale", lambda self, staleness: 1 / (1 + staleness)),
        ("fedasync", "scale", lambda self, staleness: 1.0),
        ("fedavg", "weight", lambda self, update: 1.0),
        ("fedstaleweight", "weight_at", lambda self, staleness: float(staleness + 1)),
        ("delay-adaptive", "weight_at", lambda self, staleness: 1.0),
        ("ringmaster", "limit", lambda self, version: 99),
        ("fadas", "step", lambda self, staleness: 0.5),
        ("ace", "divisor", lambda self, state, view: 1),
        ("seafl", "freshness", lambda self, staleness: 1.0),
        ("port", "alignment", lambda self, update, view, last_step: 1.0),
        ("seafl2", "is_at_limit", lambda self, base, view: False),
        ("safa", "is_deprecated", lambda self, base, view: False),
        ("sfl", "is_over", lambda self, view: True),
        ("fedsa", "epochs", lambda self, device, state, view: 4),
        ("fedstale", "participates", lambda self, device, state, view: 1.0),
        ("psurdg", "weight", lambda self, device, state, view: 0.5),
        ("fedlws", "gamma", lambda self, *parts: 1.0),
        ("aso-fed", "note", lambda self, update, state, view: None),
        ("adel", "missed", lambda self, state, view: np.zeros(2)),
        ("auto", "weight_at", lambda self, staleness: 1.0),
        ("auto", "adapt_step", lambda self, updates, state: None),
        ("fedasmu", "adapted", lambda self, update, state, view: (1.0, 1.0, 0.0)),
    ],
)
def test_a_broken_formula_deviates(algorithm: str, method: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POLICIES[algorithm], method, wrong)
    outcomes = [checked(trace, our_adapter)[0] for trace in load_traces([algorithm])]
    assert "deviates" in outcomes


def test_what_an_adapter_lacks_is_skipped_with_a_reason() -> None:
    audg = TRACES["audg-each-gradient-once"]
    assert checked(audg, lambda *_: Buffered(1, "")) == ("skipped", "the adapter has no timer()")
    assert checked(audg, lambda *_: None) == ("skipped", "no implementation")
    assert checked(audg, lambda *_: "another mechanism") == ("skipped", "another mechanism")


def test_a_wrong_number_of_elements_and_infinite_models_are_named() -> None:
    class Shorter(Buffered):
        def upload(self, upload: TraceUpload) -> Any:
            return np.zeros(1) if self.mistake == "short" else np.full(2, np.nan)

    trace = TRACES["fedbuff-fresh"]
    assert "the model has 1 elements instead of 2" in str(deviation(trace, Shorter(2, "short")))
    assert "the model is not finite" in str(deviation(trace, Shorter(2, "nan")))


def test_a_file_with_a_mistake_is_refused_in_one_sentence() -> None:
    with pytest.raises(InvalidInput, match=r"traces of mine: .*unknown field `colour`"):
        read_traces('algorithm = "x"\nsource = ""\nprovenance = ""\ntrace = []\ncolour = 1', "mine")
    with pytest.raises(InvalidInput, match="algorithm with traces 'fedbuf'"):
        load_traces(["fedbuf"])
