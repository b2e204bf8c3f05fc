"""Write your own algorithm, run it and compare it with FedBuff.

    python examples/own_policy.py

The policy averages the updates that arrived, once per period, with less weight for stale ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import offbeat
from offbeat.policy import (
    Action,
    Commit,
    Dispatch,
    Event,
    Policy,
    SetTimer,
    Started,
    TimerFired,
    Update,
    Uploaded,
    View,
    weighted_mean,
)


@dataclass
class Arrived:
    """State of the policy between events. A dataclass, so that checkpoints can store it."""

    updates: list[Update] = field(default_factory=list)


class Periodic(Policy):
    """Average the updates of each period, weighted by 1 / (1 + staleness)."""

    State = Arrived

    # Settings: validated, and set in a file as `[algorithm] period = 30.0`.
    period: float = 60.0
    """Seconds between versions."""
    concurrency: int = 10
    """Devices kept in training."""

    def react(self, event: Event, state: Arrived, view: View) -> Iterator[Action]:
        if isinstance(event, Uploaded):
            state.updates.append(event.update)
        if isinstance(event, TimerFired) and state.updates:
            models = [update.parameters for update in state.updates]
            weights = [1.0 / (1 + view.version - update.base) for update in state.updates]
            yield Commit(
                parameters=weighted_mean(models, weights), used=tuple(update.ticket for update in state.updates)
            )
            state.updates = []
        if isinstance(event, Started | TimerFired):
            yield SetTimer(name="period", after=self.period)
        for device in view.pick(self.concurrency - len(view.in_flight)):
            yield Dispatch(device=device, order=view.order())


def main() -> None:
    experiment = offbeat.Experiment(
        stop={"time": 300.0},
        data={"name": "digits", "devices": 30},
        partition={"name": "dirichlet", "alpha": 0.5},
        model="logistic",
        local={"epochs": 2, "learning_rate": 0.3},
        fleet={"name": "ratio", "ratio": 10.0},
    )

    # One run in this process. Without a directory nothing is written.
    result = offbeat.run(experiment.changed({"algorithm": Periodic(period=20.0)}))
    print(result)
    print(result.frame()[["time", "accuracy", "mean_staleness"]].tail(3))

    # A comparison with FedBuff over two seeds, in worker processes that import this file.
    comparison = offbeat.compare(experiment, [Periodic(period=20.0), "fedbuff"], seeds=2, jobs=2)
    print(comparison)


if __name__ == "__main__":  # worker processes import this file and must not run main
    main()
