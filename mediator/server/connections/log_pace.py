"""LogPace: lines of one kind come to the log at a bounded rate, whoever makes them come."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable

from .rate_limiter import RateLimiter

AT_ONCE, PER_S = 30.0, 0.1
"""Lines of one kind: 360 an hour, less than 100 kB, after the first 30."""
MOST_KINDS = 1_000


class LogPace(logging.Filter):
    """A handler's filter: it leaves out what is too much of one kind, and says how much that was.

    Lines that come from one place in the code are of one kind.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: OrderedDict[Hashable, tuple[RateLimiter, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is written."""
        kind, now = (record.name, record.levelno, str(record.msg)), self._clock()
        pacing, left_out = self._kinds.pop(kind, (RateLimiter(PER_S, AT_ONCE, now), 0))
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
