"""One session with the mediator, from Hello to its end.

The agent dials and speaks first. A repeated or missing message number ends the session, as does
silence unless blobs cross the link. A session keeps only unsent messages, so orders survive it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import grpc.aio

from ..core.links import RoundTrips
from ..proto import federation_pb2 as pb
from ..wire.messages import (
    MOST_HELD,
    BadMessage,
    Capacity,
    Numbering,
    ProtocolRefused,
    capacity_message,
    check_protocol,
    unknown_fields,
)
from .errors import SessionBroken, SessionLeft, SiteDismissed
from .settings import AgentSettings
from .text import mediator_said

log = logging.getLogger(__name__)

MOST_EVENTS = 1_000
"""Once this many messages wait, events are dropped."""
MOST_WAITING = 2 * MOST_HELD
"""Once this many messages wait, the agent ends the session."""
LEAST_HEARTBEAT_S, MOST_HEARTBEAT_S = 0.05, 60.0
LONGEST_LEASE_S = 3_600.0
"""The longest that a site holds a gang for a mediator that never returns."""
MOST_NAMED = 100
"""Unknown fields that one session logs."""


async def until_one_ends(*doing: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Run coroutines concurrently until one ends, cancel the rest, and return those that ended."""
    tasks = [asyncio.create_task(each) for each in doing]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [each for each in tasks if each in ended]


class SessionHost(Protocol):
    """The agent, as a session uses it."""

    def hello(self) -> pb.Hello:
        """Name the site and what it holds now."""

    def state(self) -> tuple[Capacity, str]:
        """The Ray cluster's capacity, and why it cannot be used."""

    def begin(self, welcome: pb.Welcome, send: Callable[[pb.FromSite], None]) -> None:
        """Begin the session: the mediator has answered."""

    def take(self, order: pb.Order) -> None: ...

    def answer_taken(self, id: pb.OrderId) -> None: ...

    def renew(self, runs: list[str]) -> None: ...


