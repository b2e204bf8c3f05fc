"""On what kinds of processors a run was computed: on one kind its numbers are the same bits, on several perhaps not."""

import logging
from collections.abc import Iterable

log = logging.getLogger("offbeat")


class ProcessorKinds:
    """The kinds of processors that a run was computed on so far. A second one is said as soon as it shows."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.known = set(known)

    def note(self, kinds: Iterable[str]) -> None:
        """Take down these kinds; say so if the run had others before."""
        for kind in sorted(set(kinds) - self.known):
            if self.known:
                before = " and ".join(sorted(self.known))
                log.warning(
                    "offbeat: note: this run was computed on %s, and is now on %s: the last bits of its numbers may "
                    "differ from those of a run on one kind of processor",
                    before,
                    kind,
                )
            self.known.add(kind)
