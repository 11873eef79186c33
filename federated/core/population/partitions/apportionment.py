"""Apportions whole samples: rounds shares, deals shards, and leaves no client empty."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .partition import Int64s


def apportion(
    quotas: NDArray[np.floating[Any]], total: int, *, least: int = 0, most: Int64s | None = None
) -> Int64s:
    """Round quotas to whole numbers that sum to `total`, by largest remainder, within bounds."""
    bound = np.full(len(quotas), total, dtype=np.int64) if most is None else most
    shares: Int64s = np.clip(np.floor(quotas).astype(np.int64), least, bound)
    while missing := total - int(shares.sum()):
        step = 1 if missing > 0 else -1
        movable = np.flatnonzero(shares < bound if step > 0 else shares > least)
        first = np.argsort(-step * (quotas - shares)[movable], kind="stable")[: abs(missing)]
        shares[movable[first]] += step
    return shares


def deal(per_label: Int64s, number_of_clients: int, rng: np.random.Generator) -> list[Int64s]:
    """Deal each label's shards to clients; give, per label, the client of each shard.

    Clients' numbers of shards differ by at most one. A label with as many shards left as there are
    clients left must be dealt now; other labels are drawn in proportion to their shards. So no
    client gets a label twice, except labels with more shards than there are clients.
    """
    everybody, left = np.divmod(per_label, number_of_clients)
    hands, larger_hands = divmod(int(left.sum()), number_of_clients)
    order = rng.permutation(number_of_clients)
    # The largest of these keys are a draw without replacement, weighted by the shards left
    # (Efraimidis and Spirakis 2006).
    luck = -rng.standard_exponential((number_of_clients, len(per_label)))
    dealt: list[list[int]] = [[] for _ in per_label]
    for turn, client in enumerate(order):
        hand = hands + (turn < larger_hands)
        clients_left = number_of_clients - turn
        with np.errstate(divide="ignore"):
            keys = luck[turn] / left
        keys[left >= clients_left] = 1.0
        for label in np.argsort(-keys, kind="stable")[:hand]:
            dealt[label].append(int(client))
            left[label] -= 1
    return [
        np.concatenate([np.tile(order, extra), np.array(some, dtype=np.int64)])
        for extra, some in zip(everybody, dealt, strict=True)
    ]


def give_to_the_empty(owner: Int64s, number_of_clients: int, rng: np.random.Generator) -> None:
    """Move single samples, in place, from the clients with most to those with none."""
    sizes = np.bincount(owner, minlength=number_of_clients)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return
    shuffled = rng.permutation(len(owner))
    shuffled = shuffled[np.argsort(owner[shuffled], kind="stable")]
    ends = np.cumsum(sizes)
    richest = [(-int(size), client) for client, size in enumerate(sizes) if size > 1]
    heapq.heapify(richest)
    for client in empty:
        size, donor = richest[0]
        ends[donor] -= 1
        owner[shuffled[ends[donor]]] = client
        heapq.heapreplace(richest, (size + 1, donor))
