"""SiteService.Session: one conversation with a site's agent, from its hello to its farewell.

The hello comes first and in time, says a protocol that is understood and the very name that the
certificate says. Messages are numbered; one that is repeated or left out ends the session. A site
that sends too much is read more slowly, and one that begins too many sessions waits. Fields that
are not known are ignored, and named once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from ...core.traffic import Direction
from ...errors import AnswerUnreadable, BadRequest, NotPermitted
from ...identity.tls import Peer
from ...proto import federation_pb2 as pb
from ...wire.failures import told
from ...wire.messages import (
    MOST_HELD,
    PROTOCOL,
    BadMessage,
    Numbering,
    ProtocolRefused,
    SiteName,
    blob_of,
    capacity_of,
    check_protocol,
    check_run,
    check_site,
    order_id,
    parsed,
    unknown_fields,
)
from ...wire.payloads import LARGEST_HEADER
from ..orders.outbox import Outbox
from ..orders.sites import SiteRegistry
from ..orders.traffic_accounting import TrafficAccounting
from ..settings import ServerSettings
from .authorization import Guard
from .rate_limiter import RateLimiter

log = logging.getLogger(__name__)

LARGEST_DATA = 4 << 20
"""Bytes of what a site may disclose of its data."""
LARGEST_ANSWER = LARGEST_HEADER + (256 << 10)
"""Bytes of an answer: the header of a payload, or an error; its tensors come as a blob."""


class SiteSession:
    """The mediator's end of a session."""

    def __init__(self, name: SiteName, agent: str, serial: str, limit: int) -> None:
        self.name, self.agent, self.serial = name, agent, serial
        self.outbox: Outbox[pb.ToSite] = Outbox(limit)
        self._numbers = Numbering()

    def send(self, message: pb.ToSite) -> None:
        """Number it and send it; what does not fit any more ends the session."""
        message.number = self._numbers.next()
        if not self.outbox.put(message) and self.outbox.overflowed:
            log.warning("site %s takes its messages too slowly: its session ends", self.name)

    def end(self, reason: str, *, final: bool) -> None:
        """Say farewell; nothing is sent after it."""
        if not self.outbox.closed:
            log.info("the session of site %s ends: %s", self.name, reason)
            self.send(pb.ToSite(farewell=pb.Farewell(reason=reason, final=final)))
            self.outbox.close()


