"""How processes of our own are started: forked from one that has everything imported, where that is safe.

A new Python takes seconds to import torch. So on Linux the first process that is wanted starts a fork server, that of
`multiprocessing`, which imports what workers and runs need and computes nothing; all processes are forked from it in a
moment. Elsewhere libraries of the system do not survive a fork, and every process is a new Python.
"""

import gc
import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext

from offbeat.core.errors import InvalidInput


def process_context(*imported: str) -> ForkServerContext | SpawnContext:
    """The context of `multiprocessing` in which workers and runs are started, with torch and these modules imported."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # so `multiprocessing` itself finds it out
        raise InvalidInput(
            "a process that this script started has imported it, and would start more: put what the script runs under "
            '`if __name__ == "__main__":`'
        )
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", *imported, __name__])
    return context


def _serve_in_good_order() -> None:
    """Have a signal to all our processes reach the fork server's children and not the fork server, which ends with us.

    Else nobody could say any more how its children end, who may take some time to leave a checkpoint.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGHUP)}

    def as_before() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    os.register_at_fork(after_in_child=as_before)
    gc.collect()
    gc.freeze()  # so that collections in a child leave these pages shared


if getattr(sys.modules["__main__"], "main", None) is forkserver.main:
    _serve_in_good_order()
