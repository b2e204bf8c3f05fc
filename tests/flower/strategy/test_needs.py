"""Every algorithm either runs with a client app of Flower's or is refused in one sentence, before anything starts."""

import numpy as np
import pytest
from app_grid import AppGrid, adding_app
from flwr.app import Array, ArrayRecord

from offbeat import flower
from offbeat.algorithms import POLICIES, Adel, FedASMU, FedBuff, FedProx, FedSA, FedSSMU, HeteroFL, Ringleader
from offbeat.algorithms.about import about_of
from offbeat.core.errors import DeviceFault, InvalidInput, PolicyError
from offbeat.core.messages import Dispatch
from offbeat.core.policy import Policy
from offbeat.flower import Async
from offbeat.flower.strategy.needs import why_not
from offbeat.flower.strategy.records import loss_in

REFUSED = {
    "moon": "keep state from one order",
    "feddyn": "keep state from one order",
    "aso-fed": "keep state from one order",
    "fedsa": "different numbers of epochs",
    "fedcompass": "orders numbers of steps",
    "fedasmu": "request the fresh model",
    "fedssmu": "request the fresh model",
    "seafl2": "stops devices",
    "ringmaster-stop": "stops devices",
    "port": "stops devices",
    "safa": "stops devices",
    "adel": "plans rounds",
    "salf": "plans rounds",
    "drop-stragglers": "plans rounds",
    "wait-stragglers": "layer by layer",
    "heterofl": "plans rounds",
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_algorithm_runs_or_is_refused_in_one_sentence(name: str) -> None:
    policy = POLICIES[name]()
    if name in REFUSED:
        with pytest.raises(InvalidInput, match=REFUSED[name]) as refusal:
            Async(policy)
        assert "offbeat.flower.client_app" in str(refusal.value)
        assert ". " not in str(refusal.value).replace("docs/how-to/deployment.md", "")
        return
    grid = AppGrid({0: 1.0, 1: 1.5, 2: 7.0, 3: 1.0}, adding_app({0: 1.0, 1: 2.0, 2: 3.0, 3: 1.0}))
    first = ArrayRecord({"w": Array(np.zeros(3, np.float32)), "n": Array(np.array(0))})
    result = Async(policy).start(grid, first, num_rounds=3)  # type: ignore[arg-type]
    assert max(result.train_metrics_clientapp) == 3
    assert (result.arrays["w"].numpy() > 0).all()
    assert result.arrays["n"].numpy() > 0


def test_what_can_be_run_without_its_special_part_is_run() -> None:
    Async(FedASMU(fresh_models=False))
    Async(FedSSMU(fresh_models=False))
    Async(FedProx(mu=0.1))
    with pytest.raises(InvalidInput, match="FedProx has devices stop training when a time budget"):
        Async(FedProx(round_seconds=3.0))


def test_a_refusal_names_the_settings_that_work() -> None:
    with pytest.raises(InvalidInput, match=r"cannot do: set fresh_models = False, or use offbeat's client app"):
        Async(FedASMU())


def test_the_names_of_offbeat_flower_are_those_that_work() -> None:
    offered = {name for name in flower.__all__ if name in {policy.__name__ for policy in POLICIES.values()}}
    fresh = {"FedASMU", "FedSSMU"}  # which work without fresh models
    assert offered == {POLICIES[name].__name__ for name in POLICIES if name not in REFUSED} | fresh


@pytest.mark.parametrize("name", POLICIES)
def test_what_an_algorithm_says_about_flower_is_true(name: str) -> None:
    policy, settings = POLICIES[name], about_of(POLICIES[name]).flower
    if settings is None:
        assert why_not(policy(), 20)
    else:
        assert why_not(policy(**settings), 20) is None


def test_a_name_that_does_not_run_with_stock_client_apps_is_refused() -> None:
    with pytest.raises(AttributeError, match=r"'offbeat\.flower' has no attribute 'Adel'"):
        _ = flower.Adel


def test_a_policy_that_shows_its_needs_late_ends_the_run() -> None:
    class Late(flower.FedAvg):
        def order(self, device: int, view):  # type: ignore[no-untyped-def]
            return view.order(width=0.5 if view.version == 6 else 1.0)

        def check(self, devices: int) -> None:
            if devices > 2:  # so that it is only tried out with two
                raise InvalidInput("too many")

    grid, first = AppGrid({0: 1.0, 1: 1.0}, adding_app({})), ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    with pytest.raises(PolicyError, match="trains submodels"):
        Async(Late(cohort=2), fraction_evaluate=0.0).start(grid, first, num_rounds=10)  # type: ignore[arg-type]


def test_policies_of_ones_own_are_tried_out_like_others() -> None:
    class Narrow(Policy):
        State = dict

        def react(self, event, state, view):  # type: ignore[no-untyped-def]
            for device in view.pick(1):
                yield Dispatch(device=device, order=view.order(width=0.5))

    with pytest.raises(InvalidInput, match="Narrow trains submodels"):
        Async(Narrow())
    assert Adel.plans and HeteroFL.plans and not FedSA.plans


def test_a_selection_of_nodes_is_checked_and_reads_the_loss_of_stock_clients() -> None:
    with pytest.raises(InvalidInput, match=r"'oort' needs the squared losses of samples.*'train_loss'"):
        Async(FedBuff(buffer=2), selection="oort")
    with pytest.raises(InvalidInput, match="Ringleader keeps all devices in training, leave it out"):
        Async(Ringleader(), selection="tifl")
    grid = AppGrid({0: 1.0, 1: 1.5, 2: 7.0, 3: 1.0}, adding_app({0: 1.0, 1: 2.0, 2: 3.0, 3: 1.0}))
    first = ArrayRecord({"w": Array(np.zeros(3, np.float32)), "n": Array(np.array(0))})
    strategy = Async(
        FedBuff(buffer=2, concurrency=2), selection={"name": "oort", "loss": "mean"}, loss_key="num-examples"
    )
    assert max(strategy.start(grid, first, num_rounds=4).train_metrics_clientapp) == 4  # type: ignore[arg-type]


def test_a_reply_without_the_loss_that_the_selection_reads_is_refused() -> None:
    assert loss_in({"train_loss": 2}, "train_loss") == 2.0
    with pytest.raises(DeviceFault, match="no number 'train_loss', the training loss that the selection reads"):
        loss_in({"loss": 1.0}, "train_loss")