class SiteSessions:
    """Serves `Session`; the blobs of SiteService are served beside it."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        clock: Callable[[], float],
        guard: Guard,
        sites: SiteRegistry,
        accounting: TrafficAccounting,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._guard = guard
        self._sites = sites
        self._accounting = accounting
        self._named: set[str] = set()
        """Unknown fields that were spoken of."""
        self._beginning: dict[str, RateLimiter] = {}
        """By the names of sites, as their certificates say them."""

    async def session(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Converse until either side ends it."""
        numbers = Numbering()
        pacing = self._pacing_of(peer)
        if pause := pacing.pause_s(self._clock()):
            await asyncio.sleep(pause)
        try:
            async with asyncio.timeout(self._settings.hello_s):
                first = await anext(requests, None)
        except TimeoutError:
            raise BadRequest(f"no hello came within {self._settings.hello_s:g} s") from None
        if first is None:
            return
        try:
            session = self._begun(self._message(first, numbers), peer, len(first))
        except (BadMessage, NotPermitted, ProtocolRefused) as error:
            pacing.give_back()  # nobody else has heard of it
            farewell = pb.Farewell(reason=str(error), final=True)
            await context.write(pb.ToSite(number=1, farewell=farewell))
            raise
        writing = asyncio.create_task(_write(session, context))
        reading = asyncio.create_task(self._read(session, requests, numbers, peer))
        try:
            await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
            wrong = reading.exception() if reading.done() else None
            if wrong is not None:
                await self._refuse(session, wrong, writing)
        finally:
            self._sites.over(session.name, session)
            session.outbox.close()
            for task in (writing, reading):
                task.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)

    def _pacing_of(self, peer: Peer) -> RateLimiter:
        """How fast a site may begin sessions, whichever connections it does that over."""
        settings = self._settings
        if (found := self._beginning.get(peer.name)) is None:
            found = RateLimiter(settings.hellos_per_s, settings.hellos_at_once, self._clock())
            self._beginning[peer.name] = found
        return found

    def _begun(self, message: pb.FromSite, peer: Peer, nbytes: int) -> SiteSession:
        """The session that a first message begins; raises what is wrong with that."""
        if message.WhichOneof("content") != "hello":
            raise BadMessage("a session begins with a hello")
        hello = message.hello
        name = check_site(hello.site)
        if name != peer.name:
            raise NotPermitted(f"the certificate of {peer.name} does not speak for site {name}")
        check_protocol(hello.protocol, here="this mediator", there=f"site {name}")
        if len(hello.held) > MOST_HELD:
            raise BadMessage(f"{len(hello.held)} orders cannot be held; {MOST_HELD} at most")
        for each in hello.held:
            order_id(each)
        if len(hello.runs) > MOST_HELD:
            raise BadMessage(f"{len(hello.runs)} runs cannot be held; {MOST_HELD} at most")
        for run in hello.runs:
            check_run(run)
        _check_data(hello.data_json)
        for text in (hello.version, hello.agent):
            if len(text) > 100 or not text.isprintable():
                raise BadMessage("a version or an agent's id is plain text of up to 100 characters")
        capacity = capacity_of(hello.capacity)
        self._accounting.session(name, Direction.FROM_SITE, nbytes)
        session = SiteSession(name, hello.agent, peer.serial, self._settings.held_back)
        settings = self._settings
        welcome = pb.Welcome(
            protocol=PROTOCOL,
            heartbeat_s=settings.health.heartbeat_s,
            lease_s=settings.lease_s,
            piece_bytes=settings.piece_bytes,
            largest_blob_bytes=settings.largest_blob_bytes,
        )
        self._send(session, pb.ToSite(welcome=welcome))
        self._sites.begin(name, hello, capacity, session)
        log.info(
            "site %s speaks (agent %s, fedpilot %s, protocol %d, holding %d orders)",
            name,
            hello.agent,
            hello.version,
            hello.protocol,
            len(hello.held),
        )
        return session

    async def _read(
        self,
        session: SiteSession,
        requests: AsyncIterator[bytes],
        numbers: Numbering,
        peer: Peer,
    ) -> None:
        pacing = RateLimiter(
            self._settings.messages_per_s, self._settings.messages_at_once, self._clock()
        )
        async for data in requests:
            if session.outbox.closed:
                return
            self._take(session, self._message(data, numbers), len(data), peer)
            if pause := pacing.pause_s(self._clock()):
                await asyncio.sleep(pause)

    def _take(self, session: SiteSession, message: pb.FromSite, nbytes: int, peer: Peer) -> None:
        name, sites = session.name, self._sites
        match message.WhichOneof("content"):
            case "heartbeat":
                if objection := self._guard.objection(peer):
                    # A site whose certificate ran out may have another one by now.
                    session.end(objection, final=peer.expires_at > time.time())
                    return
                beat = message.heartbeat
                self._accounting.session(name, Direction.FROM_SITE, nbytes)
                runs = sites.heartbeat(name, capacity_of(beat.capacity), beat.trouble)
                self._send(session, pb.ToSite(renewal=pb.Renewal(runs=runs)))
            case "taken":
                sites.orders.taken(name, order_id(message.taken.id), nbytes)
            case "answer":
                answer = passable(name, message.answer)
                id = order_id(answer.id)
                blob_of(answer.done.blob)
                if problem := sites.orders.answered(name, answer, id, nbytes):
                    log.warning(
                        "refused the answer of site %s to %s of run %s: %s",
                        name,
                        id.key,
                        id.run,
                        problem,
                    )
            case "happened":
                check_run(message.happened.run)
                sites.orders.happened(name, message.happened, nbytes)
            case "hello":
                raise BadMessage("a session has one hello, at its beginning")
            case _:
                self._accounting.session(name, Direction.FROM_SITE, nbytes)  # of a newer protocol

    def _message(self, data: bytes, numbers: Numbering) -> pb.FromSite:
        message: pb.FromSite = parsed(pb.FromSite, data)
        numbers.check(message.number)
        strange = set(unknown_fields(message)) - self._named
        if strange and len(self._named) < 1_000:
            self._named |= strange
            log.info("ignored what this version does not know: %s", ", ".join(sorted(strange)))
        return message

    def _send(self, session: SiteSession, message: pb.ToSite) -> None:
        session.send(message)
        self._accounting.session(session.name, Direction.TO_SITE, message.ByteSize())

    async def _refuse(
        self, session: SiteSession, error: BaseException, writing: asyncio.Task[None]
    ) -> None:
        """End a session that cannot go on, and have the site told why."""
        if isinstance(error, BadMessage):
            session.end(str(error), final=False)
            async with asyncio.timeout(self._settings.hello_s):
                await writing
        raise error


async def _write(session: SiteSession, context: Any) -> None:
    while (message := await session.outbox.take()) is not None:
        await context.write(message)


def passable(site: SiteName, answer: pb.Answer) -> pb.Answer:
    """An answer that fits into a message to a coordinator; one too large has failed.

    Its order ends by that: whoever waits for it would wait for ever otherwise.
    """
    size = answer.ByteSize()
    if size <= LARGEST_ANSWER:
        return answer
    text = f"the answer has {size} bytes beside its tensors; at most {LARGEST_ANSWER} are taken"
    return pb.Answer(id=answer.id, failure=told(AnswerUnreadable(site, "BadPayload", text)))


def _check_data(data_json: str) -> None:
    """BadMessage unless a site tells of its data in a JSON object, or not at all."""
    if not data_json:
        return
    if len(data_json.encode()) > LARGEST_DATA:
        raise BadMessage(f"a site tells of its data in {LARGEST_DATA} bytes at most")
    try:
        found = json.loads(data_json)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"what the site tells of its data is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadMessage("what the site tells of its data is no JSON object")
