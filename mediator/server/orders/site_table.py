"""SiteTable: the current state of every site that has joined, with its open orders.

An order stays open until its coordinator confirms the answer, so a restarted coordinator finds the
answer when it asks again. A restarted mediator adopts the orders that the site holds. Only the site
vouches for those, so they are bounded; the rest wait at the site.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ...core.exchange import OpenRequest, Requester
from ...core.health import SiteHealth, SiteState
from ...core.links import LinkRecord, LinkSpeed
from ...errors import NoSuchSite
from ...proto import federation_pb2 as pb
from ...wire.messages import Capacity, OrderId, RunId, SiteName, id_message

HELD_BACK_STATES = (SiteState.SUSPECT, SiteState.LOST, SiteState.LEFT)
ADOPTED = 256
"""Adopted orders per site; answers to further orders may have to be computed again."""
ADOPTED_ANSWER_BYTES = 32 << 20
"""Bytes of a site's answers to adopted orders, kept until a coordinator asks."""
ADOPTED_BLOB_BYTES = 1 << 30
"""Bytes of the blobs with such answers."""

OpenOrder: TypeAlias = OpenRequest[OrderId, pb.Order, pb.Answer]


class SiteOrders(Requester[OrderId, pb.Order, pb.Answer]):
    """The open orders of a site, in order of arrival."""

    def given_up(self, failure: pb.Failure) -> list[OpenOrder]:
        """End the unanswered orders of a lost site, with that failure as the answer."""
        ended = self.lost()
        for order in ended:
            order.reply = pb.Answer(id=id_message(order.key), failure=failure)
        return ended

    def adopted(self) -> list[OpenOrder]:
        """The orders that no coordinator has asked for since this mediator was started."""
        return [order for order in self.open.values() if order.adopted]

    def too_much(self, order: OpenOrder, *, answer_bytes: int = 0, blob_bytes: int = 0) -> bool:
        """Whether an adopted order's answer, with all adopted `blob_bytes`, exceeds the bounds."""
        if not order.adopted:
            return False
        others = [each.reply for each in self.adopted() if each is not order]
        answer_bytes += sum(reply.ByteSize() for reply in others if reply is not None)
        return answer_bytes > ADOPTED_ANSWER_BYTES or blob_bytes > ADOPTED_BLOB_BYTES

    def of_run(self, run: RunId) -> list[OrderId]:
        return [id for id in self.open if id.run == run]

    def naming(self, digest: str) -> OpenOrder | None:
        """An order that comes with the blob, if there is one."""
        return next((order for order in self.open.values() if blob_of(order) == digest), None)


def blob_of(order: OpenOrder) -> str:
    """Digest of the blob that an order comes with; empty if it has none."""
    return order.message.blob.digest if order.message is not None else ""


def round_of(order: OpenOrder) -> int:
    """The round under which an order's bytes are booked."""
    return order.message.round if order.message is not None else 0


def purpose_of(order: OpenOrder) -> str:
    """The purpose under which an order's bytes are booked."""
    if order.message is None:
        return "unknown"
    return order.message.purpose or order.message.verb


class AgentLink(Protocol):
    """An open session with a site's agent."""

    serial: str
    """The serial number of the certificate that it began with."""

    def send(self, message: pb.ToSite) -> None:
        """Number and send a message."""

    def end(self, reason: str, *, final: bool) -> None:
        """Send a farewell and end the session."""


@dataclass(slots=True)
class SiteEntry:
    """The current facts about one site."""

    name: SiteName
    standing: SiteHealth
    first_joined: float
    capacity: Capacity = field(default_factory=Capacity)
    data_json: str = ""
    agent: str = ""
    version: str = ""
    removed: bool = False
    link: LinkRecord = field(default_factory=LinkRecord)
    link_told: LinkSpeed = field(default_factory=LinkSpeed)
    """What all coordinators have been told of it."""
    session: AgentLink | None = None
    orders: SiteOrders = field(default_factory=SiteOrders)
    holding: dict[RunId, int] = field(default_factory=dict)
    """The runs with reservations here, and the round of each one's last order."""
    owed: set[RunId] = field(default_factory=set)
    """The runs that may have left reservations here, for which the site is owed a release."""
    claimed: set[RunId] = field(default_factory=set)
    """The runs in either that only the site names: no order was sent for them yet."""
    news_at: float = -math.inf
    """When a heartbeat last brought news for coordinators."""

    @property
    def reachable(self) -> bool:
        """Whether orders can be sent now."""
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
