"""A scripted mediator on real gRPC with mutual TLS, and a wire to it that can be cut.

It says what a test has it say, and remembers what came; heartbeats it answers by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fedpilot.mediator.core.rules.roles import Role
from fedpilot.mediator.core.traffic import Direction
from fedpilot.mediator.identity import Authority, Credentials
from fedpilot.mediator.identity.tls import peer_of, server_credentials
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.services.blob_handlers import blob_handlers
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.payloads import write
from fedpilot.mediator.wire.rpc import JOIN, MESSAGE_OPTIONS, SITE, handler
from fedpilot.mediator.wire.transfer import BlobService
from fedpilot.mediator.workload import Payload

PATIENCE_S = 60.0
HEARTBEAT_S = 0.2


@dataclass
class Conversation:
    """A session with an agent."""

    context: Any
    hello: pb.Hello
    number: int = 0
    came: asyncio.Queue[pb.FromSite] = field(default_factory=asyncio.Queue)
    seen: list[pb.FromSite] = field(default_factory=list)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, message: pb.ToSite, *, number: int | None = None) -> None:
        """Send the next message, or one with a number of the test's."""
        async with self.writing:
            self.number = self.number + 1 if number is None else number
            message.number = self.number
            await self.context.write(message)

    async def order(self, run: str, key: str, verb: str, payload: Payload, to: BlobStore) -> None:
        """Give an order."""
        header, blob = write(payload, to)
        order = pb.Order(
            id=pb.OrderId(run=run, key=key),
            verb=verb,
            kind=payload.kind,
            header_json=header,
            round=3,
        )
        if blob is not None:
            order.blob.CopyFrom(pb.Blob(digest=blob.digest, size=blob.size))
        await self.send(pb.ToSite(order=order))

    async def take(self, run: str, key: str) -> None:
        """Confirm an answer."""
        await self.send(pb.ToSite(answer_taken=pb.AnswerTaken(id=pb.OrderId(run=run, key=key))))

    async def wait_for(self, content: str, within_s: float = PATIENCE_S, **ids: str) -> Any:
        """The next message of a kind, perhaps about one order."""
        async with asyncio.timeout(within_s):
            while True:
                message = await self.came.get()
                self.seen.append(message)
                if message.WhichOneof("content") != content:
                    continue
                found = getattr(message, content)
                if all(getattr(found.id, name) == value for name, value in ids.items()):
                    return found

    async def end(self) -> None:
        """End the call."""
        self.over.set()


class Gate:
    """Lets every site have and bring everything, unless the test says no."""

    def __init__(self) -> None:
        self.no = self.refused_pushes = ""
        self.offered: list[str] = []
        self.bytes = {Direction.TO_SITE: 0, Direction.FROM_SITE: 0}

    def site_of(self, context: Any) -> str:
        return peer_of(context).name

    def refuses_fetch(self, site: str, digest: str) -> str:
        return self.no

    def refuses_push(self, site: str, run: str, key: str, blob: Blob) -> str:
        self.offered.append(key)
        return self.no or self.refused_pushes

    def book(self, site: str, direction: Direction, digest: str, nbytes: int) -> None:
        self.bytes[direction] += nbytes


class Blobs(BlobService):
    """Remembers from where on blobs were fetched, and lets some wait."""

    offsets: list[int]
    held: list[asyncio.Event]

    async def fetch(self, request: pb.FetchRequest, context: Any) -> None:
        self.offsets.append(request.offset)
        if self.held:
            await self.held.pop(0).wait()
        await super().fetch(request, context)


