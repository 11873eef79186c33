"""Decides how fast a link is in one direction, from the blobs that cross it.

Blobs that are under way together share the link, so their time counts once: a span begins when
the first one sets out, and ends when the last one has arrived. A short span of few bytes says more
about the machines at the ends than about the link, and is left out. The speed is the median of the
latest spans, weighted by their bytes, because a span also has the delays of what sends and what
takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from itertools import accumulate
from typing import NamedTuple

LARGE = 4 << 20
"""A span of so many bytes counts, however short it was."""
LONG_S = 1.0
"""So does one that took so long,"""
LEAST = 64 << 10
"""for at least so many bytes."""
SPAN_S = 30.0
"""A span ends after this time even if blobs are still under way."""
KEPT = 15
"""Spans that the speed is the median of."""
FRESH_S = 86_400.0
"""A span counts for so long after its end."""


class LinkSpan(NamedTuple):
    """A time in which blobs crossed a link."""

    ended_at: float
    nbytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.nbytes / self.seconds


class LinkMeter:
    """One direction of a site's link; times are epoch seconds."""

    def __init__(self) -> None:
        self._under_way: set[Hashable] = set()
        self._began, self._nbytes = 0.0, 0
        self._spans: deque[LinkSpan] = deque(maxlen=KEPT)

    def set_out(self, blob: Hashable, now: float) -> None:
        """Record that a blob starts across the link, unless it is under way."""
        if not self._under_way:
            self._began, self._nbytes = now, 0
        self._under_way.add(blob)

    def moved(self, nbytes: int, now: float) -> None:
        """Count bytes of any blob under way."""
        if not self._under_way:
            return
        self._nbytes += nbytes
        if now - self._began >= SPAN_S:
            self._close(now)

    def arrived(self, blob: Hashable, now: float) -> None:
        """Record that a blob has arrived."""
        if blob in self._under_way:
            self._under_way.remove(blob)
            if not self._under_way:
                self._close(now)

    def broken(self) -> None:
        """Forget what is under way: the link was cut."""
        self._under_way.clear()

    def speed(self, now: float) -> tuple[float, float] | None:
        """Bytes per second, and when that was last measured; None if it was not, or long ago."""
        fresh = [span for span in self._spans if now - span.ended_at <= FRESH_S]
        if not fresh:
            return None
        ranked = sorted(fresh, key=lambda span: span.rate)
        passed = accumulate(span.nbytes for span in ranked)
        half = sum(span.nbytes for span in ranked) / 2
        middle = next(span for span, nbytes in zip(ranked, passed, strict=True) if nbytes >= half)
        return middle.rate, max(span.ended_at for span in fresh)

    def _close(self, now: float) -> None:
        span = LinkSpan(now, self._nbytes, now - self._began)
        self._began, self._nbytes = now, 0
        enough = span.nbytes >= LARGE or (span.seconds >= LONG_S and span.nbytes >= LEAST)
        if enough and span.seconds > 0:
            self._spans.append(span)
