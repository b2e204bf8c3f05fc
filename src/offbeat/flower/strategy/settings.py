"""What can be set of `offbeat.flower.Async` beside the policy: as in Flower's FedAvg, and a few settings of ours."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from offbeat.algorithms.about import about_of, settings_for
from offbeat.core.errors import InvalidInput
from offbeat.core.policy import Policy
from offbeat.core.settings import Settings
from offbeat.experiment.run_settings import DeploymentTable, Stop
from offbeat.flower.strategy.records import Keys

Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]


class StrategySettings(Settings):
    """Everything that `Async` takes but the policy and the functions that aggregate metrics."""

    fraction_train: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the nodes that are in training at a time, for a policy that does not say how many itself."""
    fraction_evaluate: Share = 1.0
    """Share of the nodes that evaluate a version; 0: none does."""
    min_train_nodes: Number = 2
    """Nodes in training at least."""
    min_evaluate_nodes: Number = 2
    """Nodes that evaluate a version at least."""
    min_available_nodes: Count = 2
    """Nodes that must be connected before anything begins."""
    weighted_by_key: Name = "num-examples"
    """The figure in a reply that says how many samples it speaks for."""
    arrayrecord_key: Name = "arrays"
    """What the arrays are called in messages."""
    configrecord_key: Name = "config"
    """What the config is called in messages."""
    train_action: str = ""
    """The name in `@app.train("name")`, if it has one."""
    evaluate_action: str = ""
    """The name in `@app.evaluate("name")`, if it has one."""
    evaluate_every: Count = 1
    """Versions between two evaluations, on the server and on the nodes; the last version always is."""
    seconds: Positive | None = None
    """The run ends after so many seconds."""
    updates: Count | None = None
    """The run ends when so many updates went into the model."""
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """The run ends when `evaluate_fn` measures this value of `target_metric`, or a better one."""
    target_metric: Name = "accuracy"
    """The figure of `evaluate_fn` that runs are compared by."""
    target_direction: Literal["max", "min"] = "max"
    """Whether a higher or a lower value of it is better."""
    devices: Count | None = None
    """Nodes that may take part at a time, present or not yet (default: those that are connected at the beginning)."""
    seed: Number = 0
    """What the policy's choices come from."""
    rest_seconds: Positive = 5.0
    """A node that failed gets its next order after a rest, which doubles with every failure in a row."""
    norm_bound: Positive | None = None
    """Refuse an update that moved the model by more than this (Euclidean norm)."""
    out: str | Path | None = None
    """A directory for the results, the record and checkpoints (default: nothing is written)."""
    resume: bool = False
    """Go on with the run that lies in `out`, if one does."""
    overwrite: bool = False
    """Replace the run that lies in `out`."""
    checkpoint_seconds: Positive = 30.0
    """Real seconds between checkpoints."""

    @property
    def keys(self) -> Keys:
        """What records and messages are called."""
        return Keys(
            arrays=self.arrayrecord_key,
            config=self.configrecord_key,
            weight=self.weighted_by_key,
            train=f"train.{self.train_action}" if self.train_action else "train",
            evaluate=f"evaluate.{self.evaluate_action}" if self.evaluate_action else "evaluate",
        )

    def stop(self, versions: int) -> Stop:
        """When a run of so many versions ends."""
        return Stop(time=self.seconds, versions=versions, updates=self.updates, target=self.target)

    def deployment(self, timeout: float) -> DeploymentTable:
        """How the driver deals with devices."""
        return DeploymentTable(answer_seconds=timeout, rest_seconds=self.rest_seconds, norm_bound=self.norm_bound)

    def table(self) -> dict[str, Any]:
        """What determines the run, as a file has it."""
        return self.model_dump(exclude_none=True, exclude={"out", "resume", "overwrite", "checkpoint_seconds"})

    def sized(self, policy: Policy, devices: int) -> Policy:
        """The policy with so many devices in training as `fraction_train` says, unless it says how many itself."""
        name, setting = type(policy).__name__, about_of(policy).in_training
        if setting is None or setting in policy.model_fields_set:
            if self.fraction_train != 1.0:
                why = f"has {setting} = {getattr(policy, setting)} already" if setting else "decides by itself"
                raise InvalidInput(
                    f"fraction_train = {self.fraction_train}: {name} {why} how many are in training, leave one out"
                )
            return policy
        number = min(devices, max(int(devices * self.fraction_train), self.min_train_nodes, 1))
        given = {field: getattr(policy, field) for field in policy.model_fields_set}
        found = settings_for(type(policy), number, devices=devices, order_seconds=lambda: [1.0], given=given)
        return type(policy)(**(given | found))
