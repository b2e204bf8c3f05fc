"""Everything an author of an algorithm needs, in one module.

A policy is the server half of an algorithm: settings, a state, and `react`, which turns an event into actions. This one
mixes every upload into the model with a fixed weight and keeps two devices in training:

    >>> from collections.abc import Iterator
    >>> from dataclasses import dataclass
    >>> from offbeat.policy import Action, Commit, Dispatch, Event, Policy, Uploaded, View, weighted_mean
    >>>
    >>> @dataclass
    ... class Nothing:
    ...     "The rule has no state but the model."
    >>>
    >>> class Mix(Policy):
    ...     "Moves the model part of the way to each upload."
    ...     State = Nothing
    ...     weight: float = 0.5
    ...
    ...     def react(self, event: Event, state: Nothing, view: View) -> Iterator[Action]:
    ...         if isinstance(event, Uploaded):
    ...             models = [view.parameters, event.update.parameters]
    ...             mixed = weighted_mean(models, [1 - self.weight, self.weight])
    ...             yield Commit(parameters=mixed, used=(event.update.ticket,))
    ...         for device in view.pick(2 - len(view.in_flight)):
    ...             yield Dispatch(device=device, order=view.order())

It runs as an object, or from a file as `name = "my_module:Mix"`:

    >>> import offbeat
    >>> experiment = offbeat.Experiment(
    ...     stop={"versions": 6}, data={"name": "digits", "devices": 4}, model="logistic", algorithm=Mix(weight=0.3)
    ... )
    >>> offbeat.run(experiment).summary["updates_used"]
    6

An `about = About(...)` in the class says which setting limits the devices in training, what `offbeat tune` searches,
and where the rule comes from. `offbeat.testing.check_policy` checks a policy on devices with every simulated failure.
"""

from offbeat.algorithms.about import About, Choice, Range, SearchSpace
from offbeat.core.combining import Combiner, Contributions, Movement, Screen, mean_model, mean_movement
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import (
    Action,
    Commit,
    Discard,
    Dispatch,
    Event,
    Finish,
    FreshRequested,
    Left,
    Lost,
    Ready,
    SendFresh,
    SetTimer,
    Started,
    StopSoon,
    TimerFired,
    Uploaded,
)
from offbeat.core.orders import LocalWork, Order, Progress, Update
from offbeat.core.parameters import Layout, Mask, Vector, weighted_mean
from offbeat.core.policy import (
    Ask,
    DeviceRule,
    Forecast,
    Fresh,
    InFlight,
    Memory,
    Policy,
    Probe,
    ReadOnlyMemory,
    Step,
    Train,
    Upload,
    View,
)
from offbeat.core.selection import Devices, Report, SelectionView, Selector

__all__ = [
    "About",
    "Action",
    "Ask",
    "Choice",
    "Combiner",
    "Commit",
    "Contributions",
    "DeviceRule",
    "Devices",
    "Discard",
    "Dispatch",
    "Event",
    "Finish",
    "Forecast",
    "Fresh",
    "FreshRequested",
    "InFlight",
    "InvalidInput",
    "Layout",
    "Left",
    "LocalWork",
    "Lost",
    "Mask",
    "Memory",
    "Movement",
    "Order",
    "Policy",
    "Probe",
    "Progress",
    "Range",
    "ReadOnlyMemory",
    "Ready",
    "Report",
    "Screen",
    "SearchSpace",
    "SelectionView",
    "Selector",
    "SendFresh",
    "SetTimer",
    "Started",
    "Step",
    "StopSoon",
    "TimerFired",
    "Train",
    "Update",
    "Upload",
    "Uploaded",
    "Vector",
    "View",
    "mean_model",
    "mean_movement",
    "weighted_mean",
]
