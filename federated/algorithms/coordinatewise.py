"""The coordinate-wise median and trimmed mean: each number of a model is combined by itself.

Yin et al. 2018, "Byzantine-robust distributed learning: towards optimal statistical rates".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ..core.algorithm import Algorithm
from ..core.state import Array
from .every_update import Moves, with_rule

BLOCK = 1 << 16
"""Numbers sorted at a time, to fit a core's cache."""
NARROWEST = 64

Floats = npt.NDArray[np.float64]
OfRows = Callable[[Array], Floats]
"""(coordinates, clients), each row ascending -> one number for each row, in float64."""


def median(server_learning_rate: float = 1.0) -> Algorithm:
    """The median of the clients' updates; for an even number, the mean of the middle two."""
    return _algorithm("median", server_learning_rate, _middle)


def trimmed_mean(trim: float, server_learning_rate: float = 1.0) -> Algorithm:
    """The mean without the lowest and highest share `trim` of clients."""

    def rule(rows: Array) -> Floats:
        return _inner_mean(rows, cut(trim, rows.shape[1]))

    return _algorithm("trimmed_mean", server_learning_rate, rule)


def cut(trim: float, clients: int) -> int:
    """Clients that the share `trim` cuts off at either end, rounded down.

    The share counts in decimal, as written: 0.29 of 100 is 29, though the floats give less.
    """
    return math.floor(Fraction(repr(trim)) * clients)


def middle(updates: Sequence[Moves]) -> dict[str, Array]:
    """The coordinate-wise median of some updates, in float64."""
    return _combined(updates, _middle)


def _algorithm(name: str, server_learning_rate: float, rule: OfRows) -> Algorithm:
    return with_rule(name, server_learning_rate, lambda updates: _combined(updates, rule))


def _combined(updates: Sequence[Moves], rule: OfRows) -> dict[str, Array]:
    width = max(NARROWEST, BLOCK // len(updates))
    combined = {}
    for name, first in updates[0].items():
        flat = [np.asarray(moved[name]).reshape(-1) for moved in updates]
        whole = np.empty(first.size)
        for start in range(0, first.size, width):
            rows = np.stack([one[start : start + width] for one in flat], axis=1)
            rows += rows.dtype.type(0)  # -0 becomes 0, so that equal numbers have equal bits
            rows.sort(axis=1)
            whole[start : start + width] = rule(rows)
        combined[name] = whole.reshape(first.shape)
    return combined


def _middle(rows: Array) -> Floats:
    half, odd = divmod(rows.shape[1], 2)
    upper: Floats = rows[:, half].astype(np.float64)
    lower: Floats = rows[:, half - 1].astype(np.float64)
    return upper if odd else (lower + upper) / 2


def _inner_mean(rows: Array, ends: int) -> Floats:
    """Added one by one from the least to the largest: the same bits on every machine."""
    inner = rows.shape[1] - 2 * ends
    total: Floats = rows[:, ends].astype(np.float64)
    for place in range(ends + 1, ends + inner):
        total += rows[:, place]
    total /= inner
    return total
