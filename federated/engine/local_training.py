"""A client's training, and its evaluation: one client after another on one resident module.

The module, its optimizer and the global model stay on the worker; a client costs a copy of the
global model into the module, its steps, and nothing else. What a client computes depends on the
global model, its samples and (seed, round, client id) alone, never on who trained before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

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
        self._tensors = self._module.state_dict(keep_vars=False)
        self._trained = [p for p in self._module.parameters() if p.requires_grad]
        self._optimizer = make_optimizer(self._trained, training)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Make the module the given model, bit for bit."""
        for name, tensor in self._tensors.items():
            tensor.copy_(state[name])

    def state(self) -> dict[str, Array]:
        """The module's state as it is now; on a CPU these are views that the next load changes."""
        return {name: tensor.detach().cpu().numpy() for name, tensor in self._tensors.items()}

    def train(self, client_id: str, x: Tensor, y: Tensor, round_number: int) -> Tally:
        """Train the loaded model on a client's samples x (n, ...) and labels y (n,).

        Returns the exact sums of the last epoch's losses, measured while training.
        """
        key = client_key(client_id)
        seed_torch(self._seed, Purpose.TRAIN, round=round_number, key=key)
        order = stream(self._seed, Purpose.TRAIN, round=round_number, key=key)
        self._module.train()
        self._optimizer.state.clear()
        losses: list[Tensor] = []
        sizes: list[int] = []
        for _ in range(self._training.number_of_epochs):
            losses, sizes = [], []
            for batch_x, batch_y in self._batches(x, y, order):
                self._optimizer.zero_grad(set_to_none=True)
                loss = self._loss(self._module(batch_x), batch_y)
                loss.backward()  # type: ignore[no-untyped-call]
                self._optimizer.step()
                losses.append(loss.detach())
                sizes.append(len(batch_y))
        if not losses:
            return Tally()
        means = torch.stack(losses).double().cpu().numpy()
        return Tally().add(sum(sizes), 0, float(means @ np.asarray(sizes, dtype=np.float64)))

    def _batches(
        self, x: Tensor, y: Tensor, order: np.random.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        size = self._training.batch_size
        if self._training.shuffle and len(y) > 1:
            shuffled = torch.from_numpy(order.permutation(len(y))).to(self._device)
            x, y = x[shuffled], y[shuffled]
        for start in range(0, len(y), size):
            yield x[start : start + size], y[start : start + size]

    def evaluate(self, x: npt.NDArray[np.float32], y: npt.NDArray[np.int64], batch: int) -> Tally:
        """Judge the loaded model on samples x (n, ...), in batches that start at the first."""
        self._module.eval()
        tally = Tally()
        with torch.inference_mode():
            for start in range(0, len(y), batch):
                labels = torch.from_numpy(np.array(y[start : start + batch])).to(self._device)
                inputs = torch.from_numpy(np.array(x[start : start + batch])).to(self._device)
                outputs = self._module(inputs)
                loss = float(self._loss(outputs, labels)) * len(labels)
                correct = int((outputs.argmax(1) == labels).sum()) if outputs.ndim == 2 else 0
                tally.add(len(labels), correct, loss)
        return tally


def make_optimizer(parameters: list[nn.Parameter], training: Training) -> torch.optim.Optimizer:
    """The client's optimizer; its state is emptied before every client."""
    rate, decay = training.learning_rate, training.weight_decay
    match training.optimizer:
        case "sgd":
            return torch.optim.SGD(
                parameters, lr=rate, momentum=training.momentum, weight_decay=decay
            )
        case "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
        case "adamw":
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
