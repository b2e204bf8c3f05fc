"""The torch trainer: does slices of local work on one device after another, the same bits every time.

It owns a private copy of the model whose parameters and buffers are views into one flat vector, so that loading and
saving a model is one copy. A trainer is used by one thread, in the process that made it.

Some matrix products round differently when their operands lie differently in memory (seen with MKL on small shapes).
Whatever enters one is therefore allocated by torch, which aligns to 64 bytes, and not by numpy, which promises less.

What makes it faster than a plain loop with `torch.optim.SGD`: a slice's samples are gathered by one `numpy.take`,
`autograd.grad` and one `_foreach_` update take the place of an optimizer object, and networks with max-pooling get
channels-last input, since that kernel is vectorised over channels (without pooling channels-last is 5-10 % slower).
Gradients as views into one flat vector were slower: autograd then accumulates into them instead of handing them over.
"""

import copy
import ctypes
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace
from torch import nn
from torch.nn import functional

from offbeat.core.coverage import last_layers, submodel
from offbeat.core.errors import InvalidInput
from offbeat.core.orders import Order
from offbeat.core.parameters import Vector, frozen
from offbeat.core.streams import stream
from offbeat.device.batches import Batches, Indices, SampleLookup
from offbeat.device.layered import Proceed, Tensors, backward
from offbeat.device.submodel import job_inside, narrowed, work_outside
from offbeat.device.training_state import Evaluation, TrainingJob, TrainingState
from offbeat.models import is_pure, layout_of, tensors_of, vector_of

EVALUATION_BATCH = 512
GATHERED = 4096
"""Samples that are gathered at a time: a whole slice of most devices, and bounded memory for the largest."""

BLOCK = 128
"""A full batch is taken in blocks of so many samples: all its activations would not fit the cache, or the memory."""


