"""Cuts a cohort into pieces of work, so that all workers end together after few calls.

The pieces decide speed only: each client trains as if alone and sums are exact, so no result
depends on which clients share a piece or a chunk. A short round gets one piece per worker, since a
further call costs more than it balances. A very short round calls only as many workers as pay for
the call. A long round is cut by guided self-scheduling (Polychronopoulos and Kuck 1987): each piece
is a share of the rest, so the pieces shrink towards the end.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

CALL_S = 0.0015
"""About the seconds of a call: a worker with less work is not called."""
SHORT_S = 0.06
"""A round that takes all workers at most this long has one piece per worker."""
LEAST_S = 0.02
LONGEST_S = 5.0
"""The longest piece, since a lost worker loses it."""
SHARE = 2
"""A piece is one in `SHARE * workers` of the rest."""
UNKNOWN_PIECES = 4
"""Pieces per worker until the cost of a sample has been measured."""


def pieces(costs: Int64s, workers: int, seconds_per_sample: float | None) -> list[Int64s]:
    """Positions of the clients in each piece, in the order in which workers pull them.

    `costs` are the clients' samples, (k,). Each piece begins with its largest client.
    """
    if not len(costs):
        return []
    order = np.argsort(-costs, kind="stable").astype(np.int64)
    count = _few(costs, workers, seconds_per_sample)
    if count is not None:
        return [order[start::count] for start in range(count)]
    seconds = costs[order] * (seconds_per_sample or 0.0)
    return [order[start:stop] for start, stop in _guided(seconds, workers)]


def ranges(costs: Int64s, workers: int, seconds_per_sample: float | None) -> list[slice]:
    """The same for clients that are in this order already: those of a piece follow each other."""
    if not len(costs):
        return []
    count = _few(costs, workers, seconds_per_sample)
    if count is None:
        return [slice(*cut) for cut in _guided(costs * (seconds_per_sample or 0.0), workers)]
    ends = np.cumsum(costs)
    shares = np.arange(1, count) * (ends[-1] / count)
    cuts = [0, *np.searchsorted(ends, shares, side="right").tolist(), len(costs)]
    return [slice(start, stop) for start, stop in pairwise(cuts) if start < stop]


def _few(costs: Int64s, workers: int, seconds_per_sample: float | None) -> int | None:
    """The number of equal pieces of a short round, or of one of unknown length."""
    if seconds_per_sample is None:
        return min(len(costs), workers * UNKNOWN_PIECES)
    total_s = float(costs.sum()) * seconds_per_sample
    if total_s <= SHORT_S * workers:
        return min(len(costs), workers, max(1, int(total_s / CALL_S)))
    return None


def _guided(seconds: npt.NDArray[np.floating[Any]], workers: int) -> list[tuple[int, int]]:
    ends = np.cumsum(seconds)
    cut: list[tuple[int, int]] = []
    start, done = 0, 0.0
    while start < len(seconds):
        share = (ends[-1] - done) / (SHARE * workers)
        wanted = done + min(LONGEST_S, max(LEAST_S, share))
        stop = max(start + 1, int(np.searchsorted(ends, wanted, side="right")))
        cut.append((start, stop))
        start, done = stop, float(ends[stop - 1])
    return cut
