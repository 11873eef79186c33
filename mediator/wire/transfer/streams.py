"""Both ends of a stream of pieces: `send` reads a file, `receive` writes one.

Threads do the disk and hash work of one piece while the next travels.
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
"""Pieces of a stream that wait in memory while earlier ones are written."""


async def send(
    path: Path,
    blob: Blob,
    offset: int,
    write: Callable[[Piece | bytes], Awaitable[object]],
    book: Book,
    settings: TransferSettings,
) -> None:
    """Send a blob's pieces from an offset on; TimeoutError if one is not taken in time."""
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
                del piece  # so that its memory can be reused
                book(nbytes)
                limit.reschedule(loop.time() + settings.piece_s)


def _read(path: Path, offset: int, nbytes: int) -> bytes:
    """Read a file by a new descriptor, since a cancelled caller may have closed its own."""
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), nbytes, offset)


@dataclass(slots=True)
class StreamMemory:
    """The memory left for pieces that wait to be written, over all streams of one end."""

    free: int
    """Bytes; may fall below 0, when each stream keeps only its last piece."""

    @property
    def full(self) -> bool:
        """Whether a stream must write what it has before it takes more."""
        return self.free <= 0


async def receive(
    pieces: AsyncIterable[Piece],
    part: PartialBlob,
    book: Book,
    settings: TransferSettings,
    room: StreamMemory,
) -> None:
    """Append pieces to a part until the stream ends. TimeoutError for a late one, BadPiece."""
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
        # Keep what has arrived, whatever broke the stream: all of it is in order.
        with suppress(MediatorError, OSError):
            await writer.settle()
        raise
    await writer.settle()


class _Writer:
    """Writes a part in a thread while more arrives."""

    def __init__(self, part: PartialBlob, room: StreamMemory) -> None:
        self._part, self._room = part, room
        self._waiting: list[bytes | memoryview] = []
        self._writing: asyncio.Future[None] | None = None

    async def put(self, data: bytes | memoryview) -> None:
        """Take data; return when more may come."""
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
            await asyncio.shield(self._writing)  # a thread survives its task

    def _give_back(self, pieces: list[bytes | memoryview]) -> None:
        self._room.free += sum(map(len, pieces))


async def opened(store: BlobStore, blob: Blob, owner: str = "") -> PartialBlob:
    """Open a part in a thread; close it if the caller is cancelled meanwhile."""
    opening = asyncio.ensure_future(asyncio.to_thread(store.open_part, blob, owner))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_opened)
        raise


def _close_opened(opening: asyncio.Future[PartialBlob]) -> None:
    if opening.exception() is None:
        opening.result().close()
