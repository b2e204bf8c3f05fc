"""A small network on handwritten digits."""

from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """One hidden layer, with batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> Any:
        """Scores of the ten digits."""
        return self.layers(x)


@cache
def digits() -> TensorDataset:
    """All digits."""
    x, y = load_digits(return_X_y=True)
    return TensorDataset(torch.tensor(x / 16.0, dtype=torch.float32), torch.tensor(y))


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """A client's digits, a fifth of them for testing."""
    everything = digits()
    mine = torch.arange(partition_id, len(everything), num_partitions)
    cut = len(mine) * 4 // 5
    training, testing = (TensorDataset(*everything[part]) for part in (mine[:cut], mine[cut:]))
    return DataLoader(training, batch_size=batch_size, shuffle=True), DataLoader(testing, batch_size=batch_size)


def train(net: nn.Module, loader: DataLoader[Any], epochs: int, lr: float, device: torch.device) -> float:
    """Train the network; returns the mean loss."""
    net.to(device)
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(net(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net: nn.Module, loader: DataLoader[Any], device: torch.device) -> tuple[float, float]:
    """Loss and accuracy."""
    net.to(device)
    net.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            said = net(x.to(device))
            loss += nn.functional.cross_entropy(said, y.to(device)).item()
            correct += int((said.argmax(dim=1) == y.to(device)).sum())
    return loss / len(loader), correct / len(loader.dataset)  # type: ignore[arg-type]
