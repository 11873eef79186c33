"""Shares of a population: a few ranges of client indices, however many clients they hold.

A share is written in one way only (`joined`): sorted, without empty ranges, neighbors made one, so
that equal shares are equal values. The ranges of a share are disjoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Share = tuple[range, ...]


def size(share: Iterable[range]) -> int:
    """How many clients a share holds."""
    return sum(map(len, share))


def holds(share: Iterable[range], index: int) -> bool:
    """Whether a client is in a share."""
    return any(index in indices for indices in share)


def joined(ranges: Iterable[range]) -> Share:
    made: list[range] = []
    for each in sorted((_normalized(r) for r in ranges if r), key=lambda r: r.start):
        last = made[-1] if made else None
        if last is not None and last.step == each.step and last[-1] + last.step == each.start:
            made[-1] = range(last.start, each.stop, last.step)
        else:
            made.append(each)
    return tuple(made)


def picked(share: Sequence[range], places: range) -> Share:
    """The clients at some places of a share, counted through its ranges one after another."""
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


def dealt(share: Sequence[range], places: Mapping[str, range]) -> dict[str, Share]:
    """A share dealt out to sites, by the places of it that each of them gets."""
    return {site: picked(share, its) for site, its in places.items()}


def rest(population: int, taken: Iterable[range]) -> Share:
    """All clients but those; ValueError unless those are disjoint, contiguous and clients."""
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


def _normalized(indices: range) -> range:
    """The same clients, in the one way of saying it; not empty."""
    step = indices.step if len(indices) > 1 else 1
    return range(indices[0], indices[-1] + 1, step)
