"""Errors: a message in Python's terms, and the facts from which a command line makes its own."""

import pickle

from offbeat.core.errors import OutputRefused


def test_a_refused_directory_says_what_would_help_and_survives_a_process() -> None:
    error = OutputRefused("runs/x already holds a run", "resume", "out")
    assert str(error) == "runs/x already holds a run: pass resume=True to continue it or choose another directory"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.fact, copy.remedies) == ("runs/x already holds a run", ("resume", "out"))
