"""GangWatch: looks whether others claim the places of a gang, in a thread of its own.

The manager may be away for seconds, while it restarts; the pool must not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fedpilot.fabric import FabricError, Gang, Standing

LOOK_S = 1.0
"""Seconds between two looks."""


class GangWatch:
    """Tells the standing of a gang whenever it has changed, and after each `look`."""

    def __init__(self, gang: Gang, on_change: Callable[[Standing], None]) -> None:
        self._gang = gang
        self._on_change = on_change
        self._last = Standing()
        self._asked = self._leaves = self._closed = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="gang-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def look(self) -> None:
        """Look now, and tell what is found even if nothing has changed."""
        with self._wake:
            self._asked = True
            self._wake.notify()

    def leave(self) -> None:
        """Give the places up early; may be called again."""
        with self._wake:
            self._leaves = True
            self._wake.notify()

    def close(self) -> None:
        """Look no more; a look that is under way ends by itself."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._asked or self._closed, timeout=LOOK_S)
                if self._closed:
                    return
                asked, self._asked = self._asked, False
                leaves, self._leaves = self._leaves, False
            found = self._found(leaves)
            if asked or (found.held, found.leaves_in_s is None) != (
                self._last.held,
                self._last.leaves_in_s is None,
            ):
                self._last = found
                self._on_change(found)

    def _found(self, leaves: bool) -> Standing:
        """The standing now; as before if the manager does not say."""
        try:
            if leaves and self._last.leaves_in_s is not None:
                self._gang.leave()
            return self._gang.standing()
        except FabricError:  # it has ended, or the manager is away: workers show what is true
            return self._last
