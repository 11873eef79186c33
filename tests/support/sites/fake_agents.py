"""Sites without Ray: the real protocol on real gRPC, and a function in the place of runners.

They are light, so that hundreds of them fit into one process; each needs a certificate of its own.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from fedpilot.mediator import Payload
from fedpilot.mediator.errors import MediatorError
from fedpilot.mediator.identity import Credentials
from fedpilot.mediator.identity.tls import client_credentials
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.failures import told
from fedpilot.mediator.wire.messages import (
    PROTOCOL,
    Capacity,
    Numbering,
    OrderId,
    blob_of,
    capacity_message,
    done_message,
    id_message,
    order_id,
    payload_of,
)
from fedpilot.mediator.wire.rpc import CHANNEL_OPTIONS, MESSAGE_OPTIONS, SITE, Stub
from fedpilot.mediator.wire.transfer import (
    BlobClient,
    BlobStub,
    TransferFailed,
    TransferRefused,
    TransferSettings,
)

Work = Callable[[pb.Order, Payload], Awaitable[Payload]]
MIB = 1 << 20
QUICK = TransferSettings(piece_bytes=1 << 15, stall_s=5, floor_s=20, attempts=2, first_pause_s=0.05)


async def promise_and_echo(order: pb.Order, payload: Payload) -> Payload:
    """What a site does unless a test says otherwise: it promises, agrees, and gives back."""
    match order.verb:
        case "prepare":
            return Payload(kind="promised", header={"vnodes": 2})
        case "work":
            return Payload(kind="done", header=dict(payload.header), tensors=payload.tensors)
        case "command":
            said = " ".join(payload.header["arguments"])
            return Payload(kind="command", header={"exit_code": 0, "out": said, "err": ""})
    return Payload(kind="done")


class FakeAgent:
    """One site. Its memory (orders at work, answers) outlives sessions, as an agent's does."""

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        folder: Path,
        *,
        name: str = "",
        work: Work = promise_and_echo,
        data_json: str = "",
        protocol: int = PROTOCOL,
        agent: str = "",
        hold_answers: bool = False,
    ) -> None:
        self.name = name or credentials.identity.name
        self.address = address
        self.blobs = BlobStore(folder, 1 << 30)
        self.trouble = ""
        self.link: pb.Link | None = None
        self.round_trip_s = 0.0
        self.capacity = Capacity(total={"CPU": 4.0}, free={"CPU": 4.0}, machines=1)
        self.runs: list[str] = []
        """The runs for which it says that it holds something."""
        self.silent = False
        """Whether it speaks, while the connection stands."""
        self.blobs_only = False
        """Whether it does not speak while it brings an answer."""
        self._bringing = 0
        self.hold_answers = hold_answers
        """Whether answers are kept back until `release_answers`."""
        self.agent = agent or secrets.token_hex(4)
        self.worked: list[OrderId] = []
        """Every order that was worked on, as often as it was."""
        self.taken: list[OrderId] = []
        """Answers that were acknowledged."""
        self.renewed: list[str] = []
        """The runs of the last renewal."""
        self.farewells: list[pb.Farewell] = []
        self.refusals: list[grpc.aio.AioRpcError] = []
        self.welcomed = asyncio.Event()
        self.message_of: Callable[[Payload, BlobStore], pb.Done] = done_message
        """How it puts down an answer."""
        self._work = work
        self._credentials = credentials
        self._data_json = data_json
        self._protocol = protocol
        self._tasks: dict[OrderId, asyncio.Task[None]] = {}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Keep each run's orders as they came, as agents do: work needs earlier work's model."""
        self._answers: dict[OrderId, pb.Answer] = {}
        self._released = asyncio.Event()
        self._outgoing: asyncio.Queue[pb.FromSite] = asyncio.Queue()
        self._channel: grpc.aio.Channel | None = None
        self._running: asyncio.Task[None] | None = None
        self._client: BlobClient | None = None

    # -- its life ---------------------------------------------------------------------------------

    def connect(self) -> grpc.aio.Channel:
        """A channel with its certificate."""
        return grpc.aio.secure_channel(
            self.address,
            client_credentials(self._credentials),
            options=[*CHANNEL_OPTIONS, *MESSAGE_OPTIONS, ("grpc.use_local_subchannel_pool", 1)],
        )

    async def start(self) -> None:
        """Speak with the mediator until `stop`, over broken sessions."""
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Break the connection without a word; what is at work goes on."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running
        self._running = None

    async def close(self) -> None:
        """End, with all that is at work."""
        await self.stop()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def release_answers(self) -> None:
        """Send what was kept back."""
        self.hold_answers = False
        self._released.set()

    @property
    def held(self) -> list[OrderId]:
        """Orders that are at work or answered here."""
        return sorted({*self._tasks, *self._answers})

    # -- sessions ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        final = False
        while not final:
            try:
                async with self.connect() as channel:
                    self._client = BlobClient(BlobStub(channel), self.blobs, _uncounted, QUICK)
                    final = await self._session(channel)
            except grpc.aio.AioRpcError as error:
                self.refusals.append(error)
                final = bool(self.farewells and self.farewells[-1].final)
            await asyncio.sleep(0.05)

    async def _session(self, channel: grpc.aio.Channel) -> bool:
        """One session; whether it was the last."""
        call = Stub(channel, SITE).session()
        numbers, theirs = Numbering(), Numbering()
        self._outgoing = asyncio.Queue()

        async def send(message: pb.FromSite) -> None:
            message.number = numbers.next()
            await call.write(message)

        await send(pb.FromSite(hello=self.hello()))
        for answer in self._answers.values():
            self._outgoing.put_nowait(pb.FromSite(answer=answer))
        first = await call.read()
        if first is grpc.aio.EOF or first.WhichOneof("content") != "welcome":
            if first is not grpc.aio.EOF and first.HasField("farewell"):
                self.farewells.append(first.farewell)
                return first.farewell.final
            await call.code()
            return False
        theirs.check(first.number)
        self.welcomed.set()
        doing = [
            asyncio.create_task(self._beat(first.welcome.heartbeat_s)),
            asyncio.create_task(self._send_all(send)),
        ]
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                theirs.check(message.number)
                if self._take(message):
                    return True
            return False
        finally:
            self.welcomed.clear()
            for task in doing:
                task.cancel()
            await asyncio.gather(*doing, return_exceptions=True)
            call.cancel()

    def hello(self) -> pb.Hello:
        """What it says first."""
        return pb.Hello(
            protocol=self._protocol,
            site=self.name,
            version="0.0-fake",
            agent=self.agent,
            capacity=capacity_message(self.capacity),
            data_json=self._data_json,
            held=[id_message(each) for each in self.held],
            link=self.link,
            runs=self.runs,
        )

    async def _beat(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            if not self.silent and not (self.blobs_only and self._bringing):
                capacity = capacity_message(self.capacity)
                beat = pb.Heartbeat(
                    capacity=capacity, trouble=self.trouble, round_trip_s=self.round_trip_s
                )
                self._outgoing.put_nowait(pb.FromSite(heartbeat=beat))

    async def _send_all(self, send: Callable[[pb.FromSite], Awaitable[None]]) -> None:
        while True:
            await send(await self._outgoing.get())

    def _take(self, message: pb.ToSite) -> bool:
        match message.WhichOneof("content"):
            case "order":
                id = order_id(message.order.id)
                if id in self._answers:
                    self._outgoing.put_nowait(pb.FromSite(answer=self._answers[id]))
                elif id not in self._tasks:
                    self._tasks[id] = asyncio.create_task(self._do(id, message.order))
            case "answer_taken":
                id = order_id(message.answer_taken.id)
                self._answers.pop(id, None)
                self.taken.append(id)
            case "renewal":
                self.renewed = list(message.renewal.runs)
            case "farewell":
                self.farewells.append(message.farewell)
                return message.farewell.final
        return False

    async def _do(self, id: OrderId, order: pb.Order) -> None:
        try:
            answer = await self._answer_to(id, order)
            if self.hold_answers:
                await self._released.wait()
            self._answers[id] = answer
            self._outgoing.put_nowait(pb.FromSite(answer=answer))
        except TransferRefused:
            return  # nobody waits for it any more
        finally:
            del self._tasks[id]

    async def _answer_to(self, id: OrderId, order: pb.Order) -> pb.Answer:
        try:
            async with self._turns[order.id.run]:
                if (blob := blob_of(order.blob)) is not None:
                    await self._persist(lambda client: client.download(blob))
            self._outgoing.put_nowait(pb.FromSite(taken=pb.Taken(id=id_message(id))))
            self.worked.append(id)
            made = await self._work(order, payload_of(order, self.blobs))
            done = self.message_of(made, self.blobs)
        except (ValueError, MediatorError) as error:
            return pb.Answer(id=id_message(id), failure=told(error))
        pushed = blob_of(done.blob)
        if pushed is not None:
            self._bringing += 1
            try:
                await self._persist(lambda client: client.upload(pushed, run=id.run, key=id.key))
            finally:
                self._bringing -= 1
        return pb.Answer(id=id_message(id), done=done)

    async def _persist(self, transfer: Callable[[BlobClient], Awaitable[object]]) -> None:
        """Do it over whichever session there is by now."""
        while True:
            try:
                if self._client is not None:
                    await transfer(self._client)
                    return
            except (TransferFailed, grpc.aio.AioRpcError, grpc.aio.UsageError):
                pass  # the link broke
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # otherwise the channel was closed, which cancels its calls
            await asyncio.sleep(0.05)

    def say(self, run: str, kind: str, header: Mapping[str, Any]) -> None:
        """Something that a coordinator may show."""

        happened = pb.Happened(run=run, kind=kind, header_json=json.dumps(header))
        self._outgoing.put_nowait(pb.FromSite(happened=happened))


def _uncounted(direction: object, digest: str, nbytes: int) -> None:
    """Nobody counts here."""
