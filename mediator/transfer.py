"""Blobs between a site and its mediator: both ends of Fetch, Offer and Push.

A blob travels in pieces, and goes on where it was cut: the receiver's part is what tells how far
it came. Nothing is used before its digest is right. A stream that makes no progress is broken,
one that broke is tried again within a budget, and the whole has a deadline that grows with bytes.
What a peer may fetch or push, and whom it is booked for, is for a `Gate` to say.

Disks and hashes are worked on in threads, one piece at a time, while the next one travels.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio

from .blobs import BadBlob, Blob, BlobBusy, BlobStore, NoRoom, Part, check_digest
from .core.traffic import Direction
from .errors import MediatorError
from .proto import federation_pb2 as pb
from .rpc import SITE

log = logging.getLogger(__name__)

Context = Any
"""A `grpc.aio.ServicerContext`, whose stubs do not say what `write` takes."""
Book = Callable[[int], None]

OFFERS_PER_SITE = 256
"""What a site may have offered and not pushed; the oldest is forgotten, and offered again."""
_MOST_WAITING = 4
"""Pieces of a stream that wait in memory while those before are written."""
_PIECE_HEAD = 128
"""Bytes of a piece's message beside its data, at most."""
_REFUSED = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
"""To ask again would change nothing. All others mean that the link or the other side broke."""


class TransferRefused(MediatorError):
    """The other side will not give or take that blob, and why."""


class TransferFailed(MediatorError):
    """A blob did not get through within its deadline or its budget of attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """How patient a transfer is, and in what steps it goes."""

    piece_bytes: int = 1 << 20
    stall_s: float = 20.0
    """A stream is broken when a piece takes so much longer than at the slowest rate."""
    floor_s: float = 180.0
    """What any transfer may take; outlives a link that is cut for a minute or two."""
    slowest_bytes_per_s: float = 64 * 1024
    """The slowest link that is worked with: a deadline grows by this."""
    attempts: int = 8
    """Streams that may break one after the other without a byte having got through."""
    corrupt_attempts: int = 3
    """Times that a blob may arrive with another digest."""
    first_pause_s: float = 0.2
    """Before the second attempt; doubles up to `longest_pause_s`."""
    longest_pause_s: float = 5.0

    @property
    def piece_s(self) -> float:
        """Seconds that one piece may take."""
        return self.stall_s + self.piece_bytes / self.slowest_bytes_per_s

    def total_s(self, nbytes: int) -> float:
        """Seconds that a blob may take, with all its attempts."""
        return self.floor_s + nbytes / self.slowest_bytes_per_s

    def pause_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** (failures - 1))


def keep_freed_memory() -> None:
    """Let this process keep the memory of a piece for the next one; for its `main` to call once.

    glibc gives pages back to the kernel with nearly every piece that is freed, and gets them again
    cleared: a third of what a transfer takes of a processor. What is kept is 64 MiB at most.
    """
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have none
        mallopt(trim_threshold, 64 << 20)
        mallopt(mmap_threshold, 32 << 20)


# -- pieces ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """A `Piece` of the wire, without the copies that protobuf makes of its data."""

    data: bytes | memoryview
    digest: str = ""
    offset: int = 0


def pack(piece: Piece) -> bytes:
    """The message's bytes; the data is copied once."""
    head = pb.Piece(digest=piece.digest, offset=piece.offset).SerializeToString()
    return b"".join((head, b"\x1a", _varint(len(piece.data)), piece.data))


def unpack(message: bytes) -> Piece:
    """The piece of a message, its data a view of it.

    Read here is what `pack` writes: at most a short head, then the data up to the end. Anything
    else that is a valid message is left to protobuf.
    """
    at = _data_at(message)
    if at is None:
        found = pb.Piece.FromString(message)
        return Piece(found.data, found.digest, found.offset)
    begin, head_end = at
    head = pb.Piece.FromString(message[:head_end]) if head_end else pb.Piece()
    return Piece(memoryview(message)[begin:], head.digest, head.offset)


