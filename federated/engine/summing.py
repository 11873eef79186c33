"""Exact sums of trained tensors where they were trained: the fast way to a `Partial`.

`Partial.add` says what the sum is; this computes the same integers for many clients at once, on the
device, in float64 while that is exact and in int64 otherwise (docs/decisions/0004-exact-partials).
All tensors lie side by side in one row per client, so that a small model costs few operations, and
a large one is gone through once, in blocks that stay in a core's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.partial import RANGE_BITS, Partial
from ..core.state import Roles, averaged, counters

EXACT = 1 << 53
"""Integers up to it are exact in float64."""
BLOCK = {"cpu": 1 << 17, "cuda": 1 << 24}
"""Numbers of a row that are worked on at a time."""
TILE = 1 << 20
"""Numbers of several rows that are worked on at a time."""

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of one tensor, and where it lies in a block."""

    tensor: int
    """Its number."""
    inside: slice
    """Of the flattened tensor."""
    place: slice
    """Of the block."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Some numbers of a row."""

    place: slice
    """Of the row."""
    parts: tuple[_Part, ...]

    width: int


class RunningSum:
    """A worker's sum over clients; `begin` starts it for a round's model and grid."""

    def __init__(
        self, like: Mapping[str, Tensor], roles: Roles, client_id: Callable[[int], str]
    ) -> None:
        """Make room for states with the names, shapes and types of `like`, on its device."""
        self._names = averaged(roles)
        self._counters = counters(roles)
        self._client_id = client_id
        tensors = [like[name] for name in self._names]
        device = tensors[0].device if tensors else torch.device("cpu")
        self._layouts = [_Layout.of(tensor) for tensor in tensors]
        sizes = [tensor.numel() for tensor in tensors]
        self._width = sum(sizes)
        self._blocks = list(_blocks(sizes, BLOCK[device.type]))
        widest = max((block.width for block in self._blocks), default=0)
        self._rows = max(1, TILE // max(1, self._width))
        wide = any(tensor.dtype == torch.float64 for tensor in tensors)

        def room(*shape: int, kind: torch.dtype | None = None) -> Tensor:
            own = torch.float64 if wide else torch.float32
            return torch.zeros(shape, dtype=kind or own, device=device)

        self._reference, self._scale = room(self._width), room(self._width)
        self._units, self._aside = room(self._rows * widest), room(self._rows * widest)
        self._wide = room(self._rows * widest, kind=torch.float64)
        self._largest = room(
            max((len(block.parts) for block in self._blocks), default=0), self._rows
        )
        self._fresh = room(self._width, kind=torch.float64)
        """Sum of what is not settled: whole numbers below EXACT."""
        self._fresh_bounds = np.zeros(len(sizes))
        self._settled: Tensor | None = None

    def begin(self, reference: Mapping[str, Tensor], exponents: Mapping[str, int]) -> None:
        """Forget what was added, and measure from this model on this grid from now on."""
        self._exponents = exponents
        self._bits = [exponents[name] for name in self._names]
        self._scales = [math.ldexp(1.0, bits) for bits in self._bits]
        for name, layout, place, scale in zip(
            self._names, self._layouts, self._places(), self._scales, strict=True
        ):
            self._reference[place].copy_(layout.rows(reference[name].unsqueeze(0))[0])
            self._scale[place].fill_(scale)
        self._restart()

    def _restart(self) -> None:
        self._total = Partial(self._exponents)
        self._bounds = [0] * len(self._names)
        """What no element of a tensor's sum can exceed."""
        self._fresh.zero_()
        self._fresh_bounds[:] = 0
        self._settled = None

    def add(
        self, clients: Int64s, trained: Mapping[str, Tensor], weights: Int64s, losses: Floats
    ) -> None:
        """Add clients by what they trained; those that are not finite are refused and named.

        `trained` has their tensors, (k, *shape); one that is missing did not move. `weights` are
        their samples, (k,); `losses` the sums of their samples' losses, (k,).
        """
        for start in range(0, len(clients), self._rows):
            part = slice(start, start + self._rows)
            rows = [
                layout.rows(trained[name][part]) if name in trained else None
                for name, layout in zip(self._names, self._layouts, strict=True)
            ]
            if np.isfinite(losses[part]).all() and self._add_at_once(rows, weights[part]):
                fine = np.ones(len(weights[part]), dtype=np.bool_)
                self._count(weights[part], losses[part])
            else:
                fine = self._add_carefully(clients[part], rows, weights[part], losses[part])
            if fine.any():
                for name in self._counters:
                    if name in trained:
                        counted = trained[name][part].detach().cpu().numpy()[fine]
                        self._total.count({name: counted.max(axis=0)})

    def take(self) -> Partial:
        """What was added since the last time."""
        total = self._total
        if total.clients:
            sums = self._settle().cpu()
            for name, layout, place, bound in zip(
                self._names, self._layouts, self._places(), self._bounds, strict=True
            ):
                total.bounds[name] = bound
                if bound < 1 << RANGE_BITS:
                    total.sums[name] = layout.shaped(sums[place]).numpy()
        self._restart()
        return total

    # -- inside -------------------------------------------------------------------------------

    def _places(self) -> Iterator[slice]:
        start = 0
        for layout in self._layouts:
            yield slice(start, start + layout.size)
            start += layout.size

    def _count(self, weights: Int64s, losses: Floats) -> None:
        self._total.clients += len(weights)
        self._total.weight += int(weights.sum())
        self._total.tally.add_clients(weights, losses)

    def _add_at_once(self, rows: Sequence[Tensor | None], weights: Int64s) -> bool:
        """Add a tile block by block; False, with nothing added, where that would not be exact."""
        count, factors = len(weights), weights.astype(np.float64)
        most = np.zeros((len(self._names), count))
        for number, block in enumerate(self._blocks):
            units, sizes = self._measure(block, rows, count)
            for part, size in zip(block.parts, sizes, strict=True):
                np.maximum(most[part.tensor], size, out=most[part.tensor])
            # Who weighs nothing may have gone anywhere: it counts as one here.
            with np.errstate(invalid="ignore", over="ignore"):
                more = most @ np.maximum(factors, 1.0)
            if not (self._fresh_bounds + more < EXACT).all():  # nor if it is no number
                for done in self._blocks[:number]:
                    units, _ = self._measure(done, rows, count)
                    self._add_units(done, units, -factors)
                return False
            self._add_units(block, units, factors)
        more = most @ factors
        self._fresh_bounds += more
        self._bounds = [had + int(new) for had, new in zip(self._bounds, more, strict=True)]
        return True

    def _add_carefully(
        self, clients: Int64s, rows: Sequence[Tensor | None], weights: Int64s, losses: Floats
    ) -> npt.NDArray[np.bool_]:
        """Add a tile without those that are not finite, in int64; who was added."""
        count = len(weights)
        most = np.zeros((len(self._names), count))
        for block in self._blocks:
            _, sizes = self._measure(block, rows, count)
            for part, size in zip(block.parts, sizes, strict=True):
                np.maximum(most[part.tensor], size, out=most[part.tensor])
        fine = np.isfinite(losses) & np.isfinite(most).all(axis=0)
        self._total.refused.extend(map(self._client_id, clients[~fine].tolist()))
        if not fine.any():
            return fine
        settled = self._settle()
        kept = torch.from_numpy(fine).to(settled.device)
        factors = torch.from_numpy(weights[fine]).to(settled.device).unsqueeze(1)
        for number in range(len(self._names)):
            pairs = zip(most[number, fine].tolist(), weights[fine].tolist(), strict=True)
            self._bounds[number] += sum(int(size) * weight for size, weight in pairs)
        for block in self._blocks:
            units, _ = self._measure(block, rows, count)
            for part in block.parts:
                if self._bounds[part.tensor] < 1 << RANGE_BITS:
                    whole = units[:, part.place][kept].to(torch.int64)
                    settled[block.place][part.place] += (whole * factors).sum(0)
        self._count(weights[fine], losses[fine])
        return fine

    def _measure(
        self, block: _Block, rows: Sequence[Tensor | None], count: int
    ) -> tuple[Tensor, Floats]:
        """A block of a tile in units, (rows, width), and each part's largest, (parts, rows).

        A power of two times a float is exact, and so is rounding in the float's own type. The
        largest are float64: where units leave the own type, they say so by overflowing the bound.
        """
        units = self._units[: count * block.width].view(count, block.width)
        reference = self._reference[block.place]
        for part in block.parts:
            mine = rows[part.tensor]
            if mine is None:
                units[:, part.place].zero_()
            else:
                torch.sub(mine[:, part.inside], reference[part.place], out=units[:, part.place])
        one = len(block.parts) == 1
        scale = self._scales[block.parts[0].tensor] if one else self._scale[block.place]
        aside = self._aside[: count * block.width].view(count, block.width)
        torch.abs(units, out=aside)
        units.mul_(scale).round_()
        largest = self._largest[: len(block.parts), :count]
        for at, part in enumerate(block.parts):
            if part.place.start == part.place.stop:
                largest[at].zero_()
            else:
                torch.amax(aside[:, part.place], 1, out=largest[at])
        exponents = np.array([[self._bits[part.tensor]] for part in block.parts])
        with np.errstate(over="ignore"):
            sizes: Floats = np.rint(np.ldexp(largest.double().cpu().numpy(), exponents))
        return units, sizes

    def _add_units(self, block: _Block, units: Tensor, factors: Floats) -> None:
        wide = self._wide[: units.numel()].view(units.shape).copy_(units)
        fresh = self._fresh[block.place]
        if len(wide) == 1:
            fresh.add_(wide[0], alpha=float(factors[0]))
        else:
            fresh.addmv_(wide.t(), torch.from_numpy(factors).to(wide.device))

    def _settle(self) -> Tensor:
        """Move the float64 sums over to int64; the sums so far."""
        fresh = self._fresh.to(torch.int64)
        self._settled = fresh if self._settled is None else self._settled.add_(fresh)
        self._fresh.zero_()
        self._fresh_bounds[:] = 0
        return self._settled


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a tensor lies in memory, so that going through it in that order copies nothing."""

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
        return stacked.reshape(len(stacked), self.size)

    def shaped(self, flat: Tensor) -> Tensor:
        """(size,) -> shape, contiguous."""
        if not self.channels_last:
            return flat.reshape(self.shape)
        a, b, c, d = self.shape
        return flat.reshape(a, c, d, b).permute(0, 3, 1, 2).contiguous()


def _blocks(sizes: Sequence[int], most: int) -> Iterator[_Block]:
    """Cut a row into blocks of at most so many numbers, and say what lies in each."""
    parts: list[_Part] = []
    start = at = 0
    for tensor, size in enumerate(sizes):
        inside = 0
        while True:
            length = min(size - inside, most - (at - start))
            place = slice(at - start, at - start + length)
            parts.append(_Part(tensor, slice(inside, inside + length), place))
            inside, at = inside + length, at + length
            if at - start == most:
                yield _Block(slice(start, at), tuple(parts), at - start)
                parts, start = [], at
            if inside == size:
                break
    if parts:
        yield _Block(slice(start, at), tuple(parts), at - start)
