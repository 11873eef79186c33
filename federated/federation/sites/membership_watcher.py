"""MembershipWatcher: a thread that checks a run's sites when one changes, and every few seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from functools import partial
from typing import Any

from fedpilot.mediator import Payload

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between checks without news."""
AGAIN_S = 10.0
"""Seconds before a site that could not be brought in is tried again."""

Look = Callable[[Collection[str]], dict[str, Future[Any]]]
"""Acts on all sites except the given busy ones; returns a future for each site under change."""


class MembershipWatcher:
    """Calls `look`, first at once, until its owner closes it."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._news = threading.Event()
        self._news.set()
        self._closed = False
        self._busy: dict[str, float] = {}
        """Busy sites, and until when they are left alone."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="sites", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Check soon."""
        self._news.set()

    def hear(self, site: str, payload: Payload | None) -> None:
        """Check soon if a site was lost or came back."""
        if payload is None:
            self.wake()

    def close(self) -> None:
        """End; may be called twice."""
        self._closed = True
        self._news.set()
        self._thread.join(LOOK_S)

    def _run(self) -> None:
        while not self._closed:
            self._news.wait(LOOK_S)
            self._news.clear()
            if self._closed:
                return
            now = time.monotonic()
            with self._lock:
                self._busy = {site: until for site, until in self._busy.items() if until > now}
                busy = set(self._busy)
            try:
                begun = self._look(busy)
            except Exception:
                log.exception("the sites could not be looked at")  # the next turn looks again
                continue
            for site, future in begun.items():
                with self._lock:
                    self._busy[site] = float("inf")
                future.add_done_callback(partial(self._ended, site))

    def _ended(self, site: str, done: Future[Any]) -> None:
        error = done.exception()
        if error is not None:
            log.warning("site %s could not be brought in or drained: %s", site, error)
        with self._lock:
            if error is None:
                self._busy.pop(site, None)
            else:
                self._busy[site] = time.monotonic() + AGAIN_S
        self._news.set()  # it may have changed meanwhile
