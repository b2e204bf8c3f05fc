"""FedASMU's device half: the merge by hand and against autograd, what a device remembers, and what a request costs."""

import json
from collections.abc import Sequence
from itertools import islice
from math import inf, nan, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.algorithms.fedasmu.device import FreshModelRule, merge_weight
from offbeat.algorithms.fedasmu.server import FedASMU, FedSSMU, TimelyPolicy
from offbeat.core.orders import LocalWork, Order, Progress
from offbeat.core.parameters import Layout, Vector
from offbeat.core.policy import Ask, Fresh, Memory, Probe, Train, Upload
from offbeat.core.session import Session
from offbeat.core.snapshot import decode, encode
from offbeat.experiment.run_settings import Stop
from offbeat.fleet import FailureSettings, Fleet, NetworkSettings, Workload
from offbeat.fleet.availability import Always
from offbeat.fleet.speeds import FixedSpeeds
from offbeat.simulation.engine import Simulation
from offbeat.testing import check_resume, toy_simulation
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState

RULE = FreshModelRule()
STAY, ADD, MINUS = 0, 1, 2  # columns of the table


def vector(*numbers: float) -> Vector:
    return np.array(numbers, dtype=np.float32)


def an_order(**changes: Any) -> Order:
    """4 epochs; mu 1, gamma 2, upsilon 1, step sizes 0.3, Q rate 1/2 and discount 0.9."""
    told = {
        "slot": 2,
        "fixed": False,
        "draw": 0.99,
        "epsilon": 0.3,
        "q_rate": 0.5,
        "q_discount": 0.9,
        "mu": 1.0,
        "gamma": 2.0,
        "upsilon": 1.0,
        "gamma_rate": 0.3,
        "upsilon_rate": 0.3,
        "round": 0,
    }
    return Order(slices=4, rule="fedasmu", arguments=told | changes)


def quadratic(*centre: float) -> Probe:
    """F(w) = 1/2 |w - c|^2."""
    return lambda w: (float(np.sum((w - vector(*centre)) ** 2)) / 2, w - vector(*centre))


def merged(
    memory: Memory, order: Order, probe: Probe, *, version: int = 4, base: int = 1, fresh: Vector | None = None
) -> Vector:
    """The local model [0, 3] takes in [3, 0]."""
    new = Fresh(version=version, parameters=vector(3.0, 0.0) if fresh is None else fresh)
    return RULE.merge(vector(0.0, 3.0), new, base, order, memory, probe)


# Equations (9), (10), (11) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mu", "gamma", "upsilon", "g", "staleness", "expected"),
    [
        # phi = 2/2 (1 - 1/2) = 1/2, beta = (1/2) / (3/2); d beta / d phi = 1 / (3/2)^2 = 4/9;
        # by gamma 4/9 * (1/2) / 2;  by upsilon 4/9 * -2 / (2 * 2)
        (1.0, 2.0, 1.0, 4, 4, (1 / 3, 1 / 9, -2 / 9)),
        # phi = 3/3 (1 - 1/4) = 3/4, beta = 1.5 / 2.5; 2 / 2.5^2 = 0.32; 0.32 * 0.75 / 3;  0.32 * -3 / (3 * 2)
        (2.0, 3.0, 0.5, 9, 4, (0.6, 0.08, -0.16)),
        # the earliest, g = 1, o = 0: phi = 1 - 1 / sqrt 2 = 0.29289322, beta = phi / (1 + phi) = 0.22654092;
        # d beta / d phi = 1 / (2 - 1 / sqrt 2)^2 = 1 / (4.5 - 2 sqrt 2) = 0.59823888; times phi; times -1 / sqrt 2
        (1.0, 1.0, 1.0, 1, 2, (0.22654092, 0.17522013, -0.42301882)),
        # upsilon 2 with s = 2: 1 - 2 / sqrt 2 < 0, so phi is 0
        (1.0, 1.0, 2.0, 1, 2, (0.0, 0.0, 0.0)),
    ],
)
def test_equation_10_and_its_derivatives(
    mu: float, gamma: float, upsilon: float, g: int, staleness: int, expected: tuple[float, float, float]
) -> None:
    assert tuple(merge_weight(mu, gamma, upsilon, g, staleness)) == pytest.approx(expected, rel=1e-6)


