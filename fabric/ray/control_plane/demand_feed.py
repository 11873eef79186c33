"""DemandFeed: tells autoscalers outside of Ray what the virtual clusters could not place.

The gangs are a document in Ray's own key-value store, which can be read with the cluster's token
alone. It is written when it changes, and again from time to time, so that a reader knows from its
age whether it still holds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable

from ...core.ray_clusters.demand import UnplacedGang

KEY = b"fedpilot:demand"
FORMAT = 1
REPEAT_S = 5.0
"""How often the document is written even if nothing has changed."""


class DemandFeed:
    """The feed of one Ray cluster, written by its manager."""

    def __init__(
        self, put: Callable[[bytes, bytes], None], clock: Callable[[], float] = time.time
    ) -> None:
        """`put` writes a value of Ray's key-value store; it blocks."""
        self._put, self._clock = put, clock
        self._last: tuple[UnplacedGang, ...] | None = None
        self._at = 0.0

    async def publish(self, gangs: Iterable[UnplacedGang]) -> None:
        """Write the gangs, if they have changed or it is time to."""
        now, found = self._clock(), tuple(gangs)
        if found == self._last and now - self._at < REPEAT_S:
            return
        document = {
            "format": FORMAT,
            "seen": now,
            "gangs": [each.document() for each in found],
        }
        await asyncio.to_thread(self._put, KEY, json.dumps(document).encode())
        self._last, self._at = found, now
