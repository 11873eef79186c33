"""The few most recently used values. A pool and its worker update their copies alike.

So the pool knows which models the worker still has without asking.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")

KEEP = 2
"""The round's model, and the one before it (single nodes lag behind)."""


class LRU(Generic[V]):
    """A mapping that drops the least recently used value."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, V] = OrderedDict()

    def touch(self, key: str) -> bool:
        """Mark a key as used; return whether it is there."""
        if key not in self._values:
            return False
        self._values.move_to_end(key)
        return True

    def keep(self, key: str, value: V) -> None:
        """Add a value as the most recently used."""
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > KEEP:
            self._values.popitem(last=False)

    def __getitem__(self, key: str) -> V:
        return self._values[key]