def _data_at(message: bytes) -> tuple[int, int] | None:
    """Where the data begins and what is before it ends, if the data is all the rest."""
    at = 0
    if message[:2] == b"\x0a\x40":  # a digest of 64 digits
        at = 66
    if message[at : at + 1] == b"\x10":
        at += 1
        while at < len(message) and at < _PIECE_HEAD and message[at] & 0x80:
            at += 1
        at += 1
    head_end = at
    if message[at : at + 1] != b"\x1a":
        return None
    length = shift = 0
    for begin, byte in enumerate(message[at + 1 : at + 6], at + 2):
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (begin, head_end) if begin + length == len(message) else None
    return None


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class BlobStub:
    """Fetch, Offer and Push over a `grpc.aio` channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        prefix = f"/{SITE.full_name}/"
        self.fetch: Any = channel.unary_stream(
            prefix + "Fetch",
            request_serializer=pb.FetchRequest.SerializeToString,
            response_deserializer=unpack,
        )
        self.offer: Any = channel.unary_unary(
            prefix + "Offer",
            request_serializer=pb.OfferRequest.SerializeToString,
            response_deserializer=pb.OfferReply.FromString,
        )
        self.push: Any = channel.stream_unary(
            prefix + "Push",
            request_serializer=pack,
            response_deserializer=pb.PushReply.FromString,
        )


def blob_handler(service: BlobService) -> grpc.GenericRpcHandler:
    """Serves Fetch, Offer and Push; for `grpc.aio` servers, before the handler of SiteService."""
    return grpc.method_handlers_generic_handler(
        SITE.full_name,
        {
            "Fetch": grpc.unary_stream_rpc_method_handler(
                service.fetch, pb.FetchRequest.FromString, pack
            ),
            "Offer": grpc.unary_unary_rpc_method_handler(
                service.offer, pb.OfferRequest.FromString, pb.OfferReply.SerializeToString
            ),
            "Push": grpc.stream_unary_rpc_method_handler(
                service.push, unpack, pb.PushReply.SerializeToString
            ),
        },
    )


# -- both ends ------------------------------------------------------------------------------------


class _BadPiece(Exception):
    """A stream cannot go on after what came in it; its code is what a server ends it with."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text

    def __str__(self) -> str:
        return self.text


async def _send(
    path: Path,
    blob: Blob,
    offset: int,
    write: Callable[[Piece], Awaitable[object]],
    book: Book,
    settings: TransferSettings,
) -> None:
    """Write a blob's pieces from an offset on. TimeoutError if one is not taken in time."""
    loop = asyncio.get_running_loop()
    name = blob.digest
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(min(settings.piece_bytes, max(1, blob.size - offset))))
        async with asyncio.timeout(settings.piece_s) as limit:
            while offset < blob.size:
                data: bytes | memoryview | None = _read_at_once(file.fileno(), buffer, offset)
                if data is None:
                    data = await asyncio.to_thread(_read, path, offset, len(buffer))
                piece = Piece(data, name, offset if name else 0)
                offset, name = offset + len(data), ""
                if not data or offset > blob.size:
                    raise BadBlob(f"the file of blob {blob.digest} has not its {blob.size} bytes")
                await write(piece)
                book(len(data))
                limit.reschedule(loop.time() + settings.piece_s)


def _read_at_once(file: int, buffer: memoryview, offset: int) -> memoryview | None:
    """What of a file is in memory, up to the buffer's length; None if the disk has to be asked."""
    try:
        count = os.preadv(file, [buffer], offset, os.RWF_NOWAIT)
    except OSError:  # it is not in memory, or the file system cannot tell
        return None
    return buffer[:count] if count else None


def _read(path: Path, offset: int, nbytes: int) -> bytes:
    """Bytes of a file, which is opened anew: whoever waited may be gone, and closed its own."""
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), nbytes, offset)


