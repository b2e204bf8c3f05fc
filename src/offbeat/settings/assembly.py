"""What an experiment is made of, whoever runs it: the data, who holds what, the network, the fleet and the session."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import nn

from offbeat.core.forecast import Forecast
from offbeat.core.parameters import Layout, Vector
from offbeat.core.session import Session
from offbeat.data import Dataset, Partition
from offbeat.fleet import Fleet, Workload
from offbeat.models import build, flops_per_sample, layout_of, vector_of
from offbeat.settings.schema import Experiment


@dataclass(frozen=True, kw_only=True, eq=False)
class ExperimentParts:
    """See the module's docstring."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition
    network: nn.Module

    @classmethod
    def of(cls, experiment: Experiment) -> "ExperimentParts":
        dataset, partition = experiment.load_data()
        network = build(experiment.model.name, dataset.input_shape, dataset.classes, experiment.seed)
        return cls(experiment=experiment, dataset=dataset, partition=partition, network=network)

    @property
    def layout(self) -> Layout:
        return layout_of(self.network)

    @property
    def parameters(self) -> Vector:
        """The first model."""
        return vector_of(self.network)

    def fleet(self) -> Fleet:
        experiment = self.experiment
        workload = Workload(
            devices=self.partition.devices,
            samples=self.partition.sizes,
            layers=self.layout.trained_layers,
            flops_per_sample=flops_per_sample(self.network, self.dataset.input_shape),
            seed=experiment.seed,
        )
        return Fleet.build(
            workload,
            experiment.fleet.settings,
            experiment.network,
            experiment.availability.settings,
            experiment.failures,
        )


def session_of(
    experiment: Experiment,
    network: nn.Module,
    *,
    samples: npt.NDArray[np.int64],
    present: npt.NDArray[np.bool_],
    forecast: Forecast | None,
) -> Session:
    """The session of an experiment, whoever drives it, with these devices and from this network's parameters."""
    return Session(
        experiment.algorithm.policy,
        parameters=vector_of(network),
        layout=layout_of(network),
        samples=samples,
        training=experiment.local.build(),
        seed=experiment.seed,
        present=present,
        forecast=forecast,
        horizon=experiment.stop.build().time,
    )