class AgentSession:
    """One call of SiteService.Session."""

    def __init__(
        self, call: Any, site: SessionHost, settings: AgentSettings, clock: Callable[[], float]
    ) -> None:
        self._call, self._site = call, site
        self._settings, self._clock = settings, clock
        self._sent, self._read = Numbering(), Numbering()
        self._waiting: deque[pb.FromSite] = deque()
        self._news = asyncio.Event()
        self._beat = asyncio.Event()
        self._left = asyncio.Event()
        self._unread = False
        self._heartbeat_s = 2.0
        self._beats: deque[float] = deque()
        """When the unanswered heartbeats were sent."""
        self._round_trips = RoundTrips()
        self._heard_at = clock()
        self._named: set[str] = set()

    def send(self, message: pb.FromSite) -> None:
        if message.HasField("happened") and len(self._waiting) >= MOST_EVENTS:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._unread = True
            self._left.set()
            return
        self._waiting.append(message)
        self._news.set()

    def beat(self) -> None:
        """Send a heartbeat at once, since something changed."""
        self._beat.set()

    def moved(self) -> None:
        """Count bytes of a blob on the link as a sign of the mediator's life."""
        self._heard_at = self._clock()

    def leave(self) -> None:
        """End the session, so that another can begin."""
        self._left.set()

    async def run(self) -> None:
        """Converse until the session ends, always with an error.

        SiteDismissed by a final farewell, SessionLeft after `leave`, else SessionBroken.
        """
        try:
            await self._converse()
        except grpc.aio.AioRpcError as error:
            told = mediator_said(error.details() or "")
            raise SessionBroken(f"{error.code().name}: {told}") from error
        except asyncio.InvalidStateError as error:  # written to a call that has ended
            raise SessionBroken("the mediator has ended the session") from error
        except BadMessage as error:
            raise SessionBroken(f"the mediator sent what makes no sense: {error}") from error
        finally:
            self._call.cancel()

    async def _converse(self) -> None:
        try:
            async with asyncio.timeout(self._settings.welcome_s):
                await self._write(pb.FromSite(hello=self._site.hello()))
                welcome = self._checked(await self._call.read())
        except TimeoutError:
            patience = self._settings.welcome_s
            raise SessionBroken(f"the mediator has not answered within {patience:g} s") from None
        if welcome.HasField("farewell"):
            self._farewell(welcome.farewell)
        if not welcome.HasField("welcome"):
            raise BadMessage(f"{welcome.WhichOneof('content')} came where a welcome was due")
        self._begin(welcome.welcome)
        ended = await until_one_ends(
            self._write_all(),
            self._read_all(),
            self._beat_on(),
            self._listen(),
            self._leave(),
        )
        # A final farewell explains more than the failed writes after it.
        for each in reversed(ended):
            if (error := each.exception()) is not None and isinstance(error, SiteDismissed):
                raise error
        for each in ended:
            each.result()

    def _begin(self, welcome: pb.Welcome) -> None:
        try:
            check_protocol(welcome.protocol, here="this site", there="the mediator")
        except ProtocolRefused as error:
            raise SiteDismissed(str(error)) from error
        if not LEAST_HEARTBEAT_S <= welcome.heartbeat_s <= MOST_HEARTBEAT_S:
            raise BadMessage(f"a heartbeat of {welcome.heartbeat_s:g} s is none")
        if not 0 < welcome.lease_s <= LONGEST_LEASE_S:
            raise BadMessage(
                f"a lease of {welcome.lease_s:g} s is none: at most {LONGEST_LEASE_S:g}"
            )
        self._heartbeat_s = welcome.heartbeat_s
        self._heard_at = self._clock()
        self._site.begin(welcome, self.send)

    async def _write(self, message: pb.FromSite) -> None:
        message.number = self._sent.next()
        if message.HasField("heartbeat"):
            self._beats.append(self._clock())
        await self._call.write(message)

    async def _write_all(self) -> None:
        while True:
            while self._waiting:
                await self._write(self._waiting.popleft())
            self._news.clear()
            await self._news.wait()

    async def _read_all(self) -> None:
        while True:
            message = self._checked(await self._call.read())
            self._heard_at = self._clock()
            self._take(message)

    def _checked(self, message: Any) -> pb.ToSite:
        """Check a message's number and fields; SessionBroken at the end of the stream."""
        if message is grpc.aio.EOF:
            raise SessionBroken("the mediator has ended the session")
        found: pb.ToSite = message
        self._read.check(found.number)
        strange = set(unknown_fields(found)) - self._named
        if strange and len(self._named) < MOST_NAMED:
            self._named |= strange
            log.warning("unknown to this version, and ignored: %s", ", ".join(sorted(strange)))
        return found

    def _take(self, message: pb.ToSite) -> None:
        match message.WhichOneof("content"):
            case "renewal":
                if self._beats:  # one answer for each, in their order
                    self._round_trips.add(self._clock() - self._beats.popleft())
                self._site.renew(list(message.renewal.runs))
            case "order":
                self._site.take(message.order)
            case "answer_taken":
                self._site.answer_taken(message.answer_taken.id)
            case "farewell":
                self._farewell(message.farewell)
            case "welcome":
                raise BadMessage("a second welcome came in one session")

    def _farewell(self, farewell: pb.Farewell) -> None:
        reason = mediator_said(farewell.reason)
        if farewell.final:
            raise SiteDismissed(f"the mediator wants no more of this site: {reason}")
        raise SessionBroken(f"the mediator has ended the session: {reason}")

    async def _beat_on(self) -> None:
        while True:
            capacity, trouble = self._site.state()
            heartbeat = pb.Heartbeat(
                capacity=capacity_message(capacity),
                trouble=trouble,
                round_trip_s=self._round_trips.shortest or 0.0,
            )
            self.send(pb.FromSite(heartbeat=heartbeat))
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._beat.wait()
            except TimeoutError:
                pass
            self._beat.clear()

    async def _leave(self) -> None:
        await self._left.wait()
        if self._unread:
            raise SessionBroken(f"the mediator reads none of {MOST_WAITING} messages")
        raise SessionLeft("another session is begun")

    async def _listen(self) -> None:
        """Break a silent session; the mediator would answer every heartbeat."""
        settings = self._settings
        patience = max(settings.silent_s, settings.silent_heartbeats * self._heartbeat_s)
        while (silent := self._clock() - self._heard_at) < patience:
            await asyncio.sleep(min(1.0, patience - silent))
        raise SessionBroken(f"nothing was heard of the mediator for {patience:g} s")