async def _receive(
    pieces: AsyncIterable[Piece], part: Part, book: Book, settings: TransferSettings
) -> None:
    """Append pieces to a part until the stream ends. TimeoutError if one does not come in time.

    Raises _BadPiece for one that is out of its place.
    """
    loop = asyncio.get_running_loop()
    at, named = part.size, False
    waiting: list[bytes | memoryview] = []
    writing: asyncio.Future[None] | None = None

    async def settle() -> None:
        if writing is not None:
            await writing
        if waiting:
            await asyncio.to_thread(part.write, *waiting)

    try:
        async with asyncio.timeout(settings.piece_s) as limit:
            async for piece in pieces:
                _check_piece(piece, part.blob, at, named)
                at, named = at + len(piece.data), True
                book(len(piece.data))
                waiting.append(piece.data)
                if writing is None or writing.done() or len(waiting) == _MOST_WAITING:
                    if writing is not None:
                        await asyncio.shield(writing)  # a thread does not stop when we do
                    writing = loop.run_in_executor(None, part.write, *waiting)
                    waiting = []
                limit.reschedule(loop.time() + settings.piece_s)
    except BaseException:
        # Whatever broke the stream: what had come is kept, and all of it is in its place.
        with suppress(MediatorError, OSError):
            await settle()
        raise
    await settle()


def _check_piece(piece: Piece, blob: Blob, at: int, named: bool) -> None:
    """Raise _BadPiece unless these are the blob's next bytes."""
    code = grpc.StatusCode
    if piece.digest != blob.digest and (piece.digest or not named):
        raise _BadPiece(
            code.INVALID_ARGUMENT,
            f"a piece of blob {blob.digest} was due, not of {piece.digest[:80]!r}",
        )
    if piece.offset != at and (piece.offset or not named):
        raise _BadPiece(
            code.OUT_OF_RANGE,
            f"blob {blob.digest} goes on at {at}, and a piece came for {piece.offset}",
        )
    if not piece.data:
        raise _BadPiece(code.INVALID_ARGUMENT, f"a piece of blob {blob.digest} is empty")
    if at + len(piece.data) > blob.size:
        raise _BadPiece(
            code.OUT_OF_RANGE,
            f"blob {blob.digest} has {blob.size} bytes, and {len(piece.data)} more came after {at}",
        )


async def _opened(store: BlobStore, blob: Blob, owner: str = "") -> Part:
    """A part, opened in a thread; not left open when nobody waits for it any more."""
    opening = asyncio.ensure_future(asyncio.to_thread(store.open_part, blob, owner))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_opened)
        raise


def _close_opened(opening: asyncio.Future[Part]) -> None:
    if opening.exception() is None:
        opening.result().close()


# -- the mediator's end ---------------------------------------------------------------------------


