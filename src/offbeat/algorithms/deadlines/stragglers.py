"""Drop-Stragglers and Wait-Stragglers: synchronous rounds that ignore late devices, or wait for them.

*Drop-Stragglers*: Chen, Pan, Monga, Bengio, Jozefowicz: *Revisiting Distributed Synchronous SGD*, 2016; rule (4) of
ADEL-FL (Goren et al. 2026). Rounds of T_max / R; only U_t, the devices that have completed all layers of all steps by
the deadline, count:

    variant = "mean"    w <- mean over U_t of w_u
    variant = "keep"    w <- 1/U [ sum over U_t of w_u + (U - |U_t|) w ]        (as in SALF's code)

and w if none finished. A device that does not finish uploads nothing. `batch = "speed"` makes batch sizes proportional
to speed (`BatchesBySpeed`), as ADEL-FL's authors do.

*Wait-Stragglers*: FedAvg (McMahan et al. 2017) with all devices in every round, w <- mean of all w_u, rule (3). A round
lasts as long as its slowest device, and as many rounds as fit into T_max are run; the unfinished last one is lost. A
round stops waiting for a lost device.

Both weight all devices equally, as ADEL-FL does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from offbeat.algorithms.about import Range, SearchSpace
from offbeat.algorithms.deadlines.rounds import FAMILY, BatchesBySpeed, DeadlineState, TimeBudgeted, with_absent_as_old
from offbeat.core.combining import contributions_of, mean_model, model_of
from offbeat.core.messages import Action, Commit, Dispatch, Event, Finish, SetTimer, Started, TimerFired, Uploaded
from offbeat.core.orders import Update
from offbeat.core.parameters import Vector
from offbeat.core.policy import View


class DropStragglers(BatchesBySpeed):
    """Fixed deadlines; devices that have not finished are left out (Chen et al. 2016).

    >>> from offbeat.testing import ScriptedSession
    >>> from offbeat.core.parameters import Layout
    >>> layers = Layout.of([("a.weight", (1,), True), ("b.weight", (1,), True)])
    >>> session = ScriptedSession(DropStragglers(rounds=5), layout=layers, devices=2, speeds=[8.0, 8.0], horizon=10.0)
    >>> _ = session.upload(4.0, 4.0, device=0, slices=1), session.upload(4.0, 2.0, device=1)  # device 0 is late
    >>> session.fire("deadline").used, session.parameters.tolist()
    ([2], [4.0, 2.0])
    """

    combines = True

    variant: Literal["mean", "keep"] = "mean"
    """Mean over the devices that finished, or over all devices, with the others as copies of the old model."""

    about = replace(FAMILY, name="drop-stragglers", paper="Chen et al., 2016", provenance="published")

    @property
    def special(self) -> dict[str, Any]:
        return {"partial": False}

    def counts(self, update: Update) -> bool:
        return update.mask is None

    def aggregate(self, updates: Sequence[Update], state: DeadlineState, view: View) -> Vector:
        weights, users = [1.0] * len(updates), len(state.ordered)
        if self.variant == "keep" and view.combiner is None:
            return with_absent_as_old(updates, users, view)
        if self.variant == "keep":
            return model_of(contributions_of(updates, [view.parameters] * len(updates), weights, users, view), view)
        return mean_model(updates, weights, view)


@dataclass
class WaitStragglersState:
    """The updates of the current round, which lasts while any order is in flight."""

    arrived: list[Update] = field(default_factory=list)


class WaitStragglers(TimeBudgeted):
    """FedAvg with all devices in every round, as many rounds as fit into the time budget.

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(WaitStragglers(time_budget=10.0), devices=2)
    >>> session.upload(4.0, 4.0, device=0).used, session.upload(0.0, 2.0, device=1).used
    ([], [1, 2])
    >>> session.parameters.tolist()
    [2.0, 3.0]
    """

    State = WaitStragglersState
    combines = True
    about = replace(
        FAMILY,
        name="wait-stragglers",
        paper="McMahan et al., AISTATS 2017",
        provenance="published",
        search=SearchSpace(local_steps=Range(1, 5)),
        smoke={"local": {"learning_rate": 0.3}},
    )

    def init(self, view: View) -> WaitStragglersState:
        self.seconds(view)  # raises if there is no time budget
        return WaitStragglersState()

    def react(self, event: Event, state: WaitStragglersState, view: View) -> Iterator[Action]:
        match event:
            case Started():
                yield SetTimer(name="budget", after=self.seconds(view))
            case Uploaded(update=update):
                state.arrived.append(update)
            case TimerFired():
                yield Finish(reason="time budget")
        if view.in_flight:
            return
        if state.arrived:
            mean = mean_model(state.arrived, [1.0] * len(state.arrived), view)
            yield Commit(parameters=mean, used=tuple(update.ticket for update in state.arrived))
            state.arrived = []
        for device in range(view.devices):
            if view.is_idle(device):
                yield Dispatch(device=device, order=self.order(view))
