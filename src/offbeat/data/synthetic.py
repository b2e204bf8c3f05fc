"""Generated data whose heterogeneity can be dialled: Synthetic(alpha, beta).

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, section 5.1. Device k draws its own softmax regression and its own inputs; N(m, v) has variance v:

    y = argmax(W_k x + b_k)     W_k, b_k ~ N(u_k, 1)    u_k ~ N(0, alpha)
    x ~ N(v_k, Sigma)           v_k ~ N(B_k, 1)         B_k ~ N(0, beta)      Sigma diagonal, Sigma_jj = j^-1.2

Deviation: every device has the same number of samples (the paper draws them from a power law), so that uneven sizes
stay a matter of the experiment.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from offbeat.core.streams import stream
from offbeat.data.dataset import Dataset, DatasetSettings, Floats, Labels

Heterogeneity = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Synthetic(DatasetSettings):
    """Generated data, a linear model per device: Synthetic(alpha, beta) of the FedProx paper (Li et al. 2020)."""

    name: Literal["synthetic"] = "synthetic"
    devices: Annotated[int, Field(gt=0)] = 30
    """Each device generates its own data, so their number belongs to the data set."""
    samples_per_device: Annotated[int, Field(ge=2)] = 100
    """Training and test samples together."""
    features: Annotated[int, Field(gt=0)] = 60
    classes: Annotated[int, Field(ge=2)] = 10
    alpha: Heterogeneity = 1.0
    """How much the devices' models differ (even at 0 they are not the same)."""
    beta: Heterogeneity = 1.0
    """How much the devices' inputs differ (even at 0 they are not the same)."""
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of each device's samples that goes to the held-out test set: at least one, and not all."""

    def load(self, seed: int) -> Dataset:
        """Draw every device's samples from the seed."""
        drawn = [self._device(seed, device) for device in range(self.devices)]
        x, y = np.stack([x for x, _ in drawn]), np.stack([y for _, y in drawn])
        test = min(max(1, round(self.test_fraction * self.samples_per_device)), self.samples_per_device - 1)
        train = self.samples_per_device - test
        return Dataset(
            train_x=x[:, :train].reshape(-1, self.features),
            train_y=y[:, :train].reshape(-1),
            test_x=x[:, train:].reshape(-1, self.features),
            test_y=y[:, train:].reshape(-1),
            classes=self.classes,
            devices=tuple(np.arange(self.devices * train).reshape(self.devices, train)),
        )

    def _device(self, seed: int, device: int) -> tuple[Floats, Labels]:
        """One device's samples; they do not depend on how many other devices there are."""
        generator = stream(seed, "synthetic", device)
        u = generator.normal(0, np.sqrt(self.alpha))
        B = generator.normal(0, np.sqrt(self.beta))
        W = generator.normal(u, 1, (self.classes, self.features))
        b = generator.normal(u, 1, self.classes)
        v = generator.normal(B, 1, self.features)
        sigma = np.arange(1, self.features + 1) ** -0.6  # the square root of Sigma_jj
        x = generator.normal(v, sigma, (self.samples_per_device, self.features))
        return x.astype(np.float32), np.argmax(x @ W.T + b, axis=1).astype(np.int64)
