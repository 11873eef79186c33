"""Both ends of a stream of pieces: read a file into it, or write one from it.

Threads do the disk and hash work of one piece while the next one travels.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...errors import MediatorError
from ..blobs.blob import Blob
from ..blobs.errors import BadBlob
from ..blobs.part import PartialBlob
from ..blobs.store import BlobStore
from .pieces import Envelope, Piece, check_piece
from .settings import TransferSettings

Book = Callable[[int], None]
_MOST_WAITING = 4
"""Pieces of a stream that wait in memory while those before are written."""


async def send(
    path: Path,
    blob: Blob,
    offset: int,
    write: Callable[[Piece | bytes], Awaitable[object]],
    book: Book,
    settings: TransferSettings,
) -> None:
    """Write a blob's pieces from an offset on. TimeoutError if one is not taken in time."""
    loop = asyncio.get_running_loop()
    name, start = blob.digest, offset
    with path.open("rb", buffering=0) as file:
        size = min(settings.piece_bytes, max(1, blob.size - offset))
        envelope = Envelope(size)
        async with asyncio.timeout(settings.piece_s) as limit:
            while offset < blob.size:
                piece: Piece | bytes
                if nbytes := envelope.fill(file.fileno(), offset):
                    piece = envelope.piece(nbytes, name, start)
                else:
                    data = await asyncio.to_thread(_read, path, offset, size)
                    piece, nbytes = Piece(data, name, start), len(data)
                offset, name, start = offset + nbytes, "", 0
                if not nbytes or offset > blob.size:
                    raise BadBlob(f"the file of blob {blob.digest} has not its {blob.size} bytes")
                await write(piece)
                del piece  # so that its memory can be filled again
                book(nbytes)
                limit.reschedule(loop.time() + settings.piece_s)


def _read(path: Path, offset: int, nbytes: int) -> bytes:
    """Bytes of a file, opened anew, since a cancelled caller may have closed its own."""
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), nbytes, offset)


@dataclass(slots=True)
class StreamMemory:
    """What is left for pieces that wait in memory to be written, over all streams of one end."""

    free: int
    """Bytes; less than 0 once each stream has only what it got last."""

    @property
    def full(self) -> bool:
        """Whether a stream should write what it has before it takes more."""
        return self.free <= 0


async def receive(
    pieces: AsyncIterable[Piece],
    part: PartialBlob,
    book: Book,
    settings: TransferSettings,
    room: StreamMemory,
) -> None:
    """Append pieces to a part until the stream ends. TimeoutError if one does not come in time.

    Raises BadPiece for one that is out of its place.
    """
    loop = asyncio.get_running_loop()
    at, named = part.size, False
    writer = _Writer(part, room)
    try:
        async with asyncio.timeout(settings.piece_s) as limit:
            async for piece in pieces:
                check_piece(piece, part.blob, at, named)
                at, named = at + len(piece.data), True
                book(len(piece.data))
                await writer.put(piece.data)
                limit.reschedule(loop.time() + settings.piece_s)
    except BaseException:
        # Whatever broke the stream: what had come is kept, and all of it is in its place.
        with suppress(MediatorError, OSError):
            await writer.settle()
        raise
    await writer.settle()


class _Writer:
    """Has a part written in a thread, while more of it comes."""

    def __init__(self, part: PartialBlob, room: StreamMemory) -> None:
        self._part, self._room = part, room
        self._waiting: list[bytes | memoryview] = []
        self._writing: asyncio.Future[None] | None = None

    async def put(self, data: bytes | memoryview) -> None:
        """Take what came; returns when more may come."""
        self._waiting.append(data)
        self._room.free -= len(data)
        idle = self._writing is None or self._writing.done()
        if idle or len(self._waiting) == _MOST_WAITING or self._room.full:
            writing = await self._begin()
            if self._room.full:
                await asyncio.shield(writing)

    async def settle(self) -> None:
        try:
            if self._waiting:
                await self._begin()
            await self._before()
        finally:
            self._give_back(self._waiting)
            self._waiting = []

    async def _begin(self) -> asyncio.Future[None]:
        await self._before()
        now, self._waiting = self._waiting, []
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._part.write, *now)
        self._writing.add_done_callback(lambda _: self._give_back(now))
        return self._writing

    async def _before(self) -> None:
        if self._writing is not None:
            await asyncio.shield(self._writing)  # a thread does not stop when we do

    def _give_back(self, pieces: list[bytes | memoryview]) -> None:
        self._room.free += sum(map(len, pieces))


async def opened(store: BlobStore, blob: Blob, owner: str = "") -> PartialBlob:
    """A part, opened in a thread, and closed if the caller is cancelled meanwhile."""
    opening = asyncio.ensure_future(asyncio.to_thread(store.open_part, blob, owner))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_opened)
        raise


def _close_opened(opening: asyncio.Future[PartialBlob]) -> None:
    if opening.exception() is None:
        opening.result().close()
