"""Which round left each client's model on a graph, where clients sat rounds out.

A client whose site is away takes no part in a round, if the run's quorum allows that, and keeps its
model. The records of the clients that counted name those rounds. Every process reads the same
records, so all continue a client from the same saved model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fedpilot.mediator.core.assignment.shares import share_of

from ...errors import FederatedError
from ..population.sampling import Indices
from ..population.shares import Mask, held, taken, told


def left_by(number: int, population: int, counted: Callable[[int], Mask | None]) -> Indices:
    """The last round before `number` in which each client counted, (population,); 0 for none.

    `counted` gives the clients that counted in a round, or None if all did.
    """
    last: Indices = np.zeros(population, dtype=np.int64)
    open_ = np.ones(population, dtype=bool)
    for earlier in range(number - 1, 0, -1):
        mask = counted(earlier)
        last[open_ if mask is None else open_ & mask] = earlier
        if mask is None or not (open_ := open_ & ~mask).any():
            break
    return last


def late_told(last: Indices, share: Iterable[range], before: int) -> list[list[Any]]:
    """For an order: the clients of a share that round `before` did not leave, by round."""
    clients = np.flatnonzero(held(np.arange(len(last)), share) & (last != before))
    rounds = last[clients]
    return [
        [number, told(share_of(clients[rounds == number]))] for number in np.unique(rounds).tolist()
    ]


def late_taken(values: Any, clients: Indices, before: int) -> Indices:
    """The inverse: the round that left the model of each of these clients, (k,).

    Raises FederatedError for what is no such list.
    """
    last: Indices = np.full(len(clients), before, dtype=np.int64)
    order = np.argsort(clients)
    for each in values if isinstance(values, list) else [values]:
        if not (isinstance(each, list) and len(each) == 2 and type(each[0]) is int):
            raise FederatedError(f"clients that sat out are [round, share], found {each!r:.60}")
        if not 0 <= each[0] < before:
            raise FederatedError(f"clients sat out since round {each[0]}, which is no earlier one")
        last[order[held(clients[order], taken(each[1]))]] = each[0]
    return last
