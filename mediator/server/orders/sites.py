"""SiteRegistry: the sites that have joined, and the effects of their changes of state.

`core/health.py` decides the states. The registry informs coordinators, writes the store and has
`order_dispatcher.py` act on the site's orders. Silence makes a site lost, not the end of its
session. Orders for a suspect site wait; all orders of a lost one fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import InitVar, dataclass, field, replace

from fedpilot.common.text.plain_text import one_line

from ...core.health import SiteEvent, SiteHealth, SiteState, Wish, after, due, joined, works
from ...core.links import LinkSpeed
from ...proto import federation_pb2 as pb
from ...wire.blobs.store import BlobStore
from ...wire.messages import (
    Capacity,
    RunId,
    SiteName,
    SiteStanding,
    link_figures,
    standing_message,
)
from ..events import EventLog
from ..settings import ServerSettings
from ..store import SiteRecord
from ..store.database import Database
from .coordinator_registry import CoordinatorRegistry
from .order_blobs import OrderBlobs
from .order_dispatcher import OrderDispatcher
from .site_table import AgentLink, SiteEntry, SiteTable
from .traffic_accounting import TrafficAccounting

log = logging.getLogger(__name__)

TOLD_AFTER_S = 0.05
"""Changes are sent together after this time, since many sites may join or fall silent at once."""
TOLD_TOGETHER_BYTES = 1 << 20
LONGEST_REASON = 500
"""Characters of the trouble that a site reports."""


@dataclass(eq=False)
class SiteRegistry:
    """All sites of the federation."""

    _settings: ServerSettings
    _clock: Callable[[], float]
    _database: Database
    _events: EventLog
    _attached: CoordinatorRegistry
    accounting: InitVar[TrafficAccounting]
    blobs: InitVar[BlobStore]
    table: SiteTable = field(default_factory=SiteTable)
    _untold: set[SiteName] = field(default_factory=set)
    _telling: asyncio.TimerHandle | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self, accounting: TrafficAccounting, blobs: BlobStore) -> None:
        self._ticked_at = self._clock()
        kept = OrderBlobs(blobs, self._clock)
        self.orders = OrderDispatcher(
            self.table, self._attached, accounting, blobs, kept, self._moved, self._clock
        )

    async def load(self) -> None:
        """Read the known sites from the store; those that were in contact start as suspect."""
        now = self._clock()
        for record in await self._database.ask(self._database.store.sites):
            gone = record.removed or record.state in (SiteState.LOST, SiteState.LEFT)
            state = record.state if gone else SiteState.SUSPECT
            standing = SiteHealth(
                state=state,
                since=record.since if gone else now,
                heard_at=now,
                reason=record.reason if gone else "the mediator was restarted",
                wish=record.wish,
                was_lost=state is SiteState.LOST,
            )
            self.table.add(
                SiteEntry(
                    name=SiteName(record.name),
                    standing=standing,
                    first_joined=record.first_joined,
                    data_json=record.data_json,
                    agent=record.agent,
                    version=record.version,
                    removed=record.removed,
                )
            )

    # -- what a site says -------------------------------------------------------------------------

    def begin(
        self, name: SiteName, hello: pb.Hello, capacity: Capacity, session: AgentLink
    ) -> None:
        """Begin a session, which replaces the site's previous one."""
        now = self._clock()
        entry = self.table.get(name)
        if entry is None:
            entry = SiteEntry(name=name, standing=joined(now), first_joined=now)
            self.table.add(entry)
            self._said(entry)
        if entry.session is not None:
            other = entry.agent != hello.agent
            why = "another agent speaks for this site now" if other else "a newer session began"
            entry.session.end(why, final=other)
        entry.session = session
        new_data = entry.data_json != hello.data_json
        entry.capacity, entry.data_json = capacity, hello.data_json
        entry.link.declared = LinkSpeed.told(link_figures(hello.link))
        entry.agent, entry.version = hello.agent, hello.version
        entry.removed = False
        self.orders.reconnected(entry, hello)
        self._apply(entry, SiteEvent.HEARD, "it is in contact again")
        self.orders.collect(entry)
        self._remember(entry, with_data=new_data)
        self._tell_soon(entry)
        self.orders.send_waiting(entry)

    def over(self, name: SiteName, session: AgentLink) -> None:
        """Record that a session has ended, for any reason."""
        entry = self.table.get(name)
        if entry is not None and entry.session is session:
            entry.session = None

    def heartbeat(
        self, name: SiteName, capacity: Capacity, trouble: str, round_trip_s: float = 0.0
    ) -> list[RunId]:
        """Take a site's heartbeat; return the runs whose leases there go on.

        News for coordinators counts once per heartbeat interval; earlier news must be repeated.
        """
        entry, now = self.table.entry(name), self._clock()
        entry.link.round_trip(round_trip_s)
        event, reason = SiteEvent.HEARD, "it is in contact again"
        if trouble:
            event, reason = SiteEvent.TROUBLED, one_line(trouble, LONGEST_REASON)
        turns = after(entry.standing, event, now, reason).state is not entry.standing.state
        grows = entry.capacity.total != capacity.total
        early = now - entry.news_at < self._settings.health.heartbeat_s
        if not ((turns or grows) and early):
            if grows:
                self._tell_soon(entry)
            if turns or grows:
                entry.news_at = now
            entry.capacity = capacity
            worked = works(entry.standing.state)
            self._apply(entry, event, reason)
            if not worked and event is SiteEvent.HEARD:
                self.orders.collect(entry)
        if entry.link.known(now).is_news_to(entry.link_told):
            self._tell_soon(entry)
        return sorted(self._attached.going_on)

    def _moved(self, entry: SiteEntry) -> None:
        """Count bytes of a blob on a site's link as a sign of life, like a heartbeat."""
        self._apply(entry, SiteEvent.MOVED, "its transfers go on")

    # -- changes by admins, and by time -----------------------------------------------------------

    async def change(self, name: str, event: SiteEvent, reason: str) -> SiteEntry:
        """Apply an admin's change and store it before returning. NoSuchSite, StoreError."""
        entry = self.table.entry(name)
        self._apply(entry, event, reason)
        self._tell()  # at once: coordinators must get the change before its consequences
        self.orders.collect(entry)
        if event is SiteEvent.REMOVE:
            entry.removed = True
            if entry.session is not None:
                entry.session.end(reason, final=True)
        await self._database.ask(self._database.store.put_site, _record(entry))
        return entry

    async def drained(self, name: str, timeout_s: float) -> None:
        """Wait until a draining site is empty; TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while self.table.entry(name).standing.state is SiteState.DRAINING:
                await self._changed.wait()

    def tick(self) -> None:
        """Apply the transitions that are due by time alone."""
        now = self._clock()
        self._forgive(now)
        for entry in self.table:
            while (found := due(entry.standing, now, self._settings.health)) is not None:
                self._apply(entry, *found)
            draining = entry.standing.state is SiteState.DRAINING
            if draining and not (entry.holding or entry.owed or entry.orders.open):
                self._apply(entry, SiteEvent.DRAINED, "nothing is left there")

    def _forgive(self, now: float) -> None:
        """Exclude time in which this process stood still from the silence of sites."""
        stood_still, self._ticked_at = now - self._ticked_at, now
        if stood_still < self._settings.health.silent_after_s / 3:
            return
        log.warning("this mediator stood still for %.1f s", stood_still)
        for entry in self.table:
            heard_at = entry.standing.heard_at + stood_still
            entry.standing = replace(entry.standing, heard_at=min(now, heard_at))

    def end_sessions(self, serials: Collection[str]) -> None:
        """End the sessions that began with these revoked certificates."""
        for entry in self.table:
            if entry.session is not None and entry.session.serial in serials:
                entry.session.end("its certificate was revoked", final=True)

    def end_all(self, reason: str) -> None:
        """End all sessions; the sites reconnect to the next mediator."""
        for entry in self.table:
            if entry.session is not None:
                entry.session.end(reason, final=False)

    # -- looking ----------------------------------------------------------------------------------

    def standings(self, names: Collection[SiteName] | None = None) -> list[pb.ToCoordinator]:
        """The standings of some or all sites as messages to coordinators, at least one."""
        messages, size = [pb.Sites()], 0
        entries = self.table if names is None else map(self.table.entry, sorted(names))
        for entry in entries:
            told_ = _standing(entry, self._clock())
            size += told_.ByteSize()
            if size > TOLD_TOGETHER_BYTES and messages[-1].sites:
                messages.append(pb.Sites())
                size = told_.ByteSize()
            messages[-1].sites.append(told_)
        return [pb.ToCoordinator(sites=each) for each in messages]

    # -- effects ----------------------------------------------------------------------------------

    def _apply(self, entry: SiteEntry, event: SiteEvent, reason: str) -> None:
        before = entry.standing
        entry.standing = after(before, event, self._clock(), reason)
        state = entry.standing.state
        if state is before.state:
            if entry.standing.wish is not before.wish:
                self._remember(entry)
            return
        self._said(entry)
        self._remember(entry)
        self._tell_soon(entry)
        if not works(state) and works(before.state):
            self.orders.lost(entry)
        elif before.state is SiteState.SUSPECT:
            self.orders.send_waiting(entry)

    def _said(self, entry: SiteEntry) -> None:
        standing = entry.standing
        log.info("site %s is %s: %s", entry.name, standing.state, standing.reason)
        self._events.say(
            f"site_{standing.state}", site=entry.name, state=standing.state, reason=standing.reason
        )

    def _remember(self, entry: SiteEntry, *, with_data: bool = False) -> None:
        """Write a site's state; its data only on request, since it is large and rarely changes."""
        put_site = self._database.store.put_site
        self._database.write(put_site, _record(entry), with_data=with_data)

    def _tell_soon(self, entry: SiteEntry) -> None:
        self._untold.add(entry.name)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TOLD_AFTER_S, self._tell)

    def _tell(self) -> None:
        names, self._untold = self._untold, set()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        for name in names:
            entry = self.table.entry(name)
            entry.link_told = entry.link.known(self._clock())
        for message in self.standings(names) if names else ():
            self._attached.tell_all(message)


def _record(entry: SiteEntry) -> SiteRecord:
    standing = entry.standing
    return SiteRecord(
        name=entry.name,
        wish=Wish(standing.wish),
        state=standing.state,
        since=standing.since,
        reason=standing.reason,
        first_joined=entry.first_joined,
        agent=entry.agent,
        version=entry.version,
        data_json=entry.data_json,
        removed=entry.removed,
    )


def _standing(entry: SiteEntry, now: float) -> pb.SiteStanding:
    """A site's standing for coordinators, without its data once it has left."""
    left = entry.standing.state is SiteState.LEFT
    return standing_message(
        SiteStanding(
            name=entry.name,
            state=entry.standing.state,
            reason=entry.standing.reason,
            capacity=entry.capacity,
            data_json="" if left else entry.data_json,
            link=entry.link.known(now),
        )
    )
