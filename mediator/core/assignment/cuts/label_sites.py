"""How alike the labels of the clients at one site are, and moves that make them more alike.

A site's clients are as alike as their squared distances from their mean are small. So clients move
to the site with the nearest mean, while it has room, and otherwise change places (as k-means with
limits does: Bradley, Bennett and Demiriz 2000, "Constrained k-means clustering"). All numbers are
whole, so every machine makes the same moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from .label_cells import FINE, Shares, squared, squares_of, sums_of

Indices = npt.NDArray[np.int64]
PASSES, FIRST_PASSES = 6, 2
"""Moves of all clients: so many of the best division, and before that so many of each."""
AT_ONCE = 1 << 13
"""Clients that are compared with the sites at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelSites:
    """The clients that may move, and what is at the sites anyway."""

    shares: Shares
    """(k, labels)"""
    most: Indices
    """(sites,): how many of the clients each site may have."""
    fixed: Indices
    """(sites, labels): the sum over the clients that stay there."""
    stay: Indices
    """(sites,): how many stay there."""
    squares: int
    """Of the fractions of all these clients."""

    @classmethod
    def of(
        cls, shares: Shares, free: Indices, stay: Sequence[Indices], most: Indices
    ) -> LabelSites:
        """`shares` are those of all clients, `stay` the clients that stay at each site."""
        everybody = np.concatenate([free, *stay])
        places = np.repeat(np.arange(len(stay)), [len(each) for each in stay])
        return cls(
            shares=shares[free],
            most=most,
            fixed=sums_of(shares[everybody[len(free) :]], places, len(stay)),
            stay=np.array([len(each) for each in stay], dtype=np.int64),
            squares=int(squares_of(shares[everybody]).sum()),
        )

    def variation(self, parts: Indices) -> float:
        """The part of all variation of the clients' labels that is within sites.

        0 if all clients at a site have the same labels, 1 if sites do not differ.
        """
        sums, counts = self._sums(parts)
        filled = np.flatnonzero(counts)
        within = self.squares - sum(squared(sums[at]) / int(counts[at]) for at in filled)
        whole = self.squares - squared(sums.sum(axis=0)) / max(1, int(counts.sum()))
        return within / whole if whole > 0 else 0.0

    def nearest(self) -> Indices:
        """The site whose clients that stay are most alike, within the limits."""
        costs = self._costs(self.fixed, self.stay)
        costs[:, self.most == 0] = np.iinfo(np.int64).max
        return _within(costs, costs.argmin(axis=1), self.most)

    def settled(self, parts: Indices, passes: int = PASSES) -> Indices:
        """The parts within their limits, and with moves that make sites' clients more alike."""
        parts = _within(self._costs(*self._sums(parts)), parts, self.most)
        for _ in range(passes):
            costs = self._costs(*self._sums(parts))
            if not any([_exchanged(costs, parts, self.most, pair) for pair in self._pairs()]):
                break
        return parts

    def _pairs(self) -> Iterator[tuple[int, int]]:
        return combinations(np.flatnonzero(self.most).tolist(), 2)

    def _sums(self, parts: Indices) -> tuple[Indices, Indices]:
        sites = len(self.most)
        sums = sums_of(self.shares, parts, sites) + self.fixed
        return sums, np.bincount(parts, minlength=sites) + self.stay

    def _costs(self, sums: Indices, counts: Indices) -> Indices:
        """(k, sites): squared distances to the sites' means, less each client's own square."""
        means = sums * FINE // np.maximum(counts, 1)[:, None]
        squares, across = (means**2).sum(axis=1), means.T.astype(np.float64)
        costs = np.empty((len(self.shares), len(means)), dtype=np.int64)
        for first in range(0, len(costs), AT_ONCE):
            some = self.shares[first : first + AT_ONCE].astype(np.float64)
            # Products of whole numbers below 2**53 are exact, in any order of addition.
            costs[first : first + AT_ONCE] = squares - 2 * FINE * (some @ across).astype(np.int64)
        return costs


def _within(costs: Indices, parts: Indices, most: Indices) -> Indices:
    """Move clients out of sites above their limits, those first that lose the least."""
    parts = parts.copy()
    sizes = np.bincount(parts, minlength=len(most))
    for site in np.flatnonzero(sizes > most).tolist():
        inside = np.flatnonzero(parts == site)
        open_ = np.flatnonzero(sizes < most)
        loss = costs[inside][:, open_].min(axis=1) - costs[inside, site]
        for client in inside[np.argsort(loss, kind="stable")][: sizes[site] - most[site]].tolist():
            open_ = np.flatnonzero(sizes < most)
            to = int(open_[costs[client, open_].argmin()])
            parts[client] = to
            sizes[to] += 1
        sizes[site] = most[site]
    return parts


def _exchanged(costs: Indices, parts: Indices, most: Indices, pair: tuple[int, int]) -> bool:
    """Let clients of two sites change places, or move where there is room; whether any did."""
    leaving = [np.flatnonzero(parts == site) for site in pair]
    sizes = [len(each) for each in leaving]
    gains = [
        costs[each, here] - costs[each, there]
        for each, here, there in zip(leaving, pair, pair[::-1], strict=True)
    ]
    best = [int(each.max(initial=-(1 << 62))) for each in gains]
    if max(best) <= 0:
        return False
    for place in range(2):  # the others gain nothing by any exchange
        some = np.flatnonzero(gains[place] > min(0, -best[1 - place]))
        order = some[np.argsort(-gains[place][some], kind="stable")]
        gains[place], leaving[place] = gains[place][order], leaving[place][order]
    both = min(len(each) for each in gains)
    swaps = int(np.count_nonzero(gains[0][:both] + gains[1][:both] > 0))
    moved = swaps > 0
    for place in range(2):
        parts[leaving[place][:swaps]] = pair[1 - place]
        room = int(most[pair[1 - place]]) - sizes[1 - place]
        some = leaving[place][swaps:][gains[place][swaps:] > 0][: max(0, room)]
        parts[some] = pair[1 - place]
        sizes[place] -= len(some)
        sizes[1 - place] += len(some)
        moved |= len(some) > 0
    return moved
