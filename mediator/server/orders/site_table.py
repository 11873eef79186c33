"""SiteTable: the current state of every site that has joined."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ...core.health import SiteHealth, SiteState
from ...errors import NoSuchSite
from ...proto import federation_pb2 as pb
from ...wire.messages import Capacity, RunId, SiteName
from .site_orders import SiteOrders

HELD_BACK_STATES = (SiteState.SUSPECT, SiteState.LOST, SiteState.LEFT)


class AgentLink(Protocol):
    """An open session with a site's agent."""

    serial: str
    """Of the certificate that it began with."""
    agent: str

    def send(self, message: pb.ToSite) -> None:
        """Number it and send it."""

    def end(self, reason: str, *, final: bool) -> None:
        """Say farewell."""


@dataclass(slots=True)
class SiteEntry:
    """What is known of one site now."""

    name: SiteName
    standing: SiteHealth
    first_joined: float
    capacity: Capacity = field(default_factory=Capacity)
    data_json: str = ""
    agent: str = ""
    version: str = ""
    removed: bool = False
    session: AgentLink | None = None
    orders: SiteOrders = field(default_factory=SiteOrders)
    holding: dict[RunId, int] = field(default_factory=dict)
    """The runs with reservations here, and the round of each one's last order."""
    owed: set[RunId] = field(default_factory=set)
    """The runs that may have left reservations here, and for which the site is owed a release."""
    claimed: set[RunId] = field(default_factory=set)
    """The runs of both that only the site names: no order was sent for them yet."""
    news_at: float = -math.inf
    """When a heartbeat last changed what coordinators are told of the site."""

    @property
    def reachable(self) -> bool:
        """Whether orders are sent now."""
        return self.session is not None and self.standing.state not in HELD_BACK_STATES


class SiteTable:
    """All sites that have joined, by name."""

    def __init__(self) -> None:
        self._entries: dict[SiteName, SiteEntry] = {}

    def add(self, entry: SiteEntry) -> None:
        self._entries[entry.name] = entry

    def get(self, name: str) -> SiteEntry | None:
        """A site's entry, if it has joined."""
        return self._entries.get(SiteName(name))

    def entry(self, name: str) -> SiteEntry:
        """A site's entry; NoSuchSite names the sites that have joined."""
        entry = self.get(name)
        if entry is None:
            known = ", ".join(sorted(self._entries)[:20]) or "none"
            raise NoSuchSite(f"no site {name[:80]!r} has joined; those that have: {known}")
        return entry

    def __iter__(self) -> Iterator[SiteEntry]:
        return iter([self._entries[name] for name in sorted(self._entries)])
