"""Mixes the states of neighbors by exact sums: one pass through the memory for each edge.

What a state has moved from a reference that all know is rounded once onto the grid of its tensor
(`core.sums.partial.grid`), weighted by whole numbers (`core.topology.mixing`) and summed. The
kernel divides the sum once, by the sum of the weights, and adds it to the reference. So a mixture
has the same bits in any order and grouping of its terms, and a number that did not move anywhere
stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ...core.execution.kernel import as_written
from ...core.state import Array
from ...core.sums.partial import RANGE_BITS
from ...core.topology.edges import Nodes
from ...core.topology.mixing import UNIT, Mixing
from .sums import BITS

BLOCK = 1024
"""Numbers of each state that are mixed at a time: so many of all states fit a core's cache."""
EXACT_BITS = 53
"""Integers below 2**53 are exact in float64."""

Floats = npt.NDArray[np.float64]


def largest(rows: Array, reference: Array) -> Floats:
    """(k,): the largest size of a move from `reference` (n,) in each row (k, n), of its type.

    Not finite where a row is not.
    """
    found = np.zeros(len(rows), BITS[rows.itemsize].dtype)
    _largest(rows, reference, BITS[rows.itemsize], found)
    return found.view(rows.dtype).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Summed:
    """Sums of what nodes take elsewhere, for some columns."""

    sums: Array
    """(k, columns), int64"""
    places: Nodes
    """(nodes,): the row of each node's sum, or -1."""

    @classmethod
    def nothing(cls, nodes: int) -> Self:
        """None for any node."""
        return cls(np.empty((0, 0), dtype=np.int64), np.full(nodes, -1))


def bound(sizes: Floats, mixing: Mixing, exponent: int, summed: Floats | None = None) -> int:
    """Upper limit of every mixture's sum, in units of 2**-exponent of its weights' unit.

    `sizes` (sources,) are the states' largest moves, and `summed` (nodes,) those of the states that
    each node takes as a sum. Each node has a limit of its own, from its weights and its sources
    alone. So the largest limit does not depend on how sites share nodes.
    """
    with np.errstate(over="ignore"):
        units = np.rint(np.ldexp(sizes, exponent))[mixing.sources]
        largest = np.maximum.reduceat(units, mixing.starts[:-1])
        if summed is not None:
            largest = np.maximum(largest, np.rint(np.ldexp(summed, exponent)))
        most = largest * np.maximum(mixing.totals, UNIT)
    limit = float(most.max(initial=0.0))
    return int(limit) if math.isfinite(limit) else 1 << RANGE_BITS


def mix(
    rows: Array,
    reference: Array,
    mixing: Mixing,
    exponent: int,
    most: int,
    into: Array,
    nodes: slice = slice(None),
    columns: slice = slice(None),
    summed: Summed | None = None,
) -> None:
    """Write the mixture of rows (nodes, n) of each of some nodes into its row of `into`.

    `reference` has as many numbers as there are columns, and so has `summed`, to which the rest is
    added. `most` is the `bound` of these columns,
    and is below 2**62. Threads may mix different nodes at a time. The vector unit reads `rows` and
    `into` only if they are contiguous as a whole.
    """
    if most >= 1 << RANGE_BITS:
        raise OverflowError(f"sums up to 2**{most.bit_length()} leave int64")
    scale, units = math.ldexp(1.0, exponent), math.ldexp(1.0, -exponent) / mixing.totals
    kernel = _mix if most < 1 << EXACT_BITS else _mix_wide
    first, last, _ = nodes.indices(mixing.nodes)
    starts = mixing.starts[first : last + 1]
    begin, end, _ = columns.indices(rows.shape[1])
    weights = (starts, mixing.sources, mixing.weights)
    summed = Summed.nothing(mixing.nodes) if summed is None else summed
    elsewhere = (summed.sums, summed.places[first:last])
    units, made = units[first:last], into[first:last]
    kernel(rows, begin, end, *weights, reference, scale, *elsewhere, units, made)


def add_up(
    rows: Array,
    reference: Array,
    mixing: Mixing,
    exponent: int,
    into: Array,
    nodes: slice = slice(None),
    columns: slice = slice(None),
) -> None:
    """Write the sums that `mix` would divide, of int64, for some nodes; none may leave int64."""
    scale = math.ldexp(1.0, exponent)
    first, last, _ = nodes.indices(mixing.nodes)
    begin, end, _ = columns.indices(rows.shape[1])
    weights = (mixing.starts[first : last + 1], mixing.sources, mixing.weights)
    _add_up(rows, begin, end, *weights, reference, scale, into[first:last])


@as_written
def _largest(rows, reference, bits, found):  # type: ignore[no-untyped-def]
    # Sizes of floats are in the order of their bits, with infinity and NaN last.
    moves = np.empty(BLOCK, rows.dtype)
    sizes, every = moves.view(bits.dtype), bits[0]
    for node in range(len(rows)):
        for begin in range(0, len(reference), BLOCK):
            here = reference[begin : begin + BLOCK]
            row, top = rows[node, begin : begin + len(here)], found[node]
            for i in range(len(here)):
                moves[i] = row[i] - here[i]
            for i in range(len(here)):
                top = max(top, sizes[i] & every)
            found[node] = top


@as_written
def _mix(  # type: ignore[no-untyped-def]
    rows, first, last, starts, sources, weights, reference, scale, sums, places, units, into
):
    total = np.empty(BLOCK, np.float64)
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        here = reference[begin - first : end - first]
        for node in range(len(starts) - 1):
            total[:] = 0.0
            if places[node] >= 0:
                come = sums[places[node], begin - first : end - first]
                for i in range(len(come)):
                    total[i] = np.float64(come[i])
            for at in range(starts[node], starts[node + 1]):
                row, weight = rows[sources[at], begin:end], np.float64(weights[at])
                for i in range(len(row)):
                    total[i] += weight * np.rint(np.float64(row[i] - here[i]) * scale)
            mixed, unit = into[node, begin:end], units[node]
            for i in range(len(mixed)):
                mixed[i] = np.float64(here[i]) + total[i] * unit


@as_written
def _mix_wide(  # type: ignore[no-untyped-def]
    rows, first, last, starts, sources, weights, reference, scale, sums, places, units, into
):
    total = np.empty(BLOCK, np.int64)
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        here = reference[begin - first : end - first]
        for node in range(len(starts) - 1):
            total[:] = 0
            if places[node] >= 0:
                come = sums[places[node], begin - first : end - first]
                for i in range(len(come)):
                    total[i] = come[i]
            for at in range(starts[node], starts[node + 1]):
                row, weight = rows[sources[at], begin:end], weights[at]
                for i in range(len(row)):
                    total[i] += weight * np.int64(np.rint(np.float64(row[i] - here[i]) * scale))
            mixed, unit = into[node, begin:end], units[node]
            for i in range(len(mixed)):
                mixed[i] = np.float64(here[i]) + np.float64(total[i]) * unit


@as_written
def _add_up(rows, first, last, starts, sources, weights, reference, scale, into):  # type: ignore[no-untyped-def]
    for begin in range(first, last, BLOCK):
        end = min(begin + BLOCK, last)
        here = reference[begin - first : end - first]
        for node in range(len(starts) - 1):
            total = into[node, begin - first : end - first]
            total[:] = 0
            for at in range(starts[node], starts[node + 1]):
                row, weight = rows[sources[at], begin:end], weights[at]
                for i in range(len(row)):
                    total[i] += weight * np.int64(np.rint(np.float64(row[i] - here[i]) * scale))
