"""Hearing: what sites say has happened, as far as it is believed, and not without end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from fedpilot.mediator import Payload

from ...core.rounds.site_events import Allowance, NotBelieved, believed

PER_S, AT_ONCE = 20.0, 2_000.0
"""Events of one site; all its workers may come up at once."""
SAID_EVERY_S = 60.0
"""How often it is logged that a site says too much."""

log = logging.getLogger(__name__)


class Hearing:
    """Listens to all sites of a run; from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._allowances: dict[str, Allowance] = {}
        self._dropped: dict[str, tuple[float, int]] = {}
        """When that was logged last, and how many were dropped since."""

    def fields(self, happened: Payload) -> Mapping[str, Any] | None:
        """What is to be passed on of it; None if nothing, which the log says.

        The mediator has put the name of the site into its header.
        """
        site, now = str(happened.header["site"]), self._clock()
        with self._lock:
            if site not in self._allowances:
                self._allowances[site] = Allowance(PER_S, AT_ONCE, now)
            if not self._allowances[site].takes(now):
                self._drop(site, now)
                return None
        try:
            return believed(happened.kind, happened.header)
        except NotBelieved as error:
            log.warning("what site %s says is not believed: %s", site, error)
            return None

    def _drop(self, site: str, now: float) -> None:
        said, dropped = self._dropped.get(site, (now - SAID_EVERY_S, 0))
        dropped += 1
        if now - said >= SAID_EVERY_S:
            log.warning("site %s says too much: %d of its events are dropped", site, dropped)
            said, dropped = now, 0
        self._dropped[site] = said, dropped
