"""Stacked training: many clients at once, their weights stacked into one tensor per layer (`stacked_chains`).

Small dense networks spend their time in the overhead of operations, not in arithmetic. Stacked, one batched matrix
product computes a layer of all clients: on one core, 10 clients of 600 samples on the mlp train about 6 times as fast
as in a plain PyTorch loop. Convolutions of many clients become one with groups: on LeNet-5 1.3 to 1.4 times as fast as
one client at a time with batches of 4 samples, about as fast with 8, slower with 32. GPUs have not been measured.

Each client gets the same batches as in `TorchTrainer`. Sums run in another order, so that parameters agree with that
trainer's, and between different stacks, within float tolerance (rtol 1e-4, atol 1e-5 after a few epochs).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import nn

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.parameters import Vector, frozen
from offbeat.core.terms import Proximal
from offbeat.data.samples import Indices
from offbeat.models.flat import on_processor
from offbeat.training.optimisers import first_bound, polyak_state, rates_before
from offbeat.training.stacked_chains import (
    ConvolutionalChain,
    DenseChain,
    StackedChain,
    StackedParameter,
    StackedParameters,
    StackedPolyak,
    StackedTargets,
    is_convolutional,
    stackable,
)
from offbeat.training.tasks import is_plain_classification
from offbeat.training.trainer import TorchTrainer
from offbeat.training.training_state import TrainingJob, TrainingState

Arithmetic = Literal["auto", "sequential", "stacked"]
"""How one process trains several clients: one by one, stacked where the model allows, or the faster of the two."""

STACK_FROM = 5
"""Stacking pays from about this many clients on (measured, see benchmarks)."""
STACK = 32
"""A stack of this many clients is about as fast per client as a larger one."""
MOST_CLIENTS = 64
MOST_BYTES = 256 * 2**20
"""Memory limit of one stack; other clients wait for the next stack."""
SMALL_BATCH = 8
"""Largest batch with which stacked convolutions are faster on the processor (measured on LeNet-5 and the two CNNs)."""


def is_plain(order: Order) -> bool:
    """Whether the order trains the whole model as a stack needs: by SGD or polyak, with no term but proximal."""
    return (
        order.unit != "layer"
        and order.width == 1.0
        and (order.optimiser == "sgd" or (order.optimiser == "polyak" and not order.momentum))
        and not order.clip_norm
        and not order.example_clip
        and order.schedule is None
        and all(isinstance(term, Proximal) for term in order.terms)
    )


def can_stack(trainer: TorchTrainer) -> bool:
    """Whether this trainer's model, task and data allow stacked training."""
    batches = trainer.batches
    return (
        stackable(trainer.model)
        and is_plain_classification(trainer.task)
        and batches.is_plain
        and (batches.x.dtype == np.float32 or batches.standardisation is not None)
        and trainer.precision == "float32"
    )


def stacking_pays(trainer: TorchTrainer, batch_size: int | None) -> bool:
    """Whether stacked training is faster: always, except for convolutions on the processor with large batches.

    `batch_size` None: all samples of a device.
    """
    small = batch_size is not None and batch_size <= SMALL_BATCH
    return small or not is_convolutional(trainer.model) or not on_processor(trainer.batches.torch_device)


