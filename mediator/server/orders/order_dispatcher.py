"""OrderDispatcher: sends orders to sites and answers back, and tracks what runs hold at sites.

`SiteOrders` (`site_table.py`) decides which orders are open and what an answer means; `OrderBlobs`
keeps the blobs. The dispatcher has the effects: it sends messages and counts bytes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ...core.exchange import Effect
from ...core.health import Wish, works
from ...core.links import LinkUse
from ...core.traffic import Direction, Flow
from ...errors import SiteLost, WorkFailed
from ...proto import federation_pb2 as pb
from ...wire import messages
from ...wire.blobs.blob import Blob
from ...wire.blobs.store import BlobStore
from ...wire.failures import told
from ...wire.messages import COMMANDS, OrderId, RunId, SiteName, id_message
from .coordinator_registry import CoordinatorRegistry
from .order_blobs import OrderBlobs
from .site_table import ADOPTED, OpenOrder, SiteEntry, SiteTable, blob_of, purpose_of, round_of
from .traffic_accounting import MESSAGE_BYTES, TrafficAccounting

log = logging.getLogger(__name__)

RELEASE = "release"
"""The key of the order that ends a run's part at a site."""
EVENTS = "events"
"""The purpose under which a site's messages other than answers are booked."""
LARGEST_HAPPENED = 256 << 10
"""Larger messages of this kind are dropped. Bytes."""


class ForgetUploads(Protocol):
    """Refuse uploads from now on: for a run, its part at one site, or one order."""

    def __call__(self, run: str, *, site: str = "", key: str = "") -> None: ...


