"""An algorithm of your own: write it, try it, compare it with FedBuff, look at the numbers.

    python examples/own_policy.py

The policy below averages whatever has come in, once a minute, and gives stale updates less weight.
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
    """What the policy remembers between two events: a dataclass, so that a run can be stopped and resumed."""

    updates: list[Update] = field(default_factory=list)


class EveryMinute(Policy):
    """Averages once a minute, stale updates with less weight."""

    State = Arrived

    # Settings: checked like our own, and set from a file as `[algorithm] period = 30.0`.
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
            yield SetTimer(name="minute", after=self.period)
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

    # One run in this process. Nothing is written, because no directory is given.
    result = offbeat.run(experiment.changed({"algorithm": EveryMinute(period=20.0)}))
    print(result)
    print(result.frame()[["time", "accuracy", "mean_staleness"]].tail(3))

    # Side by side with FedBuff over two seeds; runs are in processes of their own, which import this file.
    comparison = offbeat.compare(experiment, [EveryMinute(period=20.0), "fedbuff"], seeds=2, jobs=2)
    print(comparison)


if __name__ == "__main__":  # processes import this file: what is below must not run there
    main()
