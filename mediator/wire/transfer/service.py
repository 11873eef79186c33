"""BlobService: the mediator's end of Fetch, Offer and Push.

A `Gate` decides what a site may fetch or push, and books it. Open offers and calls are bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import grpc

from ...core.traffic import Direction
from ...proto import federation_pb2 as pb
from ..blobs.blob import Blob, check_digest
from ..blobs.errors import BadBlob, BlobBusy, NoRoom
from ..blobs.full_disk import is_full
from ..blobs.part import PartialBlob
from ..blobs.store import BlobStore
from ..rpc import NO_ROOM_NOW
from .pieces import BadPiece, Piece
from .settings import USUAL, TransferSettings
from .streams import StreamMemory, opened, receive, send

log = logging.getLogger(__name__)

Context = Any
"""A `grpc.aio.ServicerContext`, whose type stubs lack the argument of `write`."""
FULL = f"{NO_ROOM_NOW}: the mediator's disk is full"
"""The answer to a push on a full disk, which is logged once (`server/runs/disk_room.py`)."""
OFFERS_PER_SITE = 256
"""Open offers of a site; with more, the oldest is dropped, and the site offers it again."""


class Gate(Protocol):
    """Decides what each site may fetch and push; called in the event loop."""

    def site_of(self, context: Any) -> str:
        """The calling site, by its certificate."""

    def refuses_fetch(self, site: str, digest: str) -> str:
        """Say why a site may not fetch a blob; empty if it may."""

    def refuses_push(self, site: str, run: str, key: str, blob: Blob) -> str:
        """Say why an order's answer may not bring a blob; empty if it may.

        Pin a blob that is needed for longer here: a pin may precede its blob.
        """

    def book(self, site: str, direction: Direction, digest: str, nbytes: int) -> None:
        """Count bytes of a blob that crossed the site's boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """A push that a site has announced."""

    blob: Blob
    run: str
    key: str


