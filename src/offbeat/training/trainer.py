"""The torch trainer: trains slices of orders and evaluates models, bit-reproducibly.

It owns a copy of the model (`models.flat.FlatModel`). A trainer belongs to one thread of the process that made it.

It is faster than a plain loop with `torch.optim.SGD`: one `numpy.take` gathers the samples of a slice, `autograd.grad`
and one `_foreach_` update replace the optimiser object, and networks with max-pooling or batch normalisation, whose
kernels are vectorised over channels, get channels-last input (10 % less time for ResNet-20; networks of convolutions
and dense layers alone would take 5-10 % more). Gradients as views into one flat vector were slower: autograd then
accumulates into them instead of handing them over.
"""

import copy
import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import nan
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace
from torch import nn

from offbeat.core.coverage import last_layers, submodel
from offbeat.core.orders import Order
from offbeat.core.parameters import Layout, Vector, frozen
from offbeat.core.streams import stream
from offbeat.core.terms import OwnTerm
from offbeat.data.samples import Indices, LazyDevices, Samples
from offbeat.models import called, is_pure
from offbeat.models.flat import FlatModel, Tensors
from offbeat.training.batches import Batches, Pipeline, SampleLookup
from offbeat.training.example_privacy import check_example_privacy, private_gradients
from offbeat.training.objective import Objective, Proceed, backward
from offbeat.training.optimisers import Optimiser, optimiser_of
from offbeat.training.submodel import job_inside, narrowed, state_outside
from offbeat.training.tasks import CLASSIFICATION, Task, added
from offbeat.training.terms import LossTerm, TermContext, absent_classes, term_of, with_rows_of
from offbeat.training.training_state import Evaluation, TrainingJob, TrainingState
from offbeat.trust.noise import SeededNoise, Source, SystemNoise

EVALUATION_BATCH = 512
BLOCK = 128
"""Samples per block of a full batch, whose activations would not fit into the cache, or into memory, at once."""

Precision = Literal["float32", "bfloat16"]


