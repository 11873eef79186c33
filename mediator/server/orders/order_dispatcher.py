"""OrderDesk: orders on their way to sites, answers on their way back, and what runs hold there.

What is open and what an answer means is decided in site_orders.py; here is what follows: what is
sent, what waits, who is told, what is counted, which blobs are kept meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Protocol

from ...core.health import Wish, works
from ...core.links import LinkUse
from ...core.traffic import Direction, Flow
from ...errors import SiteLost, WorkFailed
from ...proto import federation_pb2 as pb
from ...wire.blobs.blob import Blob
from ...wire.blobs.references import Keeping
from ...wire.blobs.store import BlobStore
from ...wire.failures import told
from ...wire.messages import COMMANDS, OrderId, RunId, SiteName, blob_of, id_message
from .coordinator_registry import Switchboard
from .site_orders import Asked, Heard, OpenOrder
from .site_table import SiteEntry, SiteTable
from .traffic_accounting import MESSAGE_BYTES, Booking

log = logging.getLogger(__name__)

RELEASE = "release"
"""The key of the order that a run's part at a site ends with."""
EVENTS = "events"
"""The purpose of what a site says beside its answers."""
LARGEST_HAPPENED = 256 << 10
"""Bytes of that which are passed on at once."""


class ForgetUploads(Protocol):
    """Takes nothing more for a run, or of it from one site, or for one order."""

    def __call__(self, run: str, *, site: str = "", key: str = "") -> None: ...