class Gate(Protocol):
    """Who may have what, as the mediator knows it. Its methods are called in the event loop."""

    def site_of(self, context: Any) -> str:
        """The site that calls, by its certificate."""

    def refuses_fetch(self, site: str, digest: str) -> str:
        """Why a site may not have that blob; empty if it may."""

    def refuses_push(self, site: str, run: str, key: str, blob: Blob) -> str:
        """Why an order's answer may not bring that blob; empty if it may.

        Whoever needs the blob for longer pins it here: a pin may come before the blob.
        """

    def book(self, site: str, direction: Direction, digest: str, nbytes: int) -> None:
        """Bytes of a blob crossed the site's boundary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """What a site has said it will push."""

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
        settings: TransferSettings = TransferSettings(),
    ) -> None:
        self._store, self._gate = store, gate
        self._largest = largest_bytes
        self._settings = settings
        self._offers: dict[str, dict[str, _Offer]] = {}
        """By site and digest; the oldest first."""
        self._pushed: dict[tuple[str, str], Part] = {}
        """Parts that are written at the moment, by site and digest."""

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
                    await _send(path, blob, request.offset, context.write, book, self._settings)
            except TimeoutError:
                text = f"blob {request.digest} is taken too slowly"
                await _refuse(context, site, code.DEADLINE_EXCEEDED, text)

    async def offer(self, request: pb.OfferRequest, context: Context) -> pb.OfferReply:
        """Say how much of a blob is here; ends an earlier push of it, which its site gave up."""
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
        """Take a blob's pieces, from where it was cut."""
        site = self._gate.site_of(context)
        code = grpc.StatusCode
        part: Part | None = None
        try:
            async with asyncio.timeout(self._settings.piece_s):
                first = await anext(pieces, None)
                if first is None:
                    raise _BadPiece(code.INVALID_ARGUMENT, "a push without a piece")
                offer = self._offers.get(site, {}).get(first.digest)
                if offer is None:
                    text = f"no blob {first.digest[:80]!r} was offered, so none can be pushed"
                    raise _BadPiece(code.INVALID_ARGUMENT, text)
                blob = offer.blob
                part = await _opened(self._store, blob, site)
            self._pushed[site, blob.digest] = part
            async with asyncio.timeout(self._settings.total_s(blob.size - part.size)):
                await self._take(site, first, pieces, part)
            if part.size == blob.size:
                await asyncio.to_thread(part.finish)
                self._offers.get(site, {}).pop(blob.digest, None)
        except _BadPiece as error:
            await _refuse(context, site, error.code, error.text)
        except TimeoutError:
            await _refuse(context, site, code.DEADLINE_EXCEEDED, "the pieces come too slowly")
        except BlobBusy as error:
            await _refuse(context, site, code.ABORTED, str(error))
        except NoRoom as error:
            await _refuse(context, site, code.RESOURCE_EXHAUSTED, str(error))
        except BadBlob as error:
            await _refuse(context, site, code.DATA_LOSS, str(error))
        finally:
            if part is not None:
                part.close()
                if self._pushed.get((site, part.blob.digest)) is part:
                    del self._pushed[site, part.blob.digest]
        return pb.PushReply(size=part.size)

    def forget(self, run: str, key: str | None = None) -> None:
        """Take nothing more for an order, or for a run; what came in part is removed."""
        for site, offers in list(self._offers.items()):
            for offer in [o for o in offers.values() if o.run == run and key in (None, o.key)]:
                self._drop(site, offer)

    async def _finish_left(self, site: str, blob: Blob) -> None:
        """Check a part whose stream ended when its bytes were there, and before they were checked.

        An offset that equals the size would tell the site that there is nothing left to do.
        """
        try:
            part = await _opened(self._store, blob, site)
        except (BlobBusy, NoRoom):
            return
        try:
            await asyncio.to_thread(part.finish)
        except BadBlob as error:
            log.warning("site %s: %s", site, error)
        finally:
            part.close()

    async def _take(self, site: str, first: Piece, rest: AsyncIterator[Piece], part: Part) -> None:
        def book(nbytes: int) -> None:
            self._gate.book(site, Direction.FROM_SITE, part.blob.digest, nbytes)

        async def pieces() -> AsyncIterator[Piece]:
            yield first
            async for piece in rest:
                yield piece

        await _receive(pieces(), part, book, self._settings)

    def _remember(self, site: str, offer: _Offer) -> None:
        """One offer for an order at a time, so that a site cannot fill the disk with parts."""
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
        """Whoever still writes that part is told so with its next piece."""
        part = self._pushed.pop((site, digest), None)
        if part is not None:
            part.close()


async def _refuse(context: Context, site: str, code: grpc.StatusCode, text: str) -> NoReturn:
    """End a call of a site, and say why on both sides."""
    log.warning("site %s: %s: %s", site, code.name, text)
    await context.abort(code, text)
    raise AssertionError("abort does not return")


# -- a site's end ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Shared:
    """A download that several wait for."""

    task: asyncio.Task[Path]
    waiting: int = 0


