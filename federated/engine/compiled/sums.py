"""Exact sums of many clients' moves on a CPU, in one pass through the memory.

Moves are a client's numbers less the reference's; their sums are in whole units of a grid
(`core.sums.partial`). Every function here has a twin in `engine.sums.device_sums`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...core.execution.kernel import as_written
from ...core.population.sampling import Indices
from ...core.state import Array

BLOCK = 1024
"""Numbers processed at a time: all clients' share of them fits a core's cache."""

BITS: dict[int, npt.NDArray[Any]] = {
    4: np.array([0x7FFF_FFFF], np.int32),
    8: np.array([0x7FFF_FFFF_FFFF_FFFF], np.int64),
}
"""By bytes of a float: the mask of all its bits but the sign, as an integer."""


def add(
    rows: Tensor,
    reference: Tensor,
    scale: float,
    factors: npt.NDArray[np.float64],
    sums: Tensor,
    largest: npt.NDArray[np.float64],
    *,
    sign: int = 1,
) -> None:
    """Add every client's moves times its factor to `sums` (n,), int64; record its largest move.

    In units of 1 / `scale`, a power of two. `rows` is (k, n), `reference` (n,), of the same type.
    Exact where the largest moves times the factors' sizes add up to less than 2**53 units. The same
    call with `sign` -1 subtracts what was added, exact or not. `largest` (k,) receives the largest
    move of each client, which is not finite where one of its moves is not.
    """
    numbers, first = _contiguous(rows)
    bits = BITS[numbers.itemsize]
    unit = numbers.dtype.type(scale)
    _add(numbers, first, reference.numpy(), unit, factors, sign, bits, sums.numpy(), largest)


def add_wide(rows: Tensor, reference: Tensor, scale: float, factors: Indices, sums: Tensor) -> None:
    """Like `add`, wherever the sum fits int64; a factor of 0 makes 0 of anything."""
    numbers, first = _contiguous(rows)
    unit = numbers.dtype.type(scale)
    _add_wide(numbers, first, reference.numpy(), unit, factors, sums.numpy())


def _contiguous(rows: Tensor) -> tuple[Array, int]:
    """Rows (k, n) as columns of wider rows that fill their memory, and the first of the columns.

    The vector unit reads such rows only.
    """
    if rows.is_contiguous():
        return rows.numpy(), 0
    width = rows.stride(0)
    begin, first = divmod(int(rows.storage_offset()), max(1, width))
    if rows.stride(1) != 1 or first + rows.shape[1] > width:
        return rows.contiguous().numpy(), 0
    return rows.as_strided((len(rows), width), (width, 1), begin * width).numpy(), first


@as_written
def _add(rows, first, reference, scale, factors, sign, bits, sums, largest):  # type: ignore[no-untyped-def]
    # Sizes of floats are in the order of their bits, with infinity and NaN last.
    found = np.zeros(len(rows), bits.dtype)
    moves = np.empty(BLOCK, rows.dtype)
    sizes = moves.view(bits.dtype)
    every = bits[0]
    block = np.empty(BLOCK, np.float64)
    for start in range(0, len(reference), BLOCK):
        here = reference[start : start + BLOCK]
        begin, end = first + start, first + start + len(here)
        total = sums[start : start + BLOCK]
        block[:] = 0.0
        for client in range(len(rows)):
            row, factor = rows[client, begin:end], factors[client]
            for i in range(len(row)):
                moves[i] = row[i] - here[i]
            top = found[client]
            for i in range(len(row)):
                top = max(top, sizes[i] & every)
            found[client] = top
            for i in range(len(row)):
                block[i] += factor * np.float64(np.rint(moves[i] * scale))
        for i in range(len(total)):
            total[i] += sign * np.int64(block[i])
    largest[:] = found.view(rows.dtype)


@as_written
def _add_wide(rows, first, reference, scale, factors, sums):  # type: ignore[no-untyped-def]
    for client in range(len(rows)):
        factor = factors[client]
        if factor == 0:
            continue
        for i in range(len(reference)):
            move = rows[client, first + i] - reference[i]
            sums[i] += factor * np.int64(np.rint(move * scale))
