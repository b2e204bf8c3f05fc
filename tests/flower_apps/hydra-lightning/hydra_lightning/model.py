"""The model, its data and its configuration."""

import logging
import warnings
from pathlib import Path

import lightning
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


def load_config(context):
    """Compose the configuration with the overrides of the run config."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(Path(__file__).parent / "conf"), version_base="1.3"):
        return compose("config", overrides=context.run_config["overrides"].split())


class Digits(lightning.LightningModule):
    """A small network for handwritten digits."""

    def __init__(self, hidden: int, learning_rate: float):
        super().__init__()
        self.learning_rate = learning_rate
        self.net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def training_step(self, batch, _):
        """Loss on a batch."""
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        """Accuracy on a batch."""
        x, y = batch
        self.log("val_acc", (self.net(x).argmax(dim=1) == y).float().mean())

    def configure_optimizers(self):
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def loaders(partition: int, partitions: int):
    """Training and validation data of a partition."""
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
    part = torch.utils.data.Subset(data, list(range(partition, len(data), partitions)))
    cut = int(0.8 * len(part))
    train, val = (torch.utils.data.Subset(part, list(each)) for each in (range(cut), range(cut, len(part))))
    return DataLoader(train, batch_size=32, shuffle=True), DataLoader(val, batch_size=len(val))


def trainer(config):
    """A trainer that writes nothing."""
    return lightning.Trainer(
        max_epochs=config.trainer.max_epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
