"""Shares of a population: a few disjoint ranges of client indices for any number of clients.

A share has one canonical form (`joined`): sorted, no empty ranges, adjacent ranges merged. Equal
shares are therefore equal values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Share = tuple[range, ...]


def size(share: Iterable[range]) -> int:
    """Count the clients of a share."""
    return sum(map(len, share))


def holds(share: Iterable[range], index: int) -> bool:
    """Whether a client is in a share."""
    return any(index in indices for indices in share)


def joined(ranges: Iterable[range]) -> Share:
    """Make a share of disjoint ranges."""
    made: list[range] = []
    plain = (range(r[0], r[-1] + 1, r.step if len(r) > 1 else 1) for r in ranges if r)
    for each in sorted(plain, key=lambda r: r.start):
        last = made[-1] if made else None
        if last is not None and last.step == each.step and last[-1] + last.step == each.start:
            made[-1] = range(last.start, each.stop, last.step)
        else:
            made.append(each)
    return tuple(made)


def picked(share: Sequence[range], places: range) -> Share:
    """Pick clients by their positions in a share, counted through its ranges in order."""
    found: list[range] = []
    begin = 0
    for indices in share:
        end = begin + len(indices)
        first = places.start
        if first < begin:
            first += -(-(begin - first) // places.step) * places.step
        stop = min(places.stop, end)
        if first < stop:
            found.append(indices[first - begin : stop - begin : places.step])
        begin = end
    return joined(found)


def share_of(clients: npt.NDArray[np.int64]) -> Share:
    """Make a share of different clients, (k,) and ascending."""
    if not len(clients):
        return ()
    gaps = np.flatnonzero(np.diff(clients) != 1)
    firsts, lasts = clients[np.append(0, gaps + 1)], clients[np.append(gaps, len(clients) - 1)]
    return joined(
        range(first, last + 1) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    )


def members(share: Iterable[range]) -> npt.NDArray[np.int64]:
    """The clients of a share, (k,), ascending."""
    found = [np.arange(r.start, r.stop, r.step, dtype=np.int64) for r in share]
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *found]))


def dealt(share: Sequence[range], places: Mapping[str, range]) -> dict[str, Share]:
    """Deal a share out to sites, each of which gets the given positions."""
    return {site: picked(share, its) for site, its in places.items()}


def rest(population: int, taken: Iterable[range]) -> Share:
    """All other clients; ValueError unless `taken` are disjoint, contiguous and clients."""
    left: list[range] = []
    begin = 0
    for each in sorted((r for r in taken if r), key=lambda r: r.start):
        if each.step != 1 or each.start < begin or each.stop > population:
            raise ValueError(
                f"wanted contiguous ranges of clients, each in one of them at most and below "
                f"{population}, found {each} after client {begin - 1}"
            )
        left.append(range(begin, each.start))
        begin = each.stop
    return joined([*left, range(begin, population)])
