"""SiteBoard: the sites known to a coordinator; threads wait here for enough of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from ..core.health import SiteState, takes_new_work
from ..errors import ReservationRefused
from ..wire.messages import SiteName, SiteStanding

COMING = (SiteState.JOINING, SiteState.SUSPECT)
"""States of sites that will soon be ready or lost."""


class SiteBoard:
    """Sites by name; thread-safe."""

    def __init__(self) -> None:
        self._standings: dict[SiteName, SiteStanding] = {}
        self._changed = threading.Condition()
        self._over = ""
        self.told = threading.Event()
        """Set once the sites are known, or the connection has ended."""
        self.on_change: Callable[[SiteStanding], None] = lambda standing: None
        """Called with each site that changes later; it must not wait for an answer."""

    @property
    def sites(self) -> Mapping[SiteName, SiteStanding]:
        with self._changed:
            return dict(self._standings)

    def update(self, changed: Iterable[SiteStanding]) -> None:
        """Take the mediator's report about sites."""
        changed = list(changed)
        with self._changed:
            self._standings |= {standing.name: standing for standing in changed}
            self._changed.notify_all()
        if self.told.is_set():
            for standing in changed:
                self.on_change(standing)
        self.told.set()

    def end(self, reason: str) -> None:
        """Fail all waiting threads after the end of the connection."""
        with self._changed:
            self._over = reason
            self._changed.notify_all()

    def wait_for(
        self,
        min_sites: int,
        required: Collection[str] = (),
        timeout_s: float = 60.0,
        *,
        among: Collection[str] = (),
        settled: bool = False,
    ) -> tuple[SiteStanding, ...]:
        """Wait until enough sites, with the required ones, take new work; return those.

        `among` excludes all others. `settled` also waits for sites that may soon be ready, as all
        may be after a restart of the mediator. ReservationRefused, with reasons, after the timeout.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                ready = [
                    each
                    for name, each in sorted(self._standings.items())
                    if takes_new_work(each.state) and (not among or name in among)
                ]
                missing = sorted({*required} - {each.name for each in ready})
                coming = settled and any(
                    each.state in COMING and (not among or name in among)
                    for name, each in self._standings.items()
                )
                rest = deadline - time.monotonic()
                if len(ready) >= min_sites and not missing and (not coming or rest <= 0):
                    return tuple(ready)
                if self._over or rest <= 0:
                    raise ReservationRefused(self._why_not(min_sites, len(ready), missing))
                self._changed.wait(rest)

    def _why_not(self, min_sites: int, ready: int, missing: list[str]) -> dict[str, str]:
        """Called under the lock."""
        if self._over:
            return {ReservationRefused.NO_SITE: f"the mediator is gone: {self._over}"}
        others = {
            str(name): f"{each.state}: {each.reason}"
            for name, each in self._standings.items()
            if not takes_new_work(each.state)
        }
        unknown = {name: "it has not joined" for name in missing if name not in others}
        wanted = {ReservationRefused.NO_SITE: f"{min_sites} sites are needed, {ready} are ready"}
        return (wanted if ready < min_sites else {}) | others | unknown
