"""How a cohort is cut into chunks: as many as keep the workers busy, of equal cost.

Which clients share a chunk never changes a result (each trains alone, sums are exact), so this
decides speed only: few chunks for short rounds, where a call costs more than it balances; more
for long ones, where the last worker should not end long after the others and a lost worker should
not lose much.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TARGET_S = 0.5
"""A chunk's length in seconds, once a round is long enough for several per worker."""
UNKNOWN_PER_WORKER = 4
"""Chunks per worker while the cost of a sample has not been measured."""


def how_many(clients: int, workers: int, seconds: float | None) -> int:
    """Chunks for a round of `clients` that should take `seconds` of work in all (None: unknown)."""
    if seconds is None:
        wanted = workers * UNKNOWN_PER_WORKER
    else:
        wanted = max(workers, round(seconds / TARGET_S))
    return max(1, min(clients, wanted))


def deal(costs: npt.NDArray[np.int64], chunks: int) -> list[npt.NDArray[np.int64]]:
    """Positions of the clients in each chunk, dealt from the dearest to the cheapest.

    Chunks come longest first, so that whoever pulls them in order ends at nearly the same time.
    """
    order = np.argsort(-costs, kind="stable")
    return [order[i::chunks] for i in range(chunks)]