class TorchTrainer:
    """Trains and evaluates one model on the devices' data, for any task, optimiser and torch device.

    The constructor sets torch to a single thread for the whole process: the number of threads changes the last bits of
    results, and small models train faster with one.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Samples | LazyDevices,
        y: Samples | None,
        partition: SampleLookup,
        seed: int,
        *,
        task: Task = CLASSIFICATION,
        pipeline: Pipeline | None = None,
        torch_device: torch.device | str = "cpu",
        precision: Precision = "float32",
        batch_statistics: bool = False,
        secret_noise: bool = False,
    ) -> None:
        """`secret_noise`: example-level privacy draws its noise from the operating system, not from the seed."""
        torch.set_num_threads(1)
        _keep_freed_memory()
        self.batches = Batches(x, y, partition, seed, pipeline=pipeline, torch_device=torch_device)
        self.task = task
        self._torch_device = torch.device(torch_device)
        self.precision = precision
        self._batch_statistics = batch_statistics
        """Whether batch normalisation uses the statistics of each batch in evaluations too."""
        self._secret_noise = secret_noise
        self._take(model)
        self.batches.channels_last = _takes_channels_last(self.model, self.batches.x)

    def _take(self, model: nn.Module) -> None:
        """Train this model from now on."""
        self._flat = FlatModel(model, self._torch_device)
        self._plain = Objective(self.task, self._flat, half=self.precision == "bfloat16")
        self._submodels: dict[float, tuple[TorchTrainer, npt.NDArray[np.bool_]]] = {}
        self._frozen_copies: dict[str, FlatModel] = {}
        self._pure = is_pure(self.model)
        self._block = BLOCK if self._pure and self.task.averages_samples else None
        """None unless the gradient is certainly a mean over samples."""

    @property
    def model(self) -> nn.Module:
        """The torch module whose weights are trained."""
        return self._flat.module

    @property
    def layout(self) -> Layout:
        """The tensors and layers of the flat parameter vector."""
        return self._flat.layout

    def train(self, job: TrainingJob) -> TrainingState:
        """Carry out a job. Cutting an order into several jobs changes no bit of the result.

        Integer buffers are reset in every job. With `order.width` below 1 only that submodel is trained.
        """
        return self.train_while(job, None)[0]

    def train_while(
        self, job: TrainingJob, proceed: Proceed | None, *, keep: bool = False
    ) -> tuple[TrainingState, int]:
        """Carry out a job while `proceed` allows; returns the state and the number of slices done.

        `proceed` gets the number of slices done, and is called between layers or steps. An epoch that it cuts short is
        undone or, with `keep`, kept as far as it went.
        """
        if job.order.width < 1.0:
            return self._train_submodel(job, proceed, keep=keep)
        with self._rng(), self._objective(job) as objective:
            if job.order.unit == "layer":
                state, done = self._train_layers(job, objective, proceed)
            else:
                state, done = self._train_steps(job, objective, proceed, keep=keep)
        if job.order.masks_absent_classes:
            absent = absent_classes(self._flat, self.batches.targets(job.device))
            state = self._with_rows_of(job.state.parameters, absent, state)
        return state, done

    @contextmanager
    def _objective(self, job: TrainingJob) -> Iterator[Objective]:
        """The objective of a job, with the terms of its order."""
        squared = job.order.squared_loss
        if not job.order.terms:
            half = self.precision == "bfloat16"
            yield Objective(self.task, self._flat, half=half, squared=True) if squared else self._plain
            return
        terms: list[LossTerm] = [term_of(term) for term in job.order.terms]
        context = TermContext(
            model=self._flat,
            received=job.anchor,
            memory=job.memory,
            targets=partial(self.batches.targets, job.device),
            frozen_copy=self._frozen_copy,
        )
        try:
            for term in terms:
                term.context = context
                term.begin()
            yield Objective(self.task, self._flat, terms, half=self.precision == "bfloat16", squared=squared)
        finally:
            for term in terms:
                term.end()

    def _frozen_copy(self, name: str, parameters: Vector) -> FlatModel:
        """A copy of the model with these parameters, in evaluation mode, which is not trained."""
        if name not in self._frozen_copies:
            self._frozen_copies[name] = FlatModel(self.model, self._torch_device)
            self._frozen_copies[name].module.eval()
        self._frozen_copies[name].load(parameters)
        return self._frozen_copies[name]

    def _train_steps(
        self, job: TrainingJob, objective: Objective, proceed: Proceed | None, *, keep: bool
    ) -> tuple[TrainingState, int]:
        """Train epochs, or single steps of epochs.

        A continued epoch keeps its batches; only dropout then draws other random numbers, unless a slice is a step:
        then it draws anew for each step.
        """
        order, batches = job.order, self.batches
        self._load(job.state)
        optimiser = self._optimiser(order, job.state, objective)
        rate, schedule = order.learning_rate, order.schedule
        block = None if any(isinstance(term, OwnTerm) for term in order.terms) else self._block
        by_step, per_epoch = order.unit == "step", batches.steps(job.device, order.batch_size)
        steps, loss_sum, seen = job.state.steps, job.state.loss_sum, job.state.seen
        squared_sum = job.state.squared_sum

        def state(steps_into_slice: int = 0) -> TrainingState:
            counts = {"steps": steps, "steps_into_slice": steps_into_slice, "loss_sum": loss_sum, "seen": seen}
            return self._state(job, self._flat.values(), optimiser, squared_sum=squared_sum, **counts)

        for k, begun, end in batches.epochs(job):
            before = None if proceed is None or keep or by_step else state()
            self._seed_dropout("dropout", job.device, job.ticket, k, *([begun] if begun else []))
            samples = batches.order(job.device, job.ticket, k, order.batch_size)
            random = batches.transforming(job.device, job.ticket, k)
            if order.example_clip:
                given = self._private_steps(job, samples, random, k, begun)
            else:
                given = self._steps(job.device, samples, order.batch_size, objective, block, random, begun)
            for step in range(begun, end):
                done = k * per_epoch + step if by_step else k
                if keep and proceed is not None and not proceed(done):
                    return state(0 if by_step else step), done
                if by_step and not self._pure:
                    self._seed_dropout("dropout", job.device, job.ticket, k, *([step] if step else []))
                loss, size, gradients = next(given)
                if proceed is not None and not keep and not proceed(done):
                    return before or state(), done
                if schedule is not None:
                    rate = schedule.rate(order.learning_rate, steps)
                optimiser.step(loss, gradients, rate)
                steps += 1
                loss_sum += loss * size
                squared_sum += objective.take_squared_sum()
                seen += size
        return state(job.extra_steps), job.last

    def _private_steps(
        self, job: TrainingJob, samples: Indices, random: np.random.Generator | None, k: int, begun: int
    ) -> Iterator[tuple[float, float, Tensors]]:
        """Like `_steps`, with example-level privacy. The loss is not known: it would be released without noise."""
        order = job.order
        check_example_privacy(self.model, self._block is not None)
        source: Source = SystemNoise() if self._secret_noise else SeededNoise(partial(stream, self.batches.seed))
        batches = self.batches.gather(job.device, samples, order.batch_size, random, begun)
        for step, batch in enumerate(batches, begun):
            gradients = private_gradients(
                self._flat,
                self.task,
                batch,
                clip=order.example_clip,
                multiplier=order.example_noise,
                divisor=order.batch_size or len(samples),
                noise=partial(_drawn, source, (job.device, job.ticket, k, step)),
            )
            yield nan, len(batch.y), gradients

    def _train_layers(
        self, job: TrainingJob, objective: Objective, proceed: Proceed | None
    ) -> tuple[TrainingState, int]:
        """Train layer by layer: a slice is one layer of a step's backward pass, from the last layer on."""
        layers = self.layout.trained_layers
        done, state = job.first, job.state
        if done % layers:  # repeat the step in progress from its beginning, to a greater depth
            assert state.start is not None
            done, state = done - done % layers, state.start
        while done < job.last:
            wanted = min(layers, job.last - done)
            state, depth = self._layered_step(job, objective, state, done, wanted, proceed)
            done += depth
            if depth < wanted:
                break
        return state, done

    def _layered_step(
        self,
        job: TrainingJob,
        objective: Objective,
        state: TrainingState,
        done: int,
        depth: int,
        proceed: Proceed | None,
    ) -> tuple[TrainingState, int]:
        """Take one step on one batch that updates up to `depth` layers from the last; the others stay unchanged."""
        order, model, layers = job.order, self._flat, self.layout.trained_layers
        step = done // layers
        self._load(state)
        optimiser = self._optimiser(order, state, objective)
        self._seed_dropout("dropout", job.device, job.ticket, step)
        samples = self.batches.order(job.device, job.ticket, step, order.batch_size)[: order.batch_size]
        if not len(samples):
            return replace(state, start=None if depth == layers else state), depth
        random = self.batches.transforming(job.device, job.ticket, step)
        (batch,) = self.batches.gather(job.device, samples, None, random)
        loss, size, whole = objective.loss(batch)
        by_layer = [[model.parameters[position] for position in layer] for layer in model.layers]
        reached = backward(whole, by_layer, lambda deep: deep < depth and (proceed is None or proceed(done + deep)))
        if not reached:
            return state, 0
        depth = len(reached)
        positions = [position for layer in model.layers[layers - depth :] for position in layer]
        gradients = tuple(gradient for layer in reversed(reached) for gradient in layer)
        rate = order.learning_rate
        if order.schedule is not None:
            rate = order.schedule.rate(order.learning_rate, state.steps)
        optimiser.step(loss.item(), gradients, rate, positions)
        values = model.values()
        if depth < layers:  # the forward pass has also moved running statistics of other layers
            values = np.where(last_layers(self.layout, depth).chosen, values, state.parameters)
        after = self._state(
            job,
            values,
            optimiser,
            steps=state.steps + (depth == layers),
            loss_sum=state.loss_sum + loss.item() * size,
            squared_sum=state.squared_sum + objective.take_squared_sum(),
            seen=state.seen + size,
        )
        return replace(after, start=None if depth == layers else state), depth

    def _optimiser(self, order: Order, state: TrainingState, objective: Objective) -> Optimiser:
        return optimiser_of(order, self._flat, state, objective.pull if objective.pulls else None)

    def _state(self, job: TrainingJob, values: Vector, optimiser: Optimiser, **counts: Any) -> TrainingState:
        """The state with these values. Buffers that stay on the device are unchanged in `parameters`."""
        buffers, trained = None, self.layout.trained_size
        if job.order.buffers != "average":
            buffers = frozen(values[trained:].copy()) if job.order.buffers == "local" else None
            values[trained:] = job.state.parameters[trained:]
        return TrainingState(
            parameters=frozen(values),
            momentum=optimiser.momentum(),
            optimiser=optimiser.state(),
            buffers=buffers,
            **counts,
        )

    def _train_submodel(self, job: TrainingJob, proceed: Proceed | None, *, keep: bool) -> tuple[TrainingState, int]:
        width, trained = job.order.width, self.layout.trained_size
        if width not in self._submodels:
            trainer = copy.copy(self)
            trainer._take(narrowed(self.model, self.layout, width))
            self._submodels[width] = trainer, submodel(self.layout, width).chosen
        trainer, chosen = self._submodels[width]
        state, done = trainer.train_while(job_inside(job, chosen, trained), proceed, keep=keep)
        return state_outside(state, job.state, chosen, trained), done

    def _with_rows_of(self, before: Vector, absent: npt.NDArray[np.bool_], state: TrainingState) -> TrainingState:
        parameters = with_rows_of(before, absent, state.parameters, self.layout)
        start = None if state.start is None else self._with_rows_of(before, absent, state.start)
        return replace(state, parameters=parameters, start=start)

    def evaluate(self, parameters: Vector, x: Samples, y: Samples) -> Evaluation:
        """The task's metrics over these samples, in evaluation mode."""
        inputs, targets = self.batches.converted(x, y)
        self._flat.load(parameters)
        self.model.eval()
        if self._batch_statistics:
            for module in self.model.modules():
                module.training = isinstance(module, nn.modules.batchnorm._BatchNorm)
        sums: dict[str, Any] = {}
        try:
            with torch.inference_mode(), self._plain.precision():
                for batch in self.batches.for_evaluation(inputs, targets, EVALUATION_BATCH):
                    sums = added(sums, self.task.totals(called(self.model, batch.x), batch.y))
        finally:
            self.model.train()
        return Evaluation(metrics=dict(self.task.metrics(sums)))

    def loss_and_gradient(
        self, parameters: Vector, device: int, ticket: int, k: int, batch_size: int | None
    ) -> tuple[float, Vector]:
        """Loss and gradient on one random batch of the device's data; zero for elements that are not trained."""
        self._flat.load(parameters)
        chosen = self.batches.probe(device, ticket, k, batch_size)
        with self._rng():
            self._seed_dropout("probe-dropout", device, ticket, k)
            ((loss, _, gradients),) = self._steps(device, chosen, None, self._plain, self._block)
        flat = np.zeros(self.layout.size, dtype=np.float32)
        whole = torch.cat([gradient.reshape(-1) for gradient in gradients])
        flat[: self.layout.trained_size] = whole.numpy(force=True)
        return loss, frozen(flat)

    def _load(self, state: TrainingState) -> None:
        if state.buffers is None:
            self._flat.load(state.parameters)
        else:
            self._flat.load(np.concatenate([state.parameters[: self.layout.trained_size], state.buffers]))

    def _rng(self) -> Any:
        """A context that restores torch's random state (used by dropout)."""
        return torch.random.fork_rng(devices=[self._torch_device] if self._torch_device.type == "cuda" else [])

    def _seed_dropout(self, role: str, *keys: int) -> None:
        seed = int(stream(self.batches.seed, role, *keys).integers(2**63))
        torch.default_generator.manual_seed(seed)
        if self._torch_device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _steps(
        self,
        device: int,
        samples: Indices,
        batch_size: int | None,
        objective: Objective,
        block: int | None,
        random: np.random.Generator | None = None,
        begun: int = 0,
    ) -> Iterator[tuple[float, float, Tensors]]:
        """Loss, size and gradient of each batch after the first `begun`, at the weights at the time of `next`."""
        if batch_size is not None or block is None or len(samples) <= block:
            for batch in self.batches.gather(device, samples, batch_size, random, begun):
                yield objective.gradients(batch)
            return
        total, mean = 0.0, tuple(torch.zeros_like(weight) for weight in self._flat.weights)
        for batch in self.batches.gather(device, samples, block, random):
            loss, size, gradients = objective.gradients(batch)
            share = size / len(samples)
            total += share * loss
            torch._foreach_add_(mean, gradients, alpha=share)
        yield total, len(samples), mean


