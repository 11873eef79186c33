"""SiteService.Session: one conversation with a site's agent, from its hello to its farewell.

The hello must come first and in time, and name a known protocol and the site of the certificate. A
repeated or missing message number ends the session. A site that sends too fast is read more slowly;
one that begins too many sessions waits. Unknown fields are logged once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
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
"""Bytes that a site may disclose about its data."""
LARGEST_ANSWER = LARGEST_HEADER + (256 << 10)
"""Bytes of an answer: a payload's header, or an error; tensors come as a blob."""


class SiteSession:
    """The mediator's end of a session."""

    def __init__(self, name: SiteName, serial: str, limit: int) -> None:
        self.name, self.serial = name, serial
        self.outbox: Outbox[pb.ToSite] = Outbox(limit)
        self._numbers = Numbering()

    def send(self, message: pb.ToSite) -> None:
        """Number and send a message; an overflow ends the session."""
        message.number = self._numbers.next()
        if not self.outbox.put(message) and self.outbox.overflowed:
            log.warning("site %s takes its messages too slowly: its session ends", self.name)

    def end(self, reason: str, *, final: bool) -> None:
        """Send a farewell, and nothing after it."""
        if not self.outbox.closed:
            log.info("the session of site %s ends: %s", self.name, reason)
            self.send(pb.ToSite(farewell=pb.Farewell(reason=reason, final=final)))
            self.outbox.close()


@dataclass(eq=False)
class SiteSessions:
    """Serves `Session`; other handlers serve the blobs of SiteService."""

    _settings: ServerSettings
    _clock: Callable[[], float]
    _guard: Guard
    _sites: SiteRegistry
    _accounting: TrafficAccounting
    _named: set[str] = field(default_factory=set)
    """Unknown fields that were logged."""
    _beginning: dict[str, RateLimiter] = field(default_factory=dict)
    """Limits the rate at which each site begins sessions, by the name in its certificate."""

    async def session(self, requests: AsyncIterator[bytes], context: Any, peer: Peer) -> None:
        """Serve one session until either side ends it."""
        numbers, settings = Numbering(), self._settings
        pacing = self._beginning.get(peer.name)
        if pacing is None:
            pacing = RateLimiter(settings.hellos_per_s, settings.hellos_at_once, self._clock())
            self._beginning[peer.name] = pacing
        if pause := pacing.pause_s(self._clock()):
            await asyncio.sleep(pause)
        try:
            async with asyncio.timeout(settings.hello_s):
                first = await anext(requests, None)
        except TimeoutError:
            raise BadRequest(f"no hello came within {settings.hello_s:g} s") from None
        if first is None:
            return
        try:
            session = self._begun(self._message(first, numbers), peer, len(first))
        except (BadMessage, NotPermitted, ProtocolRefused) as error:
            pacing.give_back()  # the refusal had no effect outside this call
            farewell = pb.Farewell(reason=str(error), final=True)
            await context.write(pb.ToSite(number=1, farewell=farewell))
            raise
        writing = asyncio.create_task(session.outbox.send_all(context))
        reading = asyncio.create_task(self._read(session, requests, numbers, peer))
        try:
            await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
            wrong = reading.exception() if reading.done() else None
            if wrong is not None:
                if isinstance(wrong, BadMessage):
                    session.end(str(wrong), final=False)
                    async with asyncio.timeout(settings.hello_s):
                        await writing
                raise wrong
        finally:
            self._sites.over(session.name, session)
            session.outbox.close()
            for task in (writing, reading):
                task.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)

    def _begun(self, message: pb.FromSite, peer: Peer, nbytes: int) -> SiteSession:
        """Begin a session with its first message; BadMessage, NotPermitted or ProtocolRefused."""
        if message.WhichOneof("content") != "hello":
            raise BadMessage("a session begins with a hello")
        hello = message.hello
        name = check_site(hello.site)
        if name != peer.name:
            raise NotPermitted(f"the certificate of {peer.name} does not speak for site {name}")
        check_protocol(hello.protocol, here="this mediator", there=f"site {name}")
        for what, held in (("orders", hello.held), ("runs", hello.runs)):
            if len(held) > MOST_HELD:
                raise BadMessage(f"{len(held)} {what} cannot be held; {MOST_HELD} at most")
        for each in hello.held:
            order_id(each)
        for run in hello.runs:
            check_run(run)
        _check_data(hello.data_json)
        for text in (hello.version, hello.agent):
            if len(text) > 100 or not text.isprintable():
                raise BadMessage("a version or an agent's id is plain text of up to 100 characters")
        capacity = capacity_of(hello.capacity)
        self._accounting.session(name, Direction.FROM_SITE, nbytes)
        settings = self._settings
        session = SiteSession(name, peer.serial, settings.held_back)
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
        self, session: SiteSession, requests: AsyncIterator[bytes], numbers: Numbering, peer: Peer
    ) -> None:
        settings = self._settings
        pacing = RateLimiter(settings.messages_per_s, settings.messages_at_once, self._clock())
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
                    # A site whose certificate expired may have a new one by now.
                    session.end(objection, final=peer.expires_at > time.time())
                    return
                beat = message.heartbeat
                self._accounting.session(name, Direction.FROM_SITE, nbytes)
                runs = sites.heartbeat(
                    name, capacity_of(beat.capacity), beat.trouble, beat.round_trip_s
                )
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
                self._accounting.session(name, Direction.FROM_SITE, nbytes)  # from a newer protocol

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


def passable(site: SiteName, answer: pb.Answer) -> pb.Answer:
    """The answer, or a failure if it is too large for a message to a coordinator."""
    size = answer.ByteSize()
    if size <= LARGEST_ANSWER:
        return answer
    text = f"the answer has {size} bytes beside its tensors; at most {LARGEST_ANSWER} are taken"
    return pb.Answer(id=answer.id, failure=told(AnswerUnreadable(site, "BadPayload", text)))


def _check_data(data_json: str) -> None:
    """Raise BadMessage unless the text is empty or a JSON object of legal size."""
    if not data_json:
        return
    if len(data_json.encode()) > LARGEST_DATA:
        raise BadMessage(f"a site describes its data in {LARGEST_DATA} bytes at most")
    try:
        found = json.loads(data_json)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the site's description of its data is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadMessage("the site's description of its data is no JSON object")
