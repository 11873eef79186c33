"""Exact sums of trained tensors where they were trained: the fast way to a `Partial`.

`Partial.add` defines the sum; this computes the same integers for many clients at once, on the
device, in float64 where that is exact and in int64 otherwise (docs/decisions/0004-exact-partials).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.population.sampling import Indices
from ...core.state import Roles, averaged, counters
from ...core.sums.partial import RANGE_BITS, Partial
from ..compiled import sums as compiled_sums
from . import device_sums

EXACT = 1 << 53
"""Integers up to it are exact in float64."""

Floats = npt.NDArray[np.float64]


class RunningSum:
    """Gathers a worker's clients (`collecting.Gathering`) into an exact sum."""

    def __init__(
        self, like: Mapping[str, Tensor], roles: Roles, client_id: Callable[[int], str]
    ) -> None:
        """Sum states with the names, shapes and types of `like`, on its device."""
        self._terms = [_Term(name, like[name]) for name in averaged(roles)]
        self._counters = counters(roles)
        self._client_id = client_id
        self._total = Partial({})

    def begin(self, reference: Mapping[str, Tensor], exponents: Mapping[str, int]) -> None:
        for term in self._terms:
            term.begin(reference[term.name], exponents[term.name])
        self._total = Partial(exponents)

    def add(
        self,
        clients: Indices,
        trained: Mapping[str, Tensor],
        weights: Indices,
        losses: Floats,
        *,
        told: bool = True,
    ) -> None:
        terms = [term for term in self._terms if term.name in trained]
        rows = [term.rows(trained[term.name]) for term in terms]
        factors = weights.astype(np.float64)
        moves = np.empty((len(terms), len(weights)))
        for term, row, largest in zip(terms, rows, moves, strict=True):
            term.add(row, factors, largest)
        exponents = np.array([term.exponent for term in terms], dtype=np.int64)
        with np.errstate(over="ignore"):  # beyond float64 is infinite
            units = np.rint(np.ldexp(moves, exponents[:, None]))
        fine = np.isfinite(losses) & np.isfinite(units).all(axis=0)
        with np.errstate(over="ignore", invalid="ignore"):
            # A client of weight 0 may have moved anywhere: its weight counts as 1 here.
            exact = bool((units @ np.maximum(factors, 1.0) < EXACT).all())
        if exact and fine.all():
            for term, bound in zip(terms, (units @ factors).tolist(), strict=True):
                term.bound += int(bound)
        else:
            for term, row in zip(terms, rows, strict=True):
                term.add(row, factors, np.empty(len(factors)), sign=-1)
            self._total.refused.extend(map(self._client_id, clients[~fine].tolist()))
            if not fine.any():
                return
            weights, losses, kept = weights[fine], losses[fine], torch.from_numpy(fine)
            for term, row, sizes in zip(terms, rows, units[:, fine], strict=True):
                term.add_wide(row[kept.to(row.device)], weights, sizes)
        self._total.clients += len(weights)
        self._total.weight += int(weights.sum())
        self._total.tally.add_clients(weights, losses, told=told)
        for name in self._counters:
            if name in trained:
                counted = trained[name].detach().cpu().numpy()[fine]
                self._total.count({name: counted.max(axis=0)})

    def take(self) -> Partial:
        total = self._total
        self._total = Partial(total.exponents)
        if total.clients:
            for term in self._terms:
                total.bounds[term.name], summed = term.take()
                if total.bounds[term.name] < 1 << RANGE_BITS:
                    total.sums[term.name] = summed.cpu().numpy()
        return total


class _Term:
    def __init__(self, name: str, like: Tensor) -> None:
        self.name = name
        self.exponent = 0
        self._layout = _Layout.of(like)
        self._type = like.dtype if like.dtype.itemsize >= 4 else torch.float32
        self._device = like.device
        self._on: ModuleType = compiled_sums if like.device.type == "cpu" else device_sums
        self.bound = 0
        """Upper limit of every element of the sum."""
        self._sums: Tensor | None = None
        """(size,), int64; None while nothing was added."""

    def begin(self, reference: Tensor, exponent: int) -> None:
        """Drop the sum."""
        self._reference = self.rows(reference.unsqueeze(0)).view(-1)
        self.exponent, self._scale = exponent, math.ldexp(1.0, exponent)
        self.bound, self._sums = 0, None

    def rows(self, stacked: Tensor) -> Tensor:
        """(k, *shape) -> (k, size), in the type that moves are computed in."""
        rows = self._layout.rows(stacked.detach())
        return rows if rows.dtype is self._type else rows.to(self._type)

    def add(self, rows: Tensor, factors: Floats, largest: Floats, sign: int = 1) -> None:
        """Add clients, exactly below 2**53 units; `largest` (k,) receives their largest moves.

        With `sign` -1 the same clients are subtracted again.
        """
        self._on.add(rows, self._reference, self._scale, factors, self._room(), largest, sign=sign)

    def add_wide(self, rows: Tensor, weights: Indices, units: Floats) -> None:
        """Add finite clients whose largest moves are these, however large."""
        pairs = zip(units.tolist(), weights.tolist(), strict=True)
        self.bound += sum(int(size) * weight for size, weight in pairs)
        if self.bound < 1 << RANGE_BITS:
            self._on.add_wide(rows, self._reference, self._scale, weights, self._room())

    def _room(self) -> Tensor:
        if self._sums is None:
            self._sums = torch.zeros(self._layout.size, dtype=torch.int64, device=self._device)
        return self._sums

    def take(self) -> tuple[int, Tensor]:
        """Return its bound and sum, (*shape), and start anew."""
        taken = self.bound, self._layout.shaped(self._room())
        self.bound, self._sums = 0, None
        return taken


@dataclass(frozen=True, slots=True)
class _Layout:
    """A tensor's memory order, in which it can be read without a copy."""

    shape: tuple[int, ...]
    channels_last: bool
    size: int

    @classmethod
    def of(cls, tensor: Tensor) -> _Layout:
        last = (
            tensor.ndim == 4
            and not tensor.is_contiguous()
            and tensor.is_contiguous(memory_format=torch.channels_last)
        )
        return cls(tuple(tensor.shape), last, tensor.numel())

    def rows(self, stacked: Tensor) -> Tensor:
        """(k, *shape) -> (k, size)."""
        if self.channels_last:
            stacked = stacked.permute(0, 1, 3, 4, 2)
        return stacked.reshape(stacked.shape[0], self.size)

    def shaped(self, flat: Tensor) -> Tensor:
        """(size,) -> shape, contiguous."""
        if not self.channels_last:
            return flat.reshape(self.shape)
        a, b, c, d = self.shape
        return flat.reshape(a, c, d, b).permute(0, 3, 1, 2).contiguous()