class FakeMediator:
    """The server; `session` waits for the next conversation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        yesterday = time.time() - 86_400.0  # so that there are old certificates
        self.authority = Authority.create(folder / "authority", now=yesterday)
        self.store = BlobStore(folder / "blobs", 1 << 30)
        self.gate = Gate()
        self.runs: list[str] = []
        """What a renewal names."""
        self.lease_s = 30.0
        self.greets = True
        self.renews_not = ""
        """Why it renews no certificate."""
        self.address = ""
        self.join_address = ""
        self.tokens: list[str] = []
        self.offsets: list[int] = []
        """From where on blobs were fetched."""
        self.held: list[asyncio.Event] = []
        """What the next fetches wait for, one after the other."""
        self._sessions: asyncio.Queue[Conversation] = asyncio.Queue()

    def credentials(self, name: str, role: Role = Role.SITE) -> Credentials:
        """What somebody shows."""
        return self.authority.issue(name, role, now=time.time())

    async def next_session(self, within_s: float = PATIENCE_S) -> Conversation:
        """The next conversation that an agent has begun."""
        async with asyncio.timeout(within_s):
            return await self._sessions.get()

    async def join(self, request: pb.JoinRequest, context: Any) -> pb.JoinReply:
        """JoinService."""
        self.tokens.append(request.token)
        if request.token != "open sesame":
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the token was used already")
        certificate = self.authority.sign(
            request.certificate_request, request.site, Role.SITE, now=time.time()
        )
        return pb.JoinReply(certificate=certificate, authority=self.authority.certificate)

    async def renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewReply:
        """SiteService.Renew."""
        if self.renews_not:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.renews_not)
        certificate = self.authority.renew(
            peer_of(context).serial, request.certificate_request, now=time.time()
        )
        return pb.RenewReply(certificate=certificate)

    async def session(self, requests: AsyncIterator[pb.FromSite], context: Any) -> None:
        """SiteService.Session."""
        first = await anext(requests)
        conversation = Conversation(context, first.hello)
        if self.greets:
            welcome = pb.Welcome(
                protocol=1,
                heartbeat_s=HEARTBEAT_S,
                lease_s=self.lease_s,
                piece_bytes=1 << 16,
                largest_blob_bytes=1 << 30,
            )
            await conversation.send(pb.ToSite(welcome=welcome))
        self._sessions.put_nowait(conversation)
        reading = asyncio.create_task(self._read(requests, conversation))
        over = asyncio.create_task(conversation.over.wait())
        try:
            await asyncio.wait((reading, over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reading.cancel()
            over.cancel()

    async def _read(self, requests: AsyncIterator[pb.FromSite], conversation: Conversation) -> None:
        number = 1
        async for message in requests:
            number += 1
            assert message.number == number
            if message.HasField("heartbeat"):
                await conversation.send(pb.ToSite(renewal=pb.Renewal(runs=self.runs)))
            conversation.came.put_nowait(message)

    async def fetch(self, request: Any, context: Any) -> None: ...

    async def offer(self, request: Any, context: Any) -> None: ...

    async def push(self, request: Any, context: Any) -> None: ...


@asynccontextmanager
async def fake_mediator(folder: Path) -> AsyncIterator[FakeMediator]:
    """A mediator that listens."""
    mediator = FakeMediator(folder)
    hosts = ("127.0.0.1",)
    own = mediator.authority.issue("mediator", Role.MEDIATOR, hosts, now=time.time())
    server = grpc.aio.server(options=MESSAGE_OPTIONS)
    blobs = Blobs(mediator.store, mediator.gate, largest_bytes=1 << 30)
    blobs.offsets, blobs.held = mediator.offsets, mediator.held
    server.add_generic_rpc_handlers((blob_handlers(blobs), handler(SITE, mediator)))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(own))
    joining = grpc.aio.server()
    joining.add_generic_rpc_handlers((handler(JOIN, mediator),))
    join_port = joining.add_secure_port(
        "127.0.0.1:0", server_credentials(own, require_clients=False)
    )
    mediator.address = f"127.0.0.1:{port}"
    mediator.join_address = f"127.0.0.1:{join_port}"
    await server.start()
    await joining.start()
    try:
        yield mediator
    finally:
        await server.stop(0)
        await joining.stop(0)


class Wire:
    """TCP between an agent and a mediator."""

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._tasks: set[asyncio.Task[None]] = set()
        self._whole = True
        self.bytes = 0
        self.cut_after: int | None = None
        """Cut once so many bytes have passed."""
        self.bytes_per_s: float | None = None
        """What all connections together carry, in each direction, taking turns."""
        self._turns: dict[bool, asyncio.Lock] = {}
        self.connections = 0
        """How many there were."""
        self.swallows = False
        """Nothing comes through any more, and nobody is told."""
        self.address = ""

    async def listen(self) -> asyncio.Server:
        """Carry connections from now on."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        return server

    def cut(self) -> None:
        """Break all that is there; nothing new comes through until it is mended."""
        self._whole = False
        for task in self._tasks:
            task.cancel()

    def mend(self) -> None:
        """Carry new connections again."""
        self._whole, self.cut_after = True, None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there = None
        try:
            if self._whole:
                self.connections += 1
                far, there = await asyncio.open_connection(*self._to)
                await asyncio.gather(
                    self._carry(reader, there, out=True), self._carry(far, writer, out=False)
                )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for each in (writer, there):
                if each is not None:
                    each.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, out: bool
    ) -> None:
        while data := await reader.read(1 << 14):
            self.bytes += len(data)
            if self.bytes_per_s is not None:
                async with self._turns.setdefault(out, asyncio.Lock()):
                    await asyncio.sleep(len(data) / self.bytes_per_s)
            if self.cut_after is not None and self.bytes > self.cut_after:
                self.cut()
            if not self.swallows:
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def wire(to: str) -> AsyncIterator[Wire]:
    """A wire to an address, which listens at one of its own."""
    carrying = Wire(to)
    server = await carrying.listen()
    try:
        yield carrying
    finally:
        carrying.cut()
        server.close()
