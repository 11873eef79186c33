"""The geometric median: the point whose distances to all updates have the smallest sum.

Pillutla et al. 2022, "Robust aggregation for federated learning", with the smoothed Weiszfeld
algorithm: the point is the mean of the updates, weighted by 1 / max(NU, distance), again and again.
It stays within the honest updates' neighborhood as long as fewer than half of the clients send
anything else. Here every client counts the same, and it starts from the coordinate-wise median: a
mean that one client has moved by 1e30 would take many steps back.

Distances are over all averaged tensors, the statistic buffers among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core.algorithm import Algorithm
from ..core.state import Array
from .coordinatewise import middle
from .every_update import Moves, blocks, weighted_sum, with_rule

NU = 1e-6
"""An update nearer than this weighs as one at this distance: the paper's smoothing."""
CLOSE = 1e-10
"""It ends with a step shorter than this share of the median distance to the updates,"""
MOST = 200
"""or after so many steps; usually ten suffice."""


def geometric_median(server_learning_rate: float = 1.0) -> Algorithm:
    """The smoothed geometric median of the clients' updates."""
    return with_rule("geometric_median", server_learning_rate, weiszfeld)


def weiszfeld(updates: Sequence[Moves]) -> dict[str, Array]:
    """The smoothed geometric median, in float64; the update itself of a single client."""
    point = middle(updates)
    for _ in range(MOST):
        distances = [math.sqrt(square) for square in _squares(updates, point)]
        weights = [1 / max(NU, distance) for distance in distances]
        if not (whole := math.fsum(weights)):
            break  # all are farther away than float64 can tell
        before, point = point, weighted_sum(updates, [weight / whole for weight in weights])
        (moved,) = _squares([before], point)
        usual = sorted(distances)[(len(distances) - 1) // 2]
        if math.sqrt(moved) <= CLOSE * max(NU, usual):
            break
    return point


def _squares(updates: Sequence[Moves], point: Moves) -> list[float]:
    """The squared distance of each update to a point."""
    from ..core.sums.distances import squared_distances  # which loads Numba

    found = np.zeros(len(updates))
    for name in sorted(point):
        flat = point[name].reshape(-1)
        for here, rows in blocks(updates, name):
            found += squared_distances(rows, flat[here])
    squares: list[float] = found.tolist()
    return squares
