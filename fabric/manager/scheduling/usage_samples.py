"""UsageSamples: what each project held and deserved since the manager began, for a picture.

A sample is taken when that has changed, at most once per period. There is room for `MOST`; once it
is full, every second sample is dropped and the period doubled. So the samples always reach back to
the manager's begin, and take no more than some megabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...core.scheduling.records import UNLIMITED, Amounts, PoolQueue
from ...core.scheduling.snapshot import Scale, SchedulingSnapshot

MOST = 500
PERIOD_S = 1.0
"""At first."""


class QueueUsage(NamedTuple):
    """What all queues hold and deserve at a moment."""

    scale: Scale
    queues: Sequence[PoolQueue]
    allocated: tuple[Amounts, ...]
    fairshare: tuple[Amounts, ...]


class UsageSamples:
    """The samples, oldest first."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, QueueUsage]] = []
        self._period_s, self._due = PERIOD_S, 0.0

    def due(self, now: float) -> bool:
        """Whether it is time for another sample."""
        return now >= self._due

    def take(
        self, now: float, snapshot: SchedulingSnapshot, fairshare: tuple[Amounts, ...]
    ) -> None:
        """Take a sample if it is time to, and anything has changed."""
        if not self.due(now):
            return
        self._due = now + self._period_s
        found = QueueUsage(snapshot.scale, snapshot.queues, snapshot.allocated, fairshare)
        if self._samples and self._samples[-1][1] == found:
            return
        self._samples.append((now, found))
        if len(self._samples) > MOST:
            self._samples = [*self._samples[:-1:2], self._samples[-1]]
            self._period_s *= 2

    def documents(self) -> list[dict[str, Any]]:
        """For each sample, what each project held and deserved, and its quota, by pool."""
        return [{"time": time, "queues": _projects(usage)} for time, usage in self._samples]


def _projects(usage: QueueUsage) -> list[dict[str, Any]]:
    told = []
    for queue, has, share in zip(usage.queues, usage.allocated, usage.fairshare, strict=True):
        if not queue.leaf:
            continue
        told.append(
            {
                "name": queue.name,
                "pool": queue.pool,
                "allocated": {n: x for n, x in usage.scale.by_name(has).items() if x},
                "quota": _rationed(queue, queue.quota, usage.scale),
                "fairshare": _rationed(queue, share, usage.scale),
            }
        )
    return told


def _rationed(queue: PoolQueue, amounts: Amounts, scale: Scale) -> dict[str, Any]:
    """The amounts of what is rationed, by name; None for those without a limit."""
    limited = scale.by_name(tuple(0 if amount >= UNLIMITED else amount for amount in amounts))
    return {
        name: None if amounts[i] >= UNLIMITED else limited[name]
        for i, name in enumerate(scale.names)
        if queue.rationed[i]
    }
