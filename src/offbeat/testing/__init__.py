"""Test tools for authors of policies.

- `ScriptedSession`: a session that a test drives step by step, for golden numbers in five lines.
- `check_policy`: the conformance suite that every policy must pass.
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
    check_session,
)
from offbeat.testing.scripted import Reaction, ScriptedSession
from offbeat.testing.toy import SIZE, UPDATES, ToyExecutor, toy_simulation

__all__ = [
    "SIZE",
    "UPDATES",
    "Reaction",
    "ScriptedSession",
    "ToyExecutor",
    "check_accounts",
    "check_bounded_memory",
    "check_determinism",
    "check_events",
    "check_losses_are_survived",
    "check_no_aliasing",
    "check_policy",
    "check_resume",
    "check_session",
    "toy_simulation",
]
