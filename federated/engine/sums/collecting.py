"""Collects every update of a worker's clients, for algorithms that need them all.

`Partial.keep` defines what is kept; this computes moves on the device and copies them to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ...core.population.sampling import Indices
from ...core.state import Array, Roles, averaged, counters
from ...core.sums.partial import Partial, Tally
from .summing import Floats


class Gathering(Protocol):
    """A worker's sum or collection."""

    def begin(self, reference: Mapping[str, Tensor], exponents: Mapping[str, int]) -> None:
        """Drop everything, and measure from this model on this grid from now on."""

    def add(
        self,
        clients: Indices,
        trained: Mapping[str, Tensor],
        weights: Indices,
        losses: Floats,
        *,
        told: bool = True,
    ) -> None:
        """Add trained clients; those that are not finite are refused and named.

        `trained` has their tensors, (k, *shape); a missing one did not move. `weights` are their
        samples, (k,); `losses` the sums of their samples' losses, (k,), valid if `told`.
        """

    def take(self) -> Partial:
        """Return and drop everything added since the last call."""


class Collection:
    """Gathers a worker's updates by client; there is no grid."""

    def __init__(self, roles: Roles, client_id: Callable[[int], str]) -> None:
        self._names = averaged(roles)
        self._counters = counters(roles)
        self._client_id = client_id
        self._reference: dict[str, Tensor] = {}
        self._total = Partial.keeping_updates()

    def begin(self, reference: Mapping[str, Tensor], exponents: Mapping[str, int]) -> None:
        self._reference = {name: _wide(reference[name]) for name in self._names}
        self._total = Partial.keeping_updates()

    def add(
        self,
        clients: Indices,
        trained: Mapping[str, Tensor],
        weights: Indices,
        losses: Floats,
        *,
        told: bool = True,
    ) -> None:
        moved = {name: self._moved(name, trained.get(name), len(clients)) for name in self._names}
        counted = {
            name: trained[name].detach().cpu().numpy() for name in self._counters if name in trained
        }
        for at, index in enumerate(clients.tolist()):
            kept = self._total.keep(
                self._client_id(index),
                {name: stacked[at, ...] for name, stacked in moved.items()},
                int(weights[at]),
                Tally().add(int(weights[at]), 0, float(losses[at]), told=told),
            )
            if kept:
                self._total.count({name: stacked[at, ...] for name, stacked in counted.items()})

    def take(self) -> Partial:
        total, self._total = self._total, Partial.keeping_updates()
        return total

    def _moved(self, name: str, mine: Tensor | None, count: int) -> Array:
        """How far a tensor moved, (count, *shape); an array of its own."""
        reference = self._reference[name]
        if mine is None:
            shape = (count, *reference.shape)
            return np.zeros(shape, dtype=torch.empty(0, dtype=reference.dtype).numpy().dtype)
        return torch.sub(_wide(mine), reference).cpu().contiguous().numpy()


def _wide(tensor: Tensor) -> Tensor:
    """Halves as float32, as in `Reference`."""
    return tensor.detach().float() if tensor.element_size() < 4 else tensor.detach()
