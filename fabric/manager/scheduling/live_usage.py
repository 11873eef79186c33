"""LiveUsage: what queues have held lately, for shares that look back (`usage_effect`).

It is kept by the names of queues and resources, so that it outlives another file of queues, and a
resource more. A note beside the cluster state has it, at most `SAVE_S` old, so that it outlives the
manager, too: what was held after that counts by what the next manager finds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ...core.scheduling.records import Amounts, PoolQueue
from ...core.scheduling.snapshot import Scale
from ...core.scheduling.usage import Span, UsageHistory

USAGE = "usage"
"""The name of the note."""
SAVE_S = 5.0
"""How old the note may be."""
LONGEST = 40.0
"""A history is told as one span of at most so many half-lives: what is older counts nothing."""


class LiveUsage:
    """The usage of all queues of a Ray cluster."""

    def __init__(self, note: Mapping[str, Any] | None = None) -> None:
        given = note or {"at": 0.0, "span_s": 0.0, "used": []}
        self._at, self._span_s = float(given["at"]), float(given["span_s"])
        self._used: dict[tuple[str, str], dict[str, float]] = {
            (name, pool): dict(used) for name, pool, used in given["used"]
        }
        """By queue and pool, in wholes of each resource times weighted seconds."""
        self._saved_at = self._at
        self._forgotten = False

    def forget(self) -> None:
        """Begin anew once it counts again."""
        self._forgotten = self._forgotten or bool(self._at)
        self._at, self._span_s, self._used = 0.0, 0.0, {}

    def until(
        self,
        now: float,
        queues: Sequence[PoolQueue],
        scale: Scale,
        held: Sequence[Amounts],
        half_life_s: float | None,
    ) -> None:
        """Count what the queues have held since the last call; the first one only begins."""
        if self._at:
            before = self._history(queues, scale, half_life_s)
            after = before.after(max(now, self._at), held)
            self._span_s = after.span_s
            for queue, used in zip(queues, after.used, strict=True):
                units = zip(scale.names, scale.units, used, strict=True)
                mine = self._used.setdefault((queue.name, queue.pool), {})
                mine.update({name: amount / unit for name, unit, amount in units if amount})
        self._at = max(now, self._at)

    def spans(self, queues: Sequence[PoolQueue], scale: Scale, half_life_s: float | None) -> Spans:
        """What each queue has held on average, as if all the time."""
        history = self._history(queues, scale, half_life_s)
        return Spans(
            [
                tuple(round(used / history.span_s) if history.span_s else 0 for used in mine)
                for mine in history.used
            ],
            _length_s(history.span_s, half_life_s),
        )

    def note(self, now: float) -> Mapping[str, Any] | None:
        """The note beside the cluster state, if it is time to write it."""
        due = bool(self._at) and now >= self._saved_at + SAVE_S
        if not (due or self._forgotten):
            return None
        self._saved_at, self._forgotten = now, False
        used = [[*key, amounts] for key, amounts in self._used.items()]
        return {"at": self._at, "span_s": self._span_s, "used": used}

    def _history(
        self, queues: Sequence[PoolQueue], scale: Scale, half_life_s: float | None
    ) -> UsageHistory:
        def units(queue: PoolQueue) -> tuple[float, ...]:
            mine = self._used.get((queue.name, queue.pool), {})
            return tuple(
                mine.get(name, 0.0) * unit
                for name, unit in zip(scale.names, scale.units, strict=True)
            )

        return UsageHistory(
            at_s=self._at,
            half_life_s=half_life_s,
            span_s=self._span_s,
            used=tuple(map(units, queues)),
        )


class Spans:
    """The usage of queues as one span up to now, with the same amounts all the time."""

    def __init__(self, amounts: Sequence[Amounts], length_s: float) -> None:
        self.amounts = amounts
        """By queue."""
        self.length_s = length_s

    def parts(
        self,
        queues: Sequence[PoolQueue],
        capacity: Mapping[str, Amounts],
        half_life_s: float | None,
    ) -> list[tuple[Fraction, ...]]:
        """The part of its pool's capacity that each queue has used."""
        width = max(map(len, self.amounts), default=0)
        mine = [[Span(begin_s=-self.length_s, end_s=0.0, amounts=each)] for each in self.amounts]
        history = UsageHistory.of(mine, width, 0.0, half_life_s)
        return [
            history.of_capacity(index, capacity.get(queue.pool, (0,) * width))
            for index, queue in enumerate(queues)
        ]


def _length_s(span_s: float, half_life_s: float | None) -> float:
    """How long a span up to now is that has so many weighted seconds."""
    if half_life_s is None:
        return span_s
    left = 1.0 - span_s * math.log(2) / half_life_s
    return half_life_s * min(LONGEST, -math.log2(left) if left > 0 else LONGEST)
