"""How a run of a comparison failed: a sentence for the user, and a file that says where."""

import traceback

from msgspec import Struct

from offbeat.comparison.planned import PlannedRun
from offbeat.core.errors import InvalidInput
from offbeat.results.files import replace_file
from offbeat.running.directory import ERROR_FILE


class RunFailure(Struct, frozen=True):
    """What went wrong in a run, as plain text that any process can send."""

    reason: str
    trace: str | None
    """Where it went wrong; None where that would tell a user nothing."""

    @classmethod
    def of(cls, error: Exception) -> "RunFailure":
        """The failure that an error is."""
        reason = " ".join(str(error).split())
        if isinstance(error, InvalidInput):
            return cls(reason, None)
        return cls(f"{type(error).__name__}: {reason}", "".join(traceback.format_exception(error)))

    def kept(self, planned: PlannedRun) -> str:
        """The failure in one sentence; the traceback goes into a file of the run's directory."""
        if self.trace is None:
            return f"{planned.label} failed: {self.reason}"
        file = planned.path / ERROR_FILE
        replace_file(file, self.trace.encode())
        return f"{planned.label} failed: {self.reason} (where: {file})"
