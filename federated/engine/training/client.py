"""The argument of a user's own `client_update`: one client, with everything that training needs.

    def client_update(client):
        optimizer = torch.optim.SGD(client.module.parameters(), lr=client.training.learning_rate)
        for x, y in client.batches():
            optimizer.zero_grad()
            client.loss(client.module(x), y).backward()
            optimizer.step()

At the beginning the module is the global model; at the end it is the client's update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from ...config.schema import Training
from ...core.population.sampling import Indices
from ...core.state import State
from .modules import Loss
from .samples import Samples
from .training_code import resolve_client_update


@dataclass(slots=True, kw_only=True)
class LocalClient:
    """A client while it trains; the module and its randomness are its own."""

    id: str
    round: int
    """From 1 on."""
    module: nn.Module
    """The global model, in training mode; change it in place."""
    training: Training
    """The section `training` of the config, with the `learning_rate` of this round."""
    loss: Loss
    """(outputs, labels) -> mean loss, as the config names it."""
    memory: dict[str, Any]
    """NumPy arrays or tensors by name that this client keeps for its next training."""
    samples: Samples = field(repr=False)
    orders: list[Indices] = field(repr=False)

    def __len__(self) -> int:
        """How many samples the client holds."""
        return len(self.orders[0])

    def data(self, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """All its samples (n, ...) and labels (n,), in the order of an epoch."""
        return self.samples.gather(self.orders[epoch])

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Its batches of `batch_size`, epoch after epoch, in the run's reproducible order."""
        size = self.training.batch_size
        for epoch in range(len(self.orders)):
            x, y = self.data(epoch)
            for start in range(0, len(y), size):
                yield x[start : start + size], y[start : start + size]

    def run(self, update: ClientUpdate) -> tuple[float | None, State | None]:
        """Run the user's code; the sum of its samples' losses, if told, and its memory."""
        had_memory = bool(self.memory)
        told = update(self)
        loss = None if told is None else float(told) * len(self)
        if loss is not None and not math.isfinite(loss):
            loss = math.nan
        memory = {name: _array(name, value) for name, value in self.memory.items()}
        return loss, memory if memory or had_memory else None


ClientUpdate = Callable[[LocalClient], "float | None"]
"""A user's own training code; it may return the mean loss of its samples."""


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if not isinstance(name, str) or not isinstance(value, np.ndarray):
        raise TypeError(
            f"client.memory holds arrays by name, found {type(value).__name__} under {name!r}"
        )
    if value.dtype.hasobject:
        raise TypeError(f"client.memory holds arrays of numbers, found objects under {name!r}")
    return value.copy()


def client_update_function(name: str | None) -> ClientUpdate | None:
    """The user's own training code, registered or by dotted path, if the config names any."""
    if name is None:
        return None
    found: ClientUpdate = resolve_client_update(name)
    return found