@dataclass(eq=False)
class OrderDispatcher:
    """The orders of all sites."""

    _sites: SiteTable
    _attached: CoordinatorRegistry
    _accounting: TrafficAccounting
    _blobs: BlobStore
    _order_blobs: OrderBlobs
    _moved: Callable[[SiteEntry], None]
    """Called with a site when bytes of a blob have crossed its link."""
    _clock: Callable[[], float]
    _commands: dict[OrderId, asyncio.Future[pb.Answer]] = field(default_factory=dict)
    forget_uploads: ForgetUploads = lambda run, *, site="", key="": None
    """Called when the blobs of a run or an order are no longer needed."""

    # -- sessions and losses of sites -------------------------------------------------------------

    def reconnected(self, entry: SiteEntry, hello: pb.Hello) -> None:
        """Compare the orders that a site holds with the open ones when its session begins."""
        entry.link.broken()
        held = [OrderId(RunId(each.run), each.key) for each in hello.held]
        found = entry.orders.connected(held, lambda id: self._attached.goes_on(id.run), ADOPTED)
        for released in found.released:
            self._acknowledge(entry, released)
        for order in found.forgotten:
            self._let_go(entry, order.key)
        said = ({RunId(each) for each in hello.runs} | {id.run for id in held}) - {COMMANDS}
        self._claimed(entry, said)

    def _claimed(self, entry: SiteEntry, runs: set[RunId]) -> None:
        """Accept a site's list of the runs that hold something, for a mediator that restarted."""
        for run in entry.claimed - runs:
            entry.holding.pop(run, None)
            entry.owed.discard(run)
        entry.claimed = (entry.claimed & runs) | (runs - entry.holding.keys() - entry.owed)
        given_up = not works(entry.standing.state)
        for run in runs:
            if given_up or run in entry.owed or not self._attached.goes_on(run):
                entry.owed.add(run)
            else:
                entry.holding.setdefault(run, 0)

    def lost(self, entry: SiteEntry) -> None:
        """Fail the open orders of a lost site, and owe it a release for each run.

        Among these orders may be a prepare or a release: whether it was carried out is not known.
        """
        entry.link.broken()
        entry.owed |= entry.holding.keys() - {COMMANDS}
        entry.holding.clear()
        failure = told(SiteLost(entry.name, entry.standing.reason))
        for order in entry.orders.given_up(failure):
            self._let_go(entry, order.key)
            self._pass_on(entry, order)

    def collect(self, entry: SiteEntry) -> None:
        """Ask a site to release what runs left there; repeated until it confirms.

        A run in progress is skipped if the site is open again: the site takes part again.
        """
        if entry.session is None or not works(entry.standing.state):
            return
        for run in sorted(entry.owed):
            if self._attached.goes_on(run) and entry.standing.wish is Wish.OPEN:
                continue
            id = pb.OrderId(run=run, key=RELEASE)
            release = pb.Order(id=id, verb="release", kind="release", header_json="{}")
            self._send(entry, pb.ToSite(order=release))

    def send_waiting(self, entry: SiteEntry) -> None:
        if not entry.reachable or entry.session is None:
            return
        for order in entry.orders.unsent():
            message = pb.ToSite(order=order.message)
            entry.orders.sent(order.key)
            if blob_of(order):
                self._set_out(entry, order.key, Direction.TO_SITE)
            self._book(entry, order, Direction.TO_SITE, message.ByteSize())
            entry.session.send(message)

    # -- what a site says -------------------------------------------------------------------------

    def taken(self, name: SiteName, id: OrderId, nbytes: int) -> None:
        """Record that an order has reached its runner."""
        entry = self._sites.entry(name)
        order = entry.orders.open.get(id)
        if order is not None:
            self._arrived(entry, order, nbytes)

    def answered(self, name: SiteName, answer: pb.Answer, id: OrderId, nbytes: int) -> str:
        """Take an answer; return why it is refused, or an empty text."""
        entry = self._sites.entry(name)
        if id.key == RELEASE:
            entry.owed.discard(id.run)
            entry.claimed -= {id.run} - entry.holding.keys()
        order = entry.orders.open.get(id)
        if order is not None:
            self._arrived(entry, order, nbytes)
            if order.reply is None and (problem := self._problem_of(entry, order, answer)):
                return problem
        effect, order = entry.orders.replied(id, answer)
        if effect is Effect.ACKNOWLEDGE:
            self._acknowledge(entry, id)
        elif effect is Effect.DELIVER:
            self._pass_on(entry, order)
        elif id.run == COMMANDS or not self._attached.goes_on(id.run):
            self._end(entry, id)
        return ""

    def _problem_of(self, entry: SiteEntry, order: OpenOrder, answer: pb.Answer) -> str:
        done = answer.WhichOneof("result") == "done"
        blob = messages.blob_of(answer.done.blob) if done else None
        blob_bytes = 0 if blob is None else blob.size
        if self._too_much(entry, order, answer_bytes=answer.ByteSize(), blob_bytes=blob_bytes):
            return "no coordinator has asked for it yet, and the mediator keeps much already"
        if blob is None:
            return ""
        if not self._blobs.has(blob):
            return f"its blob {blob.digest} was not pushed before"
        self._order_blobs.expect(entry.name, order.key, blob)  # perhaps from before a restart
        return ""

    def _too_much(
        self, entry: SiteEntry, order: OpenOrder, *, answer_bytes: int = 0, blob_bytes: int
    ) -> bool:
        others = (each.key for each in entry.orders.adopted() if each is not order)
        blob_bytes += self._order_blobs.brought_bytes(entry.name, others)
        return entry.orders.too_much(order, answer_bytes=answer_bytes, blob_bytes=blob_bytes)

    def happened(self, name: SiteName, happened: pb.Happened, nbytes: int) -> None:
        """Pass a site's message to a run's coordinator, if that run has sent orders to the site."""
        entry, run = self._sites.entry(name), RunId(happened.run)
        if run not in entry.holding or run in entry.claimed:
            return
        flow = Flow(entry.holding[run], name, Direction.FROM_SITE, EVENTS)
        self._accounting.book(run, flow, nbytes + MESSAGE_BYTES)
        if (size := happened.ByteSize()) > LARGEST_HAPPENED:
            log.warning("dropped %d bytes in which site %s says what happened", size, name)
            return
        told_ = pb.SiteHappened(site=name, happened=happened)
        self._attached.tell_in_passing(run, pb.ToCoordinator(happened=told_))

    # -- blobs ------------------------------------------------------------------------------------

    def refuses_fetch(self, name: str, digest: str) -> str:
        """Say why a site may not fetch a blob; empty if one of its orders names it."""
        entry = self._sites.get(name)
        if entry is None or entry.orders.naming(digest) is None:
            return f"no order of site {name} names blob {digest}"
        return ""

    def refuses_push(self, name: str, id: OrderId, blob: Blob) -> str:
        """Say why an order's answer may not bring a blob; keep the blob and return "" if it may."""
        entry = self._sites.get(name)
        order = None if entry is None else entry.orders.open.get(id)
        if entry is None or order is None:
            if entry is not None:
                self._acknowledge(entry, id)
            return f"no coordinator waits for order {id.key} of run {id.run} at site {name}"
        if order.reply is not None and self._order_blobs.brought(entry.name, id) != blob.digest:
            return f"order {id.key} of run {id.run} is answered with another blob"
        if self._too_much(entry, order, blob_bytes=blob.size):
            unasked = f"no coordinator has asked for order {id.key} of run {id.run} yet"
            return f"{unasked}: bring its blob later"
        self._order_blobs.expect(entry.name, id, blob)
        self._set_out(entry, id, Direction.FROM_SITE)
        return ""

    def book_blob(self, name: str, direction: Direction, digest: str, nbytes: int) -> None:
        """Count bytes of a blob that crossed a site's boundary."""
        entry = self._sites.get(name)
        if entry is None:
            return
        self._moved(entry)
        entry.link.moved(direction, nbytes, self._clock())
        if direction is Direction.TO_SITE:
            order = entry.orders.naming(digest)
        else:
            bringing = self._order_blobs.bringing(entry.name, digest)
            order = None if bringing is None else entry.orders.open.get(bringing)
        if order is None:
            self._accounting.session(name, direction, nbytes)
        else:
            self._book(entry, order, direction, nbytes)
            seconds = self._order_blobs.got_further(entry.name, order.key)
            self._took(entry, order, nbytes, seconds)

    def _set_out(self, entry: SiteEntry, id: OrderId, direction: Direction) -> None:
        """Record that an order's blob, or its answer's, starts across the site's link."""
        self._order_blobs.set_out(entry.name, id)
        entry.link.set_out(direction, id, self._clock())

    def _arrived(self, entry: SiteEntry, order: OpenOrder, nbytes: int) -> None:
        """Count a message that shows that an order's blob has arrived, and the blob's seconds."""
        entry.link.arrived(order.key, self._clock())
        self._book(entry, order, Direction.FROM_SITE, nbytes)
        self._took(entry, order, 0, self._order_blobs.arrived(entry.name, order.key))

    def _took(self, entry: SiteEntry, order: OpenOrder, nbytes: int, seconds: float | None) -> None:
        if seconds is not None:
            use = LinkUse(round_of(order), entry.name, nbytes, seconds)
            self._accounting.took(order.key.run, use)

    # -- what coordinators ask --------------------------------------------------------------------

    def ask(self, name: str, message: pb.Order, id: OrderId) -> None:
        """Send an order to a site, now or once it is reachable; its coordinator gets the answer."""
        entry = self._sites.get(name)
        if entry is None or not works(entry.standing.state):
            reason = "there is no such site" if entry is None else entry.standing.reason
            self._fail(id, SiteLost(name[:80], reason))
            return
        new = id not in entry.orders.open
        effect, order = entry.orders.ask(id, message)
        entry.holding[id.run] = message.round or entry.holding.get(id.run, 0)
        entry.owed.discard(id.run)
        entry.claimed.discard(id.run)
        blob = blob_of(order)
        if blob and not self._order_blobs.keep(entry.name, id, blob) and new:
            self._end(entry, id)
            self._fail(id, WorkFailed(name, "BadBlob", f"blob {blob} is not there"))
        elif effect is Effect.DELIVER:
            self._pass_on(entry, order)
        else:
            self.send_waiting(entry)

    def withdraw(self, name: str, id: OrderId) -> None:
        """End an order: the coordinator has the answer, or no longer needs it."""
        entry = self._sites.get(name)
        if entry is not None:
            self._end(entry, id)

    def detached(self, run: RunId) -> None:
        """Keep a run's orders as adopted: its coordinator has disconnected, and may return."""
        for entry in self._sites:
            for order in entry.orders.unask(entry.orders.of_run(run)):
                self._let_go(entry, order.key)

    def run_over(self, run: RunId) -> None:
        """End the orders of a run that is over, and have sites release what it holds."""
        for entry in self._sites:
            if entry.holding.pop(run, None) is not None:
                entry.owed.add(run)
            for id in entry.orders.of_run(run):
                self._end(entry, id)
            self.collect(entry)
        self.forget_uploads(run)
        self._accounting.forget(run)

    async def command(self, name: str, kind: str, header_json: str, timeout_s: float) -> pb.Answer:
        """Have a site's agent run a command; TimeoutError, NoSuchSite, SiteLost."""
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
        """Give an answer to its command or, after the byte counts, to its coordinator."""
        if order.reply is None:
            return
        if (command := self._commands.get(order.key)) is not None:
            if not command.done():
                command.set_result(order.reply)
            return
        self._note(entry, order)
        if (counted := self._accounting.tell(order.key.run)) is not None:
            self._attached.tell(order.key.run, counted)
        answer = pb.SiteAnswer(site=entry.name, answer=order.reply)
        self._attached.tell(order.key.run, pb.ToCoordinator(answer=answer))

    def _note(self, entry: SiteEntry, order: OpenOrder) -> None:
        """Record if the site holds nothing for the run after this answer."""
        if order.message is None or order.reply is None:
            return
        refused = order.message.verb == "prepare" and order.reply.done.kind != "promised"
        if refused or order.message.verb == "release":
            entry.holding.pop(order.key.run, None)

    def _fail(self, id: OrderId, error: SiteLost | WorkFailed) -> None:
        answered = pb.Answer(id=id_message(id), failure=told(error))
        answer = pb.SiteAnswer(site=error.site, answer=answered)
        self._attached.tell(id.run, pb.ToCoordinator(answer=answer))

    def _end(self, entry: SiteEntry, id: OrderId) -> None:
        effect, _ = entry.orders.release(id)
        self._let_go(entry, id)
        if effect is Effect.ACKNOWLEDGE:
            self._acknowledge(entry, id)

    def _let_go(self, entry: SiteEntry, id: OrderId) -> None:
        entry.link.arrived(id, self._clock())
        if self._order_blobs.brought(entry.name, id):
            self.forget_uploads(id.run, site=entry.name, key=id.key)
        self._order_blobs.let_go(entry.name, id)

    def _acknowledge(self, entry: SiteEntry, id: OrderId) -> None:
        self._send(entry, pb.ToSite(answer_taken=pb.AnswerTaken(id=id_message(id))))

    def _send(self, entry: SiteEntry, message: pb.ToSite) -> None:
        """Send a message of no run and count its bytes, if the site has a session."""
        if entry.session is not None:
            entry.session.send(message)
            self._accounting.session(entry.name, Direction.TO_SITE, message.ByteSize())

    def _book(self, entry: SiteEntry, order: OpenOrder, direction: Direction, nbytes: int) -> None:
        flow = Flow(round_of(order), entry.name, direction, purpose_of(order))
        self._accounting.book(order.key.run, flow, nbytes + MESSAGE_BYTES)
