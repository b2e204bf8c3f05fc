"""Starts worker processes: forked from a fork server that has torch imported, where forking is safe.

A new Python process takes seconds to import torch. On Linux the fork server of `multiprocessing` imports what workers
and runs need, computes nothing, and forks all processes within milliseconds. On other systems, whose libraries do not
survive a fork, every process starts from scratch.
"""

import gc
import multiprocessing
import os
import re
import signal
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path

from offbeat.core.errors import InvalidInput

GUARD = re.compile(r"""__name__\s*==\s*["']__main__|__main__["']\s*==\s*__name__""")
"""What keeps the code of a script from running when it is imported."""


def process_context(*imported: str) -> ForkServerContext | SpawnContext:
    """The `multiprocessing` context for workers and runs, with torch and these modules imported."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # the test of `multiprocessing` itself
        raise InvalidInput(
            "this script starts processes, which import the script and would start more: put its code under "
            '`if __name__ == "__main__":`'
        )
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", *imported, __name__])
    return context


def unguarded_script() -> str:
    """The script of this process, if worker processes, which import it, would run all of it again; else empty."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or multiprocessing.parent_process() is not None:
        return ""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError):  # a program, or a script in an archive
        return ""
    return "" if GUARD.search(text) else Path(file).name


def _ignore_signals() -> None:
    """Let SIGTERM and SIGHUP reach the fork server's children but not the fork server, which ends with its parent.

    Without it the parent could not learn how the children end, which may take time to write a checkpoint.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGHUP)}

    def as_before() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    os.register_at_fork(after_in_child=as_before)
    gc.collect()
    gc.freeze()  # collections in a child then leave these pages shared


if getattr(sys.modules["__main__"], "main", None) is forkserver.main:
    _ignore_signals()