@given(
    mu=st.floats(1e-3, 10.0),
    gamma=st.floats(0.0, 100.0),
    upsilon=st.floats(0.0, 10.0),
    g=st.integers(1, 10_000),
    staleness=st.integers(2, 1000),
)
@settings(deadline=None)
def test_beta_lies_in_0_1(mu: float, gamma: float, upsilon: float, g: int, staleness: int) -> None:
    assert 0.0 <= merge_weight(mu, gamma, upsilon, g, staleness).beta < 1.0


def test_equations_9_and_11_and_the_reward_by_hand() -> None:
    memory: Memory = {}
    # g = 4, o = 1: s = 4, beta = 1/3 as above.  w = 2/3 [0, 3] + 1/3 [3, 0] = [1, 2]
    assert merged(memory, an_order(), quadratic(1.0, 0.0)) == pytest.approx([1.0, 2.0])
    # grad F = [1, 2] - [1, 0] = [0, 2];  <[0, 2], [3, -3]> = -6
    assert memory["gamma"] == pytest.approx(2.2)  # 2 - 0.3 * -6 * 1/9
    assert memory["upsilon"] == pytest.approx(0.6)  # 1 - 0.3 * -6 * -2/9
    assert memory["reward"] == pytest.approx(3.0)  # (1 + 9) / 2 - (0 + 4) / 2
    assert memory["beta"] == pytest.approx(1 / 3)
    assert RULE.extras(an_order(), {}, memory) == {
        "slot": 2,
        "first": True,
        "reward": pytest.approx(3.0),
        "beta": pytest.approx(1 / 3),
        "gamma": pytest.approx(2.2),
        "upsilon": pytest.approx(0.6),
    }


PAIRS = st.tuples(st.floats(-2.0, 2.0, width=32), st.floats(-2.0, 2.0, width=32))


@given(
    mu=st.floats(0.2, 3.0),
    gamma=st.floats(0.5, 3.0),
    upsilon=st.floats(0.1, 1.0),
    base=st.integers(0, 30),
    newer=st.integers(1, 30),
    fresh=PAIRS,
    centre=PAIRS,
)
@settings(max_examples=60, deadline=None)
def test_equation_11_is_autograd_on_a_quadratic(
    mu: float,
    gamma: float,
    upsilon: float,
    base: int,
    newer: int,
    fresh: tuple[float, float],
    centre: tuple[float, float],
) -> None:
    theta = torch.tensor([gamma, upsilon], dtype=torch.float64, requires_grad=True)
    phi = theta[0] / sqrt(base + newer) * (1 - theta[1] / sqrt(newer + 1))
    beta = mu * phi / (1 + mu * phi)
    local = torch.tensor([0.0, 3.0], dtype=torch.float64)
    model = (1 - beta) * local + beta * torch.tensor(fresh, dtype=torch.float64)
    loss = ((model - torch.tensor(centre, dtype=torch.float64)) ** 2).sum() / 2
    (slope,) = torch.autograd.grad(loss, theta)
    memory: Memory = {}
    order = an_order(mu=mu, gamma=gamma, upsilon=upsilon, gamma_rate=1e-3, upsilon_rate=1e-3)
    found = merged(memory, order, quadratic(*centre), version=base + newer, base=base, fresh=vector(*fresh))
    assert found == pytest.approx(model.detach().numpy(), rel=1e-5, abs=1e-5)
    assert (gamma - float(memory["gamma"])) / 1e-3 == pytest.approx(slope[0].item(), rel=1e-3, abs=1e-4)
    assert (upsilon - float(memory["upsilon"])) / 1e-3 == pytest.approx(slope[1].item(), rel=1e-3, abs=1e-4)


