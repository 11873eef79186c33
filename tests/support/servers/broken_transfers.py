"""A mediator and a site that send blobs to each other, over streams that break as a test says."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fedpilot.mediator.core.traffic import Direction
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.services.blob_handlers import blob_handlers
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.transfer import (
    BlobClient,
    BlobService,
    BlobStub,
    Piece,
    TransferSettings,
    unpack,
)

DATA = random.Random(5).randbytes(100_000)
QUICK = TransferSettings(piece_bytes=7_000, first_pause_s=0.001, longest_pause_s=0.01)
Code = grpc.StatusCode


def blob_of(data: bytes) -> Blob:
    return Blob(hashlib.sha256(data).hexdigest(), len(data))


def put(store: BlobStore, data: bytes) -> Blob:
    aside = store.folder / "aside"
    aside.write_bytes(data)
    return store.adopt(aside)


@dataclass
class Guard:
    """A gate that refuses what it is told to, and remembers what it books."""

    refusal: str = ""
    booked: dict[Direction, int] = field(default_factory=dict)

    def site_of(self, context: Any) -> str:
        return str(dict(context.invocation_metadata()).get("site", "paris"))

    def refuses_fetch(self, site: str, digest: str) -> str:
        return self.refusal

    def refuses_push(self, site: str, run: str, key: str, blob: Blob) -> str:
        return self.refusal

    def book(self, site: str, direction: Direction, digest: str, nbytes: int) -> None:
        self.booked[direction] = self.booked.get(direction, 0) + nbytes


@dataclass
class Breaks:
    """What goes wrong with the next streams: after how many pieces each is cut, or spoiled."""

    cuts: list[int] = field(default_factory=list)
    spoiled: list[int] = field(default_factory=list)
    stalls: list[int] = field(default_factory=list)
    pace_s: float = 0.0
    """Before each piece of a download."""
    refusals: list[tuple[grpc.StatusCode, str]] = field(default_factory=list)
    """Of the next calls."""

    def next(self, of: list[int]) -> int:
        return of.pop(0) if of else -1


class BreakingService(BlobService):
    """A service behind a link that breaks."""

    def __init__(self, breaks: Breaks, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.breaks = breaks
        self.streams = 0
        self.open = self.most_open = 0
        """Downloads at once."""
        self.offsets: list[int] = []
        """Where each push began."""

    async def fetch(self, request: pb.FetchRequest, context: Any) -> None:
        self.streams += 1
        await self._refuse(context)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await super().fetch(request, _Outlet(context, self.breaks))
        self.open -= 1

    async def offer(self, request: pb.OfferRequest, context: Any) -> pb.OfferReply:
        await self._refuse(context)
        return await super().offer(request, context)

    async def _refuse(self, context: Any) -> None:
        if self.breaks.refusals:
            await context.abort(*self.breaks.refusals.pop(0))

    async def push(self, pieces: AsyncIterator[Piece], context: Any) -> pb.PushReply:
        self.streams += 1
        cut, spoil = self.breaks.next(self.breaks.cuts), self.breaks.next(self.breaks.spoiled)

        async def broken() -> AsyncIterator[Piece]:
            number = 0
            async for piece in pieces:
                if number == cut:
                    await context.abort(Code.UNAVAILABLE, "the link is cut")
                if number == 0:
                    self.offsets.append(piece.offset)
                yield _spoiled(piece) if number == spoil else piece
                number += 1

        return await super().push(broken(), context)


class _Outlet:
    def __init__(self, context: Any, breaks: Breaks) -> None:
        self._context, self._number, self._breaks = context, 0, breaks
        self._cut, self._spoil = breaks.next(breaks.cuts), breaks.next(breaks.spoiled)
        self._stall = breaks.next(breaks.stalls)

    async def write(self, piece: Piece | bytes) -> None:
        if self._number == self._cut:
            await self._context.abort(Code.UNAVAILABLE, "the link is cut")
        if self._number == self._stall:
            await asyncio.Event().wait()
        await asyncio.sleep(self._breaks.pace_s)
        await self._context.write(_spoiled(piece) if self._number == self._spoil else piece)
        self._number += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _spoiled(piece: Piece | bytes) -> Piece:
    piece = unpack(piece) if isinstance(piece, bytes) else piece
    data = bytearray(piece.data)
    data[0] ^= 1
    return Piece(bytes(data), piece.digest, piece.offset)


@dataclass
class World:
    """A mediator and a site, over a real connection."""

    service: BreakingService
    gate: Guard
    breaks: Breaks
    mediator: BlobStore
    site: BlobStore
    client: BlobClient
    stub: BlobStub
    channel: grpc.aio.Channel
    booked: dict[Direction, int]


@asynccontextmanager
async def world(
    folder: Path,
    settings: TransferSettings = QUICK,
    service_settings: TransferSettings = QUICK,
    site_limit: int = 10**6,
) -> AsyncIterator[World]:
    mediator, site = BlobStore(folder / "mediator", 10**6), BlobStore(folder / "site", site_limit)
    gate, breaks = Guard(), Breaks()
    service = BreakingService(
        breaks, mediator, gate, largest_bytes=200_000, settings=service_settings
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((blob_handlers(service),))
    port = server.add_insecure_port("localhost:0")
    await server.start()
    booked: dict[Direction, int] = {}

    def book(direction: Direction, _digest: str, nbytes: int) -> None:
        booked[direction] = booked.get(direction, 0) + nbytes

    try:
        async with grpc.aio.insecure_channel(f"localhost:{port}") as channel:
            stub = BlobStub(channel)
            client = BlobClient(stub, site, book, settings)
            yield World(
                service=service,
                gate=gate,
                breaks=breaks,
                mediator=mediator,
                site=site,
                client=client,
                stub=stub,
                channel=channel,
                booked=booked,
            )
    finally:
        await server.stop(None)


def in_a_world(folder: Path, act: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    async def go() -> None:
        async with asyncio.timeout(30), world(folder, **settings) as there:
            await act(there)

    asyncio.run(go())
