"""BlobClient: a site's end of Fetch, Offer and Push.

A stalled stream counts as broken; a broken one is resumed, within a budget. A transfer has no
deadline while bytes still cross.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import grpc
import grpc.aio

from ...core.traffic import Direction
from ...errors import MediatorError
from ...proto import federation_pb2 as pb
from ..blobs.blob import Blob
from ..blobs.errors import BadBlob, BlobBusy
from ..blobs.part import PartialBlob
from ..blobs.store import BlobStore
from ..rpc import NO_ROOM_NOW, SITE, TOO_MANY_CALLS
from .pieces import BadPiece, ended_early, pack, unpack
from .settings import USUAL, TransferSettings
from .streams import Book, StreamMemory, opened, receive, send

log = logging.getLogger(__name__)

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
"""Codes of a refusal, which no retry changes; other codes mean a broken link or peer."""
_MANY_RPCS = "concurrent rpc limit exceeded"
"""Prefix of gRPC's own refusal when a server has too many calls."""
Once = Callable[[Book], Awaitable[None]]
"""Attempts a transfer once, and books the bytes that cross."""


class TransferRefused(MediatorError):
    """The other side refuses to give or take a blob, and why."""


class TransferFailed(MediatorError):
    """A transfer exceeded its deadline or its budget of attempts."""


def busy(error: grpc.aio.AioRpcError) -> bool:
    """Whether the other side has too many calls or no room now, whatever the blob."""
    code, said = error.code(), (error.details() or "").lower()
    not_now = (TOO_MANY_CALLS, NO_ROOM_NOW)
    return (code is grpc.StatusCode.UNAVAILABLE and said.startswith(not_now)) or (
        code is grpc.StatusCode.RESOURCE_EXHAUSTED and said.startswith(_MANY_RPCS)
    )


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


@dataclass(slots=True)
class _Shared:
    task: asyncio.Task[Path]
    waiting: int = 0


class BlobClient:
    """Downloads blobs from the mediator and uploads them; one per store."""

    def __init__(
        self,
        stub: BlobStub,
        store: BlobStore,
        book: Callable[[Direction, str, int], None],
        settings: TransferSettings = USUAL,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`book` is called with each piece's direction, digest and bytes; `chance` is in [0, 1)."""
        self._stub, self._store, self._book = stub, store, book
        self._settings, self._chance = settings, chance
        self._room = StreamMemory(settings.waiting_bytes)
        self._streams = asyncio.Semaphore(settings.at_once)
        self._downloads: dict[Blob, _Shared] = {}
        self._uploads: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By digest; a lock lasts while an upload has it or waits for it."""

    def use(self, stub: BlobStub) -> None:
        """Use this stub from now on; open streams continue on the old one."""
        self._stub = stub

    async def download(self, blob: Blob) -> Path:
        """Fetch a blob unless it is there; return its path. Callers share one download.

        Pin it first if it must stay. TransferRefused, TransferFailed, NoRoom.
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
        """Upload an answer's blob. TransferRefused, TransferFailed; BadBlob if it is missing."""
        lock = self._uploads.setdefault(blob.digest, asyncio.Lock())
        async with lock:  # a second push of the same bytes would end the first one
            with self._store.pinned(blob.digest):
                if not self._store.has(blob):
                    raise BadBlob(f"there is no blob {blob.digest} in {self._store.folder}")
                await self._upload(blob, run, key)

    async def _download(self, blob: Blob) -> Path:
        part: PartialBlob | None = None

        async def once(book: Book) -> None:
            nonlocal part
            if part is None or part.closed:
                part = await opened(self._store, blob)
            if part.size < blob.size:
                request = pb.FetchRequest(digest=blob.digest, offset=part.size)
                call = self._stub.fetch(request, wait_for_ready=True)
                await receive(call, part, book, self._settings, self._room)
            if part.size < blob.size:
                raise ended_early(blob, part.size)
            await asyncio.to_thread(part.finish)

        try:
            with self._store.pinned(blob.digest):
                await self._persist(Direction.TO_SITE, blob, once, lambda: part.size if part else 0)
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

        async def once(book: Book) -> None:
            nonlocal there
            patience = self._settings.piece_s
            there = (await self._stub.offer(offer, timeout=patience, wait_for_ready=True)).offset
            if there >= blob.size:
                return
            call = self._stub.push(wait_for_ready=True)
            try:
                await send(path, blob, there, call.write, book, self._settings)
                async with asyncio.timeout(patience):
                    await call.done_writing()
                    there = (await call).size
            except asyncio.InvalidStateError:
                # The other side ended the stream before it was written to its end.
                there = (await call).size
            finally:
                call.cancel()
            if there < blob.size:
                raise ended_early(blob, there)

        await self._persist(Direction.FROM_SITE, blob, once, lambda: there)

    async def _persist(
        self, direction: Direction, blob: Blob, once: Once, reached: Callable[[], int]
    ) -> None:
        """Retry: progress renews the attempts, and any byte that crosses renews the deadline."""
        what = "fetch" if direction is Direction.TO_SITE else "push"
        settings, loop = self._settings, asyncio.get_running_loop()
        failures = corrupt = furthest = 0
        trouble = "it has not begun"
        try:
            async with self._streams, asyncio.timeout(settings.floor_s) as limit:

                def book(nbytes: int) -> None:
                    limit.reschedule(loop.time() + settings.floor_s)
                    self._book(direction, blob.digest, nbytes)

                while True:
                    try:
                        return await once(book)
                    except grpc.aio.AioRpcError as error:
                        trouble = f"{error.code().name}: {error.details()}"
                        if busy(error):
                            await asyncio.sleep(settings.longest_pause_s * (1 + self._chance()) / 2)
                            continue
                        if error.code() in _REFUSED:
                            text = f"{what} of blob {blob.digest} was refused: {trouble}"
                            raise TransferRefused(text) from error
                        corrupt += error.code() is grpc.StatusCode.DATA_LOSS
                    except TimeoutError:
                        trouble = f"no piece within {settings.piece_s:.0f} s"
                    except BadBlob as error:
                        trouble = str(error)
                        corrupt += 1
                    except (BadPiece, BlobBusy) as error:
                        trouble = str(error)
                    except asyncio.CancelledError:
                        doing = asyncio.current_task()
                        if doing is None or doing.cancelling():
                            raise
                        trouble = "its channel was closed"  # which cancels calls, not this task
                    failures = 1 if reached() > furthest else failures + 1
                    furthest = max(furthest, reached())
                    if failures >= settings.attempts or corrupt >= settings.corrupt_attempts:
                        break
                    log.info("%s of blob %s is tried again: %s", what, blob.digest, trouble)
                    await asyncio.sleep(settings.pause_s(failures, self._chance()))
        except TimeoutError:
            trouble = f"{trouble}; {settings.floor_s:.0f} s are over without a byte"
        raise TransferFailed(
            f"{what} of blob {blob.digest} came to {reached()} of {blob.size} bytes: {trouble}"
        )