class BlobClient:
    """Gets blobs from the mediator and brings them there; one for a channel and a store."""

    def __init__(
        self,
        stub: BlobStub,
        store: BlobStore,
        book: Callable[[Direction, str, int], None],
        settings: TransferSettings = TransferSettings(),
    ) -> None:
        """`book` is told each piece's direction, digest and bytes."""
        self._stub, self._store, self._book = stub, store, book
        self._settings = settings
        self._downloads: dict[Blob, _Shared] = {}
        self._uploads: dict[str, asyncio.Lock] = {}

    async def download(self, blob: Blob) -> Path:
        """The path of a blob, which is fetched unless it is there; at once for all who ask.

        Pin it before, if it has to stay. Raises TransferRefused, TransferFailed, NoRoom.
        """
        if self._store.has(blob):
            return self._store.path(blob.digest)
        shared = self._downloads.get(blob)
        if shared is None:
            shared = _Shared(asyncio.create_task(self._download(blob)))
            self._downloads[blob] = shared
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting and self._downloads.get(blob) is shared:
                del self._downloads[blob]
                shared.task.cancel()

    async def upload(self, blob: Blob, *, run: str, key: str) -> None:
        """Bring a blob of the store, for an order's answer.

        Raises TransferRefused, TransferFailed, and BadBlob if the store has it not.
        """
        lock = self._uploads.setdefault(blob.digest, asyncio.Lock())
        async with lock:  # a second push of the same bytes would end the first one
            with self._store.pinned(blob.digest):
                if not self._store.has(blob):
                    raise BadBlob(f"there is no blob {blob.digest} in {self._store.folder}")
                await self._upload(blob, run, key)
        if not lock.locked():
            self._uploads.pop(blob.digest, None)

    async def _download(self, blob: Blob) -> Path:
        part: Part | None = None

        def book(nbytes: int) -> None:
            self._book(Direction.TO_SITE, blob.digest, nbytes)

        async def once() -> None:
            nonlocal part
            if part is None or part.closed:
                part = await _opened(self._store, blob)
            if part.size < blob.size:
                request = pb.FetchRequest(digest=blob.digest, offset=part.size)
                call = self._stub.fetch(request, wait_for_ready=True)
                await _receive(call, part, book, self._settings)
            if part.size < blob.size:
                raise _ended_early(blob, part.size)
            await asyncio.to_thread(part.finish)

        try:
            with self._store.pinned(blob.digest):
                await self._persist("fetch", blob, once, lambda: part.size if part else 0)
                return self._store.path(blob.digest)
        finally:
            if part is not None:
                part.close()

    async def _upload(self, blob: Blob, run: str, key: str) -> None:
        there = 0
        path = self._store.path(blob.digest)
        offer = pb.OfferRequest(
            blob=pb.Blob(digest=blob.digest, size=blob.size), order=pb.OrderId(run=run, key=key)
        )

        def book(nbytes: int) -> None:
            self._book(Direction.FROM_SITE, blob.digest, nbytes)

        async def once() -> None:
            nonlocal there
            patience = self._settings.piece_s
            there = (await self._stub.offer(offer, timeout=patience, wait_for_ready=True)).offset
            if there >= blob.size:
                return
            call = self._stub.push(wait_for_ready=True)
            try:
                await _send(path, blob, there, call.write, book, self._settings)
                async with asyncio.timeout(patience):
                    await call.done_writing()
                    there = (await call).size
            except asyncio.InvalidStateError:
                # The other side ended the stream before it was written to its end.
                there = (await call).size
            finally:
                call.cancel()
            if there < blob.size:
                raise _ended_early(blob, there)

        await self._persist("push", blob, once, lambda: there)

    async def _persist(
        self,
        what: str,
        blob: Blob,
        once: Callable[[], Awaitable[None]],
        reached: Callable[[], int],
    ) -> None:
        """Try until it is done; each byte further than before renews the budget of attempts."""
        settings = self._settings
        failures = corrupt = furthest = 0
        trouble = "it has not begun"
        try:
            async with asyncio.timeout(settings.total_s(blob.size)):
                while True:
                    try:
                        return await once()
                    except grpc.aio.AioRpcError as error:
                        trouble = f"{error.code().name}: {error.details()}"
                        if error.code() in _REFUSED:
                            text = f"{what} of blob {blob.digest} was refused: {trouble}"
                            raise TransferRefused(text) from error
                        corrupt += error.code() is grpc.StatusCode.DATA_LOSS
                    except TimeoutError:
                        trouble = f"no piece within {settings.piece_s:.0f} s"
                    except BadBlob as error:
                        trouble = str(error)
                        corrupt += 1
                    except (_BadPiece, BlobBusy) as error:
                        trouble = str(error)
                    failures = 1 if reached() > furthest else failures + 1
                    furthest = max(furthest, reached())
                    if failures >= settings.attempts or corrupt >= settings.corrupt_attempts:
                        break
                    log.info("%s of blob %s is tried again: %s", what, blob.digest, trouble)
                    await asyncio.sleep(settings.pause_s(failures))
        except TimeoutError:
            trouble = f"{trouble}; {settings.total_s(blob.size):.0f} s are over"
        raise TransferFailed(
            f"{what} of blob {blob.digest} came to {reached()} of {blob.size} bytes: {trouble}"
        )


def _ended_early(blob: Blob, at: int) -> _BadPiece:
    text = f"the stream ended after {at} of the {blob.size} bytes of blob {blob.digest}"
    return _BadPiece(grpc.StatusCode.OUT_OF_RANGE, text)
