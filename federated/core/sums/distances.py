"""Squared distances of tensors, added up in an order that depends on their sizes alone.

The kernel has no reordered sums and no fused operations, so that distances have the same bits on
every machine. Importing this module imports Numba.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ..execution.kernel import as_written
from ..state import Array, State, in_a_row

BLOCK = 1024
"""Numbers of a row whose squares are added to the same sums, which fit a core's cache."""

Floats = npt.NDArray[np.float64]


def squared_distances(rows: Array, reference: Array, columns: slice = slice(None)) -> Floats:
    """(k,): the squared Euclidean distance of each row (k, n) to a reference (n,), in float64.

    It is summed in an order that depends on n alone.
    """
    squares: Floats = np.zeros(len(rows))
    begin, _, _ = columns.indices(rows.shape[1])
    _squares(rows, begin, reference, squares)
    return squares


def squared_distance(one: State, other: State, names: Iterable[str]) -> float:
    """The squared Euclidean distance of two models, over the tensors of these names."""
    return math.fsum(
        float(squared_distances(in_a_row(one[name])[None], in_a_row(other[name]))[0])
        for name in names
    )


@as_written
def _squares(rows, first, reference, into):  # type: ignore[no-untyped-def]
    squares = np.empty(BLOCK, np.float64)
    for client in range(len(rows)):
        squares[:] = 0.0
        for begin in range(0, len(reference), BLOCK):
            here = reference[begin : begin + BLOCK]
            row = rows[client, first + begin : first + begin + len(here)]
            for i in range(len(here)):
                far = np.float64(row[i]) - np.float64(here[i])
                squares[i] += far * far
        half = BLOCK // 2
        while half:
            for i in range(half):
                squares[i] += squares[half + i]
            half //= 2
        into[client] = squares[0]
