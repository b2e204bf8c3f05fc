"""The model and its data."""

from collections import OrderedDict

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    """One linear layer."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        """Scores of the digits."""
        return self.fc(x)


def get_weights(net):
    """The parameters as a list of arrays."""
    return [value.cpu().numpy() for value in net.state_dict().values()]


def set_weights(net, parameters):
    """Load a list of arrays."""
    pairs = zip(net.state_dict().keys(), parameters, strict=True)
    net.load_state_dict(OrderedDict({name: torch.tensor(value) for name, value in pairs}))


def load_data(partition=0, partitions=1):
    """The samples of a partition."""
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[partition::partitions] / 16, dtype=torch.float32), torch.tensor(y[partition::partitions])


def fit(net, x, y, lr):
    """One epoch of SGD; returns the last loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for batch in torch.randperm(len(y)).split(32):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    return float(loss)


def test(net, x, y):
    """Loss and accuracy."""
    with torch.no_grad():
        scores = net(x)
    return float(nn.functional.cross_entropy(scores, y)), float((scores.argmax(dim=1) == y).float().mean())
