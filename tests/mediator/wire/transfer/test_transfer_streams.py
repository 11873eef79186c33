"""What waits in memory while pieces are written is bounded, and let go of however a stream ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings, strategies as st

from broken_transfers import DATA, QUICK, blob_of
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.blobs.errors import BlobBusy
from fedpilot.mediator.wire.blobs.part import PartialBlob
from fedpilot.mediator.wire.transfer import Piece, TransferSettings
from fedpilot.mediator.wire.transfer.pieces import BadPiece
from fedpilot.mediator.wire.transfer.streams import StreamMemory, receive

PIECE = 10
SETTINGS = TransferSettings(piece_bytes=PIECE)


@dataclass
class SlowPart:
    """A part whose disk stands still until it is told to go on, and then takes its time."""

    blob: Blob
    disk: threading.Event
    fails: bool = False
    pause_s: float = 0.0
    size: int = 0
    writing: threading.Event = field(default_factory=threading.Event)
    written: list[bytes] = field(default_factory=list)

    def write(self, *data: bytes | memoryview) -> None:
        self.writing.set()
        assert self.disk.wait(60)
        time.sleep(self.pause_s)
        if self.fails:
            raise BlobBusy("it is no longer written here")
        self.written += map(bytes, data)


@dataclass
class Stream:
    """Pieces that are there as soon as somebody wants them."""

    blob: Blob
    taken: int = 0
    spoiled_at: int = -1

    async def pieces(self) -> AsyncIterator[Piece]:
        while self.taken * PIECE < self.blob.size:
            self.taken += 1
            name = "f" * 64 if self.taken == self.spoiled_at else ""
            yield Piece(b"x" * PIECE, self.blob.digest if self.taken == 1 else name)


def streams(count: int, pieces: int, disk: threading.Event) -> list[tuple[Stream, SlowPart]]:
    blobs = [Blob(f"{number:064x}", pieces * PIECE) for number in range(count)]
    return [(Stream(blob), SlowPart(blob, disk)) for blob in blobs]


def received(stream: Stream, part: SlowPart, room: StreamMemory) -> Any:
    return receive(stream.pieces(), cast(PartialBlob, part), lambda nbytes: None, SETTINGS, room)


async def everybody_waits() -> None:
    """Nothing moves after that by itself: no stream ever waits for anything but the disk."""
    for _ in range(200):
        await asyncio.sleep(0)


async def given_back(space: StreamMemory, nbytes: int) -> None:
    """Wait for it: a thread may still write for a stream that is over."""
    async with asyncio.timeout(30):
        while space.free != nbytes:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("count", "room", "most"),
    [
        pytest.param(1, 100, 5, id="a stream waits with some pieces while one is written"),
        pytest.param(30, 5, 5 + 30, id="many streams wait with one each once the room is full"),
        pytest.param(30, 0, 30, id="without any room each has one"),
    ],
)
def test_what_waits_to_be_written_is_bounded(count: int, room: int, most: int) -> None:
    async def go() -> None:
        disk = threading.Event()
        here, space = streams(count, 20, disk), StreamMemory(room * PIECE)
        doing = [asyncio.create_task(received(*each, space)) for each in here]
        await everybody_waits()
        taken = [stream.taken for stream, _ in here]
        disk.set()
        await asyncio.gather(*doing)
        assert min(taken) == 1 or count == 1
        assert sum(taken) <= most
        assert all(b"".join(part.written) == b"x" * 20 * PIECE for _, part in here)
        await given_back(space, room * PIECE)

    asyncio.run(go())


@settings(max_examples=settings().max_examples // 3)
@given(st.integers(1, 8), st.integers(0, 3), st.booleans(), st.booleans())
def test_room_is_given_back_however_a_stream_ends(
    spoiled_at: int, room: int, fails: bool, cancelled: bool
) -> None:
    async def go() -> None:
        disk = threading.Event()
        ((stream, part),) = streams(1, 8, disk)
        stream.spoiled_at, part.fails = spoiled_at, fails
        space = StreamMemory(room * PIECE)
        doing = asyncio.create_task(received(stream, part, space))
        await everybody_waits()
        if cancelled:
            doing.cancel()
            await everybody_waits()
        disk.set()
        (ended,) = await asyncio.gather(doing, return_exceptions=True)
        assert isinstance(ended, (BadPiece, BlobBusy, asyncio.CancelledError, type(None)))
        await given_back(space, room * PIECE)
        assert fails or b"".join(part.written) == b"x" * PIECE * len(part.written)

    asyncio.run(go())


@pytest.mark.parametrize(
    ("count", "room_bytes"),
    [
        pytest.param(2, 10**6, id="as it waits for more"),
        pytest.param(6, 10**6, id="as it waits for the disk"),
        pytest.param(1, 0, id="as it waits for memory"),
    ],
)
def test_what_has_come_is_written_in_its_order_though_the_stream_is_given_up(
    count: int, room_bytes: int
) -> None:
    # Whoever does not wait for the disk is ahead of it.
    blob = blob_of(DATA)
    part = SlowPart(blob, threading.Event(), pause_s=0.05)
    room = StreamMemory(room_bytes)
    taken = 0

    async def pieces() -> AsyncIterator[Piece]:
        nonlocal taken
        for number in range(count):
            start = number * 1_000
            taken = start + 1_000
            yield Piece(
                DATA[start:taken], "" if number else blob.digest, start if not number else 0
            )
        await asyncio.Event().wait()

    async def act() -> None:
        receiving = asyncio.create_task(
            receive(pieces(), cast("PartialBlob", part), lambda _: None, QUICK, room)
        )
        await asyncio.to_thread(part.writing.wait, 60)
        for _ in range(100):
            await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.sleep(0)
        part.disk.set()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert b"".join(part.written) == DATA[:taken]
        assert room.free == room_bytes

    asyncio.run(act())
