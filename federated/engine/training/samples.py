"""A worker's samples: one contiguous array, from which a step gathers its rows.

There is no loader per client: a chunk is a table of positions for all its clients.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...config.schema import Training
from ...core.population.partitions.partition import Partition
from ...core.population.sampling import Indices
from ...core.randomness import UInt64s, permutations
from ...core.state import Array

MEANINGLESS = (
    "The given NumPy array is not writable",  # Ray's object store is read-only
    "There is a performance drop",  # about vmap, which the cost model accounts for
)
"""Beginnings of PyTorch warnings that do not matter in training here."""


def silence() -> None:
    """Ignore these warnings from now on, in the whole process; may be called again.

    `warnings.catch_warnings` would swap the filters of all threads for a moment.
    """
    for beginning in MEANINGLESS:
        warnings.filterwarnings("ignore", beginning, UserWarning)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Clients that train together, and where their samples lie."""

    clients: Indices
    """Their places in the population, (k,), those with most samples first."""
    keys: UInt64s
    sizes: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    """Positions of all their samples, client after client."""

    def __len__(self) -> int:
        return len(self.clients)

    def only(self, place: int) -> Chunk:
        """The chunk of the client at a place."""
        here, end = slice(place, place + 1), int(self.sizes[: place + 1].sum())
        rows = self.rows[end - int(self.sizes[place]) : end]
        return Chunk(self.clients[here], self.keys[here], self.sizes[here], rows)


class Samples:
    """A site's samples on a worker's device, and the order in which a client goes through them."""

    def __init__(
        self,
        x: Array,
        y: Array,
        partition: Partition,
        training: Training,
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        silence()
        self.x, self.y = torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)
        self.partition = partition
        self._training = training
        self._seed = seed
        self._device = device

    def chunk(self, clients: Sequence[int] | Indices) -> Chunk:
        """Look up the samples of some clients, and put those with most of them first."""
        indices = np.asarray(clients, dtype=np.int64)
        keys = self.partition.keys(indices)
        rows, sizes = self.partition.rows(indices, keys)
        order = np.argsort(-sizes, kind="stable")
        if np.array_equal(order, np.arange(len(order))):
            return Chunk(indices, keys, sizes, rows)
        starts, ordered = np.cumsum(sizes) - sizes, sizes[order]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(ordered) - ordered, ordered)
        rows = rows[np.repeat(starts[order], ordered) + within]
        return Chunk(indices[order], keys[order], ordered, rows)

    def positions(self, chunk: Chunk, round_number: int, epoch: int, width: int) -> Indices:
        """(k, width) positions in the order of an epoch; past a client's end, its first sample.

        `width` is at least the largest size. A row depends on its client alone.
        """
        within = np.zeros((len(chunk), width), dtype=np.int64)
        largest = int(chunk.sizes.max(initial=0))
        if self._training.shuffle:
            within[:, :largest] = permutations(
                self._seed, chunk.keys, chunk.sizes, round=round_number, epoch=epoch
            )
        else:
            columns = np.arange(largest)
            within[:, :largest] = np.where(columns < chunk.sizes[:, None], columns, 0)
        starts = np.cumsum(chunk.sizes) - chunk.sizes
        within += np.minimum(starts, max(0, len(chunk.rows) - 1))[
            :, None
        ]  # for clients without any
        found: Indices = chunk.rows[within]
        return found

    def gather(self, positions: Indices) -> tuple[Tensor, Tensor]:
        """The samples (n, ...) and labels (n,) at these positions; copies, on the device."""
        at = torch.from_numpy(positions).to(self._device)
        return self.x.index_select(0, at), self.y.index_select(0, at)
