"""What trainers of every kind have in common: clients in, what each of them became out."""

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
    """What some clients of a chunk became; its tensors are valid until the next is asked for."""

    where: slice
    """Which clients of the chunk."""
    tensors: Mapping[str, Tensor]
    """Their tensors, (k, *shape); one that is missing did not move."""
    losses: npt.NDArray[np.float64]
    """Sums of their samples' losses in the last epoch, measured while training, (k,)."""
    seconds: float
    """What the arithmetic of training took."""
    memories: Mapping[int, State] = field(default_factory=dict)
    """What clients want to find again the next time they train, by their index."""
    told: bool = True
    """Whether the losses are told; a user's own way of training need not."""
    printed: Mapping[str, str] = field(default_factory=dict)
    """What a user's own way of training printed, by the client's id."""


class ChunkTrainer(Protocol):
    """Trains the clients of a chunk from one model; what a client becomes depends on it alone."""

    def train(
        self,
        chunk: Chunk,
        round_number: int,
        model: Mapping[str, Tensor],
        memories: Mapping[int, State],
    ) -> Iterator[Trained]:
        """Train every client of the chunk for its epochs; ClientFailed if code of the user raises.

        `model` has all tensors of the state, on the device; `memories` what clients kept.
        """
