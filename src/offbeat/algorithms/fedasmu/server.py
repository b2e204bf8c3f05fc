"""FedASMU and FedSSMU: dynamic weights on the server, fresh models for devices during training.

Jia, Liu, Huo, Shen, Zhou, Dai, Dou: *Efficient Federated Learning with Timely Update Dissemination* (sec. 4 and 5), and
Liu et al.: *FedASMU: Efficient Asynchronous Federated Learning with Dynamic Staleness-aware Model Update*, AAAI 2024.
This file is the server half. `weights.py` has the weight of an upload, `device.py` the device half, `slots.py` when a
device requests a fresh model.

| paper | here |
|---|---|
| m', tau, T (period) | `cohort`, `staleness_bound`, `period` |
| mu_alpha, lambda_0, sigma_0, iota_0 | the same names; eta_lambda, eta_sigma, eta_iota are their step sizes |
| mu_beta, gamma_0, upsilon_0 | the same names; eta_gamma, eta_upsilon are the step sizes |
| eta_RL, rho | `meta_rate`, `meta_memory` |
| phi, psi of Eq. (8), epsilon | `q_rate`, `q_discount`, `epsilon` |
| H1, H2, H3 | `slot` = "first", "middle", "penultimate": after 1 epoch, after half of them, before epoch E - 1 |
| FedASMU-DA, -FA, -0 | `dynamic_weights = false`, `fresh_models = false`, both |

**FedASMU** orders m' idle devices in every period in which fewer than `max_in_flight` are in training: all m', even if
that exceeds the threshold (Algorithm 1, lines 3 and 4). An upload with staleness above tau is discarded, but its reward
still counts; any other is mixed in with the weight alpha of Eq. (2):

    w <- (1 - alpha) w + alpha w_i                                                (1)

**FedSSMU** has rounds r: m' devices are ordered from the same model and every upload is merged at once. The staleness
is k + 1 after k merges in the round, and sqrt(r) replaces sqrt(t). The round ends when no device is in training.

Corrections of the paper are listed in `weights.py`. Without dynamic weights the control parameters keep their initial
values.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Annotated, ClassVar, Literal

from msgspec.structs import asdict
from pydantic import Field

from offbeat.algorithms.about import About, Range, SearchSpace, ServerMemory
from offbeat.algorithms.fedasmu.device import MOST, MergeSettings
from offbeat.algorithms.fedasmu.slots import MetaLearner, MetaModel, middle
from offbeat.algorithms.fedasmu.weights import (
    SIGMA_MOST,
    Aggregation,
    Control,
    control_slopes,
    stepped_control,
    upload_weight,
)
from offbeat.core.combining import single_movement
from offbeat.core.errors import InvalidInput
from offbeat.core.messages import (
    Action,
    Commit,
    Discard,
    Dispatch,
    Event,
    FreshRequested,
    SendFresh,
    SetTimer,
    Started,
    TimerFired,
    Uploaded,
)
from offbeat.core.orders import Order, Update
from offbeat.core.parameters import moved
from offbeat.core.policy import Policy, View

Positive = Annotated[float, Field(gt=0, le=MOST)]
Mu = Annotated[float, Field(gt=0, le=100)]
NotNegative = Annotated[float, Field(ge=0, le=MOST)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass
class TimelyState:
    """What the server knows about devices, versions and merges."""

    controls: dict[int, Control] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)
    """The learning rate of each device's last order."""
    made: dict[int, Aggregation] = field(default_factory=dict)
    """How the current version, and each base of a device in training, was made."""
    meta: MetaLearner | None = None
    refreshed: dict[int, tuple[float, float]] = field(default_factory=dict)
    """gamma and upsilon that each device last reported."""
    rewards: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Number and sum of the rewards of each slot."""
    round: int = 0
    requests: int = 0
    answered: int = 0
    merges: int = 0
    beta_sum: float = 0.0
    commits: int = 0
    alpha_sum: float = 0.0
    too_stale: int = 0
    skipped: int = 0


class TimelyPolicy(Policy):
    """The part that FedASMU and FedSSMU share."""

    State = TimelyState
    Records: ClassVar = (Aggregation, MetaLearner)
    mixes = True

    cohort: Annotated[int, Field(ge=1)] = 10
    """m', the devices that are ordered together."""
    staleness_bound: Annotated[int, Field(ge=1)] = 99
    """tau: staler updates are discarded; a fresh update has staleness 1."""
    dynamic_weights: bool = True
    """Adapt the control parameters of Eq. (2); false is the ablation FedASMU-DA."""
    fresh_models: bool = True
    """Send fresh models to devices in training; false is the ablation FedASMU-FA."""
    control_gradient: Literal["corrected", "printed"] = "corrected"
    """Eq. (4) and (5) as derived, or as printed in the paper."""
    mu_alpha: Mu = 1.0
    """mu of alpha, the weight of an upload."""
    lambda_0: NotNegative = 4.0
    """Initial lambda, the part of the weight that falls with time and staleness."""
    sigma_0: Annotated[float, Field(ge=0, le=SIGMA_MOST)] = 0.5
    """Initial sigma, the exponent of staleness."""
    iota_0: NotNegative = 0.1
    """Initial iota, the constant part of the weight."""
    eta_lambda: NotNegative = 1e-4
    """Step size of lambda (published)."""
    eta_sigma: NotNegative = 1e-4
    """Step size of sigma (published)."""
    eta_iota: NotNegative = 1e-4
    """Step size of iota (published)."""
    mu_beta: Mu = 1.0
    """mu of beta, the weight of a fresh model."""
    gamma_0: NotNegative = 4.0
    """Initial gamma, the weight of a fresh model."""
    upsilon_0: NotNegative = 0.0
    """Initial upsilon, the reduction for slightly newer models; at sqrt(2) one version newer has weight 0."""
    eta_gamma: NotNegative = 1e-4
    """Step size of gamma (published)."""
    eta_upsilon: NotNegative = 1e-4
    """Step size of upsilon (published)."""
    slot: Literal["learned", "first", "middle", "penultimate"] = "learned"
    """When a device requests: learned (published), or always after 1 epoch, after half of them, before epoch E - 1."""
    while_asking: Literal["wait", "train"] = "wait"
    """What a device does until the fresh model arrives: wait (published), or continue to train and merge it between two
    steps."""
    epsilon: Share = 0.1
    """Probability of trying a random slot."""
    q_rate: Share = 0.1
    """phi of Eq. (8), the learning rate of a device's Q table."""
    q_discount: Share = 0.9
    """psi of Eq. (8), the discount factor."""
    meta_rate: NotNegative = 0.001
    """eta_RL (published), the learning rate of the meta model."""
    meta_memory: Share = 0.1
    """rho, the rate at which the baseline follows the rewards."""
    history: list[Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=list)
    """Mean reward of each slot in an earlier run, for pre-training the meta model; `offbeat plan slots` measures it."""
    pretraining: Annotated[int, Field(ge=0)] = 500
    """Pre-training steps, if there is a history."""

    def check(self, devices: int) -> None:
        if self.cohort > devices:
            raise InvalidInput(f"algorithm.cohort = {self.cohort}: there are only {devices} devices")

    def init(self, view: View) -> TimelyState:
        if not self.fresh_models or self.slot != "learned":
            return TimelyState()
        epochs = view.order().slices
        meta = MetaLearner(theta=MetaModel.initial(view.random))
        if self.history:
            if len(self.history) != epochs:
                raise InvalidInput(
                    f"algorithm.history has {len(self.history)} rewards: must have one for each of the {epochs} epochs"
                )
            meta.pretrain(MetaModel(epochs), self.history, self.pretraining)
        return TimelyState(meta=meta)

    # Orders and requests ------------------------------------------------------------------------------------------

    def order(self, device: int, state: TimelyState, view: View) -> Order:
        """The order for a device; with fresh models it says how to request and merge them."""
        plain = view.order()
        state.rates[device] = plain.learning_rate
        if not self.fresh_models:
            return plain
        refresh = MergeSettings(
            slot=self.slot_for(device, state, view),
            fixed=self.slot != "learned",
            draw=view.random.random(),
            epsilon=self.epsilon,
            q_rate=self.q_rate,
            q_discount=self.q_discount,
            mu=self.mu_beta,
            gamma=self.gamma_0,
            upsilon=self.upsilon_0,
            gamma_rate=self.eta_gamma,
            upsilon_rate=self.eta_upsilon,
            round=state.round,
            waits=self.while_asking == "wait",
        )
        return view.order(rule="fedasmu", arguments=asdict(refresh))

    def slot_for(self, device: int, state: TimelyState, view: View) -> int:
        """The slot l* that an order proposes to a device."""
        epochs = view.order().slices
        if self.slot == "first":
            return min(2, epochs)
        if self.slot == "penultimate":
            return max(epochs - 1, 1)
        if state.meta is None or device in state.refreshed:  # a fixed slot, or the device uses its own table
            return middle(epochs)
        return MetaModel(epochs).choose(state.meta.theta, self.epsilon, view.random)

    def answer(self, request: FreshRequested, state: TimelyState, view: View) -> Iterator[Action]:
        """Send the current model to a device in training if it is newer than its base."""
        state.requests += 1
        if view.version > view.in_flight[request.ticket].base:
            state.answered += 1
            yield SendFresh(device=request.device)

    # Uploads ------------------------------------------------------------------------------------------------------

    def aggregate(self, update: Update, turn: int, state: TimelyState, view: View) -> Iterator[Action]:
        """Lines 9 to 16 of Algorithm 1. `turn` is t, or r."""
        if self.fresh_models:  # otherwise a discarded update is never computed
            self.learn(update, state, view)
        staleness = view.version - update.base + 1
        if staleness > self.staleness_bound:
            state.too_stale += 1
            yield Discard(ticket=update.ticket, reason="too stale")
            return
        control = self.adapted(update, state, view)
        state.controls[update.device] = control
        xi, alpha = upload_weight(control, turn, staleness, self.mu_alpha)
        movement = single_movement(update, view)
        state.commits += 1
        state.alpha_sum += alpha
        yield Commit(parameters=moved(view.parameters, movement, alpha), used=(update.ticket,))
        if self.dynamic_weights:
            state.made[view.version] = Aggregation(
                movement=movement, control=control, xi=xi, turn=turn, staleness=staleness
            )
            in_use = {held.base for held in view.in_flight.values()} | {view.version}
            state.made = {version: making for version, making in state.made.items() if version in in_use}

    def adapted(self, update: Update, state: TimelyState, view: View) -> Control:
        """The device's control parameters after the step of Eq. (3), if it starts from a version that allows one."""
        control = state.controls.get(update.device, (self.lambda_0, self.sigma_0, self.iota_0))
        made = state.made.get(update.base)
        if made is None:
            return control
        rate = view.order(learning_rate=state.rates[update.device]).mean_rate(update.progress.steps)
        slopes = control_slopes(update, made, rate, self.mu_alpha, printed=self.control_gradient == "printed")
        stepped = stepped_control(control, (self.eta_lambda, self.eta_sigma, self.eta_iota), slopes)
        state.skipped += stepped is None
        return control if stepped is None else stepped

    def learn(self, update: Update, state: TimelyState, view: View) -> None:
        """Record the device's report of its merge; its first one trains the meta model, Eq. (7)."""
        report = update.extras
        if not report:
            return
        slot, reward = int(report["slot"]), float(report["reward"])
        state.merges += 1
        state.beta_sum += float(report["beta"])
        state.refreshed[update.device] = float(report["gamma"]), float(report["upsilon"])
        if not isfinite(reward):
            return
        count, total = state.rewards.get(slot, (0, 0.0))
        state.rewards[slot] = count + 1, total + reward
        if report["first"] and state.meta is not None:
            model = MetaModel(view.order().slices)
            state.meta.learn(model, slot, reward, rate=self.meta_rate, memory=self.meta_memory)

    def metrics(self, state: TimelyState) -> dict[str, float]:
        controls = list(state.controls.values()) or [(0.0, 0.0, 0.0)]
        merging = list(state.refreshed.values()) or [(0.0, 0.0)]
        rewarded, rewards = (sum(column) for column in zip((0, 0.0), *state.rewards.values(), strict=True))
        figures = {
            "requests": state.requests,
            "requests_answered": state.answered,
            "mean_alpha": state.alpha_sum / state.commits if state.commits else 0.0,
            "mean_beta": state.beta_sum / state.merges if state.merges else 0.0,
            "mean_reward": rewards / rewarded if rewarded else 0.0,
            "too_stale": state.too_stale,
            "skipped_adaptations": state.skipped,
        }
        names = ("lambda", "sigma", "iota", "gamma", "upsilon")
        columns = [*zip(*controls, strict=True), *zip(*merging, strict=True)]
        return figures | {
            f"{name}_spread": max(values) - min(values) for name, values in zip(names, columns, strict=True)
        }


