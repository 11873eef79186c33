"""How much of us anybody gets: how fast one is read who sends too much, and in how many calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class RateLimiter:
    """So many messages at once, and so many per second after them.

    A bucket of tokens that fills by itself.
    """

    def __init__(self, per_s: float, at_once: float, now: float) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._tokens, self._at = at_once, now

    def pause_s(self, now: float) -> float:
        """Count one message; seconds to wait before the next one is read."""
        filled = self._tokens + (now - self._at) * self._per_s
        self._tokens, self._at = min(self._at_once, filled) - 1, now
        return max(0.0, -self._tokens / self._per_s)

    def give_back(self) -> None:
        """Let the last message not count."""
        self._tokens = min(self._at_once, self._tokens + 1)


class OpenCalls:
    """How many calls each caller has open."""

    def __init__(self) -> None:
        self._open: Counter[Hashable] = Counter()

    def begin(self, caller: Hashable, most: int) -> bool:
        """Count a call, unless the caller has so many open already; whether it was counted."""
        if self._open[caller] >= most:
            return False
        self._open[caller] += 1
        return True

    def end(self, caller: Hashable) -> None:
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]
