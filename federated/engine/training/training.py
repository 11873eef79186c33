"""The interface of all trainers: clients in, their trained tensors out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...core.state import State
from .samples import Chunk


@dataclass(frozen=True, slots=True)
class Trained:
    """Results of some clients of a chunk; its tensors are valid until the next result."""

    where: slice
    tensors: Mapping[str, Tensor]
    """Their tensors, (k, *shape); a missing one did not move."""
    losses: npt.NDArray[np.float64]
    """Sums of their samples' losses in the last epoch, measured while training, (k,)."""
    seconds: float
    """Time in training arithmetic."""
    memories: Mapping[int, State] = field(default_factory=dict)
    """By client index: what it keeps for its next training."""
    told: bool = True
    """Whether losses are known; a user's own training code may omit them."""
    printed: Mapping[str, str] = field(default_factory=dict)
    """By client id: output of the user's own training code."""


@dataclass(frozen=True, slots=True)
class Start:
    """What the clients of a chunk begin with: one model, in part or in whole each client's own."""

    model: Mapping[str, Tensor]
    """All tensors of the state, on the device."""
    rate: float
    """The learning rate of all its steps."""
    own: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors that each client begins with in their place, (k, *shape), in the chunk's order.

    Those that no client trains must be the model's: a trainer may take either.
    """

    def rows(self, name: str) -> Tensor:
        """A tensor of all clients: (k, *shape), or (*shape) where they share it."""
        return self.own.get(name, self.model[name])

    def of(self, place: int) -> Mapping[str, Tensor]:
        """The whole model of the client at a place in the chunk."""
        if not self.own:
            return self.model
        return {**self.model, **{name: rows[place] for name, rows in self.own.items()}}


class ChunkTrainer(Protocol):
    """Trains the clients of a chunk; a client's result depends on it and its start alone."""

    def train(
        self,
        chunk: Chunk,
        round_number: int,
        start: Start,
        memories: Mapping[int, State],
    ) -> Iterator[Trained]:
        """Train every client of the chunk for its epochs; ClientFailed if code of the user raises.

        `memories` is what clients kept of earlier trainings, by client index.
        """
