"""Places that the manager has promised to this process for the tasks that it submits next.

In a burst of tasks of one kind, each call of the manager promises twice as many places as the last
(decision 31). A promised place is waiting work in the cluster state; unused places are given back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from ..core.records import WorkId
from ..manager.routing.messages import Placed

KEEP_S = 0.05
"""How long a place is kept for a task that may come."""

BURST_S = 0.02
"""The longest pause between two tasks of one burst."""

MOST = 64
"""The most places that are promised at once."""


@dataclass(slots=True)
class _Burst:
    places: deque[tuple[WorkId, Placed]] = field(default_factory=deque)
    more: int = 0
    """How many extra places the last call requested."""
    at: float = 0.0
    """When the last task came."""


class Promises:
    """The promised places, by kind of task."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bursts: dict[Hashable, _Burst] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._bursts)

    def take(self, kind: Hashable) -> tuple[WorkId, Placed] | None:
        """A promised place for a task; None without one."""
        with self._lock:
            burst = self._bursts.get(kind)
            if burst is None or not burst.places:
                return None
            burst.at = self._clock()
            return burst.places.popleft()

    def wanted(self, kind: Hashable) -> int:
        """How many places to request beyond the one that is needed now."""
        with self._lock:
            now, burst = self._clock(), self._bursts.setdefault(kind, _Burst())
            goes_on = now < burst.at + BURST_S
            burst.more = min(MOST, 2 * burst.more + 1) if goes_on else 0
            burst.at = now
            return burst.more

    def keep(self, kind: Hashable, places: Iterable[tuple[WorkId, Placed]]) -> None:
        with self._lock:
            burst = self._bursts.setdefault(kind, _Burst(at=self._clock()))
            burst.places.extend(places)

    def all(self) -> list[WorkId]:
        """Forget everything; return the places to give back."""
        with self._lock:
            bursts, self._bursts = self._bursts, {}
            return [work for each in bursts.values() for work, _ in each.places]

    def unused(self) -> list[WorkId]:
        """Forget the kinds without a task in time; return the places to give back."""
        with self._lock:
            now = self._clock()
            over = [kind for kind, each in self._bursts.items() if now > each.at + KEEP_S]
            return [work for kind in over for work, _ in self._bursts.pop(kind).places]
