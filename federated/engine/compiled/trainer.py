"""CompiledTrainer: trains the clients of a chunk by one call of a compiled kernel."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...config.schema import Training
from ...core.state import State
from ..stacking import NotStackable
from ..training.optimizers import LocalOptimizer
from ..training.samples import Chunk, Samples
from ..training.training import Start, Trained
from . import dense
from .chain import Dense


class CompiledTrainer:
    """Trains up to `capacity` clients on a chain of dense layers; on the CPU."""

    def __init__(
        self,
        chain: Sequence[Dense],
        capacity: int,
        samples: Samples,
        training: Training,
        *,
        dtype: torch.dtype,
    ) -> None:
        """Raises NotStackable for samples that the kernel would misread."""
        labels = samples.y
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < chain[-1].outputs:
            raise NotStackable(f"some labels are not in 0 to {chain[-1].outputs - 1}")
        if samples.x.dtype != dtype:
            raise NotStackable(f"samples are {samples.x.dtype}, weights {dtype}")
        self._samples = samples
        self._training = training
        self._x = samples.x.reshape(len(samples.x), chain[0].inputs).contiguous().numpy()
        self._y = labels.numpy()
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}
        table, size = [], 0
        for layer in chain:
            at, path = size, f"{layer.path}." if layer.path else ""
            self._places[f"{path}weight"] = at, (layer.outputs, layer.inputs)
            size += layer.outputs * layer.inputs
            bias = size if layer.bias else -1
            if layer.bias:
                self._places[f"{path}bias"] = size, (layer.outputs,)
                size += layer.outputs
            table.append([layer.inputs, layer.outputs, at, bias, layer.activation])
        self._layers = np.array(table, dtype=np.int64)
        # PyTorch's memory is aligned to vectors, NumPy's need not be.
        self._shared = torch.zeros((1, size), dtype=dtype).numpy()
        self._own = np.empty((0, size), dtype=self._shared.dtype)
        self._trained = torch.zeros(capacity * size, dtype=dtype)
        self._rows = {
            name: self._trained[at * capacity : (at + math.prod(shape)) * capacity].view(
                capacity, *shape
            )
            for name, (at, shape) in self._places.items()
        }
        self._room = torch.zeros((4, -(-size // 16) * 16), dtype=dtype).numpy()
        rules = {"adam": dense.ADAM, "adamw": dense.ADAMW}
        self._rule = rules.get(training.optimizer, _rule_of_sgd(training))
        optimizer = LocalOptimizer
        self._constants = np.array(
            [
                *(training.learning_rate, training.weight_decay, training.momentum),
                *(optimizer.BETA1, optimizer.BETA2, optimizer.EPS, training.proximal_mu),
                training.max_gradient_norm or 0.0,
            ],
            dtype=np.float64,
        )

    def train(
        self,
        chunk: Chunk,
        round_number: int,
        start: Start,
        memories: Mapping[int, State],
    ) -> Iterator[Trained]:
        started = time.perf_counter()
        models = self._models(start, len(chunk))
        self._constants[dense.RATE] = start.rate
        losses: npt.NDArray[np.float64] = np.empty(len(chunk))
        dense.train_clients(
            self._x,
            self._y,
            self._orders(chunk, round_number),
            chunk.sizes,
            min(self._training.batch_size, int(chunk.sizes.max(initial=1))),
            self._layers,
            models,
            self._rule,
            self._constants,
            self._room,
            self._trained.numpy(),
            losses,
        )
        tensors = {name: rows[: len(chunk)] for name, rows in self._rows.items()}
        yield Trained(slice(0, len(chunk)), tensors, losses, time.perf_counter() - started)

    def _models(self, start: Start, clients: int) -> npt.NDArray[np.floating[Any]]:
        """(k, weights): the weights that each client begins with, or (1, weights) for all."""
        if start.own and len(self._own) < clients:
            self._own = np.empty((clients, self._shared.shape[1]), self._shared.dtype)
        models = self._own[:clients] if start.own else self._shared
        for name, (at, shape) in self._places.items():
            rows = start.rows(name).numpy().reshape(-1, math.prod(shape))
            models[:, at : at + math.prod(shape)] = rows
        return models

    def _orders(self, chunk: Chunk, round_number: int) -> npt.NDArray[np.int64]:
        """(epochs, clients, largest): positions of each client's samples in every epoch."""
        largest = int(chunk.sizes.max(initial=0))
        orders = np.empty((self._training.number_of_epochs, len(chunk), largest), dtype=np.int64)
        for epoch, order in enumerate(orders):
            order[...] = self._samples.positions(chunk, round_number, epoch, largest)
        return orders


def _rule_of_sgd(training: Training) -> int:
    if training.nesterov:
        return dense.NESTEROV
    whole = training.momentum or training.weight_decay or training.max_gradient_norm
    return dense.MOMENTUM if whole else dense.PLAIN
