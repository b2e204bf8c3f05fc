"""Test tools for authors of policies.

- `ScriptedSession`: a session that a test drives step by step, for golden numbers in five lines.
- `conformance`: the same, as a list of properties that hold or do not (`offbeat verify module:Class`).
- `load_traces`, `deviation`: golden numbers of every rule (`offbeat verify`), also for implementations elsewhere.
- `check_policy`, `check_selector`: the conformance suite that every policy and every selector must pass.
- `toy_simulation`: a complete simulated run on a toy model, in milliseconds and without torch.
"""

from offbeat.testing.conformance import (
    check_accounts,
    check_bounded_memory,
    check_determinism,
    check_events,
    check_losses_are_survived,
    check_no_aliasing,
    check_policy,
    check_resume,
    check_selector,
    check_session,
    conformance,
)
from offbeat.testing.scripted import Reaction, ScriptedSession
from offbeat.testing.toy import SIZE, UPDATES, ToyExecutor, toy_simulation
from offbeat.testing.verification import PolicyUnderTest, Step, Trace, TraceUpload, deviation, load_traces

__all__ = [
    "SIZE",
    "UPDATES",
    "PolicyUnderTest",
    "Reaction",
    "ScriptedSession",
    "Step",
    "ToyExecutor",
    "Trace",
    "TraceUpload",
    "check_accounts",
    "check_bounded_memory",
    "check_determinism",
    "check_events",
    "check_losses_are_survived",
    "check_no_aliasing",
    "check_policy",
    "check_resume",
    "check_selector",
    "check_session",
    "conformance",
    "deviation",
    "load_traces",
    "toy_simulation",
]
