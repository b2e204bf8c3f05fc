"""Generated data with adjustable heterogeneity: Synthetic(alpha, beta).

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks,
MLSys 2020, section 5.1. Device k draws its own softmax regression and its own inputs; N(m, v) has variance v:

    y = argmax(W_k x + b_k)     W_k, b_k ~ N(u_k, 1)    u_k ~ N(0, alpha)
    x ~ N(v_k, Sigma)           v_k ~ N(B_k, 1)         B_k ~ N(0, beta)      Sigma diagonal, Sigma_jj = j^-1.2

Deviation: every device has the same number of samples (the paper draws them from a power law), so that sizes are a
setting of the experiment.
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
    """Number of devices: each generates its own data."""
    samples_per_device: Annotated[int, Field(ge=2)] = 100
    """Training plus test samples of a device."""
    features: Annotated[int, Field(gt=0)] = 60
    classes: Annotated[int, Field(ge=2)] = 10
    alpha: Heterogeneity = 1.0
    """Variance of the devices' models (even at 0 they differ)."""
    beta: Heterogeneity = 1.0
    """Variance of the devices' inputs (even at 0 they differ)."""
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of each device's samples in the test set: at least one sample, and not all."""

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
        """One device's samples, independent of the number of devices."""
        generator = stream(seed, "synthetic", device)
        u = generator.normal(0, np.sqrt(self.alpha))
        B = generator.normal(0, np.sqrt(self.beta))
        W = generator.normal(u, 1, (self.classes, self.features))
        b = generator.normal(u, 1, self.classes)
        v = generator.normal(B, 1, self.features)
        sigma = np.arange(1, self.features + 1) ** -0.6  # the square root of Sigma_jj
        x = generator.normal(v, sigma, (self.samples_per_device, self.features))
        return x.astype(np.float32), np.argmax(x @ W.T + b, axis=1).astype(np.int64)
