"""A client's training, and its evaluation: one client after another on one resident module.

The module and the global model stay on the worker; a client costs a copy of the
global model into the module, its steps, and nothing else. What a client computes depends on the
global model, its samples and (seed, round, client id) alone, never on who trained before it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.sgd import sgd

from ..config.schema import Training
from ..core.partial import Tally
from ..core.randomness import Purpose, client_key, stream
from ..core.state import Array
from .modules import loss_function, seed_torch


class LocalTrainer:
    """One module that becomes one client after another."""

    def __init__(
        self, module: nn.Module, training: Training, *, seed: int, device: torch.device
    ) -> None:
        self._module = module.to(device)
        self._training = training
        self._loss = loss_function(training.loss_function)
        self._seed = seed
        self._device = device
        self._parameters = {
            name: parameter.detach()
            for name, parameter in module.named_parameters(remove_duplicate=False)
        }
        self._buffers = _buffers_of(module)
        self._smallest = 2 if any(isinstance(m, _BatchNorm) for m in module.modules()) else 1
        """Samples that a step needs: batch statistics of one sample are none."""
        self._trained: list[Tensor] = [p for p in module.parameters() if p.requires_grad]
        self._begin = stepper(self._trained, training)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Make the module the given model, bit for bit."""
        for name, tensor in self._parameters.items():
            tensor.copy_(state[name])
        for buffer in self._buffers:  # a model may have put other tensors in their places
            value = state[buffer.name] if buffer.kept else buffer.first
            setattr(buffer.owner, buffer.attribute, value.clone())

    def state(self) -> dict[str, Array]:
        """The module's state as it is now; on a CPU these are views that the next load changes."""
        tensors = self._parameters | {
            buffer.name: getattr(buffer.owner, buffer.attribute)
            for buffer in self._buffers
            if buffer.kept
        }
        return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}

    def train(self, client_id: str, x: Tensor, y: Tensor, round_number: int) -> Tally:
        """Train the loaded model on a client's samples x (n, ...) and labels y (n,).

        Returns the exact sums of the last epoch's losses, measured while training.
        """
        key = client_key(client_id)
        seed_torch(self._seed, Purpose.TRAIN, round=round_number, key=key)
        shuffles = self._training.shuffle and len(y) > 1
        order = stream(self._seed, Purpose.TRAIN, round=round_number, key=key) if shuffles else None
        self._module.train()
        step = self._begin()
        losses: list[Tensor] = []
        sizes: list[int] = []
        for _ in range(self._training.number_of_epochs):
            losses, sizes = [], []
            for batch_x, batch_y in self._batches(x, y, order):
                loss = self._loss(self._module(batch_x), batch_y)
                step(torch.autograd.grad(loss, self._trained, allow_unused=True))
                losses.append(loss.detach())
                sizes.append(len(batch_y))
        if not losses:
            return Tally()
        means = torch.stack(losses).double().cpu().numpy()
        return Tally().add(sum(sizes), 0, float(means @ np.asarray(sizes, dtype=np.float64)))

    def _batches(
        self, x: Tensor, y: Tensor, order: np.random.Generator | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        size = self._training.batch_size
        if order is not None:
            shuffled = torch.from_numpy(order.permutation(len(y))).to(self._device)
            x, y = x[shuffled], y[shuffled]
        else:  # a model may change its input in place, which is still needed then
            x = x.clone()
        starts = list(range(0, len(y), size))
        if len(starts) > 1 and len(y) - starts[-1] < self._smallest:
            del starts[-1]  # the batch before takes the rest
        for start, stop in itertools.pairwise([*starts, len(y)]):
            yield x[start:stop], y[start:stop]

    def evaluate(self, x: npt.NDArray[np.float32], y: npt.NDArray[np.int64], batch: int) -> Tally:
        """Judge the loaded model on samples x (n, ...), in batches that start at the first."""
        self._module.eval()
        tally = Tally()
        with torch.inference_mode():
            for start in range(0, len(y), batch):
                labels = torch.from_numpy(np.array(y[start : start + batch])).to(self._device)
                inputs = torch.from_numpy(np.array(x[start : start + batch])).to(self._device)
                outputs = self._module(inputs)
                loss = float(self._loss(outputs, labels).detach()) * len(labels)
                correct = int((outputs.argmax(1) == labels).sum()) if outputs.ndim == 2 else 0
                tally.add(len(labels), correct, loss)
        return tally


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A buffer's place in the module, where a model may put another tensor at any time."""

    name: str
    owner: nn.Module
    attribute: str
    first: Tensor
    kept: bool
    """Whether it is part of the state; one that is not begins anew with every client."""


def _buffers_of(module: nn.Module) -> tuple[_Buffer, ...]:
    saved = module.state_dict().keys()
    return tuple(
        _Buffer(name, owner, attribute, tensor.clone(), name in saved)
        for path, owner in module.named_modules(remove_duplicate=False)
        for attribute, tensor in owner.named_buffers(recurse=False)
        for name in [f"{path}.{attribute}" if path else attribute]
    )


Step = Callable[[Sequence[Tensor | None]], None]
"""Moves the trained parameters by their gradients; those without one stay, as in torch.optim."""


def stepper(parameters: list[Tensor], training: Training) -> Callable[[], Step]:
    """What makes a client's optimizer: each call begins one without a past."""
    if training.optimizer == "sgd":
        return lambda: _plain_sgd(parameters, training)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[training.optimizer]
    optimizer = kind(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)

    def begin() -> Step:
        optimizer.state.clear()
        return step

    def step(gradients: Sequence[Tensor | None]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()

    return begin


def _plain_sgd(parameters: list[Tensor], training: Training) -> Step:
    """torch's SGD by its functional form: the class spends more time around a step than in it."""
    momenta: list[Tensor | None] = [None] * len(parameters)

    def step(gradients: Sequence[Tensor | None]) -> None:
        reached = [i for i, gradient in enumerate(gradients) if gradient is not None]
        velocities = [momenta[i] for i in reached]
        with torch.no_grad():
            sgd(
                [parameters[i] for i in reached],
                [gradient for gradient in gradients if gradient is not None],
                velocities,
                foreach=len(parameters) > 1,
                weight_decay=training.weight_decay,
                momentum=training.momentum,
                lr=training.learning_rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )
        for i, velocity in zip(reached, velocities, strict=True):
            momenta[i] = velocity

    return step
