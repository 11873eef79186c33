"""Sites: who has joined, how each stands, what is open there, and what of it to tell whom.

Health is decided in core/health.py, orders in orders.py; here is what follows: what is sent, what
waits, who is told, what is remembered. A site whose session ended is not given up by that: silence
and time decide. Orders for a suspect site wait; a lost one fails all that it had.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from ..blobs import Blob, BlobStore
from ..core.health import SiteEvent, SiteState, Standing, Wish, after, due, joined, works
from ..core.traffic import Direction, Flow
from ..errors import NoSuchSite, SiteLost, WorkFailed
from ..proto import federation_pb2 as pb
from ..runner.failures import told
from ..runner.keeping import Keeping
from ..store import SiteRecord
from ..wire import (
    COMMANDS,
    Capacity,
    OrderId,
    RunId,
    SiteName,
    SiteStanding,
    blob_of,
    id_message,
    standing_message,
)
from .booking import MESSAGE_BYTES, Booking
from .database import Database
from .events import EventLog
from .orders import Asked, Heard, OpenOrder, SiteOrders
from .settings import ServerSettings
from .switchboard import Switchboard

log = logging.getLogger(__name__)

TOLD_AFTER_S = 0.05
"""Changes of sites are told together: many may join or fall silent at once."""
TOLD_TOGETHER_BYTES = 1 << 20
LONGEST_REASON = 500
"""Characters of what a site says is wrong with it."""
HELD_BACK_STATES = (SiteState.SUSPECT, SiteState.LOST, SiteState.LEFT)
RELEASE = "release"
"""The key of the order that a run's part at a site ends with."""
EVENTS = "events"
"""The purpose of what a site says beside its answers."""


class Session(Protocol):
    """A conversation with a site's agent that is going on."""

    serial: str
    """Of the certificate that it was begun with."""
    agent: str

    def send(self, message: pb.ToSite) -> None:
        """Number it and send it."""

    def end(self, reason: str, *, final: bool) -> None:
        """Say farewell."""


class ForgetUploads(Protocol):
    """Takes nothing more for a run, or of it from one site, or for one order."""

    def __call__(self, run: str, *, site: str = "", key: str = "") -> None: ...


@dataclass(slots=True)
class SiteEntry:
    """What is known of one site now."""

    name: SiteName
    standing: Standing
    first_joined: float
    capacity: Capacity = field(default_factory=Capacity)
    data_json: str = ""
    agent: str = ""
    version: str = ""
    removed: bool = False
    session: Session | None = None
    orders: SiteOrders = field(default_factory=SiteOrders)
    holding: dict[RunId, int] = field(default_factory=dict)
    """The runs that have something reserved here, and the last round that they asked for."""
    owed: set[RunId] = field(default_factory=set)
    """The runs that want nothing of it any more, and that may have left something here."""

    @property
    def reachable(self) -> bool:
        """Whether orders are sent now."""
        return self.session is not None and self.standing.state not in HELD_BACK_STATES


