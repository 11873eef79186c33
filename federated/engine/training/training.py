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


class ChunkTrainer(Protocol):
    """Trains the clients of a chunk from one model; a client's result depends on it alone."""

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
