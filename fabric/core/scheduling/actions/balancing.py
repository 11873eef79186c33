"""Chooses machines to clear so that no queue gives more than it may: a search by exchanges.

Taking the best machine step by step can end with a last machine that overdraws a queue, where
others would have added up. This search begins with a whole choice and exchanges one machine at a
time while that lowers what the queues are overdrawn by together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..snapshot import Array

STARTS = 32
"""How many first choices are tried."""
LEAVING = 64
"""How many of the chosen machines are tried in an exchange: those that overdraw most."""


def balanced(gives: Array, most: Array, count: int) -> NDArray[np.intp] | None:
    """So many rows of `gives` (machines x queues) whose sum is at most `most`; None if the search
    finds none."""
    if len(gives) < count:
        return None
    distance = np.abs(gives - most / count).sum(axis=1)
    order = np.argsort(distance, kind="stable")
    for start in range(min(STARTS, len(gives) - count + 1)):
        chosen = order[start : start + count].copy()
        if _exchange(gives, most, chosen):
            return np.sort(chosen)
    return None


def _exchange(gives: Array, most: Array, chosen: NDArray[np.intp]) -> bool:
    """Exchange chosen rows for others until nothing is overdrawn; False if none helps any more."""
    total = gives[chosen].sum(axis=0)
    over = int(np.maximum(total - most, 0).sum())
    outside = np.ones(len(gives), bool)
    outside[chosen] = False
    while over:
        blame = gives[chosen][:, total > most].sum(axis=1)
        leaving = np.argsort(-blame, kind="stable")[:LEAVING]
        coming = np.flatnonzero(outside)
        if not len(coming):
            return False
        without = total - gives[chosen[leaving]] - most
        then = np.maximum(without[:, None, :] + gives[coming][None, :, :], 0).sum(axis=2)
        at, other = np.unravel_index(int(then.argmin()), then.shape)
        if then[at, other] >= over:
            return False
        gone, come = chosen[leaving[at]], coming[other]
        chosen[leaving[at]] = come
        outside[gone], outside[come] = True, False
        total = total - gives[gone] + gives[come]
        over = int(then[at, other])
    return True