class Sites:
    """All sites of the federation."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        clock: Callable[[], float],
        database: Database,
        events: EventLog,
        switchboard: Switchboard,
        booking: Booking,
        blobs: BlobStore,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._database = database
        self._events = events
        self._switchboard = switchboard
        self._booking = booking
        self._blobs = blobs
        self._keeping = Keeping(blobs, discard=True)
        self._sites: dict[SiteName, SiteEntry] = {}
        self._commands: dict[OrderId, asyncio.Future[pb.Answer]] = {}
        self._ticked_at = clock()
        self._untold: set[SiteName] = set()
        self._telling: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self.forget_uploads: ForgetUploads = lambda run, *, site="", key="": None
        """Called when nobody waits for blobs any more, of a run or of one site's order."""

    async def load(self) -> None:
        """Remember the sites of before; those that were in contact have the grace to come back."""
        now = self._clock()
        for record in await self._database.ask(self._database.store.sites):
            gone = record.removed or record.state in (SiteState.LOST, SiteState.LEFT)
            state = record.state if gone else SiteState.SUSPECT
            standing = Standing(
                state=state,
                since=record.since if gone else now,
                heard_at=now,
                reason=record.reason if gone else "the mediator was restarted",
                wish=record.wish,
                was_lost=state is SiteState.LOST,
            )
            self._sites[SiteName(record.name)] = SiteEntry(
                name=SiteName(record.name),
                standing=standing,
                first_joined=record.first_joined,
                data_json=record.data_json,
                agent=record.agent,
                version=record.version,
                removed=record.removed,
            )

    # -- what a site says -------------------------------------------------------------------------

    def begin(self, name: SiteName, hello: pb.Hello, capacity: Capacity, session: Session) -> None:
        """A session has begun; it takes the place of the one before."""
        now = self._clock()
        entry = self._sites.get(name)
        if entry is None:
            entry = SiteEntry(name=name, standing=joined(now), first_joined=now)
            self._sites[name] = entry
            self._said(entry)
        if entry.session is not None:
            other = entry.agent != hello.agent
            why = "another agent speaks for this site now" if other else "a newer session began"
            entry.session.end(why, final=other)
        entry.session = session
        entry.capacity, entry.data_json = capacity, hello.data_json
        entry.agent, entry.version = hello.agent, hello.version
        entry.removed = False
        held = [OrderId(RunId(each.run), each.key) for each in hello.held]
        for over in entry.orders.reconnected(held, self._switchboard.goes_on):
            self._acknowledge(entry, over)
        given_up = not works(entry.standing.state)
        for run in ({RunId(each) for each in hello.runs} | {id.run for id in held}) - {COMMANDS}:
            if given_up or run in entry.owed or not self._switchboard.goes_on(run):
                entry.owed.add(run)
            else:
                entry.holding.setdefault(run, 0)
        self._apply(entry, SiteEvent.HEARD, "it is in contact again")
        self._collect(entry)
        self._remember(entry)
        self._tell_soon(entry)
        self._send_waiting(entry)

    def over(self, name: SiteName, session: Session) -> None:
        """A session has ended, for whatever reason."""
        entry = self._sites.get(name)
        if entry is not None and entry.session is session:
            entry.session = None
            for order in entry.orders.open.values():
                order.sent = False  # the next hello says what has arrived

    def heartbeat(self, name: SiteName, capacity: Capacity, trouble: str) -> list[RunId]:
        """A site lives; gives the runs whose leases there go on."""
        entry = self._sites[name]
        if entry.capacity.total != capacity.total:
            self._tell_soon(entry)
        entry.capacity = capacity
        if trouble:
            self._apply(entry, SiteEvent.TROUBLED, _plain(trouble))
        else:
            worked = works(entry.standing.state)
            self._apply(entry, SiteEvent.HEARD, "it is in contact again")
            if not worked:
                self._collect(entry)
        return sorted(self._switchboard.going_on)

    def taken(self, name: SiteName, id: OrderId, nbytes: int) -> None:
        """An order has reached whoever works on it."""
        entry = self._sites[name]
        order = entry.orders.open.get(id)
        if order is not None:
            self._book(entry, order, Direction.FROM_SITE, nbytes)

    def answered(self, name: SiteName, answer: pb.Answer, id: OrderId, nbytes: int) -> str:
        """An answer has come; gives why it is refused, or nothing."""
        entry = self._sites[name]
        if id.key == RELEASE:
            entry.owed.discard(id.run)
        order = entry.orders.open.get(id)
        if order is not None:
            self._book(entry, order, Direction.FROM_SITE, nbytes)
            if order.answer is None and (problem := self._problem_of(order, answer)):
                return problem
        match entry.orders.answered(id, answer):
            case Heard.UNWANTED:
                self._acknowledge(entry, id)
            case Heard.WANTED if order is not None:
                self._pass_on(entry, order)
            case _ if id.run == COMMANDS or not self._switchboard.goes_on(id.run):
                self._end(entry, id)
        return ""

    def _problem_of(self, order: OpenOrder, answer: pb.Answer) -> str:
        blob = blob_of(answer.done.blob) if answer.WhichOneof("result") == "done" else None
        if blob is None:
            return ""
        if not self._blobs.has(blob):
            return f"its blob {blob.digest} was not pushed before"
        self._expect(order, blob)  # it may have been pushed to the mediator before us
        return ""

    def happened(self, name: SiteName, happened: pb.Happened, nbytes: int) -> None:
        """Something that the coordinator of a run may show; it is told if it is there."""
        entry, run = self._sites[name], RunId(happened.run)
        if run not in entry.holding:
            return
        flow = Flow(entry.holding[run], name, Direction.FROM_SITE, EVENTS)
        self._booking.book(run, flow, nbytes + MESSAGE_BYTES)
        told_ = pb.SiteHappened(site=name, happened=happened)
        self._switchboard.tell(run, pb.ToCoordinator(happened=told_))

    # -- blobs ------------------------------------------------------------------------------------

    def refuses_fetch(self, name: str, digest: str) -> str:
        """Why a site may not have a blob: no order of it names one."""
        entry = self._sites.get(SiteName(name))
        if entry is None or entry.orders.naming(digest) is None:
            return f"no order of site {name} names blob {digest}"
        return ""

    def refuses_push(self, name: str, id: OrderId, blob: Blob) -> str:
        """Why an order's answer may not bring a blob; if it may, the blob is kept for it."""
        entry = self._sites.get(SiteName(name))
        order = None if entry is None else entry.orders.open.get(id)
        if entry is None or order is None:
            if entry is not None:
                self._acknowledge(entry, id)
            return f"nobody waits for order {id.key} of run {id.run} at site {name}"
        if order.answer is not None and order.brought != blob.digest:
            return f"order {id.key} of run {id.run} is answered with another blob"
        self._expect(order, blob)
        return ""

    def _expect(self, order: OpenOrder, blob: Blob) -> None:
        """Keep the blob of an order's answer, there or still to come."""
        if order.brought != blob.digest:
            self._blobs.pin(blob.digest)
            if order.brought:
                self._blobs.unpin(order.brought)
            order.brought = blob.digest

    def book_blob(self, name: str, direction: Direction, digest: str, nbytes: int) -> None:
        """Bytes of a blob crossed a site's boundary."""
        entry = self._sites.get(SiteName(name))
        if entry is None:
            return
        to_site = direction is Direction.TO_SITE
        order = entry.orders.naming(digest) if to_site else entry.orders.bringing(digest)
        if order is None:
            self._booking.session(name, direction, nbytes)
        else:
            self._book(entry, order, direction, nbytes)

    # -- what coordinators ask --------------------------------------------------------------------

    def ask(self, name: str, message: pb.Order, id: OrderId) -> None:
        """Send an order to a site, now or when it can be; its answer goes to the coordinator."""
        entry = self._sites.get(SiteName(name))
        if entry is None or not works(entry.standing.state):
            reason = "there is no such site" if entry is None else entry.standing.reason
            self._fail(id, SiteLost(name[:80], reason))
            return
        asked, order = entry.orders.ask(id, message)
        entry.holding[id.run] = message.round or entry.holding.get(id.run, 0)
        entry.owed.discard(id.run)
        if order.blob and not order.kept:
            order.kept = self._keeping.keep_again(order.blob)
            if asked is Asked.NEW and not order.kept:
                del entry.orders.open[id]
                self._fail(id, WorkFailed(name, "BadBlob", f"blob {order.blob} is not there"))
                return
        if asked is Asked.ANSWERED:
            self._pass_on(entry, order)
        else:
            self._send_waiting(entry)

    def withdraw(self, name: str, id: OrderId) -> None:
        """The coordinator has the answer, or does not want it any more."""
        entry = self._sites.get(SiteName(name))
        if entry is not None:
            self._end(entry, id)

    def detached(self, run: RunId) -> None:
        """The coordinator of a run has gone, and may come back."""
        for entry in self._sites.values():
            entry.orders.detached(run)

    def run_over(self, run: RunId) -> None:
        """A run is over: nothing of it is waited for, and what sites still hold they give back."""
        for entry in self._sites.values():
            if entry.holding.pop(run, None) is not None:
                entry.owed.add(run)
            for order in entry.orders.of_run(run):
                self._end(entry, order.id)
            self._collect(entry)
        self.forget_uploads(run)
        self._booking.forget(run)

    def _collect(self, entry: SiteEntry) -> None:
        """Have a site give back what nobody wants there; asked again until it says that it has.

        A run that goes on wants back what it gave up with a site that was lost, unless that is
        not to work again.
        """
        if entry.session is None or not works(entry.standing.state):
            return
        for run in sorted(entry.owed):
            if self._switchboard.goes_on(run) and entry.standing.wish is Wish.OPEN:
                continue
            id = pb.OrderId(run=run, key=RELEASE)
            release = pb.Order(id=id, verb="release", kind="release", header_json="{}")
            message = pb.ToSite(order=release)
            self._booking.session(entry.name, Direction.TO_SITE, message.ByteSize())
            entry.session.send(message)

    async def command(self, name: str, kind: str, header_json: str, timeout_s: float) -> pb.Answer:
        """Have a site's agent run a command beside it; TimeoutError, NoSuchSite, SiteLost."""
        entry = self.entry(name)
        id = OrderId(RunId(COMMANDS), f"command/{secrets.token_hex(8)}")
        message = pb.Order(
            id=id_message(id), verb="command", kind=kind, header_json=header_json, purpose="command"
        )
        if not works(entry.standing.state):
            raise SiteLost(name, entry.standing.reason)
        answer: asyncio.Future[pb.Answer] = asyncio.get_running_loop().create_future()
        self._commands[id] = answer
        try:
            self.ask(name, message, id)
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise TimeoutError(f"site {name} did not answer within {timeout_s:g} s") from None
        finally:
            del self._commands[id]
            self._end(entry, id)
            entry.holding.pop(id.run, None)

    # -- what admins wish, and time brings --------------------------------------------------------

    def change(self, name: str, event: SiteEvent, reason: str) -> SiteEntry:
        """Do what an admin wishes; NoSuchSite."""
        entry = self.entry(name)
        self._apply(entry, event, reason)
        self._collect(entry)
        if event is SiteEvent.REMOVE:
            entry.removed = True
            if entry.session is not None:
                entry.session.end(reason, final=True)
        self._remember(entry)
        return entry

    async def drained(self, name: str, timeout_s: float) -> None:
        """Wait until a site that drains is empty; TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while self.entry(name).standing.state is SiteState.DRAINING:
                await self._changed.wait()

    def tick(self) -> None:
        """What time alone brings about."""
        now = self._clock()
        self._forgive(now)
        for entry in self._sites.values():
            while (found := due(entry.standing, now, self._settings.health)) is not None:
                self._apply(entry, *found)
            draining = entry.standing.state is SiteState.DRAINING
            if draining and not (entry.holding or entry.owed or entry.orders.open):
                self._apply(entry, SiteEvent.DRAINED, "nothing is left there")

    def _forgive(self, now: float) -> None:
        """Time in which this process stood still is nobody's silence."""
        stood_still, self._ticked_at = now - self._ticked_at, now
        if stood_still < self._settings.health.silent_after_s / 3:
            return
        log.warning("this mediator stood still for %.1f s", stood_still)
        for entry in self._sites.values():
            heard_at = entry.standing.heard_at + stood_still
            entry.standing = replace(entry.standing, heard_at=min(now, heard_at))

    def end_sessions(self, serials: Collection[str]) -> None:
        """End the sessions that were begun with certificates that are revoked now."""
        for entry in self._sites.values():
            if entry.session is not None and entry.session.serial in serials:
                entry.session.end("its certificate was revoked", final=True)

    def end_all(self, reason: str) -> None:
        """The mediator ends: sites come back when there is one again."""
        for entry in self._sites.values():
            if entry.session is not None:
                entry.session.end(reason, final=False)

    # -- looking ----------------------------------------------------------------------------------

    def entry(self, name: str) -> SiteEntry:
        """What is known of a site; NoSuchSite names those that there are."""
        entry = self._sites.get(SiteName(name))
        if entry is None:
            known = ", ".join(sorted(self._sites)[:20]) or "none"
            raise NoSuchSite(f"no site {name[:80]!r} has joined; those that have: {known}")
        return entry

    def entries(self) -> Iterable[SiteEntry]:
        """All sites, by name."""
        return [self._sites[name] for name in sorted(self._sites)]

    def standings(self, names: Collection[SiteName] | None = None) -> list[pb.ToCoordinator]:
        """What coordinators are told of some sites, or of all; in several messages if it is much.

        The first is there even where there is no site.
        """
        messages, size = [pb.Sites()], 0
        for name in sorted(self._sites if names is None else names):
            told_ = _standing(self._sites[name])
            size += told_.ByteSize()
            if size > TOLD_TOGETHER_BYTES and messages[-1].sites:
                messages.append(pb.Sites())
                size = told_.ByteSize()
            messages[-1].sites.append(told_)
        return [pb.ToCoordinator(sites=each) for each in messages]

    # -- effects ----------------------------------------------------------------------------------

    def _apply(self, entry: SiteEntry, event: SiteEvent, reason: str) -> None:
        before, entry.standing = (
            entry.standing,
            after(entry.standing, event, self._clock(), reason),
        )
        state = entry.standing.state
        if state is before.state:
            if entry.standing.wish is not before.wish:
                self._remember(entry)
            return
        self._said(entry)
        self._remember(entry)
        self._tell_soon(entry)
        if not works(state) and works(before.state):
            failure = told(SiteLost(entry.name, entry.standing.reason))
            for order in entry.orders.lost(failure):
                self._let_go(entry, order)
                self._pass_on(entry, order)
            entry.owed |= entry.holding.keys() - {COMMANDS}
            entry.holding.clear()
        elif before.state is SiteState.SUSPECT:
            self._send_waiting(entry)

    def _said(self, entry: SiteEntry) -> None:
        standing = entry.standing
        log.info("site %s is %s: %s", entry.name, standing.state, standing.reason)
        self._events.say(
            f"site_{standing.state}", site=entry.name, state=standing.state, reason=standing.reason
        )

    def _remember(self, entry: SiteEntry) -> None:
        standing = entry.standing
        record = SiteRecord(
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
        self._database.write(self._database.store.put_site, record)

    def _tell_soon(self, entry: SiteEntry) -> None:
        self._untold.add(entry.name)
        if self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(TOLD_AFTER_S, self._tell)

    def _tell(self) -> None:
        names, self._untold = self._untold, set()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._telling = None
        for message in self.standings(names):
            self._switchboard.tell_all(message)

    def _send_waiting(self, entry: SiteEntry) -> None:
        if not entry.reachable or entry.session is None:
            return
        for order in entry.orders.unsent():
            message = pb.ToSite(order=order.message)
            order.sent = True
            self._book(entry, order, Direction.TO_SITE, message.ByteSize())
            entry.session.send(message)

    def _pass_on(self, entry: SiteEntry, order: OpenOrder) -> None:
        """Give an answer to whoever asked; what was counted for it comes before it."""
        if order.answer is None:
            return
        if (command := self._commands.get(order.id)) is not None:
            if not command.done():
                command.set_result(order.answer)
            return
        self._note(entry, order)
        if (counted := self._booking.tell(order.id.run)) is not None:
            self._switchboard.tell(order.id.run, counted)
        answer = pb.SiteAnswer(site=entry.name, answer=order.answer)
        self._switchboard.tell(order.id.run, pb.ToCoordinator(answer=answer))

    def _note(self, entry: SiteEntry, order: OpenOrder) -> None:
        """Whether the site holds something for the run now."""
        if order.message is None or order.answer is None:
            return
        refused = order.message.verb == "prepare" and order.answer.done.kind != "promised"
        if refused or order.message.verb == "release":
            entry.holding.pop(order.id.run, None)

    def _fail(self, id: OrderId, error: SiteLost | WorkFailed) -> None:
        answered = pb.Answer(id=id_message(id), failure=told(error))
        answer = pb.SiteAnswer(site=error.site, answer=answered)
        self._switchboard.tell(id.run, pb.ToCoordinator(answer=answer))

    def _end(self, entry: SiteEntry, id: OrderId) -> None:
        """Nobody waits for an order any more; a site that has answered it may forget it."""
        order = entry.orders.end(id)
        if order is None:
            return
        self._let_go(entry, order)
        if order.answer is not None:
            self._acknowledge(entry, id)

    def _let_go(self, entry: SiteEntry, order: OpenOrder) -> None:
        if order.kept:
            self._keeping.let_go(order.blob)
        if order.brought:
            self.forget_uploads(order.id.run, site=entry.name, key=order.id.key)
            self._blobs.unpin(order.brought)
            if self._keeping.keep_again(order.brought):
                self._keeping.let_go(order.brought)  # which removes it, if nobody else needs it

    def _acknowledge(self, entry: SiteEntry, id: OrderId) -> None:
        if entry.session is not None:
            message = pb.ToSite(answer_taken=pb.AnswerTaken(id=id_message(id)))
            entry.session.send(message)
            self._booking.session(entry.name, Direction.TO_SITE, message.ByteSize())

    def _book(self, entry: SiteEntry, order: OpenOrder, direction: Direction, nbytes: int) -> None:
        flow = Flow(order.round_number, entry.name, direction, order.purpose)
        self._booking.book(order.id.run, flow, nbytes + MESSAGE_BYTES)


def _standing(entry: SiteEntry) -> pb.SiteStanding:
    return standing_message(
        SiteStanding(
            name=entry.name,
            state=entry.standing.state,
            reason=entry.standing.reason,
            capacity=entry.capacity,
            data_json=entry.data_json,
        )
    )


def _plain(text: str) -> str:
    """What a site says, as one line of plain text."""
    line = " ".join(text[:LONGEST_REASON].split())
    return "".join(each if each.isprintable() else "?" for each in line)
