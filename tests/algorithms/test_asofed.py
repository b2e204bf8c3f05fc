"""ASO-Fed: copies, shares, step sizes and attention worked out by hand."""

from math import exp, log

import numpy as np
import pytest
from msgspec.structs import replace

from offbeat.algorithms.asofed import AsoFed, attended
from offbeat.core.messages import Uploaded
from offbeat.core.orders import Progress
from offbeat.core.parameters import Layout
from offbeat.core.terms import PastGradients, Proximal
from offbeat.testing import ScriptedSession


def test_an_upload_moves_the_model_by_its_share_of_the_samples_from_the_devices_last_copy() -> None:
    session = ScriptedSession(AsoFed(concurrency=2), samples=[10, 30], start=(1.0, 1.0))
    session.upload(5.0, 1.0, device=0)
    # n_0 / n = 1/4, the copy is the first model [1, 1]: [1, 1] + 1/4 [4, 0]
    assert session.parameters.tolist() == [2.0, 1.0]
    session.upload(1.0, 5.0, device=1)
    # 3/4, still against [1, 1]: [2, 1] + 3/4 [0, 4]
    assert session.parameters.tolist() == [2.0, 4.0]
    session.upload(9.0, 9.0, device=0)
    # now against its own last upload [5, 1]: [2, 4] + 1/4 [4, 8]
    assert session.parameters.tolist() == [3.0, 6.0]


def test_every_order_has_the_two_terms() -> None:
    session = ScriptedSession(AsoFed(concurrency=1, mu=0.3, beta=0.2))
    assert session.first.orders[0].order.terms == (Proximal(mu=0.3), PastGradients(beta=0.2))


@pytest.mark.parametrize(("dynamic", "factor"), [(True, log(20.0)), (False, 1.0)])
def test_slow_devices_take_larger_steps(dynamic: bool, factor: float) -> None:
    session = ScriptedSession(AsoFed(concurrency=1, dynamic_rate=dynamic), devices=1, learning_rate=0.1)
    assert session.first.orders[0].order.learning_rate == pytest.approx(0.1), "nothing is known of it yet"
    for seconds in (10.0, 30.0):
        update = replace(session.update(), progress=Progress(slices=1, steps=1, seconds=seconds))
        reaction = session.handle(Uploaded(device=0, ticket=update.ticket, update=update))
    # the mean of 10 and 30 s is 20 s: log 20
    assert reaction.orders[0].order.learning_rate == pytest.approx(0.1 * factor)


def test_fast_devices_keep_their_step() -> None:
    session = ScriptedSession(AsoFed(concurrency=1), devices=1, learning_rate=0.1)
    update = replace(session.update(), progress=Progress(slices=1, steps=1, seconds=2.0))
    reaction = session.handle(Uploaded(device=0, ticket=update.ticket, update=update))
    # log 2 = 0.69 is below 1
    assert reaction.orders[0].order.learning_rate == pytest.approx(0.1)


def test_attention_weights_the_rows_of_the_first_layer_by_their_softmax() -> None:
    layout = Layout.of([("a.weight", (1, 2), True), ("a.bias", (1,), True), ("b.weight", (1, 2), True)])
    found = attended(np.array([1.0, -3.0, 5.0, 7.0, 2.0], dtype=np.float32), layout)
    # softmax(1, 3) = (e, e^3) / (e + e^3); biases and later layers stay
    total = exp(1.0) + exp(3.0)
    assert found == pytest.approx([exp(1.0) / total, -3 * exp(3.0) / total, 5.0, 7.0, 2.0])


@pytest.mark.parametrize("attention", [True, False])
def test_attention_comes_after_every_upload_if_it_is_asked_for(attention: bool) -> None:
    policy, one = AsoFed(concurrency=1, attention=attention), Layout.of([("a.weight", (1, 2), True)])
    session = ScriptedSession(policy, devices=1, start=[0.0, 0.0], layout=one)
    session.upload(1.0, -3.0)
    # n_k / n = 1: w = [1, -3], and with attention times (e, e^3) / (e + e^3)
    shares = [exp(1.0), exp(3.0)] if attention else [1.0, 1.0]
    total = exp(1.0) + exp(3.0) if attention else 1.0
    assert session.parameters == pytest.approx([shares[0] / total, -3 * shares[1] / total])
