"""Many devices trained at once: the weights of all clients stacked into one tensor per layer.

Small dense networks spend their time in the overhead of each operation, not in arithmetic. Stacked, one batched matrix
product does a layer of all clients, forward and backward are written out by hand, and the SGD update is part of the
product that would have made the gradient. On one core, 10 clients of 600 samples on the mlp train about 6 times as fast
as in a plain PyTorch loop.

Each client sees exactly the batches that `TorchTrainer` would give it. Sums run in another order, so its parameters
agree with that trainer's within float tolerance (rtol 1e-4, atol 1e-5 after a few epochs) and not to the bit; the same
holds for one client in two different stacks.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.parameters import TensorEntry, Vector, frozen
from offbeat.core.samples import Indices
from offbeat.core.terms import Proximal
from offbeat.device.tasks import is_plain_classification
from offbeat.device.trainer import TorchTrainer
from offbeat.device.training_state import TrainingJob, TrainingState

MOST_CLIENTS = 64
MOST_BYTES = 256 * 2**20
"""Of one stack: more clients than that wait for the next one."""

Activation = Callable[[torch.Tensor], torch.Tensor]
Derivative = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From the gradient behind an activation, and its output, to the gradient before it."""


def _relu_backward(gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.aten.threshold_backward(gradient, output, 0.0)
    return result


ACTIVATIONS: dict[type[nn.Module], tuple[Activation, Derivative]] = {
    nn.ReLU: (torch.relu, _relu_backward),
    nn.Tanh: (torch.tanh, torch.ops.aten.tanh_backward),
    nn.Sigmoid: (torch.sigmoid, torch.ops.aten.sigmoid_backward),
}


def stackable(model: nn.Module) -> bool:
    """Whether the model is a plain chain of dense layers and activations, all trained."""
    if type(model) is not nn.Sequential:
        return False
    kinds = [type(layer) for layer in model]
    dense = [layer for layer in model if type(layer) is nn.Linear]
    return (
        bool(dense)
        and all(kind in ACTIVATIONS or kind in (nn.Linear, nn.Flatten, nn.Identity) for kind in kinds)
        and nn.Flatten not in kinds[kinds.index(nn.Linear) :]
        and all(layer.start_dim == 1 and layer.end_dim == -1 for layer in model if isinstance(layer, nn.Flatten))
        and len(set(dense)) == len(dense)
        and all(parameter.requires_grad for parameter in model.parameters())
        and not any(True for _ in model.buffers())
    )


def is_plain(order: Order) -> bool:
    """Whether the order is for whole epochs of the whole model with SGD and the plain loss: all of a stack must be."""
    return (
        order.unit == "epoch"
        and order.width == 1.0
        and order.optimiser == "sgd"
        and not order.clip_norm
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
        and batches.x.dtype == np.float32
        and trainer.precision == "float32"
    )


class StackedTrainer:
    """Trains stacks of clients on the model, data and batches of a `TorchTrainer`."""

    def __init__(self, trainer: TorchTrainer) -> None:
        if not can_stack(trainer):
            raise InvalidInput(
                "only a chain of dense layers and activations, all trained, can be trained stacked, by classification."
            )
        self._layout = trainer.layout
        self._batches = trainer.batches
        self._x: Vector = trainer.batches.x.reshape(len(trainer.batches.x), -1)
        self._place = trainer.batches.place
        self._resident = None if self._place.type == "cpu" else torch.from_numpy(self._x).to(self._place)
        """All samples where the training is, if that is not the processor; there each batch is copied when needed."""
        layers = list(trainer.model.named_modules(remove_duplicate=False))[1:]  # the first is the chain itself
        self._chain = [(name, layer) for name, layer in layers if not isinstance(layer, nn.Flatten | nn.Identity)]
        self._first_dense = next(i for i, (_, layer) in enumerate(self._chain) if isinstance(layer, nn.Linear))

    def train_many(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """What `TorchTrainer.train` makes of each job, within float tolerance, in the order of the jobs."""
        works: dict[int, TrainingState] = {}
        for stack in self._stacks(jobs):
            works.update(zip(stack, self._train([jobs[i] for i in stack]), strict=True))
        return [works[i] for i in range(len(jobs))]

    def _stacks(self, jobs: Sequence[TrainingJob]) -> Iterator[list[int]]:
        """Positions of jobs that are trained together, longest first: those still active are always a prefix."""
        groups: dict[tuple[int | None, float], list[int]] = defaultdict(list)
        for i, job in enumerate(jobs):
            if not is_plain(job.order):
                raise InvalidInput("only whole epochs of whole models with the plain loss can be trained stacked.")
            groups[job.order.batch_size, job.order.momentum].append(i)
        for group in groups.values():
            group.sort(key=lambda i: (self._steps(jobs[i]), self._width(jobs[i])), reverse=True)
            fit = MOST_BYTES // max(self._bytes(jobs[i]) for i in group)
            count = max(1, min(MOST_CLIENTS, fit))
            yield from (group[start : start + count] for start in range(0, len(group), count))

    def _steps(self, job: TrainingJob) -> int:
        return (job.last - job.first) * self._batches.steps(job.device, job.order.batch_size)

    def _width(self, job: TrainingJob) -> int:
        """Samples in the job's largest batch."""
        samples = len(self._batches.partition.samples(job.device))
        return min(samples, job.order.batch_size or samples)

    def _bytes(self, job: TrainingJob) -> int:
        model = 4 * 4 * self._layout.size  # vector, weights, velocity, anchor
        plan = (8 + 8 + 4 + 4) * self._steps(job)  # index, label, scale and loss of each sample
        return model + self._width(job) * (plan + 4 * int(self._x.shape[1]))

    def _train(self, jobs: Sequence[TrainingJob]) -> list[TrainingState]:
        """One stack; the jobs share batch size and momentum and come with the most steps first."""
        index, share = self._schedule(jobs)
        steps, clients, width = index.shape
        place = self._place
        labels = torch.from_numpy(self._batches.y.take(index)).unsqueeze(3).to(place)
        everyone = {entry.name: _Parameter.of(jobs, entry, place) for entry in self._layout.entries}
        rates = np.array([job.order.learning_rate for job in jobs], dtype=np.float32).reshape(-1, 1)
        # With momentum the velocity takes up the gradient itself, without it the weights take up -rate x gradient.
        scale = torch.from_numpy(share if jobs[0].order.momentum else share * -rates).unsqueeze(3).to(place)
        likelihood = torch.zeros(steps, clients, width, 1, device=place)
        gather = self._gatherer(index, clients, width)
        remaining = [self._steps(job) for job in jobs]
        active, parameters = clients, everyone
        for t in range(steps):
            if remaining[active - 1] <= t:
                active = sum(count > t for count in remaining)
                parameters = {name: parameter.first(active) for name, parameter in everyone.items()}
            outputs = self._forward(parameters, gather(t, active))
            logarithms = torch.log_softmax(outputs[-1], 2)
            torch.gather(logarithms, 2, labels[t, :active], out=likelihood[t, :active])
            gradient = logarithms.exp_()  # softmax, less one at the label: the derivative of cross-entropy
            gradient.scatter_add_(2, labels[t, :active], torch.full((active, width, 1), -1.0, device=place))
            self._backward(parameters, outputs, gradient.mul_(scale[t, :active]))
        losses = -(likelihood.squeeze(3).cpu().numpy() * (share > 0)).sum(axis=(0, 2), dtype=np.float64)
        return [
            TrainingState(
                parameters=self._row(everyone, "value", c),
                momentum=self._row(everyone, "velocity", c) if job.order.momentum else None,
                steps=job.work.steps + remaining[c],
                loss_sum=job.work.loss_sum + float(losses[c]),
                seen=job.work.seen + int(np.count_nonzero(share[:, c])),
            )
            for c, job in enumerate(jobs)
        ]

    def _gatherer(self, index: Indices, clients: int, width: int) -> Callable[[int, int], torch.Tensor]:
        """A function from (step, active clients) to their samples, which are good until it is called again."""
        if self._resident is not None:
            resident, places = self._resident, torch.from_numpy(index).to(self._place)
            return lambda t, active: resident[places[t, :active]]
        x = torch.empty(clients, width, self._x.shape[1])

        def gather(t: int, active: int) -> torch.Tensor:
            np.take(self._x, index[t, :active], axis=0, out=x.numpy()[:active], mode="clip")
            return x[:active]

        return gather

    def _schedule(self, jobs: Sequence[TrainingJob]) -> tuple[Indices, Vector]:
        """For each (step, client, place in the batch): which sample, and its share in the batch's mean (0: padding)."""
        width = max(1, *(self._width(job) for job in jobs))
        shape = (self._steps(jobs[0]), len(jobs), width)
        index, share = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
        for c, job in enumerate(jobs):
            t = 0
            for k in range(job.first, job.last):
                samples = self._batches.order(job.device, job.ticket, k, job.order.batch_size)
                full, rest = divmod(len(samples), width)
                index[t : t + full, c] = samples[: full * width].reshape(full, width)
                share[t : t + full, c] = 1 / width
                t += full
                if rest:
                    index[t, c, :rest] = samples[-rest:]
                    share[t, c, :rest] = 1 / rest
                    t += 1
        return index, share

    def _forward(self, parameters: "_Parameters", x: torch.Tensor) -> list[torch.Tensor]:
        """The input, then the output of each layer of the chain."""
        outputs = [x]
        for name, layer in self._chain:
            if isinstance(layer, nn.Linear):
                weight = parameters[f"{name}.weight"].value.transpose(1, 2)
                bias = parameters.get(f"{name}.bias")
                x = outputs[-1]
                outputs.append(torch.bmm(x, weight) if bias is None else torch.baddbmm(bias.value, x, weight))
            else:
                outputs.append(ACTIVATIONS[type(layer)][0](outputs[-1]))
        return outputs

    def _backward(self, parameters: "_Parameters", outputs: list[torch.Tensor], gradient: torch.Tensor) -> None:
        """Walk back through the chain and update each dense layer as soon as nothing needs its old weights any more."""
        for i in range(len(self._chain) - 1, self._first_dense - 1, -1):
            name, layer = self._chain[i]
            if isinstance(layer, nn.Linear):
                behind = gradient
                weight = parameters[f"{name}.weight"]
                if i > self._first_dense:
                    gradient = torch.bmm(behind, weight.value)
                weight.descend(behind.transpose(1, 2), outputs[i])
                if f"{name}.bias" in parameters:
                    parameters[f"{name}.bias"].descend(behind.new_ones(behind.shape[0], 1, behind.shape[1]), behind)
            else:
                gradient = ACTIVATIONS[type(layer)][1](gradient, outputs[i + 1])

    def _row(self, parameters: "_Parameters", part: str, client: int) -> Vector:
        """One client's flat vector."""
        rows = [getattr(parameters[entry.name], part)[client].cpu().numpy().ravel() for entry in self._layout.entries]
        return frozen(np.concatenate(rows))


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One tensor of the model in all clients of a stack, shaped (client, rows, columns), and how SGD moves it.

    What no client of the stack needs is None. `decay` and `prox` are scaled as the gradient is (see `_train`).
    """

    value: torch.Tensor
    rate: torch.Tensor
    velocity: torch.Tensor | None
    decay: torch.Tensor | None
    prox: torch.Tensor | None
    anchor: torch.Tensor | None
    momentum: float

    @classmethod
    def of(cls, jobs: Sequence[TrainingJob], entry: TensorEntry, place: torch.device) -> "_Parameter":
        """This tensor of all jobs' models."""

        def stacked(vectors: Iterable[Vector]) -> torch.Tensor:
            rows = torch.empty(len(jobs), entry.size)  # aligned, as `trainer` explains
            np.stack([vector[entry.span] for vector in vectors], out=rows.numpy())
            return rows.view(len(jobs), -1, entry.shape[-1]).to(place)

        def per_client(numbers: Iterable[float]) -> torch.Tensor:
            return torch.tensor(list(numbers), device=place).view(-1, 1, 1)

        orders = [job.order for job in jobs]
        momentum = orders[0].momentum
        rate = per_client(order.learning_rate for order in orders)
        scale = 1.0 if momentum else -rate
        decays, pulls = any(order.weight_decay for order in orders), any(order.prox for order in orders)
        still = np.zeros(entry.offset + entry.size, dtype=np.float32)
        velocities = [still if job.work.momentum is None else job.work.momentum for job in jobs]
        return cls(
            value=stacked(job.work.parameters for job in jobs),
            rate=rate,
            velocity=stacked(velocities) if momentum else None,
            decay=scale * per_client(order.weight_decay for order in orders) if decays else None,
            prox=scale * per_client(order.prox for order in orders) if pulls else None,
            anchor=stacked(job.anchor for job in jobs) if pulls else None,
            momentum=momentum,
        )

    def first(self, clients: int) -> "_Parameter":
        """The parameter of the first clients only, in the same memory."""

        def cut(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor[:clients]

        return replace(
            self,
            value=self.value[:clients],
            rate=self.rate[:clients],
            velocity=cut(self.velocity),
            decay=cut(self.decay),
            prox=cut(self.prox),
            anchor=cut(self.anchor),
        )

    def descend(self, left: torch.Tensor, right: torch.Tensor) -> None:
        """One step of SGD; the gradient, scaled as `_train` says, is the product left x right."""
        pull: list[torch.Tensor] = []
        if self.decay is not None:
            pull.append(self.value * self.decay)
        if self.prox is not None and self.anchor is not None:
            pull.append((self.value - self.anchor) * self.prox)
        target = self.value if self.velocity is None else self.velocity
        target.baddbmm_(left, right, beta=1.0 if self.velocity is None else self.momentum)
        for term in pull:
            target.add_(term)
        if self.velocity is not None:
            self.value.addcmul_(self.velocity, self.rate, value=-1.0)


_Parameters = dict[str, _Parameter]