class OrderDesk:
    """The orders of all sites."""

    def __init__(
        self,
        sites: SiteTable,
        *,
        switchboard: Switchboard,
        booking: Booking,
        blobs: BlobStore,
        clock: Callable[[], float],
        moved: Callable[[SiteEntry], None] = lambda entry: None,
    ) -> None:
        """`moved` is told of each site that bytes of a blob went to or came from."""
        self._sites = sites
        self._clock, self._moved = clock, moved
        self._switchboard = switchboard
        self._booking = booking
        self._blobs = blobs
        self._keeping = Keeping(blobs, discard=True)
        self._commands: dict[OrderId, asyncio.Future[pb.Answer]] = {}
        self.forget_uploads: ForgetUploads = lambda run, *, site="", key="": None
        """Called when nobody waits for blobs any more, of a run or of one site's order."""

    # -- how a site stands ------------------------------------------------------------------------

    def reconnected(self, entry: SiteEntry, hello: pb.Hello) -> None:
        """A session has begun, with what the site has open."""
        held = [OrderId(RunId(each.run), each.key) for each in hello.held]
        found = entry.orders.reconnected(held, self._switchboard.goes_on)
        for over in found.over:
            self._acknowledge(entry, over)
        for order in found.dropped:
            self._let_go(entry, order)
        said = ({RunId(each) for each in hello.runs} | {id.run for id in held}) - {COMMANDS}
        self._claimed(entry, said)

    def _claimed(self, entry: SiteEntry, runs: set[RunId]) -> None:
        """A site says that it has something of these runs.

        It is believed of what nobody here knows for as long as it goes on to say so; that is how a
        mediator that was restarted learns of it.
        """
        for run in entry.claimed - runs:
            entry.holding.pop(run, None)
            entry.owed.discard(run)
        entry.claimed = (entry.claimed & runs) | (runs - entry.holding.keys() - entry.owed)
        given_up = not works(entry.standing.state)
        for run in runs:
            if given_up or run in entry.owed or not self._switchboard.goes_on(run):
                entry.owed.add(run)
            else:
                entry.holding.setdefault(run, 0)

    def disconnected(self, entry: SiteEntry) -> None:
        """A session has ended; the next hello says what has arrived."""
        for order in entry.orders.open.values():
            order.sent = False

    def lost(self, entry: SiteEntry) -> None:
        """A site has been given up: all that it had open has failed."""
        failure = told(SiteLost(entry.name, entry.standing.reason))
        for order in entry.orders.lost(failure):
            self._let_go(entry, order)
            self._pass_on(entry, order)
        entry.owed |= entry.holding.keys() - {COMMANDS}
        entry.holding.clear()

    def collect(self, entry: SiteEntry) -> None:
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

    def send_waiting(self, entry: SiteEntry) -> None:
        """Send what has waited for the site to be there."""
        if not entry.reachable or entry.session is None:
            return
        for order in entry.orders.unsent():
            message = pb.ToSite(order=order.message)
            order.sent = True
            order.moving_at = self._clock() if order.blob else None
            self._book(entry, order, Direction.TO_SITE, message.ByteSize())
            entry.session.send(message)

    # -- what a site says -------------------------------------------------------------------------

    def taken(self, name: SiteName, id: OrderId, nbytes: int) -> None:
        """An order has reached whoever works on it."""
        entry = self._sites.entry(name)
        order = entry.orders.open.get(id)
        if order is not None:
            self._book(entry, order, Direction.FROM_SITE, nbytes)
            self._arrived(entry, order)

    def answered(self, name: SiteName, answer: pb.Answer, id: OrderId, nbytes: int) -> str:
        """An answer has come; gives why it is refused, or nothing."""
        entry = self._sites.entry(name)
        if id.key == RELEASE:
            entry.owed.discard(id.run)
            entry.claimed -= {id.run} - entry.holding.keys()
        order = entry.orders.open.get(id)
        if order is not None:
            self._book(entry, order, Direction.FROM_SITE, nbytes)
            self._arrived(entry, order)
            if order.answer is None and (problem := self._problem_of(entry, order, answer)):
                return problem
        match entry.orders.answered(id, answer):
            case Heard.UNWANTED:
                self._acknowledge(entry, id)
            case Heard.WANTED if order is not None:
                self._pass_on(entry, order)
            case _ if id.run == COMMANDS or not self._switchboard.goes_on(id.run):
                self._end(entry, id)
        return ""

    def _problem_of(self, entry: SiteEntry, order: OpenOrder, answer: pb.Answer) -> str:
        blob = blob_of(answer.done.blob) if answer.WhichOneof("result") == "done" else None
        blob_bytes = 0 if blob is None else blob.size
        if entry.orders.too_much(order, answer_bytes=answer.ByteSize(), blob_bytes=blob_bytes):
            order.sent = False  # the site is asked for its answer when somebody asks us
            return "nobody has asked for it yet, and much else is kept already"
        if blob is None:
            return ""
        if not self._blobs.has(blob):
            return f"its blob {blob.digest} was not pushed before"
        self._expect(order, blob)  # it may have been pushed to the mediator before us
        return ""

    def happened(self, name: SiteName, happened: pb.Happened, nbytes: int) -> None:
        """Something that the coordinator of a run may show; it is told if it is there.

        And if it has asked something of this site: others' runs are none of its business.
        """
        entry, run = self._sites.entry(name), RunId(happened.run)
        if run not in entry.holding or run in entry.claimed:
            return
        flow = Flow(entry.holding[run], name, Direction.FROM_SITE, EVENTS)
        self._booking.book(run, flow, nbytes + MESSAGE_BYTES)
        if (size := happened.ByteSize()) > LARGEST_HAPPENED:
            log.warning("dropped %d bytes in which site %s says what happened", size, name)
            return
        told_ = pb.SiteHappened(site=name, happened=happened)
        self._switchboard.tell_in_passing(run, pb.ToCoordinator(happened=told_))

    # -- blobs ------------------------------------------------------------------------------------

    def refuses_fetch(self, name: str, digest: str) -> str:
        """Why a site may not have a blob: no order of it names one."""
        entry = self._sites.get(name)
        if entry is None or entry.orders.naming(digest) is None:
            return f"no order of site {name} names blob {digest}"
        return ""

    def refuses_push(self, name: str, id: OrderId, blob: Blob) -> str:
        """Why an order's answer may not bring a blob; if it may, the blob is kept for it."""
        entry = self._sites.get(name)
        order = None if entry is None else entry.orders.open.get(id)
        if entry is None or order is None:
            if entry is not None:
                self._acknowledge(entry, id)
            return f"nobody waits for order {id.key} of run {id.run} at site {name}"
        if order.answer is not None and order.brought != blob.digest:
            return f"order {id.key} of run {id.run} is answered with another blob"
        if entry.orders.too_much(order, blob_bytes=blob.size):
            order.sent = False
            return f"nobody has asked for order {id.key} of run {id.run} yet: bring its blob later"
        self._expect(order, blob)
        if order.moving_at is None:
            order.moving_at = self._clock()
        return ""

    def _expect(self, order: OpenOrder, blob: Blob) -> None:
        """Keep the blob of an order's answer, there or still to come."""
        if order.brought != blob.digest:
            self._blobs.pin(blob.digest)
            if order.brought:
                self._blobs.unpin(order.brought)
            order.brought, order.brought_bytes = blob.digest, blob.size

    def book_blob(self, name: str, direction: Direction, digest: str, nbytes: int) -> None:
        """Bytes of a blob crossed a site's boundary."""
        entry = self._sites.get(name)
        if entry is None:
            return
        self._moved(entry)
        to_site = direction is Direction.TO_SITE
        order = entry.orders.naming(digest) if to_site else entry.orders.bringing(digest)
        if order is None:
            self._booking.session(name, direction, nbytes)
        else:
            self._book(entry, order, direction, nbytes)
            self._took(entry, order, nbytes)

    def _took(self, entry: SiteEntry, order: OpenOrder, nbytes: int) -> None:
        """Bytes of an order's blob have crossed, since it began or last got further."""
        now = self._clock()
        if order.moving_at is not None:
            use = LinkUse(order.round_number, entry.name, nbytes, now - order.moving_at)
            self._booking.took(order.id.run, use)
        order.moving_at = now

    def _arrived(self, entry: SiteEntry, order: OpenOrder) -> None:
        """An order's blob is across: what was still under way has taken until now."""
        if order.moving_at is not None:
            self._took(entry, order, 0)
            order.moving_at = None

    # -- what coordinators ask --------------------------------------------------------------------

    def ask(self, name: str, message: pb.Order, id: OrderId) -> None:
        """Send an order to a site, now or when it can be; its answer goes to the coordinator."""
        entry = self._sites.get(name)
        if entry is None or not works(entry.standing.state):
            reason = "there is no such site" if entry is None else entry.standing.reason
            self._fail(id, SiteLost(name[:80], reason))
            return
        asked, order = entry.orders.ask(id, message)
        entry.holding[id.run] = message.round or entry.holding.get(id.run, 0)
        entry.owed.discard(id.run)
        entry.claimed.discard(id.run)
        if order.blob and not order.kept:
            order.kept = self._keeping.keep_again(order.blob)
            if asked is Asked.NEW and not order.kept:
                del entry.orders.open[id]
                self._fail(id, WorkFailed(name, "BadBlob", f"blob {order.blob} is not there"))
                return
        if asked is Asked.ANSWERED:
            self._pass_on(entry, order)
        else:
            self.send_waiting(entry)

    def withdraw(self, name: str, id: OrderId) -> None:
        """The coordinator has the answer, or does not want it any more."""
        entry = self._sites.get(name)
        if entry is not None:
            self._end(entry, id)

    def detached(self, run: RunId) -> None:
        """The coordinator of a run has gone, and may come back."""
        for entry in self._sites:
            entry.orders.detached(run)

    def run_over(self, run: RunId) -> None:
        """A run is over: nothing of it is waited for, and what sites still hold they give back."""
        for entry in self._sites:
            if entry.holding.pop(run, None) is not None:
                entry.owed.add(run)
            for order in entry.orders.of_run(run):
                self._end(entry, order.id)
            self.collect(entry)
        self.forget_uploads(run)
        self._booking.forget(run)

    async def command(self, name: str, kind: str, header_json: str, timeout_s: float) -> pb.Answer:
        """Have a site's agent run a command beside it; TimeoutError, NoSuchSite, SiteLost."""
        entry = self._sites.entry(name)
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

    # -- effects ----------------------------------------------------------------------------------

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
