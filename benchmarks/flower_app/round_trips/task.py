"""The task: LeNet-5 on a node's share of 5,000 digits."""

import numpy as np
import numpy.typing as npt
from flwr.app import Context
from torch import nn

from offbeat.data.embedded import Mnist5k
from offbeat.models import build

EPOCHS, BATCH, RATE = 1, 32, 0.05


def model() -> nn.Module:
    return build("lenet5", (1, 28, 28), 10, seed=0)


def data(context: Context) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Every n-th sample."""
    whole = Mnist5k().load(0)
    own = slice(int(context.node_config["partition-id"]), None, int(context.run_config["nodes"]))
    return whole.train_x[own], whole.train_y[own]


def test_data() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    whole = Mnist5k().load(0)
    return whole.test_x, whole.test_y
