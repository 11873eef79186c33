"""SiteEvents: passes the events of a federation's sites to listeners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ..workload import Notify, Payload

Hear = Callable[[str, Payload | None], None]
"""Called with a site and its event, None if the site was lost or returned; must not block."""


class SiteEvents:
    """The listeners of one federation."""

    def __init__(self) -> None:
        self._hearers: list[Hear] = []

    @contextmanager
    def heard_by(self, hear: Hear) -> Iterator[None]:
        """Pass sites' events to a listener, in the thread of each event."""
        self._hearers = [*self._hearers, hear]
        try:
            yield
        finally:
            self._hearers = [each for each in self._hearers if each is not hear]

    def tell(self, site: str, payload: Payload | None = None) -> None:
        """Pass an event of a site to all listeners."""
        for hear in self._hearers:
            hear(site, payload)

    def notifier(self, site: str, notify: Notify) -> Notify:
        """Make a site's callback: sets the site's name in events, then notifies all."""

        def told(payload: Payload) -> None:
            name = {"site": site}
            named = replace(payload, header=name | dict(payload.header) | name)
            notify(named)
            self.tell(site, named)

        return told
