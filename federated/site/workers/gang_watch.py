"""GangWatch: looks which places a gang has, and which others claim, in a thread of its own.

The manager may be away for seconds, while it restarts; the pool must not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from fedpilot.fabric import FabricError, Gang, Standing, VNodeId

LOOK_S = 1.0
"""Seconds between two looks."""


class WorkerDeath(NamedTuple):
    """A worker that died, perhaps since others have its place."""

    number: int
    generation: int
    reason: str


class GangWatch:
    """Tells the standing of a gang whenever it has changed, and after each death of a worker."""

    def __init__(
        self, gang: Gang, on_change: Callable[[Standing, Sequence[WorkerDeath]], None]
    ) -> None:
        """`on_change` gets a standing, and the deaths that had been reported before that look."""
        self._gang = gang
        self._on_change = on_change
        self._last = Standing(slots=gang.slots)
        self._closed = False
        self._deaths: list[WorkerDeath] = []
        self._ended: set[VNodeId | None] = set()
        """Vnodes on which all has ended; None: all of them."""
        self._reported: set[VNodeId | None] = set()
        """Those of which the manager knows."""
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="gang-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def look(self, death: WorkerDeath) -> None:
        """Look now, and tell what is found even if nothing has changed."""
        with self._wake:
            self._deaths.append(death)
            self._wake.notify()

    def leave(self, node: VNodeId | None = None) -> None:
        """Give all places up early, or the one of a vnode; may be called again."""
        with self._wake:
            self._ended.add(node)
            self._wake.notify()

    def close(self) -> None:
        """Look no more; a look that is under way ends by itself."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._deaths or self._closed, timeout=LOOK_S)
                if self._closed:
                    return
                deaths, self._deaths = self._deaths, []
                ended, self._ended = self._ended, set()
            found = self._found(ended)
            if deaths or _facts(found) != _facts(self._last):
                self._last = found
                self._on_change(found, deaths)

    def _found(self, ended: Iterable[VNodeId | None]) -> Standing:
        """The standing now; as before if the manager does not say."""
        leaving = set(self._last.notices)
        due = leaving if self._last.leaves_in_s is None else {None}
        self._reported &= due
        try:
            for node in sorted(due & set(ended) - self._reported, key=str):
                self._gang.leave(node)
                self._reported.add(node)
            return self._gang.standing()
        except FabricError:  # it has ended, or the manager is away: workers show what is true
            return self._last


def _facts(standing: Standing) -> Hashable:
    """What of a standing is told as soon as it changes."""
    slots = frozenset((vnode.id, id(group)) for vnode, group, _ in standing.slots)
    notices = frozenset(standing.notices)
    return standing.held, standing.leaves_in_s is None, slots, notices
