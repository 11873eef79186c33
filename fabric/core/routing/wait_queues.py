"""Queues of waiting work, one for each kind, with the oldest at its head.

To add, to remove and to find the next head cost the logarithm of their number.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Hashable
from typing import Generic, TypeVar

Id = TypeVar("Id", bound=str)


class WaitQueues(Generic[Id]):
    """What waits, by kind; a lower number is older."""

    def __init__(self) -> None:
        self._kinds: dict[Id, Hashable] = {}
        self._numbers: dict[Id, int] = {}
        self._lines: dict[Hashable, list[tuple[int, Id]]] = {}
        """A heap for each kind, in which may be some that wait no longer."""
        self._heads: list[tuple[int, Id]] = []
        """A heap of all heads, in which may be some that no longer are."""

    def __len__(self) -> int:
        return len(self._kinds)

    def __contains__(self, id: object) -> bool:
        return id in self._kinds

    def add(self, id: Id, number: int, kind: Hashable) -> None:
        """Add one of a kind."""
        self._kinds[id], self._numbers[id] = kind, number
        heapq.heappush(self._lines.setdefault(kind, []), (number, id))
        if self._head(kind) == (number, id):
            heapq.heappush(self._heads, (number, id))

    def remove(self, id: Id) -> None:
        """Remove one that waits."""
        kind, number = self._kinds[id], self._numbers[id]
        was_head = self._head(kind) == (number, id)
        del self._kinds[id], self._numbers[id]
        head = self._head(kind)
        if head is None:
            del self._lines[kind]
        elif was_head:
            heapq.heappush(self._heads, head)

    def heads(self) -> Generator[Id, None, None]:
        """The heads, oldest first; after a removed one comes the next of its kind."""
        seen: set[tuple[int, Id]] = set()
        try:
            while self._heads:
                number, id = heapq.heappop(self._heads)
                if (number, id) not in seen and self._is_head(number, id):
                    seen.add((number, id))
                    yield id
        finally:
            for number, id in seen:
                if self._is_head(number, id):
                    heapq.heappush(self._heads, (number, id))

    def _is_head(self, number: int, id: Id) -> bool:
        return id in self._kinds and self._head(self._kinds[id]) == (number, id)

    def _head(self, kind: Hashable) -> tuple[int, Id] | None:
        line = self._lines[kind]
        while line and (line[0][1] not in self._kinds or self._kinds[line[0][1]] != kind):
            heapq.heappop(line)
        return line[0] if line else None
