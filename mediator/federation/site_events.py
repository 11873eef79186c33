"""SiteEvents: tells listeners what happens at the sites of a federation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ..workload import Notify, Payload

Hear = Callable[[str, Payload | None], None]
"""Gets a site and its event; None if the site was lost or came back. It must not block."""


class SiteEvents:
    """The listeners of one federation."""

    def __init__(self) -> None:
        self._hearers: list[Hear] = []

    @contextmanager
    def heard_by(self, hear: Hear) -> Iterator[None]:
        """Tell a listener what happens at sites, from whichever thread it happens in."""
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
        """The callback of one site: its events go to `notify`, then to the listeners.

        It overwrites the site's name in the event.
        """

        def told(payload: Payload) -> None:
            name = {"site": site}
            named = replace(payload, header=name | dict(payload.header) | name)
            notify(named)
            self.tell(site, named)

        return told