def test_in_fedssmu_the_round_takes_the_place_of_the_version() -> None:
    memory: Memory = {}
    # r = 9, k = 3 merges (version 23 of base 20): mu 2, gamma 3, upsilon 1/2 give beta = 0.6 (see above).
    order = an_order(round=9, mu=2.0, gamma=3.0, upsilon=0.5)
    assert merged(memory, order, quadratic(0.0, 0.0), version=23, base=20) == pytest.approx([1.8, 1.2])


def test_where_phi_is_cut_off_nothing_is_merged_and_nothing_adapted() -> None:
    memory: Memory = {}
    # s = 4: 1 - 3 / 2 < 0
    assert merged(memory, an_order(upsilon=3.0), quadratic(1.0, 0.0)).tolist() == [0.0, 3.0]
    assert (memory["beta"], memory["reward"], memory["gamma"], memory["upsilon"]) == (0.0, 0.0, 2.0, 3.0)


def test_gamma_and_upsilon_do_not_become_negative() -> None:
    memory: Memory = {}
    # c = [3, 0]: grad F = [1, 2] - [3, 0] = [-2, 2], slope -12: gamma rises, upsilon falls
    merged(memory, an_order(upsilon_rate=100.0), quadratic(3.0, 0.0))
    assert memory["upsilon"] == 0.0
    # c = [0, 3]: grad F = [1, -1], slope 6: gamma falls
    memory = {}
    merged(memory, an_order(gamma_rate=100.0), quadratic(0.0, 3.0))
    assert memory["gamma"] == 0.0


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_step_that_is_not_finite_is_not_taken(bad: float) -> None:
    memory: Memory = {}
    merged(memory, an_order(), lambda w: (1.0, vector(bad, 0.0)))
    assert (memory["gamma"], memory["upsilon"]) == (2.0, 1.0)


# What a device does, and remembers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("slot", [1, 2, 3, 4])
def test_it_asks_once_before_the_epoch_of_its_slot(slot: int) -> None:
    order = an_order(slot=slot)
    if slot > 1:
        assert RULE.next(Progress(), 0, order, {}) == Train(slot - 1)
    assert RULE.next(Progress(slices=slot - 1), 0, order, {}) == Ask()
    assert RULE.next(Progress(slices=slot - 1), 1, order, {}) == Train(5 - slot), "answered, with a model or without"
    assert RULE.next(Progress(slices=4), 1, order, {}) == Upload()


def asks_before(order: Order, memory: Memory) -> int:
    step = RULE.next(Progress(), 0, order, memory)
    return step.slices + 1 if isinstance(step, Train) else 1


def test_a_device_lives_by_its_own_table_after_its_first_merge() -> None:
    memory: Memory = {}
    probe = quadratic(1.0, 0.0)
    merged(memory, an_order(slot=2), probe)
    assert (memory["slot"], memory["merges"], bool(np.any(memory["table"]))) == (2, 1, False)
    # Luck 0.15 of epsilon 0.3 is the middle one of three moves: add. The server's slot no longer counts.
    order = an_order(slot=4, draw=0.15, gamma=99.0)
    assert asks_before(order, memory) == 3
    before = dict(memory)
    merged(memory, order, probe)  # from gamma 2.2, upsilon 0.6: phi = 1.1 * 0.7 = 0.77, beta = 0.4350282
    assert memory["beta"] == pytest.approx(0.4350282, rel=1e-6)
    # w = [1.3050847, 1.6949153]: F = (0.0930767 + 2.8727378) / 2 = 1.4829072, R = 5 - 1.4829072 = 3.5170928
    assert memory["reward"] == pytest.approx(3.5170928, rel=1e-5)
    table = np.asarray(memory["table"])
    assert table[2 - 1, ADD] == pytest.approx(0.5 * 3.5170928, rel=1e-5)  # H(2, add) = 1/2 (R + 0.9 * 0 - 0)
    assert np.count_nonzero(table) == 1
    assert (memory["slot"], memory["merges"]) == (3, 2)
    assert RULE.extras(order, before, memory)["first"] is False
    # Without luck it now stays at 3, where it knows nothing better.
    assert asks_before(an_order(slot=1), memory) == 3
    assert RULE.extras(order, memory, memory) == {}, "a training without a merge tells nothing"


