"""A case on the virtual clock, whole and killed."""

from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from offbeat.core.errors import Diverged
from offbeat.experiment.run_settings import Stop
from offbeat.fleet import FLEETS, BernoulliFleet, FailureSettings, NetworkSettings, OnOffAvailable
from offbeat.results.checkpoint import load_checkpoint, save_checkpoint
from offbeat.results.rows import Row, Span
from offbeat.testing.torture.cases import Case, policy_of
from offbeat.testing.torture.invariants import HORIZON, MOST_TURNS, Broken, audit, check_counts
from offbeat.testing.toy import toy_simulation


def run_virtual(case: Case, directory: Path) -> str:
    """Run a case, again with its kills, and compare; return why it ended."""
    whole = _virtual(case)
    if case.kills:
        _compare(whole, _virtual(case, whole.turns, directory / "checkpoint"))
    return whole.reason


class _Ended(Struct, kw_only=True):
    """What a run on the virtual clock left."""

    reason: str
    turns: int
    rows: list[Row]
    model: bytes
    spans: list[Span]


def _virtual(case: Case, turns: int = 0, checkpoint: Path | None = None) -> _Ended:
    kills = [int(share * turns) for share in case.kills] if checkpoint is not None else []
    simulation = _simulation(case)
    rows: list[Row] = []
    spans: list[Span] = []
    count, before, reason = 0, 0.0, ""
    while True:
        most = kills[0] - count if kills else MOST_TURNS - count
        done = 0
        try:
            for row in islice(simulation, most):
                done += 1
                rows += [] if row is None else [row]
                spans += simulation.accounts.take_spans()
                if simulation.now < before:
                    raise Broken(f"time went back from {before} to {simulation.now}")
                before = simulation.now
                if (count + done) % 7 == 0:
                    audit(simulation.session)
        except Diverged:
            reason = "diverged"
        count += done
        if not kills or reason:
            break
        del kills[0]
        assert checkpoint is not None
        save_checkpoint(checkpoint, simulation.snapshot(), "torture")
        simulation = _simulation(case)
        simulation.restore(load_checkpoint(checkpoint, "torture", simulation.snapshot_types))
    session = simulation.session
    if not reason and simulation.reason is None:
        raise Broken(f"the run hangs: {count} turns, {session.counters.used} updates used, {simulation.now} s")
    reason = reason or str(simulation.reason)
    audit(session)
    check_counts(session, spans, simulation.accounts.busy_seconds, case)
    quiet = case.on_off is None and not case.failures
    if quiet and reason == "time" and not session.counters.received:
        raise Broken(f"deadlock: no update in {HORIZON} s although every device is always there")
    return _Ended(reason=reason, turns=count, rows=rows, model=session.parameters.tobytes(), spans=spans)


def _simulation(case: Case) -> Any:
    return toy_simulation(
        policy_of(case),
        seed=case.seed,
        devices=case.devices,
        troubled=False,
        stop=Stop(updates=case.updates, time=HORIZON),
        speeds=BernoulliFleet(success=0.5) if case.fleet == "bernoulli" else FLEETS[case.fleet](),
        network=NetworkSettings(**case.network),  # type: ignore[arg-type]
        availability=None
        if case.on_off is None
        else OnOffAvailable(on_seconds=case.on_off[0], off_seconds=case.on_off[1]),
        failures=FailureSettings(**case.failures),
        epochs=case.epochs,
    )


def _compare(whole: _Ended, resumed: _Ended) -> None:
    if whole.rows != resumed.rows:
        raise Broken("a run that was killed and resumed has other rows")
    if whole.model != resumed.model:
        raise Broken("a run that was killed and resumed ends with another model")
    if whole.spans != resumed.spans:
        raise Broken("a run that was killed and resumed has other orders")
