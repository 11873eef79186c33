"""WriteBehind: writes a run's files in order, behind its rounds, so that rounds need not wait.

The files only save work after a crash, so they may lag: `--resume` repeats the unwritten rounds to
the same bits. Short rounds are written several at a time, and a replaced file only once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PACE_S = 0.2
"""Least time between writes, and so the work that a crash costs.

Writing every round of a few milliseconds would take a tenth of a small machine from training.
"""
MOST = 1024
"""Queued writes beyond which rounds wait."""
STALLED_S = 600.0
"""Seconds that rounds wait for the disk before they fail."""


class WriteBehind:
    """A thread that writes; the next call raises its error."""

    def __init__(self) -> None:
        self._waiting: list[tuple[str | None, Callable[[], None]]] = []
        self._changed = threading.Condition()
        self._hurried = self._busy = self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="write-behind", daemon=True)
        self._thread.start()

    def put(self, write: Callable[[], None], *, instead_of: str | None = None) -> None:
        """Queue a write after all before it; it replaces a queued one named `instead_of`."""
        with self._changed:
            self._wait_until(lambda: len(self._waiting) < MOST)
            if instead_of is not None:
                self._waiting = [each for each in self._waiting if each[0] != instead_of]
            self._waiting.append((instead_of, write))
            if len(self._waiting) in (1, MOST):
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything is written."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            try:
                self._wait_until(lambda: not (self._waiting or self._busy))
            finally:
                self._hurried = False

    def close(self) -> None:
        """Write the queue, then end; may be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(STALLED_S)

    def _wait_until(self, true: Callable[[], bool]) -> None:
        met = self._changed.wait_for(lambda: self._error is not None or true(), STALLED_S)
        if self._error is not None:
            raise self._error
        if not met:
            raise TimeoutError(f"the run folder's disk took nothing for {STALLED_S:g} s")

    def _run(self) -> None:
        last = -PACE_S
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                early = last + PACE_S - time.monotonic()
                self._changed.wait_for(self._in_a_hurry, max(0.0, early))
                writes, self._waiting = self._waiting, []
                if not writes:
                    return
                self._busy = True
                self._changed.notify_all()
            last = time.monotonic()
            try:
                for _, write in writes:
                    write()
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._waiting.clear()
                    self._busy = False
                    self._changed.notify_all()
                return

    def _in_a_hurry(self) -> bool:
        return self._hurried or self._closed or len(self._waiting) >= MOST
