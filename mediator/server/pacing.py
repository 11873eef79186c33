"""Pacing: how fast somebody is read who sends too much. A bucket of tokens that fills by itself."""

from __future__ import annotations


class Pacing:
    """So many messages at once, and so many per second after them."""

    def __init__(self, per_s: float, at_once: float, now: float) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._tokens, self._at = at_once, now

    def pause_s(self, now: float) -> float:
        """Count one message; seconds to wait before the next one is read."""
        filled = self._tokens + (now - self._at) * self._per_s
        self._tokens, self._at = min(self._at_once, filled) - 1, now
        return max(0.0, -self._tokens / self._per_s)
