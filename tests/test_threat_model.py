"""The threat model names a test for each of its promises, and all of them exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_test_that_the_threat_model_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "threat-model.md").read_text()))
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    there = {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    assert len(named) > 10 and named <= there, named - there


def test_every_promise_names_a_test() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) > 15
    for _, promised, shown, _ in rows[1:]:
        assert not promised or "`test_" in shown or shown == "the same test", promised
