"""Limits for one peer: messages per second, open calls, and log lines."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable

LINES_AT_ONCE, LINES_PER_S = 30.0, 0.1
"""Log lines of one kind: 360 an hour, less than 100 kB, after the first 30."""
MOST_KINDS = 1_000


class RateLimiter:
    """A token bucket: `at_once` messages, and `per_s` in each second after them."""

    def __init__(self, per_s: float, at_once: float, now: float) -> None:
        self._per_s, self._at_once = per_s, at_once
        self._tokens, self._at = at_once, now

    def pause_s(self, now: float) -> float:
        """Count one message; return the seconds to wait before reading the next."""
        filled = self._tokens + (now - self._at) * self._per_s
        self._tokens, self._at = min(self._at_once, filled) - 1, now
        return max(0.0, -self._tokens / self._per_s)

    def give_back(self) -> None:
        """Uncount the last message."""
        self._tokens = min(self._at_once, self._tokens + 1)


class OpenCalls:
    """Counts each caller's open calls."""

    def __init__(self) -> None:
        self._open: Counter[Hashable] = Counter()

    def begin(self, caller: Hashable, most: int) -> bool:
        """Count a call unless the caller has `most` open already; return whether it was counted."""
        if self._open[caller] >= most:
            return False
        self._open[caller] += 1
        return True

    def end(self, caller: Hashable) -> None:
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]


class LogPace(logging.Filter):
    """Limits the log lines of one place in the code; the next line counts those left out."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: OrderedDict[Hashable, tuple[RateLimiter, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether this line is written."""
        kind, now = (record.name, record.levelno, str(record.msg)), self._clock()
        pacing, left_out = self._kinds.pop(kind, (RateLimiter(LINES_PER_S, LINES_AT_ONCE, now), 0))
        written = not pacing.pause_s(now)
        if not written:
            pacing.give_back()
            left_out += 1
        elif left_out:
            record.msg = f"{record.msg} (and {left_out} more of this kind before it)"
            left_out = 0
        self._kinds[kind] = pacing, left_out
        if len(self._kinds) > MOST_KINDS:
            self._kinds.popitem(last=False)
        return written