def _drawn(source: Source, keys: tuple[int, ...], size: int) -> npt.NDArray[np.float32]:
    """The noise of one step with example-level privacy."""
    return source("example privacy", *keys, size=size)


def _keep_freed_memory() -> None:
    """Let glibc keep up to 256 MB of freed memory instead of returning it to the kernel.

    Every step frees its activations; returning them and faulting them in again costs wide convolutions (`cnn`) a
    quarter of their time. Other C libraries have no such option.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        trim_threshold, mmap_threshold = -1, -3  # from malloc.h
        libc.mallopt(trim_threshold, 256 * 2**20)
        libc.mallopt(mmap_threshold, 32 * 2**20)


def _takes_channels_last(model: nn.Module, x: Samples) -> bool:
    """Whether channels-last input is faster and possible: a `view` after a convolution refuses it."""
    if (
        not isinstance(x, np.ndarray)
        or x.ndim != 4
        or not any(isinstance(module, nn.MaxPool2d | nn.BatchNorm2d) for module in model.modules())
    ):
        return False
    trial = torch.zeros(2, *x.shape[1:], device=next(model.parameters()).device).to(memory_format=torch.channels_last)
    model.eval()
    try:
        with torch.no_grad():
            model(trial)
    except RuntimeError:
        return False
    finally:
        model.train()
    return True