def test_slots_are_clipped_to_the_epochs() -> None:
    memory: Memory = {}
    merged(memory, an_order(slot=4), quadratic(1.0, 0.0))
    assert asks_before(an_order(draw=0.15), memory) == 4, "add at the last epoch"
    memory["slot"] = 1
    assert asks_before(an_order(draw=0.25), memory) == 1, "minus at the first"


def test_a_fixed_slot_is_kept_and_no_table_learns() -> None:
    memory: Memory = {}
    for _ in range(3):
        order = an_order(slot=3, fixed=True, draw=0.15)
        assert asks_before(order, memory) == 3
        merged(memory, order, quadratic(1.0, 0.0))
    assert (memory["merges"], bool(np.any(memory["table"]))) == (3, False)


# What a request costs ------------------------------------------------------------------------------------------------


class Counting:
    """Every slice adds 1 to both numbers, on device 1 it adds 3."""

    batch_capacity = 64

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        return [
            TrainingState(parameters=job.state.parameters + np.float32((job.last - job.first) * (1 + 2 * job.device)))
            for job in jobs
        ]

    def evaluate(self, parameters: Vector) -> Evaluation:
        return Evaluation(metrics={"accuracy": 0.0, "loss": 0.0})

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, number: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        return 0.0, np.ones_like(parameters)

    def close(self) -> None:
        """Nothing is open."""


def landings(seconds: Sequence[float], **changes: Any) -> tuple[dict[int, float], Simulation]:
    """When each device's upload lands: 2 epochs, 1.5 s down, 2.5 s up, 0.5 s for a message without a model."""
    devices = len(seconds)
    samples = np.full(devices, 20, dtype=np.int64)
    workload = Workload(devices=devices, samples=samples, layers=1, flops_per_sample=0.0, seed=0)
    fleet = Fleet(
        speeds=FixedSpeeds(np.array(seconds), workload),
        links=NetworkSettings(uplink_mbps=32e-6, downlink_mbps=64e-6, latency=0.5).build(workload),
        availability=Always(devices),
        failures=FailureSettings().build(workload),
    )
    fixed = {"lambda_0": 1.0, "sigma_0": 0.0, "iota_0": 0.0, "gamma_0": 1.0, "upsilon_0": 0.0, "eta_lambda": 0.0}
    policy = FedASMU.model_validate(
        {"cohort": devices, "max_in_flight": devices, "period": 1000.0, "slot": "first", "eta_sigma": 0.0}
        | {"eta_iota": 0.0}
        | fixed
        | changes
    )
    session = Session(
        policy,
        parameters=np.zeros(2, dtype=np.float32),
        layout=Layout.flat(2),
        samples=samples,
        local=LocalWork(epochs=2, batch_size=5),
    )
    simulation = Simulation(session, fleet, Counting(), stop=Stop(time=100.0))
    list(simulation)
    return {span.device: span.landed for span in simulation.spans}, simulation


def test_an_answer_costs_the_downlinks_time_and_bytes() -> None:
    landed, simulation = landings([2.0, 10.0])
    # Device 0: 1.5 down, epoch 1 until 3.5, asks at 4.0, "nothing newer" at 4.5, epoch 2 until 6.5, lands at 9.0.
    # Device 1: 1.5 down, epoch 1 until 11.5, asks at 12.0, the model is there at 13.5, epoch 2 until 23.5, up: 26.0.
    assert landed == pytest.approx({0: 9.0, 1: 26.0})
    assert simulation.session.counters.bytes_down == 24, "two orders and an answer of 8 bytes each"
    # Device 0 delivers [2, 2]: alpha 1/2, version 1 = [1, 1]. Device 1 has [3, 3]; g = 1: phi = 1, beta = 1/2: [2, 2];
    # 3 more are [5, 5]. alpha = 1/2 again (sqrt 1, sigma 0): version 2 = [3, 3]
    assert simulation.session.parameters == pytest.approx([3.0, 3.0])


