"""FedAvgM on a model of two numbers, computed by hand."""

from offbeat.algorithms.fedavgm import FedAvgM

from offbeat.testing import ScriptedSession


def test_the_second_round_repeats_half_of_the_first_step() -> None:
    session = ScriptedSession(FedAvgM(cohort=2, momentum=0.5), samples=[10, 30])
    session.upload(4.0, 0.0, device=0)
    session.upload(0.0, 4.0, device=1)
    # mean 1/4 [4, 0] + 3/4 [0, 4] = [1, 3];  v = [0, 0] - [1, 3] = [-1, -3];  w = [0, 0] - v
    assert session.parameters.tolist() == [1.0, 3.0]
    session.upload(1.0, 3.0, device=0)
    session.upload(5.0, 3.0, device=1)
    # mean [4, 3];  v = 1/2 [-1, -3] + ([1, 3] - [4, 3]) = [-3.5, -1.5];  w = [1, 3] - v
    assert session.parameters.tolist() == [4.5, 4.5]


def test_a_round_does_not_wait_for_a_lost_device() -> None:
    session = ScriptedSession(FedAvgM(cohort=2, momentum=0.5), devices=2)
    session.lose(device=0)
    session.upload(2.0, 2.0, device=1)
    assert session.parameters.tolist() == [2.0, 2.0]
