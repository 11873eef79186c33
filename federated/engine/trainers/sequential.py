"""Client by client: one resident module that loads one client's model after another.

It suits every model, and is faster for large ones.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ...config.schema import Training
from ...core.population.sampling import Indices
from ...core.randomness import Purpose
from ...core.state import State
from ...core.user_code.user_errors import client_failed
from ..training.client import ClientUpdate, LocalClient
from ..training.modules import seed_torch
from ..training.optimizers import LocalOptimizer
from ..training.printing import collected
from ..training.samples import Chunk, Samples
from ..training.training import Start, Trained
from .resident import ResidentModule


class SequentialTrainer:
    """Trains one client after another; `update` is the user's own training code, if any."""

    def __init__(
        self,
        resident: ResidentModule,
        samples: Samples,
        training: Training,
        *,
        seed: int,
        update: ClientUpdate | None = None,
    ) -> None:
        self._resident = resident
        self._samples = samples
        self._training = training
        self._seed = seed
        self._update = update
        self._optimizer = LocalOptimizer(training, stacked=False)
        layers = resident.module.modules()
        self._smallest = 2 if any(isinstance(layer, _BatchNorm) for layer in layers) else 1
        """Samples that a step needs: one sample has no batch statistics."""

    def train(
        self,
        chunk: Chunk,
        round_number: int,
        start: Start,
        memories: Mapping[int, State],
    ) -> Iterator[Trained]:
        """Train the clients of the chunk in turn."""
        width = int(chunk.sizes.max(initial=0))
        orders = [
            self._samples.positions(chunk, round_number, epoch, width)
            for epoch in range(self._training.number_of_epochs)
        ]
        clients = zip(
            chunk.clients.tolist(), chunk.keys.tolist(), chunk.sizes.tolist(), strict=True
        )
        for at, (index, key, size) in enumerate(clients):
            started = time.perf_counter()
            epochs = [order[at, :size] for order in orders]
            client_id = self._samples.partition.client_id(index)
            with collected() as printed:
                try:
                    with self._resident.gradients_arranged():
                        self._resident.load(start.of(at))
                        loss, kept = self._client(
                            index, key, round_number, start.rate, epochs, memories
                        )
                except Exception as error:
                    doing = f"training in round {round_number}"
                    raise client_failed(client_id, doing, error, printed.text) from error
            tensors = {name: t.unsqueeze(0) for name, t in self._resident.tensors().items()}
            yield Trained(
                slice(at, at + 1),
                tensors,
                np.array([0.0 if loss is None else loss]),
                time.perf_counter() - started,
                {} if kept is None else {index: kept},
                told=loss is not None,
                printed={client_id: printed.text} if printed.text else {},
            )

    def _client(
        self,
        index: int,
        key: int,
        round_number: int,
        rate: float,
        epochs: list[Indices],
        memories: Mapping[int, State],
    ) -> tuple[float | None, State | None]:
        """Train a client from the loaded model; its sum of losses, if told, and its memory."""
        seed_torch(self._seed, Purpose.TRAIN, round=round_number, key=key)
        self._resident.module.train()
        if self._update is None:
            return self._epochs(epochs, rate), None
        self._resident.module.zero_grad()  # drop gradients of the last client
        client = LocalClient(
            id=self._samples.partition.client_id(index),
            round=round_number,
            module=self._resident.module,
            training=self._training.model_copy(update={"learning_rate": rate}),
            loss=self._resident.loss,
            samples=self._samples,
            orders=epochs,
            memory={name: np.array(value) for name, value in memories.get(index, {}).items()},
        )
        return client.run(self._update)

    def _epochs(self, epochs: list[Indices], rate: float) -> float:
        resident = self._resident
        module, loss_of, trained = resident.module, resident.loss, resident.trained
        parameters = list(trained.values())
        self._optimizer.begin(trained, rate)
        losses: list[Tensor] = []
        sizes: list[int] = []
        for positions in epochs:
            losses, sizes = [], []
            if not len(positions):
                return 0.0
            x, y = self._samples.gather(positions)
            x = self._resident.arranged(x)
            for start, stop in self._batches(len(y)):
                loss = loss_of(module(x[start:stop]), y[start:stop])
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                self._optimizer.step(trained, dict(zip(trained, gradients, strict=True)))
                losses.append(loss.detach())
                sizes.append(stop - start)
        means = torch.stack(losses).double().cpu().numpy()
        return float(means @ np.asarray(sizes, dtype=np.float64))

    def _batches(self, samples: int) -> Iterator[tuple[int, int]]:
        starts = list(range(0, samples, self._training.batch_size))
        if len(starts) > 1 and samples - starts[-1] < self._smallest:
            del starts[-1]  # the batch before takes the rest
        return itertools.pairwise([*starts, samples])
