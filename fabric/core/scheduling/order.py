"""Which queue comes next, and which workload of it.

Queues are compared level by level, each with its best waiting workload, and again after every
start: what is in quota comes first, then what is within the fair share, then the rest. Within a
project all minimums come before any surplus, whatever their priority (seed 001).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from .records import UNLIMITED, Amounts, Line, PoolQueue, QueueIndex, WorkloadId, within
from .snapshot import Kind

QueueKey: TypeAlias = tuple[bool, bool, int, bool, float, float, float, int, str]
Place: TypeAlias = tuple[bool, int, bool, float, WorkloadId]
"""Where a workload stands in its project; the smallest comes first."""


def next_needs(kind: Kind) -> tuple[tuple[int, ...], ...]:
    """What a workload of this kind could get next, as members of each part: all that its minimum
    lacks, or one surplus member of any part."""
    lacking = minimum_need(kind)
    if lacking is not None:
        return (lacking,)
    parts = kind.gang.parts
    growing = (i for i, (p, n) in enumerate(zip(parts, kind.counts, strict=True)) if n < p.most)
    return tuple(tuple(int(i == one) for i in range(len(parts))) for one in growing)


def minimum_need(kind: Kind) -> tuple[int, ...] | None:
    """What the minimum lacks, as members of each part; None if it is complete."""
    parts, counts = kind.gang.parts, kind.counts
    if len(parts) == 1:
        return (parts[0].least - counts[0],) if counts[0] < parts[0].least else None
    lacking = tuple(max(0, part.least - n) for part, n in zip(parts, counts, strict=True))
    return lacking if any(lacking) else None


def flexible_need(kind: Kind) -> tuple[int, ...] | None:
    """One member of a flexible part, once the minimum is complete; None if there is none to add."""
    if below_minimum(kind):
        return None
    parts = kind.gang.parts
    for one, (part, n) in enumerate(zip(parts, kind.counts, strict=True)):
        if part.flexible and n < part.most:
            return tuple(int(i == one) for i in range(len(parts)))
    return None


def below_minimum(kind: Kind) -> bool:
    return minimum_need(kind) is not None


def place_in_line(kind: Kind, line: Line) -> Place:
    """Higher priority first; below its minimum, at it, above it; older; id."""
    surplus = not below_minimum(kind)
    above = surplus and any(n > p.least for p, n in zip(kind.gang.parts, kind.counts, strict=True))
    return surplus, -kind.priority, above, *line


def entitlement(queue: PoolQueue, share: Amounts) -> Amounts:
    """What a queue may keep: the larger of quota and share, within its limit."""
    return tuple(
        min(limit, max(quota, part))
        for limit, quota, part in zip(queue.limit, queue.quota, share, strict=True)
    )


def dominant_share(
    allocated: Sequence[int], entitled: Amounts, capacity_units: Sequence[int]
) -> float:
    """The largest part of its entitlement that a queue has of any resource."""
    most = 0.0
    for has, may, unit in zip(allocated, entitled, capacity_units, strict=True):
        if has and may < UNLIMITED:
            most = max(most, _part(has, may, unit))
    return most


def _part(has: int, may: int, unit: int) -> float:
    """The part that a queue has of what it is entitled to; very much if that is nothing."""
    return has / may if may else has / unit * 1000


@dataclass(frozen=True, slots=True)
class QueueStanding:
    """What a queue may have; it does not change during a round."""

    queue: PoolQueue
    amounts: tuple[tuple[int, int, int, int], ...]
    """Of each resource: fair share, quota, entitlement, units of one whole."""
    entitlements: float
    """All that it is entitled to, in wholes."""

    @classmethod
    def of(
        cls, queue: PoolQueue, share: Amounts, entitled: Amounts, units: Sequence[int]
    ) -> QueueStanding:
        amounts = tuple(zip(share, queue.quota, entitled, units, strict=True))
        return cls(queue, amounts, sum((may / unit for _, _, may, unit in amounts), 0.0))


def queue_key(standing: QueueStanding, allocated: Sequence[int], need: Amounts) -> QueueKey:
    """The precedence of a queue whose best workload needs this; the smallest comes first."""
    over_share = over_quota = not_entitled = False
    dominant_then = dominant_now = 0.0
    queue, entitlements = standing.queue, standing.entitlements
    # One pass: after each start, all queues are compared.
    for (fair, quota, may, unit), has, more in zip(standing.amounts, allocated, need, strict=True):
        then = has + more
        if has > fair:
            over_share = True
        if then > quota:
            over_quota = True
        if then and may < UNLIMITED:
            if not may:
                not_entitled = True
            if (part := _part(then, may, unit)) > dominant_then:
                dominant_then = part
            if (part := _part(has, may, unit)) > dominant_now:
                dominant_now = part
    return (
        over_share,
        over_quota,
        -queue.priority,
        not_entitled,
        dominant_then,
        dominant_now,
        entitlements,
        queue.created,
        queue.name,
    )


class Contest:
    """Picks the next workload, over all queues, from the kinds that still wait."""

    def __init__(
        self,
        queues: Sequence[PoolQueue],
        shares: Sequence[Amounts],
        entitled: Sequence[Amounts],
        allocated: Sequence[Sequence[int]],
        units: Sequence[int],
    ) -> None:
        self._queues = queues
        self._standings = [
            QueueStanding.of(queue, share, may, units)
            for queue, share, may in zip(queues, shares, entitled, strict=True)
        ]
        self._allocated = allocated
        """Of the trial, which changes it."""
        self._children: dict[QueueIndex | None, list[QueueIndex]] = {}
        for index, queue in enumerate(queues):
            self._children.setdefault(queue.parent, []).append(QueueIndex(index))
        self._heads: dict[QueueIndex, list[tuple[Place, int]]] = {}
        self._kinds: list[Kind] = []
        self._needs: list[Amounts] = []
        """What the next workload of each kind could get first."""
        self._lines: list[list[Line]] = []
        """Of each kind, the youngest first, so that the oldest is popped."""
        self._keys: dict[QueueIndex, QueueKey | None] = {}
        self._best: dict[QueueIndex, QueueIndex] = {}

    @classmethod
    def of(
        cls,
        queues: Sequence[PoolQueue],
        shares: Sequence[Amounts],
        entitled: Sequence[Amounts],
        allocated: Sequence[Sequence[int]],
        units: Sequence[int],
        waiting: Iterable[tuple[Kind, Sequence[Line]]],
    ) -> Contest:
        contest = cls(queues, shares, entitled, allocated, units)
        for kind, line in waiting:
            contest._enter(kind, line)
        for heads in contest._heads.values():
            heapify(heads)
        return contest

    def _enter(self, kind: Kind, line: Sequence[Line]) -> None:
        number = self._number(kind, list(reversed(line)))
        self._heads.setdefault(kind.queue, []).append((place_in_line(kind, line[0]), number))

    def _number(self, kind: Kind, youngest_first: list[Line]) -> int:
        self._kinds.append(kind)
        self._needs.append(kind.gang.total(next_needs(kind)[0]))
        self._lines.append(youngest_first)
        return len(self._kinds) - 1

    def pop(self) -> tuple[Kind, Line] | None:
        """Take the next workload out of the contest; None when there is none."""
        leaf = self._first()
        if leaf is None:
            return None
        heads = self._heads[leaf]
        _, number = heappop(heads)
        kind, line = self._kinds[number], self._lines[number].pop()
        if self._lines[number]:
            heappush(heads, (place_in_line(kind, self._lines[number][-1]), number))
        self.touch(leaf)
        return kind, line

    def drop(self, kind: Kind) -> tuple[Line, ...]:
        """Take all others of a kind out; return them, oldest first."""
        heads = self._heads[kind.queue]
        ours = [number for _, number in heads if self._kinds[number] == kind]
        if not ours:
            return ()
        if len(ours) == 1:
            rest = self._lines[ours[0]][::-1]
        else:
            rest = sorted(line for number in ours for line in self._lines[number])
        heads[:] = [head for head in heads if head[1] not in ours]
        heapify(heads)
        self.touch(kind.queue)
        return tuple(rest)

    def add(self, kind: Kind, line: Line) -> None:
        """Enter a workload that has become of this kind."""
        heads = self._heads.setdefault(kind.queue, [])
        heappush(heads, (place_in_line(kind, line), self._number(kind, [line])))
        self.touch(kind.queue)

    def touch(self, queue: QueueIndex) -> None:
        """Compare a queue and all above it anew, since it has changed."""
        index: QueueIndex | None = queue
        while index is not None:
            self._keys.pop(index, None)
            index = self._queues[index].parent

    def _first(self, parent: QueueIndex | None = None) -> QueueIndex | None:
        """The leaf with the next workload below a queue."""
        best: tuple[QueueKey, QueueIndex] | None = None
        known = self._keys
        for index in self._children.get(parent, ()):
            key = known[index] if index in known else self._key(index)
            if key is not None and (best is None or key < best[0]):
                best = key, index
        return None if best is None else self._best[best[1]]

    def _key(self, index: QueueIndex) -> QueueKey | None:
        queue = self._queues[index]
        leaf: QueueIndex | None = index
        if not queue.leaf:
            leaf = self._first(index)
        key = None
        if leaf is not None and self._heads.get(leaf):
            need = self._needs[self._heads[leaf][0][1]]
            key = queue_key(self._standings[index], self._allocated[index], need)
            self._best[index] = leaf
        self._keys[index] = key
        return key


def furthest_over(
    queue: PoolQueue,
    share: Amounts,
    entitled: Amounts,
    allocated: Sequence[int],
    units: Sequence[int],
) -> tuple[bool, bool, int, float, int, str]:
    """How soon a queue gives for others; the largest gives first: over its share, over its quota,
    of lower priority, furthest over."""
    return (
        not within(allocated, share),
        not within(allocated, queue.quota),
        -queue.priority,
        dominant_share(allocated, entitled, units),
        queue.created,
        queue.name,
    )
