"""What rules share that look at each update of a round.

Every client counts the same, so no client gains weight by claiming more samples. Statistic buffers
follow the same rule, since averages of them would let an attacker around it. Updates are in the
order of their clients' ids, and every sum over clients has that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..core.algorithm import Algorithm, Needs
from ..core.state import Array
from ..core.sums.partial import Partial
from .fedavg import fedavg

WIDTH = 1 << 16
"""Numbers of each update that are looked at together. It decides the order of sums over numbers."""

Moves = Mapping[str, Array]
"""How far one client's tensors moved."""
Rule = Callable[[Sequence[Moves]], dict[str, Array]]
"""(the updates of a round, at least one) -> the float64 update that they become."""


def with_rule(name: str, server_learning_rate: float, rule: Rule) -> Algorithm:
    """The algorithm that combines updates by a rule, and applies the result as FedAvg does."""

    def combine(partial: Partial) -> dict[str, Array]:
        updates = counted(partial)
        return rule(updates) if updates else {}

    plain = fedavg(server_learning_rate)
    return replace(plain, name=name, needs=Needs.EVERY_UPDATE, combine=combine)


def counted(partial: Partial) -> list[Moves]:
    """The updates of all clients that have samples; ValueError for a sum."""
    if partial.updates is None:
        raise ValueError("a sum does not say what each client sent")
    return [update.moved for _, update in partial.updates if update.weight]


def blocks(updates: Sequence[Moves], name: str) -> Iterator[tuple[slice, Array]]:
    """Some numbers of a tensor at a time: which, and those of each update, (clients, numbers)."""
    flat = [np.asarray(moved[name]).reshape(-1) for moved in updates]
    for start in range(0, flat[0].size, WIDTH):
        here = slice(start, min(start + WIDTH, flat[0].size))
        yield here, np.stack([one[here] for one in flat])


def weighted_sum(updates: Sequence[Moves], weights: Sequence[float]) -> dict[str, Array]:
    """The sum of all updates, times their weights, in float64."""
    total = {}
    for name, first in updates[0].items():
        whole = np.zeros(first.size)
        for here, rows in blocks(updates, name):
            for row, weight in zip(rows, weights, strict=True):
                whole[here] += row.astype(np.float64) * weight
        total[name] = whole.reshape(first.shape)
    return total