class StackedTrainer:
    """Trains stacks of clients on the model, data and batches of a `TorchTrainer`."""

    def __init__(self, trainer: TorchTrainer) -> None:
        if not can_stack(trainer):
            raise InvalidInput(
                "this model or task cannot be trained stacked: the model must be an nn.Sequential of dense layers and "
                "activations, optionally after convolutions, pooling and group normalisation, and the task "
                "classification"
            )
        self._layout = trainer.layout
        self._batches = trainer.batches
        self._shape = tuple(trainer.batches.x.shape[1:])
        self._torch_device = trainer.batches.torch_device
        layers = list(trainer.model.named_modules(remove_duplicate=False))[1:]  # the first is the model itself
        kind = ConvolutionalChain if is_convolutional(trainer.model) else DenseChain
        self._chain: StackedChain = kind(layers)
        self._activations = _activations(trainer.model, self._shape)

    def train_many(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Carry out the jobs and return their states in the same order."""
        states: dict[int, TrainingState] = {}
        for stack in self._stacks(jobs):
            states.update(zip(stack, self._train([jobs[i] for i in stack]), strict=True))
        return [states[i] for i in range(len(jobs))]

    def _stacks(self, jobs: Sequence[TrainingJob]) -> Iterator[list[int]]:
        """Positions of jobs that are trained together, longest first, so that the active ones are always a prefix."""
        groups: dict[tuple[int | None, str, float], list[int]] = defaultdict(list)
        for i, job in enumerate(jobs):
            if not is_plain(job.order):
                raise InvalidInput("only orders for whole models with plain SGD or polyak can be trained stacked")
            groups[job.order.batch_size, job.order.optimiser, job.order.momentum].append(i)
        for group in groups.values():
            group.sort(key=lambda i: (self._steps(jobs[i]), self._width(jobs[i])), reverse=True)
            fit = MOST_BYTES // max(self._bytes(jobs[i]) for i in group)
            count = max(1, min(MOST_CLIENTS, fit))
            yield from (group[start : start + count] for start in range(0, len(group), count))

    def _steps(self, job: TrainingJob) -> int:
        return sum(end - begun for _, begun, end in self._batches.epochs(job))

    def _width(self, job: TrainingJob) -> int:
        """Samples in the job's largest batch."""
        samples = len(self._batches.partition.samples(job.device))
        return min(samples, job.order.batch_size or samples)

    def _bytes(self, job: TrainingJob) -> int:
        model = 4 * 4 * self._layout.size  # vector, weights, velocity, anchor
        plan = (8 + 8 + 4 + 4) * self._steps(job)  # index, label, scale and loss of each sample
        return model + self._width(job) * (plan + 4 * self._activations)

    def _train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Train one stack. The jobs share batch size and optimiser, and those with the most steps come first."""
        index, share = self._schedule(jobs)
        steps, clients, width = index.shape
        torch_device = self._torch_device
        labels = torch.from_numpy(self._batches.y.take(index)).unsqueeze(3).to(torch_device)
        everyone = {entry.name: StackedParameter.of(jobs, entry, torch_device) for entry in self._layout.entries}
        rates = np.array([job.order.learning_rate for job in jobs], dtype=np.float32).reshape(-1, 1)
        # Scaled for `StackedParameter`: with momentum or polyak the gradient itself, without them -rate x gradient.
        polyak = None
        if jobs[0].order.optimiser == "polyak":
            begun = [[first_bound(job.order, job.state), rates_before(job.state)] for job in jobs]
            polyak = StackedPolyak(*torch.tensor(begun).T.contiguous().to(torch_device))
        unscaled = polyak is not None or jobs[0].order.momentum
        scale = torch.from_numpy(share if unscaled else share * -rates).unsqueeze(3).to(torch_device)
        likelihood = torch.zeros(steps, clients, width, 1, device=torch_device)
        gather = self._gatherer(index, clients, width)
        remaining = [self._steps(job) for job in jobs]
        active, parameters = clients, everyone
        for t in range(steps):
            if remaining[active - 1] <= t:
                active = sum(count > t for count in remaining)
                parameters = {name: parameter.first(active) for name, parameter in everyone.items()}
            now = (t, slice(active))
            targets = StackedTargets(labels[now], scale[now], likelihood[now], polyak)
            self._chain.step(parameters, gather(t, active), targets)
        each = likelihood.squeeze(3).cpu().numpy() * (share > 0)
        losses = -each.sum(axis=(0, 2), dtype=np.float64)
        squared = np.zeros(clients)
        if any(job.order.squared_loss for job in jobs):
            squared = np.square(each, dtype=np.float64).sum(axis=(0, 2))
        return [
            TrainingState(
                parameters=self._row(everyone, "value", c),
                momentum=self._row(everyone, "velocity", c) if job.order.momentum else None,
                optimiser={} if polyak is None else polyak_state(float(polyak.bounds[c]), float(polyak.rates[c])),
                steps=job.state.steps + remaining[c],
                loss_sum=job.state.loss_sum + float(losses[c]),
                squared_sum=job.state.squared_sum + float(squared[c]),
                seen=job.state.seen + int(np.count_nonzero(share[:, c])),
            )
            for c, job in enumerate(jobs)
        ]

    def _gatherer(self, index: Indices, clients: int, width: int) -> Callable[[int, int], torch.Tensor]:
        """A function of (step, number of active clients) that returns their samples, valid until its next call."""
        if self._batches.resident is not None:
            resident, indices = self._batches.resident[0], torch.from_numpy(index).to(self._torch_device)
            return lambda t, active: self._batches.standardised(resident[indices[t, :active]])
        x = torch.empty(clients, width, *self._shape)

        def gather(t: int, active: int) -> torch.Tensor:
            self._batches.write(self._batches.x, index[t, :active], x.numpy()[:active])
            return x[:active]

        return gather

    def _schedule(self, jobs: Sequence[TrainingJob]) -> tuple[Indices, Vector]:
        """For each (step, client, position in the batch) the sample and its weight in the batch's mean (0: padding)."""
        width = max(1, *(self._width(job) for job in jobs))
        shape = (self._steps(jobs[0]), len(jobs), width)
        index, share = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
        for c, job in enumerate(jobs):
            t = 0
            for k, begun, end in self._batches.epochs(job):
                samples = self._batches.order(job.device, job.ticket, k, job.order.batch_size)
                samples = samples[begun * width : end * width]
                full, rest = divmod(len(samples), width)
                index[t : t + full, c] = samples[: full * width].reshape(full, width)
                share[t : t + full, c] = 1 / width
                t += full
                if rest:
                    index[t, c, :rest] = samples[-rest:]
                    share[t, c, :rest] = 1 / rest
                    t += 1
        return index, share

    def _row(self, parameters: StackedParameters, part: str, client: int) -> Vector:
        """One client's flat vector."""
        rows = [getattr(parameters[entry.name], part)[client].cpu().numpy().ravel() for entry in self._layout.entries]
        return frozen(np.concatenate(rows))


class InProcessTrainer:
    """Trains batches of jobs in this process: one by one, or stacked where the model allows and it pays."""

    def __init__(self, trainer: TorchTrainer, arithmetic: Arithmetic) -> None:
        self._trainer = trainer
        self._stacked = StackedTrainer(trainer) if arithmetic != "sequential" and can_stack(trainer) else None
        self._stack_from = 1 if arithmetic == "stacked" else STACK_FROM

    @property
    def stacks(self) -> bool:
        """Whether it trains several clients at once."""
        return self._stacked is not None

    @property
    def batch_capacity(self) -> int:
        """Jobs per batch that keep it busy."""
        return STACK if self.stacks else 1

    def train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """Carry out the jobs and return their states in the same order."""
        if self._stacked is None:
            return [self._trainer.train(job) for job in jobs]
        plain = [position for position, job in enumerate(jobs) if is_plain(job.order) and job.whole]
        if len(plain) < self._stack_from:
            return [self._trainer.train(job) for job in jobs]
        states = dict(zip(plain, self._stacked.train_many([jobs[position] for position in plain]), strict=True))
        return [states.get(position) or self._trainer.train(job) for position, job in enumerate(jobs)]

    def close(self) -> None:
        """Do nothing: no process or file is open."""


def _activations(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Number of activations of one sample that a chain keeps for its backward pass."""
    if not is_convolutional(model):
        return prod(shape)
    with torch.no_grad():
        x, total = torch.zeros(1, *shape, device=next(model.parameters()).device), prod(shape)
        for layer in model.children():
            x = layer(x)
            total += x.numel()
    return 2 * total  # with their gradients
