"""Krum and Multi-Krum: the updates that have most others near them.

Blanchard et al. 2017, "Machine learning with adversaries: Byzantine tolerant gradient descent". Of
n updates, f of which may be anything, an update's score is the sum of its squared distances to the
n - f - 2 nearest others. Krum takes the update of the lowest score, Multi-Krum the mean of several.
In a tie the client comes first whose id does. The paper asks for 2 f + 2 < n. In a round with fewer
clients, f is as large as that allows.

Distances are over all averaged tensors, the statistic buffers among them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..core.algorithm import Algorithm
from ..core.state import Array
from .every_update import Moves, blocks, weighted_sum, with_rule

Distances = npt.NDArray[np.float64]
"""(clients, clients): squared."""


def krum(byzantine_clients: int, server_learning_rate: float = 1.0) -> Algorithm:
    """The update of the lowest score."""

    def rule(updates: Sequence[Moves]) -> dict[str, Array]:
        (place,) = chosen(squared_distances(updates), byzantine_clients, 1)
        return weighted_sum([updates[place]], [1.0])

    return with_rule("krum", server_learning_rate, rule)


def multi_krum(
    byzantine_clients: int, keeps: int | None = None, server_learning_rate: float = 1.0
) -> Algorithm:
    """The mean of the `keeps` updates of the lowest scores; None keeps all but f."""

    def rule(updates: Sequence[Moves]) -> dict[str, Array]:
        places = chosen(squared_distances(updates), byzantine_clients, keeps)
        kept = [updates[place] for place in places]
        total = weighted_sum(kept, [1.0] * len(kept))
        return {name: np.asarray(array / len(kept)) for name, array in total.items()}

    return with_rule("multi_krum", server_learning_rate, rule)


def tolerated(clients: int) -> int:
    """The most Byzantine clients that the paper's condition admits, 2 f + 2 < n; 0 for few."""
    return max(0, (clients - 3) // 2)


def chosen(distances: Distances, byzantine_clients: int, keeps: int | None) -> list[int]:
    """The places of the updates that are kept, ascending; at most n - f."""
    clients = len(distances)
    byzantine = min(byzantine_clients, tolerated(clients))
    nearest = max(0, clients - byzantine - 2)
    scores = [
        _added(np.sort(np.delete(row, place))[:nearest]) for place, row in enumerate(distances)
    ]
    best = sorted(range(clients), key=lambda place: (scores[place], place))
    most = clients - byzantine
    return sorted(best[: most if keeps is None else min(keeps, most)])


def squared_distances(updates: Sequence[Moves]) -> Distances:
    """The squared distance of each two updates, infinite if it leaves float64."""
    from ..core.sums.distances import squared_distances as of_rows  # which loads Numba

    found = np.zeros((len(updates), len(updates)))
    for name in sorted(updates[0]):
        for _, rows in blocks(updates, name):
            for place in range(len(rows) - 1):
                found[place, place + 1 :] += of_rows(rows[place + 1 :], rows[place])
    return found + found.T


def _added(ascending: Distances) -> float:
    total = 0.0
    for each in ascending.tolist():
        total += each
    return total