def test_a_request_for_nothing_newer_costs_two_latencies_and_no_bytes() -> None:
    landed, simulation = landings([10.0])
    # 1.5 down, epoch 1 until 11.5, asks at 12.0, "nothing newer" at 12.5, epoch 2 until 22.5, up: 25.0
    assert landed == pytest.approx({0: 25.0})
    counters = simulation.session.counters
    assert (counters.requests, counters.answered, counters.bytes_down) == (1, 0, 8)


def test_without_fresh_models_nothing_is_asked_and_nothing_paid() -> None:
    landed, simulation = landings([2.0, 10.0], fresh_models=False)
    assert landed == pytest.approx({0: 8.0, 1: 24.0})  # 1.5 + 2 * 2 + 2.5,  1.5 + 2 * 10 + 2.5
    assert (simulation.session.counters.requests, simulation.session.counters.bytes_down) == (0, 16)


# Memories in whole runs, and in checkpoints --------------------------------------------------------------------------

LEARNING = {"eta_lambda": 1.0, "eta_sigma": 1.0, "eta_gamma": 0.5, "eta_upsilon": 0.5, "epsilon": 0.5, "q_rate": 0.5}
KINDS = pytest.mark.parametrize("kind", [FedASMU, FedSSMU])


def plain(simulation: Simulation) -> Any:
    """What every device remembers, also of runs that were delivered, or lost on the way, and that nobody has read."""
    simulation.snapshot()  # which computes those
    return {
        device: {key: np.asarray(value).tolist() for key, value in memory.items()}
        for device, memory in simulation.training.memories.items()
    }


@KINDS
def test_what_a_device_learned_lasts_from_training_to_training(kind: type[TimelyPolicy]) -> None:
    policy = kind.model_validate({"cohort": 4} | LEARNING)
    simulation = toy_simulation(policy, devices=8, troubled=False)
    merges: dict[int, int] = {}
    for _ in simulation:
        for device, memory in simulation.training.memories.items():
            now = int(memory.get("merges", 0))
            assert merges.get(device, 0) <= now <= merges.get(device, 0) + 1
            merges[device] = now
    assert max(merges.values()) > 2
    assert any(np.any(memory["table"]) for memory in simulation.training.memories.values() if memory)
    # What the server was told of gamma and upsilon is what the devices have.
    told = simulation.session.state.refreshed
    assert told
    for device, (gamma, upsilon) in told.items():
        memory = simulation.training.memories[device]
        assert (memory["gamma"], memory["upsilon"]) == (gamma, upsilon)
        assert gamma != policy.gamma_0, "it has learned"
        assert upsilon != policy.upsilon_0 or upsilon == 0.0, "it has learned, unless it was kept at the bound"


@KINDS
def test_a_run_goes_on_from_anywhere(kind: type[TimelyPolicy]) -> None:
    check_resume(kind.model_validate(LEARNING), devices=12)


@KINDS
def test_a_run_goes_on_from_between_a_request_and_its_answer(kind: type[TimelyPolicy]) -> None:
    def a_run() -> Simulation:
        return toy_simulation(kind.model_validate(LEARNING), devices=12, stop=Stop(updates=40, time=1e4))

    whole, answers, asked = a_run(), 0, []
    rows = []
    for turn, row in enumerate(whole, 1):
        rows += [row] if row is not None else []
        if whole.session.counters.answered > answers:
            answers = whole.session.counters.answered
            asked.append(turn)
    assert len(asked) > 5
    # Just before the request reaches the server, and while the answer is on its way.
    for cut in (asked[0] - 1, asked[0], asked[len(asked) // 2] - 1, asked[len(asked) // 2], asked[-1] - 1, asked[-1]):
        stopped, resumed = a_run(), a_run()
        before = [row for row in islice(stopped, cut) if row is not None]
        tree, arrays = encode(stopped.snapshot())
        resumed.restore(decode(json.loads(json.dumps(tree)), arrays, resumed.snapshot_types))
        assert plain(resumed) == plain(stopped), "memories are part of a snapshot"
        assert before + [row for row in resumed if row is not None] == rows
        assert resumed.session.parameters.tobytes() == whole.session.parameters.tobytes()
        assert plain(resumed) == plain(whole)
