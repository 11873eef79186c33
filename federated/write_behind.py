"""WriteBehind: writes a run's files in order, behind its rounds, so that no round waits for a disk.

What is written only saves work after a crash, so it may lag: what has not been written yet is done
again by `--resume`, to the same bits. Where the disk is slower than the rounds, a newer version of
a file takes the place of one that still waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

LAG = 16
"""Writes that wait in order; beyond it newer versions replace older ones."""
MOST = 64
"""Writes that may wait; beyond it the rounds do."""
STALLED_S = 600.0
"""How long the rounds wait for the disk before they give up."""


class WriteBehind:
    """A thread that writes; what goes wrong there is raised by the next call."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str | None, Callable[[], None]]] = deque()
        self._changed = threading.Condition()
        self._busy = self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="write-behind", daemon=True)
        self._thread.start()

    def put(self, write: Callable[[], None], *, instead_of: str | None = None) -> None:
        """Write this after everything before it, `instead_of` an older write of that name."""
        with self._changed:
            self._wait_until(lambda: len(self._waiting) < MOST)
            if instead_of is not None and len(self._waiting) >= LAG:
                kept = [each for each in self._waiting if each[0] != instead_of]
                self._waiting = deque(kept)
            self._waiting.append((instead_of, write))
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything is written."""
        with self._changed:
            self._wait_until(lambda: not (self._waiting or self._busy))

    def close(self) -> None:
        """Write what waits, then end; may be called twice."""
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
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                _, write = self._waiting.popleft()
                self._busy = True
            try:
                write()
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._waiting.clear()
                    self._busy = False
                    self._changed.notify_all()
                return
