"""Cells of clients with similar labels, and their division among sites.

The similarity of all pairs of clients is quadratic. So clients are first cut into a bounded number
of cells, always where the labels of a cell differ most (Wu 1991, "Efficient statistical
computations for optimal color quantization"), and only cells are compared with each other.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from .graph_cuts import Adjacency

Indices = npt.NDArray[np.int64]
Shares = npt.NDArray[np.int16]
UNIT = 1 << 8
"""Labels are compared in fractions of so many: their squares, summed over ten million clients and
multiplied by these, fit into int64."""
FINE = 1 << 4
"""Means of fractions are so many times as fine."""
MOST_CELLS = 1 << 11
"""At most so many, and so many more if clients with the same labels are too many for one."""
NEAREST = 8
FAR = 4
"""Each cell is also compared with so many others, wherever they are: a graph of the nearest alone
does not know which communities are alike."""
SEEDS = 32
"""Around so many cells a site's part is grown, and the best one is taken."""
CLOSEST = 1_000
"""The weight of an edge between two cells with the same labels, of the largest size."""


def label_shares(histograms: Indices) -> Shares:
    """(clients, labels): the fraction of a client's samples that have a label; 0 without any."""
    totals = np.maximum(histograms.sum(axis=1, keepdims=True), 1)
    shares: Shares = (histograms * UNIT // totals).astype(np.int16)
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Clients, cut into cells."""

    of: Indices
    """(clients,): the cell of each."""
    sizes: Indices
    """(cells,)"""
    means: Indices
    """(cells, labels): in fractions of `UNIT * FINE`."""

    @classmethod
    def cut(cls, shares: Shares) -> Self:
        """Cells of about the same labels, none of them large."""
        clients = len(shares)
        of = np.zeros(clients, dtype=np.int64)
        cells = list(_pieces(shares, max(1, -(-clients // MOST_CELLS))))
        for number, members in enumerate(cells):
            of[members] = number
        sums = sums_of(shares, of, len(cells))
        sizes = np.bincount(of, minlength=len(cells))
        return cls(of, sizes, sums * FINE // np.maximum(sizes, 1)[:, None])

    def graph(self) -> tuple[Adjacency, Indices]:
        """The edges to each cell's nearest ones and to some others, and each neighbor's weight."""
        count, nearest = len(self.sizes), min(NEAREST, len(self.sizes) - 1)
        ends = np.empty((0, 2), dtype=np.int64)
        if nearest > 0:
            cells = np.repeat(np.arange(count), FAR)
            away = np.tile(np.arange(1, FAR + 1) * count // (FAR + 1), count)
            far = np.stack([cells, (cells + away) % count], axis=1)
            found = np.concatenate([far[away > 0], *self._nearest(nearest)])
            ends = np.unique(np.sort(found, axis=1), axis=0)
        graph = Adjacency.of(count, ends, np.zeros((count, 1), dtype=np.int64))
        return graph, self._weights(graph.owners, graph.neighbors)

    def _nearest(self, nearest: int) -> Iterator[Indices]:
        """(some, 2): cells, and others that are most alike; of equal ones those that follow."""
        count, means = len(self.sizes), self.means.astype(np.float64)
        squares = (self.means**2).sum(axis=1)
        numbers = np.arange(count)
        for first in range(0, count, 512):
            some = numbers[first : first + 512]
            # Products of whole numbers below 2**53 are exact, in any order of addition.
            products = (means[some] @ means.T).astype(np.int64)
            apart = squares[some][:, None] + squares[None, :] - 2 * products
            after = (numbers[None, :] - some[:, None]) % count
            keys = apart * count + after
            keys[after == 0] = np.iinfo(np.int64).max
            best = np.partition(keys, nearest - 1, axis=1)[:, :nearest]
            others = (some[:, None] + best % count) % count
            yield np.stack([np.repeat(some, nearest), others.ravel()], axis=1)

    def grown(self, goal: Indices) -> Indices:
        """(cells,): the largest part around one cell, then the next one among those that are left.

        Of the parts around some cells, the one whose clients are most alike is taken.
        """
        parts = np.full(len(self.sizes), -1)
        for site in np.argsort(-goal, kind="stable").tolist():
            left = np.flatnonzero(parts < 0)
            if len(left) and goal[site]:
                parts[self._most_alike(left, int(goal[site]))] = site
        parts[parts < 0] = goal.argmax()
        return parts

    def _most_alike(self, left: Indices, clients: int) -> Indices:
        """Of these cells, some with so many clients, which are around one of them."""
        means, sizes = self.means[left], self.sizes[left]
        squares = (means**2).sum(axis=1)
        seeds = np.unique(np.arange(SEEDS) * len(left) // SEEDS)
        products = (means.astype(np.float64) @ means[seeds].T.astype(np.float64)).astype(np.int64)
        best, most_alike = math.inf, left[:1]
        for order in np.argsort(squares[:, None] - 2 * products, axis=0, kind="stable").T:
            count = np.searchsorted(np.cumsum(sizes[order]), clients, side="right")
            some = order[: max(1, int(count))]
            weight, total = int(sizes[some].sum()), (sizes[some, None] * means[some]).sum(axis=0)
            apart = int((sizes[some] * squares[some]).sum()) * weight - squared(total)
            if apart / weight**2 < best:
                best, most_alike = apart / weight**2, left[some]
        return most_alike

    def _weights(self, one: Indices, other: Indices) -> Indices:
        apart = ((self.means[one] - self.means[other]) ** 2).sum(axis=1)
        farthest = max(1, int(apart.max(initial=0)))
        small = np.minimum(self.sizes[one], self.sizes[other])
        close = (farthest - apart) * CLOSEST // farthest
        weights: Indices = np.maximum(1, close * small // max(1, int(self.sizes.max(initial=0))))
        return weights


def sums_of(shares: Shares, of: Indices, parts: int) -> Indices:
    """(parts, labels): the sum over the clients of each part."""
    sums = np.zeros((parts, shares.shape[1]), dtype=np.int64)
    order = np.argsort(of, kind="stable")
    starts = np.searchsorted(of[order], np.arange(parts))
    filled = np.flatnonzero(np.bincount(of, minlength=parts))
    if len(filled):
        sums[filled] = np.add.reduceat(shares[order], starts[filled], axis=0, dtype=np.int64)
    return sums


def squared(numbers: Indices) -> int:
    """The sum of the squares, which may exceed int64."""
    return sum(each * each for each in numbers.tolist())


def squares_of(shares: Shares) -> Indices:
    """(labels,): the sum of the squares over clients."""
    found: Indices = np.einsum("ij,ij->j", shares, shares, dtype=np.int64)
    return found


def _pieces(shares: Shares, most: int) -> Iterator[Indices]:
    """The cells, those with more than `most` clients cut into pieces."""
    heap = [_Cell.of(shares, np.arange(len(shares)))] if len(shares) else []
    done: list[_Cell] = []
    while heap and len(heap) + len(done) < MOST_CELLS:
        cell = heapq.heappop(heap)
        if not cell.spread:
            done.append(cell)
            continue
        for half in cell.halves(shares):
            heapq.heappush(heap, half)
    for cell in sorted([*heap, *done], key=lambda each: int(each.members[0])):
        order = np.argsort(shares[cell.members, cell.label], kind="stable")
        yield from np.array_split(cell.members[order], -(-len(order) // most))


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """Clients, ascending, and the label in which they differ most."""

    members: Indices
    spread: int
    """The sum of squared distances from their mean."""
    label: int
    total: int
    """The sum of their fractions of that label."""

    @classmethod
    def of(cls, shares: Shares, members: Indices) -> Self:
        some, count = shares[members], len(members)
        sums = some.sum(axis=0, dtype=np.int64)
        spreads = count * squares_of(some) - sums * sums
        label = int(spreads.argmax())
        return cls(members, int(spreads.sum()) // count, label, int(sums[label]))

    def halves(self, shares: Shares) -> Iterator[_Cell]:
        """Those below the mean, and those above."""
        above = shares[self.members, self.label].astype(np.int64) * len(self.members) > self.total
        yield _Cell.of(shares, self.members[~above])
        yield _Cell.of(shares, self.members[above])

    def __lt__(self, other: _Cell) -> bool:
        """The one that differs most comes first, of equal ones that with the first client."""
        return (-self.spread, int(self.members[0])) < (-other.spread, int(other.members[0]))