class TorchTrainer:
    """Trains and evaluates one model on the devices' data with SGD and cross-entropy.

    Making one sets torch to a single thread for the whole process: the number of threads would change the last bits,
    and small models train faster that way.
    """

    def __init__(
        self,
        model: nn.Module,
        x: npt.ArrayLike | torch.Tensor,
        y: npt.ArrayLike | torch.Tensor,
        partition: SampleLookup,
        seed: int,
    ) -> None:
        torch.set_num_threads(1)
        _keep_freed_memory()
        self.batches = Batches(x, y, partition, seed)
        self.model = copy.deepcopy(model).float().train()
        self.layout = layout_of(self.model)
        flat = torch.tensor(vector_of(self.model))
        self._vector: Vector = flat.numpy()
        tensors = tensors_of(self.model)
        for entry in self.layout.entries:
            tensors[entry.name].data = flat[entry.span].view(entry.shape)
        trained = [entry for entry in self.layout.entries if entry.trained]
        self._trained = [tensors[entry.name] for entry in trained]
        self._weights = tuple(parameter.detach() for parameter in self._trained)
        """The same memory as `_trained`, outside autograd, so that it may be updated in place."""
        self._layers = [
            [place for place, entry in enumerate(trained) if entry.layer == layer]
            for layer in range(self.layout.trained_layers)
        ]
        """Of each layer, from the input on, the places of its parameters in `_trained`."""
        self._head = self.layout.head
        self._submodels: dict[float, tuple[TorchTrainer, npt.NDArray[np.bool_]]] = {}
        self._counters = [(b, b.clone()) for b in self.model.buffers() if not b.is_floating_point()]
        self._block = BLOCK if is_pure(self.model) else None
        """Only where the gradient is surely a mean over samples."""
        self._channels_last = _takes_channels_last(self.model, self.batches.x)

    def train(self, job: TrainingJob) -> TrainingState:
        """Slices `job.first` to `job.last - 1`. Cutting an order into several jobs changes no bit of the result.

        PyTorch's SGD: v <- momentum v + g,  w <- w - learning_rate v, where g is the gradient of
        cross-entropy + weight_decay/2 ||w||^2 + prox/2 ||w - anchor||^2. Integer buffers start afresh in every job.

        With a `width` below 1 only that submodel is trained. With `masked_loss` the logits of classes that the device
        does not hold count as 0, and their rows of the last layer stay as they were.
        """
        return self.train_while(job, None)[0]

    def train_while(self, job: TrainingJob, proceed: Proceed | None) -> tuple[TrainingState, int]:
        """As much of a job as a clock allows: the work, and the slice that it has come to.

        `proceed` is told how many of the order's slices are done, and asked between layers or between the steps of an
        epoch. An epoch that it cuts short counts as not begun.
        """
        if job.order.width < 1.0:
            return self._train_submodel(job, proceed)
        train = self._train_layers if job.order.unit == "layer" else self._train_epochs
        work, done = train(job, proceed)
        absent = self._absent(job.device) if job.order.masked_loss else None
        return work if absent is None else self._with_rows_of(job.work.parameters, absent.numpy(), work), done

    def _train_epochs(self, job: TrainingJob, proceed: Proceed | None) -> tuple[TrainingState, int]:
        order = job.order
        self._load(job.work.parameters)
        momentum = _start_of(job.work.momentum, self.layout.trained_size) if order.momentum else None
        velocity = () if momentum is None else self._views(momentum)
        anchor = self._views(job.anchor.copy()) if order.prox else ()
        absent = self._absent(job.device) if order.masked_loss else None
        steps, loss_sum, seen = job.work.steps, job.work.loss_sum, job.work.seen

        def work() -> TrainingState:
            return TrainingState(
                parameters=frozen(self._vector.copy()),
                momentum=None if momentum is None else frozen(momentum.copy()),
                steps=steps,
                loss_sum=loss_sum,
                seen=seen,
            )

        with torch.random.fork_rng(devices=[]):
            for k in range(job.first, job.last):
                before = None if proceed is None else work()
                self._seed_dropout("dropout", job.device, job.ticket, k)
                samples = self.batches.order(job.device, job.ticket, k, order.batch_size)
                for loss, gradients, size in self._steps(samples, order.batch_size, absent):
                    if before is not None and proceed is not None and not proceed(k):
                        return before, k
                    _descend(self._weights, gradients, velocity, anchor, order)
                    steps += 1
                    loss_sum += loss * size
                    seen += size
        return work(), job.last

    def _train_layers(self, job: TrainingJob, proceed: Proceed | None) -> tuple[TrainingState, int]:
        """A slice is a layer of the backward pass of a step; the layers of a step are taken from the last on."""
        layers = self.layout.trained_layers
        done, work = job.first, job.work
        if done % layers:  # the step under way is taken again from its beginning, and this time it comes deeper
            assert work.start is not None
            done, work = done - done % layers, work.start
        with torch.random.fork_rng(devices=[]):
            while done < job.last:
                wanted = min(layers, job.last - done)
                work, depth = self._layered_step(job, work, done, wanted, proceed)
                done += depth
                if depth < wanted:
                    break
        return work, done

    def _layered_step(
        self, job: TrainingJob, work: TrainingState, done: int, depth: int, proceed: Proceed | None
    ) -> tuple[TrainingState, int]:
        """One step of SGD on one batch that comes up to `depth` layers deep; the layers before stay as they were."""
        order, layers = job.order, self.layout.trained_layers
        step = done // layers
        self._load(work.parameters)
        momentum = _start_of(work.momentum, self.layout.trained_size) if order.momentum else None
        self._seed_dropout("dropout", job.device, job.ticket, step)
        samples = self.batches.order(job.device, job.ticket, step, order.batch_size)[: order.batch_size]
        if not len(samples):
            return replace(work, start=None if depth == layers else work), depth
        ((x, y),) = self._gather(samples, None)
        loss = self._loss(x, y, self._absent(job.device) if order.masked_loss else None)
        by_layer = [[self._trained[place] for place in places] for places in self._layers]
        reached = backward(loss, by_layer, lambda deep: deep < depth and (proceed is None or proceed(done + deep)))
        if not reached:
            return work, 0
        depth = len(reached)
        places = [place for layer in self._layers[layers - depth :] for place in layer]
        gradients = tuple(gradient for layer in reversed(reached) for gradient in layer)

        def part(tensors: Sequence[torch.Tensor]) -> Tensors:
            return tuple(tensors[place] for place in places) if tensors else ()

        velocity = () if momentum is None else self._views(momentum)
        anchor = self._views(job.anchor.copy()) if order.prox else ()
        _descend(part(self._weights), gradients, part(velocity), part(anchor), order)
        if depth < layers:  # running statistics of layers that were not reached have moved all the same
            chosen = last_layers(self.layout, depth).chosen
            parameters = np.where(chosen, self._vector, work.parameters)
        else:
            parameters = self._vector.copy()
        reached_work = TrainingState(
            parameters=frozen(parameters),
            momentum=None if momentum is None else frozen(momentum),
            steps=work.steps + (depth == layers),
            loss_sum=work.loss_sum + loss.item() * len(y),
            seen=work.seen + len(y),
            start=None if depth == layers else work,
        )
        return reached_work, depth

    def _train_submodel(self, job: TrainingJob, proceed: Proceed | None) -> tuple[TrainingState, int]:
        width, trained = job.order.width, self.layout.trained_size
        if width not in self._submodels:
            narrow = narrowed(self.model, self.layout, width)
            data = self.batches
            trainer = TorchTrainer(narrow, data.x, data.y, data.partition, data.seed)
            self._submodels[width] = trainer, submodel(self.layout, width).chosen
        trainer, chosen = self._submodels[width]
        work, done = trainer.train_while(job_inside(job, chosen, trained), proceed)
        return work_outside(work, job.work, chosen, trained), done

    def _absent(self, device: int) -> torch.Tensor:
        """Which classes the device has no sample of."""
        absent = torch.ones(self._head[0].shape[0], dtype=torch.bool)
        absent[np.unique(self.batches.y[self.batches.partition.samples(device)])] = False
        return absent

    def _with_rows_of(self, before: Vector, absent: npt.NDArray[np.bool_], work: TrainingState) -> TrainingState:
        parameters = work.parameters.copy()
        for entry in self._head:
            rows = parameters[entry.span].reshape(entry.shape)
            rows[absent] = before[entry.span].reshape(entry.shape)[absent]
        start = None if work.start is None else self._with_rows_of(before, absent, work.start)
        return replace(work, parameters=frozen(parameters), start=start)

    def evaluate(
        self, parameters: Vector, x: npt.ArrayLike | torch.Tensor, y: npt.ArrayLike | torch.Tensor
    ) -> Evaluation:
        """Mean loss and accuracy over all of these samples, in evaluation mode."""
        inputs, labels = np.asarray(x, dtype=np.float32), np.asarray(y, dtype=np.int64)
        self._load(parameters)
        self.model.eval()
        loss, correct = 0.0, 0
        try:
            with torch.inference_mode():
                for start in range(0, len(labels), EVALUATION_BATCH):
                    batch = slice(start, start + EVALUATION_BATCH)
                    target = torch.tensor(labels[batch])
                    output = self.model(self._formatted(torch.tensor(inputs[batch])))
                    loss += functional.cross_entropy(output, target, reduction="sum").item()
                    correct += int((output.argmax(1) == target).sum())
        finally:
            self.model.train()
        return Evaluation(accuracy=correct / len(labels), loss=loss / len(labels))

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, k: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        """Of one random batch of the device's data; the gradient is zero where nothing is trained."""
        self._load(parameters)
        chosen = self.batches.probe(device, ticket, k, batch_size)
        with torch.random.fork_rng(devices=[]):
            self._seed_dropout("probe-dropout", device, ticket, k)
            ((loss, gradients, _),) = self._steps(chosen, None)
        flat = np.zeros(self.layout.size, dtype=np.float32)
        for target, gradient in zip(self._views(flat), gradients, strict=True):
            target.copy_(gradient)
        return loss, frozen(flat)

    def _load(self, parameters: Vector) -> None:
        np.copyto(self._vector, parameters)
        for counter, start in self._counters:
            counter.copy_(start)

    def _views(self, vector: Vector) -> Tensors:
        """The vector's trained elements, each part as a tensor of its parameter's shape in the same memory."""
        flat = torch.from_numpy(vector)
        return tuple(flat[entry.span].view(entry.shape) for entry in self.layout.entries if entry.trained)

    def _seed_dropout(self, role: str, *keys: int) -> None:
        torch.default_generator.manual_seed(int(stream(self.batches.seed, role, *keys).integers(2**63)))

    def _steps(
        self, samples: Indices, batch_size: int | None, absent: torch.Tensor | None = None
    ) -> Iterator[tuple[float, Tensors, int]]:
        """Loss, gradient and size of each batch, at the model as it is when the batch is asked for."""
        if batch_size is not None or self._block is None or len(samples) <= self._block:
            for x, y in self._gather(samples, batch_size):
                yield (*self._loss_and_gradients(x, y, absent), len(y))
            return
        total, mean = 0.0, tuple(torch.zeros_like(weight) for weight in self._weights)
        for x, y in self._gather(samples, self._block):
            loss, gradients = self._loss_and_gradients(x, y, absent)
            share = len(y) / len(samples)
            total += share * loss
            torch._foreach_add_(mean, gradients, alpha=share)
        yield total, mean, len(samples)

    def _gather(self, samples: Indices, batch_size: int | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """These samples in this order, cut into batches."""
        size = batch_size or max(1, len(samples))
        block = max(1, GATHERED // size) * size
        for start in range(0, len(samples), block):
            chosen = samples[start : start + block]
            x = torch.empty(len(chosen), *self.batches.x.shape[1:])
            np.take(self.batches.x, chosen, axis=0, out=x.numpy(), mode="clip")
            y = torch.from_numpy(self.batches.y.take(chosen))
            yield from zip(torch.split(self._formatted(x), size), torch.split(y, size), strict=True)

    def _formatted(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(memory_format=torch.channels_last) if self._channels_last else x

    def _loss(self, x: torch.Tensor, y: torch.Tensor, absent: torch.Tensor | None = None) -> torch.Tensor:
        try:
            logits = self.model(x)
        except ValueError as error:
            if len(y) > 1:
                raise
            # Batch normalisation has no variance to divide by.
            raise InvalidInput(
                f"the model cannot train on a batch of one sample: change batch_size ({error})."
            ) from error
        return functional.cross_entropy(logits if absent is None else logits.masked_fill(absent, 0.0), y)

    def _loss_and_gradients(
        self, x: torch.Tensor, y: torch.Tensor, absent: torch.Tensor | None = None
    ) -> tuple[float, Tensors]:
        loss = self._loss(x, y, absent)
        # A parameter that the loss does not reach has a gradient of zero, not None.
        return loss.item(), torch.autograd.grad(loss, self._trained, allow_unused=True, materialize_grads=True)


def _descend(weights: Tensors, gradients: Tensors, velocity: Tensors, anchor: Tensors, order: Order) -> None:
    """One step of SGD on these tensors, in place."""
    if order.weight_decay:
        gradients = torch._foreach_add(gradients, weights, alpha=order.weight_decay)
    if order.prox:
        gradients = torch._foreach_add(gradients, torch._foreach_sub(weights, anchor), alpha=order.prox)
    if order.momentum:
        torch._foreach_mul_(velocity, order.momentum)
        torch._foreach_add_(velocity, gradients)
        gradients = velocity
    torch._foreach_add_(weights, gradients, alpha=-order.learning_rate)


def _keep_freed_memory() -> None:
    """Ask glibc to keep up to 256 MB that were freed instead of giving them back to the kernel.

    A step frees all its activations; handing them back and faulting them in again costs wide convolutions (`cnn`) a
    quarter of their time. Other C libraries have no such switch and need none of this to be correct.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        trim_threshold, mmap_threshold = -1, -3  # from malloc.h
        libc.mallopt(trim_threshold, 256 * 2**20)
        libc.mallopt(mmap_threshold, 32 * 2**20)


def _start_of(momentum: Vector | None, size: int) -> Vector:
    """A velocity of one's own to go on with: zero before the first step."""
    return np.zeros(size, dtype=np.float32) if momentum is None else momentum.copy()


def _takes_channels_last(model: nn.Module, x: npt.NDArray[np.float32]) -> bool:
    """Whether channels-last input is faster, and works at all: `view` after a convolution refuses it."""
    if x.ndim != 4 or not any(isinstance(module, nn.MaxPool2d) for module in model.modules()):
        return False
    trial = torch.zeros(2, *x.shape[1:]).to(memory_format=torch.channels_last)
    model.eval()
    try:
        with torch.no_grad():
            model(trial)
    except RuntimeError:
        return False
    finally:
        model.train()
    return True
