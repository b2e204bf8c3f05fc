"""The settings of `offbeat.flower.Async` apart from the policy: those of Flower's FedAvg, and some of its own."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from offbeat.algorithms.sizes import in_training_setting, settings_for
from offbeat.core.errors import InvalidInput
from offbeat.core.policy import Policy
from offbeat.core.settings import Settings
from offbeat.experiment.named import SelectionTable
from offbeat.experiment.run_settings import DeploymentTable, Stop, TrackingTable
from offbeat.flower.strategy.records import Keys
from offbeat.selection import why_no_selection
from offbeat.trust.privacy import Privacy
from offbeat.trust.settings import TrustTable

Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]


class StrategySettings(Settings):
    """Settings of `Async`, except the policy and the functions that aggregate metrics."""

    fraction_train: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the nodes in training at a time, for a policy whose own setting is not given."""
    fraction_evaluate: Share = 1.0
    """Share of the nodes that evaluate a version; 0: no evaluation on nodes."""
    min_train_nodes: Number = 2
    """Least number of nodes in training."""
    min_evaluate_nodes: Number = 2
    """Least number of nodes that evaluate a version."""
    min_available_nodes: Count = 2
    """Number of connected nodes at which the run begins."""
    weighted_by_key: Name = "num-examples"
    """The metric in a reply that has its number of samples."""
    arrayrecord_key: Name = "arrays"
    """The key of the arrays in messages."""
    configrecord_key: Name = "config"
    """The key of the config in messages."""
    train_action: str = ""
    """The name in `@app.train("name")`, if it has one."""
    evaluate_action: str = ""
    """The name in `@app.evaluate("name")`, if it has one."""
    evaluate_every: Count = 1
    """Versions between two evaluations, on the server and on the nodes. The last version is always evaluated."""
    seconds: Positive | None = None
    """Stop after this number of seconds."""
    updates: Count | None = None
    """Stop after this number of used updates."""
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """Stop when `target_metric` of `evaluate_fn` reaches this value."""
    target_metric: Name = "accuracy"
    """The metric of `evaluate_fn` by which runs are compared."""
    target_direction: Literal["max", "min"] = "max"
    """Whether a higher (max) or a lower (min) value of it is better."""
    devices: Count | None = None
    """Most nodes that take part at a time, also of those that connect later (default: those connected at the start)."""
    privacy: Privacy = Privacy()
    """Differential privacy of devices, as in `[privacy]` of an experiment: `privacy={"noise_multiplier": 1.0}`."""
    epsilon: Positive | None = None
    """A privacy budget: devices contribute as often as it allows, then the run ends."""
    selection: SelectionTable = SelectionTable()
    """Which idle nodes are ordered, as in `[selection]` of an experiment: `selection="tifl"`."""
    loss_key: Name = "train_loss"
    """The metric in a reply that has the mean training loss, for a selection that reads it."""
    seed: Number = 0
    """Seed of the policy's random choices."""
    rest_seconds: Positive = 5.0
    """Backoff after a failure of a node, in seconds. It doubles with every failure in a row."""
    norm_bound: Positive | None = None
    """Refuse an update whose norm (Euclidean distance from its base) exceeds this."""
    norm_factor: Annotated[float, Field(gt=1)] = 20.0
    """Refuse an update whose norm exceeds this many times the median over nodes (inf: never)."""
    trust: TrustTable = TrustTable()
    """Defences against hostile nodes, as in `[trust]` of an experiment: `trust={"combine": "median"}`."""
    out: str | Path | None = None
    """Directory of the results, the record and the checkpoints (default: nothing is written)."""
    resume: bool = False
    """Resume the run in `out`, if there is one."""
    overwrite: bool = False
    """Replace the run in `out`."""
    checkpoint_seconds: Positive = 30.0
    """Wall-clock seconds between checkpoints."""
    tracking: TrackingTable = TrackingTable()
    """Trackers, as in `[tracking]` of an experiment: `tracking={"tensorboard": "logs"}`."""

    @property
    def keys(self) -> Keys:
        """The keys and types of messages."""
        return Keys(
            arrays=self.arrayrecord_key,
            config=self.configrecord_key,
            weight=self.weighted_by_key,
            loss=self.loss_key if self.reads_losses else "",
            train=f"train.{self.train_action}" if self.train_action else "train",
            evaluate=f"evaluate.{self.evaluate_action}" if self.evaluate_action else "evaluate",
        )

    def stop(self, versions: int) -> Stop:
        """When a run with this number of versions stops."""
        return Stop(
            time=self.seconds, versions=versions, updates=self.updates, target=self.target, epsilon=self.epsilon
        )

    def deployment(self, timeout: float) -> DeploymentTable:
        """The settings of the driver."""
        return DeploymentTable(
            answer_seconds=timeout,
            rest_seconds=self.rest_seconds,
            norm_bound=self.norm_bound,
            norm_factor=self.norm_factor,
        )

    def table(self) -> dict[str, Any]:
        """The settings that determine the run, for `config.toml`."""
        aside = {"out", "resume", "overwrite", "checkpoint_seconds", "tracking", "selection", "privacy", "trust"}
        return self.model_dump(exclude_none=True, exclude=aside | (set() if self.reads_losses else {"loss_key"}))

    @property
    def reads_losses(self) -> bool:
        """Whether the selection reads training losses."""
        selector = self.selection.selector
        return selector is not None and selector.reads is not None

    def check_privacy(self, policy: Policy, untouched: Collection[str] = ()) -> None:
        """Raise InvalidInput if the run cannot be private; `untouched` arrays would be released without noise."""
        privacy = self.privacy
        privacy.check(policy, type(policy).__name__, self.epsilon)
        if not privacy.on:
            return
        if privacy.level == "example":
            raise InvalidInput('privacy.level = "example": a stock client app trains by itself, use level = "device"')
        if self.reads_losses:
            raise InvalidInput(
                f"selection = {self.selection.name!r}: it reads the losses of devices, which would reveal them in a "
                "private run"
            )
        if untouched:
            raise InvalidInput(
                f"privacy: the array {next(iter(untouched))!r} is not of floats and would be released without noise"
            )

    def check_selection(self, policy: Policy) -> None:
        """Raise InvalidInput if the selection does not work with this policy or with stock client apps."""
        selector, name = self.selection.selector, self.selection.name
        if selector is not None and (why := why_no_selection(policy)) is not None:
            raise InvalidInput(f"selection = {name!r}: {type(policy).__name__} {why}, leave it out")
        if selector is not None and selector.reads == "squared":
            raise InvalidInput(
                f"selection = {name!r} needs the squared losses of samples, which a stock Flower client app does not "
                f'report: pass selection={{"name": {name!r}, "loss": "mean"}}, which reads its metric {self.loss_key!r}'
            )

    def sized(self, policy: Policy, devices: int) -> Policy:
        """The policy for the devices in training that `fraction_train` gives, unless it sets their number itself.

        Other sizes that are not set follow as in a simulation (`algorithms.sizes`).
        """
        name, setting = type(policy).__name__, in_training_setting(policy)
        if self.fraction_train != 1.0 and (setting is None or setting in policy.model_fields_set):
            why = f"has {setting} = {getattr(policy, setting)}" if setting else "decides this itself"
            raise InvalidInput(
                f"fraction_train = {self.fraction_train}: {name} {why}, so the number of devices in training is "
                "already set; leave out fraction_train"
            )
        number = min(devices, max(int(devices * self.fraction_train), self.min_train_nodes, 1))
        given = {field: getattr(policy, field) for field in policy.model_fields_set}
        found = settings_for(type(policy), number, devices=devices, order_seconds=None, given=given)
        return type(policy)(**(given | found))
