"""Use your own data, model, fleet, partition and availability.

    python examples/own_data_model_and_fleet.py

Here they are Python objects. An experiment file names them as "module:name", with their settings beside the name:
`[fleet] name = "own_data_model_and_fleet:TwoKinds"`, `slow = 8.0`.
"""

import numpy as np
import torch
from torch import nn

import offbeat
from offbeat.data.dataset import Labels
from offbeat.fleet import OnOffAvailable, Speeds, Workload
from offbeat.fleet.speeds import FixedSpeeds


def two_moons(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return train_x, train_y, test_x, test_y (or an offbeat.Dataset) for a seed."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, 1500)
    angle = random.uniform(0, np.pi, 1500) + np.pi * y
    x = np.stack([np.cos(angle) + y, np.sin(angle) + 0.5 * y], axis=1) + random.normal(0, 0.1, (1500, 2))
    return x[:1200], y[:1200], x[1200:], y[1200:]


class Net(nn.Module):
    """Map a batch to logits. The experiment's seed determines the initial parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(2, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(torch.tanh(self.hidden(x)))
        return logits


class TwoKinds(offbeat.FleetSettings):
    """A fleet in which every third device is `slow` times slower than the others."""

    slow: float = 5.0

    def build(self, workload: Workload) -> Speeds:
        slowness = np.where(np.arange(workload.devices) % 3 == 0, self.slow, 1.0)
        return FixedSpeeds(slowness, workload)


class FirstHasMost(offbeat.PartitionSettings):
    """A partition in which the first device holds a `share` of all samples and the others split the rest evenly."""

    share: float = 0.3

    def split(self, labels: Labels, devices: int, seed: int) -> offbeat.Partition:
        samples = np.random.default_rng(seed).permutation(len(labels))
        first = int(self.share * len(labels))
        return offbeat.Partition.of([samples[:first], *np.array_split(samples[first:], devices - 1)])


def main() -> None:
    experiment = offbeat.Experiment(
        stop={"time": 400.0},
        data={"name": two_moons, "devices": 20},
        partition=FirstHasMost(share=0.2),
        model=Net,
        local={"epochs": 2, "learning_rate": 0.3, "prox": 0.01},
        fleet=TwoKinds(slow=8.0),
        availability=OnOffAvailable(on_seconds=100.0, off_seconds=20.0),
        algorithm={"name": "fedbuff", "buffer": 5, "concurrency": 10},
    )
    result = offbeat.run(experiment)
    print(result)

    # Load the trained parameters into a torch model.
    network = Net()
    network.load_state_dict(result.state_dict())
    _, _, test_x, test_y = two_moons(experiment.seed)
    with torch.no_grad():
        found = network(torch.from_numpy(test_x).float()).argmax(dim=1).numpy()
    print(f"accuracy of the loaded model: {(found == test_y).mean():.4f}")

    # Print the first tables of the experiment as a file.
    print(experiment.toml().partition("[local]")[0])


if __name__ == "__main__":
    main()