class BlobService:
    """Fetch, Offer and Push of SiteService, as coroutines."""

    def __init__(
        self,
        store: BlobStore,
        gate: Gate,
        *,
        largest_bytes: int,
        settings: TransferSettings = USUAL,
    ) -> None:
        self._store, self._gate = store, gate
        self._largest = largest_bytes
        self._settings = settings
        self._room = StreamMemory(settings.waiting_bytes)
        self._offers: dict[str, dict[str, _Offer]] = {}
        """By site and digest, oldest first."""
        self._pushed: dict[tuple[str, str], PartialBlob] = {}
        """Parts being written, by site and digest."""

    async def fetch(self, request: pb.FetchRequest, context: Context) -> None:
        """Send a blob's pieces from an offset on."""
        site = self._gate.site_of(context)
        code = grpc.StatusCode
        try:
            check_digest(request.digest)
        except BadBlob as error:
            await _refuse(context, site, code.INVALID_ARGUMENT, str(error))
        if reason := self._gate.refuses_fetch(site, request.digest):
            await _refuse(context, site, code.PERMISSION_DENIED, reason)
        with self._store.pinned(request.digest):
            size = self._store.size(request.digest)
            if size is None:
                text = f"blob {request.digest} is not here"
                await _refuse(context, site, code.NOT_FOUND, text)
            if request.offset > size:
                text = f"blob {request.digest} has {size} bytes, and {request.offset} was asked for"
                await _refuse(context, site, code.OUT_OF_RANGE, text)

            def book(nbytes: int) -> None:
                self._gate.book(site, Direction.TO_SITE, request.digest, nbytes)

            path = self._store.path(request.digest)
            blob = Blob(request.digest, size)
            try:
                async with asyncio.timeout(self._settings.total_s(size - request.offset)):
                    await send(path, blob, request.offset, context.write, book, self._settings)
            except TimeoutError:
                text = f"blob {request.digest} is taken too slowly"
                await _refuse(context, site, code.DEADLINE_EXCEEDED, text)

    async def offer(self, request: pb.OfferRequest, context: Context) -> pb.OfferReply:
        """Say how much of a blob is here; end an earlier push of it, which the site gave up."""
        site = self._gate.site_of(context)
        code = grpc.StatusCode
        try:
            blob = Blob(request.blob.digest, request.blob.size)
        except BadBlob as error:
            await _refuse(context, site, code.INVALID_ARGUMENT, str(error))
        if blob.size > self._largest:
            text = f"blob {blob.digest} has {blob.size} bytes; at most {self._largest} are taken"
            await _refuse(context, site, code.RESOURCE_EXHAUSTED, text)
        run, key = request.order.run, request.order.key
        if reason := self._gate.refuses_push(site, run, key, blob):
            await _refuse(context, site, code.PERMISSION_DENIED, reason)
        self._end_push(site, blob.digest)
        if self._store.under_way(blob, site) == blob.size:
            await self._finish_left(site, blob)
        if self._store.has(blob):
            return pb.OfferReply(offset=blob.size)
        self._remember(site, _Offer(blob=blob, run=run, key=key))
        return pb.OfferReply(offset=self._store.under_way(blob, site))

    async def push(self, pieces: AsyncIterator[Piece], context: Context) -> pb.PushReply:
        """Receive a blob's pieces, from where it was cut."""
        site = self._gate.site_of(context)
        code = grpc.StatusCode
        part: PartialBlob | None = None
        try:
            async with asyncio.timeout(self._settings.piece_s):
                first = await anext(pieces, None)
                if first is None:
                    raise BadPiece(code.INVALID_ARGUMENT, "a push without a piece")
                offer = self._offers.get(site, {}).get(first.digest)
                if offer is None:
                    text = f"no blob {first.digest[:80]!r} was offered, so none can be pushed"
                    raise BadPiece(code.INVALID_ARGUMENT, text)
                blob = offer.blob
                part = await opened(self._store, blob, site)
            self._pushed[site, blob.digest] = part
            async with asyncio.timeout(self._settings.total_s(blob.size - part.size)):
                await self._take(site, first, pieces, part)
            if part.size == blob.size:
                await asyncio.to_thread(part.finish)
                self._offers.get(site, {}).pop(blob.digest, None)
        except BadPiece as error:
            await _refuse(context, site, error.code, error.text)
        except TimeoutError:
            await _refuse(context, site, code.DEADLINE_EXCEEDED, "the pieces come too slowly")
        except BlobBusy as error:
            await _refuse(context, site, code.ABORTED, str(error))
        except (NoRoom, OSError) as error:
            if is_full(error):
                await context.abort(code.UNAVAILABLE, FULL)
            if not isinstance(error, NoRoom):
                raise
            await _refuse(context, site, code.RESOURCE_EXHAUSTED, str(error))
        except BadBlob as error:
            await _refuse(context, site, code.DATA_LOSS, str(error))
        finally:
            if part is not None:
                part.close()
                if self._pushed.get((site, part.blob.digest)) is part:
                    del self._pushed[site, part.blob.digest]
        return pb.PushReply(size=part.size)

    def forget(self, run: str, *, site: str = "", key: str = "") -> None:
        """Remove a run's incomplete blobs, of one site or order if given, and refuse more."""
        for each in [site] if site else list(self._offers):
            offers = self._offers.get(each, {})
            for offer in [o for o in offers.values() if o.run == run and key in ("", o.key)]:
                self._drop(each, offer)

    async def _finish_left(self, site: str, blob: Blob) -> None:
        """Check a complete part that was not checked, before an offer answers its full size."""
        try:
            part = await opened(self._store, blob, site)
        except (BlobBusy, NoRoom):
            return
        try:
            await asyncio.to_thread(part.finish)
        except BadBlob as error:
            log.warning("site %s: %s", site, error)
        finally:
            part.close()

    async def _take(
        self, site: str, first: Piece, rest: AsyncIterator[Piece], part: PartialBlob
    ) -> None:
        def book(nbytes: int) -> None:
            self._gate.book(site, Direction.FROM_SITE, part.blob.digest, nbytes)

        async def pieces() -> AsyncIterator[Piece]:
            yield first
            async for piece in rest:
                yield piece

        await receive(pieces(), part, book, self._settings, self._room)

    def _remember(self, site: str, offer: _Offer) -> None:
        """Keep one offer per order, so that a site cannot fill the disk with parts."""
        offers = self._offers.setdefault(site, {})
        same = [o for o in offers.values() if (o.run, o.key) == (offer.run, offer.key)]
        for other in same:
            if other.blob != offer.blob:
                self._drop(site, other)
        offers.pop(offer.blob.digest, None)
        offers[offer.blob.digest] = offer
        while len(offers) > OFFERS_PER_SITE:
            self._drop(site, next(iter(offers.values())))

    def _drop(self, site: str, offer: _Offer) -> None:
        self._end_push(site, offer.blob.digest)
        self._store.drop_part(offer.blob, site)
        offers = self._offers[site]
        offers.pop(offer.blob.digest, None)
        if not offers:
            del self._offers[site]

    def _end_push(self, site: str, digest: str) -> None:
        """Close a part, so its writer fails at the next piece."""
        part = self._pushed.pop((site, digest), None)
        if part is not None:
            part.close()


async def _refuse(context: Context, site: str, code: grpc.StatusCode, text: str) -> NoReturn:
    log.warning("site %s: %s: %s", site, code.name, text)
    await context.abort(code, text)
    raise AssertionError("abort does not return")
