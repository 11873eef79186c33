"""What each queue deserves: its quota, and its part of what no quota uses.

Each pool and each resource is divided by itself, departments first; the share of a department is
what its projects divide. Within one division:

1. every queue gets its quota, as far as it asks for it;
2. the rest goes by weight to queues that ask for more, higher queue priorities first. Queues that
   ask for less than their part get what they ask for, and the others divide what that leaves. Then
   each gets the whole devices of its part;
3. each device that rounding leaves goes to one queue, by the largest remainder.

If the quotas used are more than there is, every queue keeps its quota as its share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from .records import UNLIMITED, Amounts, PoolQueue, QueueIndex, Settings
from .snapshot import Fleet, Kind, SchedulingSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareClaim:
    """What one queue may ask of one resource."""

    name: str
    quota: int
    weight: Fraction
    limit: int
    requested: int
    priority: int = 0
    created: int = 0
    usage: Fraction | None = None
    """What it used lately, as a part of the capacity."""

    @property
    def wants(self) -> int:
        return min(self.limit, self.requested)


def divide(
    total: int, claims: Sequence[ShareClaim], unit: int = 1, usage_effect: float = 0.0
) -> tuple[list[int], int]:
    """The share of each claim, and what stays unassigned; `unit` is one whole device."""
    shares = [
        min(total if claim.quota >= UNLIMITED else claim.quota, claim.wants) for claim in claims
    ]
    rest = total - sum(shares)
    if rest <= 0:
        return shares, 0
    weights = _weights(claims, usage_effect)
    remainders: dict[int, Fraction] = {}
    priorities = sorted({claim.priority for claim in claims}, reverse=True)
    for priority in priorities:
        open_ = [
            i
            for i, claim in enumerate(claims)
            if claim.priority == priority and weights[i] > 0 and shares[i] < claim.wants
        ]
        rest -= _fill(open_, rest, claims, weights, shares, remainders, unit)
    for priority in priorities:
        line = sorted(
            (i for i in remainders if claims[i].priority == priority),
            key=lambda i: (-remainders[i], claims[i].created, claims[i].name),
        )
        for i in line:
            given = min(unit, rest, claims[i].wants - shares[i])
            shares[i] += given
            rest -= given
    return shares, rest


def _fill(
    open_: list[int],
    rest: int,
    claims: Sequence[ShareClaim],
    weights: Sequence[Fraction],
    shares: list[int],
    remainders: dict[int, Fraction],
    unit: int,
) -> int:
    """Pour `rest` over the open claims by weight; return what they took."""
    taken = 0
    while open_ and rest > taken:
        left, weight = rest - taken, sum(weights[i] for i in open_)
        parts = {i: left * weights[i] / weight for i in open_}
        content = [i for i in open_ if claims[i].wants - shares[i] <= parts[i]]
        for i in content:
            taken += claims[i].wants - shares[i]
            shares[i] = claims[i].wants
        if content:
            open_ = [i for i in open_ if i not in content]
            continue
        for i in open_:
            whole = int(parts[i] // unit) * unit
            shares[i] += whole
            taken += whole
            if parts[i] > whole:
                remainders[i] = parts[i] - whole
        break
    return taken


def _weights(claims: Sequence[ShareClaim], effect: float) -> list[Fraction]:
    """The weights, moved towards queues that used less than their part lately."""
    weights = [claim.weight for claim in claims]
    total = sum(weights)
    if not effect or not total:
        return weights
    normal = [weight / total for weight in weights]
    k = Fraction(effect)
    return [
        w if claim.usage is None else max(Fraction(0), w + k * (w - claim.usage))
        for w, claim in zip(normal, claims, strict=True)
    ]


def requested(snapshot: SchedulingSnapshot, could_run: dict[Kind, bool]) -> list[list[int]]:
    """What each queue holds and waits for, with all below it; impossible requests do not count."""
    width = len(snapshot.scale.names)
    asked = [[0] * width for _ in snapshot.queues]
    for index, queue in enumerate(snapshot.queues):
        if queue.leaf:
            asked[index] = list(snapshot.allocated[index])
    for kind, line in snapshot.backlog.items():
        if could_run[kind]:
            most = (part.most for part in kind.gang.parts)
            lacking = tuple(max(0, n - has) for n, has in zip(most, kind.counts, strict=True))
            for i, amount in enumerate(kind.gang.total(lacking)):
                asked[kind.queue][i] += len(line) * amount
    for index in range(len(snapshot.queues) - 1, -1, -1):
        parent = snapshot.queues[index].parent
        if parent is not None:
            limit = snapshot.queues[index].limit
            for i, amount in enumerate(asked[index]):
                asked[parent][i] += min(amount, limit[i])
    return asked


def shares_of(
    snapshot: SchedulingSnapshot, asked: Sequence[Sequence[int]], settings: Settings
) -> tuple[Amounts, ...]:
    """The fair share of every queue; `UNLIMITED` where nothing is rationed."""
    totals = capacity_by_pool(snapshot.fleet, snapshot.ready)
    return shares_among(snapshot.queues, asked, totals, snapshot.scale.units, settings.usage_effect)


def shares_among(
    queues: Sequence[PoolQueue],
    asked: Sequence[Sequence[int]],
    totals: Mapping[str, Amounts],
    units: Amounts,
    usage_effect: float = 0.0,
) -> tuple[Amounts, ...]:
    """The fair share of every queue, departments before their projects; `totals` is by pool."""
    shares = [[UNLIMITED] * len(units) for _ in queues]
    siblings: dict[tuple[str, QueueIndex | None], list[QueueIndex]] = defaultdict(list)
    for index, queue in enumerate(queues):
        siblings[queue.pool, queue.parent].append(QueueIndex(index))
    nothing = (0,) * len(units)
    for (pool, parent), members in siblings.items():
        for i, unit in enumerate(units):
            if not any(queues[q].rationed[i] for q in members):
                continue
            above = UNLIMITED if parent is None else shares[parent][i]
            total = min(above, totals.get(pool, nothing)[i])
            claims = [_claim(queues[q], i, asked[q][i]) for q in members]
            found, _ = divide(total, claims, unit, usage_effect)
            for q, share in zip(members, found, strict=True):
                shares[q][i] = share
    return tuple(map(tuple, shares))


def _claim(queue: PoolQueue, resource: int, asked: int) -> ShareClaim:
    return ShareClaim(
        name=queue.name,
        quota=queue.quota[resource],
        weight=queue.weight[resource],
        limit=queue.limit[resource],
        requested=asked,
        priority=queue.priority,
        created=queue.created,
        usage=None if queue.usage is None else queue.usage[resource],
    )


def capacity_by_pool(fleet: Fleet, ready: NDArray[np.bool_]) -> dict[str, Amounts]:
    """What the ready machines of each pool have together."""
    rows: dict[str, list[int]] = {}
    for index, pool in enumerate(fleet.pools):
        if ready[index]:
            rows.setdefault(pool, []).append(index)
    return {pool: tuple(fleet.capacity[mine].sum(axis=0).tolist()) for pool, mine in rows.items()}
