"""Decides how long a round trip over a link takes, from heartbeats and their answers."""

from __future__ import annotations

from collections import deque

BEATS = 30
"""Round trips that the shortest is taken of: transfers delay heartbeats on the same link."""
LONGEST_S = 60.0
"""No round trip of a heartbeat is longer."""


class RoundTrips:
    """The latest round trips of heartbeats."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=BEATS)

    def add(self, seconds: float) -> None:
        """Count one, unless it is impossible."""
        if 0 < seconds <= LONGEST_S:
            self._latest.append(seconds)

    @property
    def shortest(self) -> float | None:
        """None before the first one."""
        return min(self._latest, default=None)