class FedASMU(TimelyPolicy):
    """Asynchronous: adaptive weights, and fresh models for devices during training (Liu et al. 2024).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedASMU(cohort=2, lambda_0=1.0, sigma_0=1.0, iota_0=0.0))
    >>> _ = session.upload(4.0, 0.0, ticket=1)  # s = 1: xi = 1, alpha = 1/2
    >>> session.ask(ticket=2).parameters.tolist()  # a device in training gets the newest model
    [2.0, 0.0]
    >>> _ = session.upload(2.0, 6.0, ticket=2)  # s = 2: xi = 1/2, alpha = 1/3
    >>> [round(float(number), 6) for number in session.parameters]  # 2/3 [2, 0] + 1/3 [2, 6]
    [2.0, 2.0]
    """

    period: Positive = 10.0
    """Seconds between two times at which `cohort` devices are ordered."""
    max_in_flight: Annotated[int, Field(ge=1)] | None = None
    """Number of devices in training at which a period gives no orders (default: half of all devices)."""

    about = About(
        name="fedasmu",
        family="asynchronous",
        paper="Liu et al., AAAI 2024",
        provenance="published",
        search=SearchSpace(
            lambda_0=Range(0.5, 20.0, log=True),
            sigma_0=Range(0.0, 1.0),
            iota_0=Range(0.01, 1.0, log=True),
            gamma_0=Range(0.5, 50.0, log=True),
        ),
        local_differences=lambda policy, local: ["fresh models merged during training"] if policy.fresh_models else [],
        flower={"fresh_models": False},
        server_memory=ServerMemory(models=1, per_base=1),  # how each base was made
        smoke={"algorithm": {"period": 1.0, "cohort": 5, "max_in_flight": 10}},
    )

    def react(self, event: Event, state: TimelyState, view: View) -> Iterator[Action]:
        match event:
            case Started() | TimerFired():
                threshold = self.max_in_flight or max(1, view.devices // 2)
                for device in view.pick(self.cohort if len(view.in_flight) < threshold else 0):
                    yield Dispatch(device=device, order=self.order(device, state, view))
                yield SetTimer(name="period", after=self.period)
            case FreshRequested():
                yield from self.answer(event, state, view)
            case Uploaded():
                yield from self.aggregate(event.update, view.version, state, view)


class FedSSMU(TimelyPolicy):
    """Synchronous rounds that merge every upload at once, with fresh models during training (Jia et al. 2025).

    >>> from offbeat.testing import ScriptedSession
    >>> session = ScriptedSession(FedSSMU(cohort=2, lambda_0=1.0, sigma_0=1.0, iota_0=0.0))
    >>> session.upload(4.0, 0.0, ticket=1).used, session.version  # merged at once, with alpha 1/2
    ([1], 1)
    >>> len(session.upload(2.0, 6.0, ticket=2).ordered)  # the second of the round, with alpha 1/3: the next round
    2
    """

    about = replace(
        FedASMU.about,
        name="fedssmu",
        family="synchronous",
        paper="Jia et al., 2025",
        in_training="cohort",
        made_from="single uploads",
        smoke={},
    )

    def react(self, event: Event, state: TimelyState, view: View) -> Iterator[Action]:
        match event:
            case FreshRequested():
                yield from self.answer(event, state, view)
            case Uploaded():
                yield from self.aggregate(event.update, state.round, state, view)
        if not view.in_flight and view.idle:
            state.round += 1
            for device in view.pick(self.cohort):
                yield Dispatch(device=device, order=self.order(device, state, view))
