"""Blobs get through whatever cuts their streams; nothing gets through that was not asked for."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from hypothesis import given, strategies as st

from fedpilot.mediator.core.traffic import Direction
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.blobs.errors import BadBlob, NoRoom
from fedpilot.mediator.wire.blobs.part import Part
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.rpc import TOO_MANY_CALLS
from fedpilot.mediator.wire.transfer import (
    OFFERS_PER_SITE,
    BlobClient,
    BlobService,
    BlobStub,
    Piece,
    TransferFailed,
    TransferRefused,
    TransferSettings,
    blob_handler,
    pack,
    unpack,
)
from fedpilot.mediator.wire.transfer.pieces import Envelope
from fedpilot.mediator.wire.transfer.streams import Room, receive

DATA = random.Random(5).randbytes(100_000)
BLOB_DIGEST = hashlib.sha256(DATA).hexdigest()
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
    server.add_generic_rpc_handlers((blob_handler(service),))
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


# -- pieces -----------------------------------------------------------------------------------

digests = st.sampled_from(["", "a" * 64, "b" * 63, "é"])


@given(digests, st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_a_piece_is_packed_as_protobuf_reads_it_and_the_other_way_round(
    digest: str, offset: int, data: bytes
) -> None:
    theirs = pb.Piece(digest=digest, offset=offset, data=data)
    assert pb.Piece.FromString(pack(Piece(data, digest, offset))) == theirs
    assert unpack(theirs.SerializeToString()) == Piece(data, digest, offset)


@given(
    st.binary(max_size=40)
    | st.builds(
        bytes.__add__,
        st.sampled_from([b"\x1a", b"\x10\x05\x1a", b"\x0a\x40" + b"a" * 64 + b"\x10\x80\x01\x1a"]),
        st.binary(),
    )
)
def test_any_message_is_read_as_protobuf_reads_it(message: bytes) -> None:
    try:
        theirs = pb.Piece.FromString(message)
    except Exception as error:
        with pytest.raises(type(error)):
            unpack(message)
    else:
        assert unpack(message) == Piece(theirs.data, theirs.digest, theirs.offset)


def test_the_data_of_a_piece_is_not_copied_when_it_is_read() -> None:
    assert isinstance(unpack(pack(Piece(b"x" * 1_000, "a" * 64, 5))).data, memoryview)


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is: not every file system can tell."""
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, at, flags: read(file, buffers, at))


@pytest.mark.usefixtures("in_memory")
@pytest.mark.parametrize(
    ("offset", "digest"),
    [
        pytest.param(0, BLOB_DIGEST, id="the first has a name"),
        pytest.param(7_000, "", id="most are whole"),
        pytest.param(98_000, "", id="the last is short"),
    ],
)
def test_an_envelope_holds_a_piece_of_a_file(tmp_path: Path, offset: int, digest: str) -> None:
    envelope, wanted = Envelope(7_000), DATA[offset : offset + 7_000]
    (tmp_path / "file").write_bytes(DATA)
    with (tmp_path / "file").open("rb") as file:
        assert envelope.fill(file.fileno(), offset) == len(wanted)
    message = pack(envelope.piece(len(wanted), digest, offset if digest else 0))
    assert message == pack(Piece(wanted, digest, offset if digest else 0))


@pytest.mark.usefixtures("in_memory")
def test_what_an_envelope_held_stays_as_it_was_while_somebody_has_it(tmp_path: Path) -> None:
    envelope = Envelope(7_000)
    (tmp_path / "file").write_bytes(DATA)
    with (tmp_path / "file").open("rb") as file:
        held = []
        for offset in (0, 7_000, 14_000):
            envelope.fill(file.fileno(), offset)
            held.append(pack(envelope.piece(7_000)))
    assert [unpack(each).data for each in held] == [
        DATA[offset : offset + 7_000] for offset in (0, 7_000, 14_000)
    ]


def test_what_is_not_in_memory_is_asked_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", never)

    async def act(there: World) -> None:
        path = await there.client.download(put(there.mediator, DATA))
        assert path.read_bytes() == DATA

    in_a_world(tmp_path, act)


# -- down -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_download_goes_on_where_it_was_cut(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.cuts = [rng.randrange(4) for _ in range(6)]
        path = await there.client.download(blob)
        assert path.read_bytes() == DATA
        # Pieces that had come before a cut are not sent again.
        assert there.booked == {Direction.TO_SITE: len(DATA)}
        assert there.gate.booked[Direction.TO_SITE] >= len(DATA)
        assert there.service.streams == 7

    in_a_world(tmp_path, act)


def test_a_download_goes_on_with_what_an_earlier_process_left(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        part = there.site.open_part(blob)
        part.write(DATA[:60_000])
        part.close()
        await there.client.download(blob)
        assert there.site.has(blob)
        assert there.booked == {Direction.TO_SITE: 40_000}

    in_a_world(tmp_path, act)


def test_a_blob_that_came_spoiled_is_fetched_anew_but_not_for_ever(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.spoiled = [3, 0]
        assert (await there.client.download(blob)).read_bytes() == DATA
        assert there.booked == {Direction.TO_SITE: 3 * len(DATA)}
        there.site.path(blob.digest).unlink()
        there.breaks.spoiled = [1] * 10
        with pytest.raises(TransferFailed, match="with the digest"):
            await there.client.download(blob)
        assert there.service.streams == 6
        assert not list(there.site.folder.iterdir())

    in_a_world(tmp_path, act)


def test_a_stream_that_stalls_is_broken_and_tried_again(tmp_path: Path) -> None:
    impatient = TransferSettings(piece_bytes=7_000, stall_s=0.1, first_pause_s=0.001)

    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.stalls = [2, 0]
        assert (await there.client.download(blob)).read_bytes() == DATA
        assert there.booked == {Direction.TO_SITE: len(DATA)}

    in_a_world(tmp_path, act, settings=impatient)


def test_a_download_ends_with_its_budget_of_attempts(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.cuts = [1] + [0] * 20
        with pytest.raises(TransferFailed, match=r"came to 7000 of 100000 bytes: .*link is cut"):
            await there.client.download(blob)
        assert there.service.streams == 1 + QUICK.attempts - 1

    in_a_world(tmp_path, act)


def test_each_byte_further_renews_the_budget_of_attempts(tmp_path: Path) -> None:
    few = TransferSettings(piece_bytes=7_000, first_pause_s=0.001, longest_pause_s=0.01, attempts=2)

    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.cuts = [1] * 10
        assert (await there.client.download(blob)).read_bytes() == DATA
        assert there.service.streams == 11

    in_a_world(tmp_path, act, settings=few)


def test_a_blob_that_has_just_come_does_not_make_room_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Part.finish

    def finishing(part: Part) -> Path:
        path = finish(part)
        # Another process of the site needs the whole folder now.
        with pytest.raises(NoRoom):
            BlobStore(path.parent, len(DATA)).make_room_for(len(DATA))
        return path

    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        monkeypatch.setattr(Part, "finish", finishing)
        assert (await there.client.download(blob)).read_bytes() == DATA

    in_a_world(tmp_path, act)


class SlowPart:
    """A part on a disk that writes when the test says so."""

    def __init__(self) -> None:
        self.blob, self.size = blob_of(DATA), 0
        self.writing, self.may_write = threading.Event(), threading.Event()
        self.written = b""

    def write(self, *data: bytes) -> None:
        self.writing.set()
        assert self.may_write.wait(60)
        time.sleep(0.05)  # whoever does not wait for the disk is ahead of it
        self.written += b"".join(data)


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
    part, room = SlowPart(), Room(room_bytes)
    taken = 0

    async def pieces() -> AsyncIterator[Piece]:
        nonlocal taken
        for number in range(count):
            start = number * 1_000
            taken = start + 1_000
            yield Piece(
                DATA[start:taken], "" if number else BLOB_DIGEST, start if not number else 0
            )
        await asyncio.Event().wait()

    async def act() -> None:
        receiving = asyncio.create_task(
            receive(pieces(), cast("Part", part), lambda _: None, QUICK, room)
        )
        await asyncio.to_thread(part.writing.wait, 60)
        for _ in range(100):
            await asyncio.sleep(0)
        receiving.cancel()
        await asyncio.sleep(0)
        part.may_write.set()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        assert part.written == DATA[:taken]
        assert room.free == room_bytes

    asyncio.run(act())


@pytest.mark.parametrize(
    "said",
    [
        pytest.param((Code.UNAVAILABLE, f"{TOO_MANY_CALLS}: site paris has 64 open"), id="of ours"),
        pytest.param((Code.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!"), id="of anybody"),
    ],
)
def test_who_finds_too_many_calls_tries_again_whatever_its_budget(
    tmp_path: Path, said: tuple[grpc.StatusCode, str]
) -> None:
    async def act(w: World) -> None:
        w.breaks.refusals = [said] * 20
        blob = put(w.mediator, DATA)
        assert (await w.client.download(blob)).read_bytes() == DATA
        w.breaks.refusals = [said] * 20
        await w.client.upload(put(w.site, DATA[1:]), run="r", key="k")
        assert w.mediator.has(blob_of(DATA[1:]))

    in_a_world(tmp_path, act)


def test_a_site_has_few_streams_at_once(tmp_path: Path) -> None:
    async def act(w: World) -> None:
        blobs = [put(w.mediator, DATA[at:]) for at in range(8)]
        await asyncio.gather(*map(w.client.download, blobs))
        assert all(map(w.site.has, blobs))
        assert w.service.most_open == 3

    in_a_world(tmp_path, act, settings=replace(QUICK, at_once=3))


def test_a_download_ends_with_its_deadline(tmp_path: Path) -> None:
    brief = TransferSettings(piece_bytes=7_000, floor_s=0.1, slowest_bytes_per_s=10**9)

    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.stalls = [1]
        with pytest.raises(TransferFailed, match="0 s are over"):
            await there.client.download(blob)
        # The part is free again for whoever tries next, and has more time.
        there.breaks.stalls = []
        patient = BlobClient(there.stub, there.site, lambda *_: None, QUICK)
        assert (await patient.download(blob)).read_bytes() == DATA

    in_a_world(tmp_path, act, settings=brief)


def test_a_download_may_take_as_long_as_it_goes_on(tmp_path: Path) -> None:
    patient = TransferSettings(piece_bytes=7_000, floor_s=4.0, slowest_bytes_per_s=10**9)

    async def act(there: World) -> None:
        there.breaks.pace_s = 0.4  # of 15 pieces
        blob = put(there.mediator, DATA)
        assert (await there.client.download(blob)).read_bytes() == DATA
        assert there.service.streams == 1

    in_a_world(tmp_path, act, settings=patient)


def test_downloads_of_one_digest_at_once_fetch_it_once(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        paths = await asyncio.gather(*(there.client.download(blob) for _ in range(5)))
        assert set(paths) == {there.site.path(blob.digest)}
        assert there.booked == {Direction.TO_SITE: len(DATA)}
        assert there.service.streams == 1

    in_a_world(tmp_path, act)


def test_who_gives_up_a_shared_download_does_not_end_it_unless_alone(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        there.breaks.stalls = [1]
        lone = asyncio.create_task(there.client.download(blob))
        while not there.booked:
            await asyncio.sleep(0)
        lone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lone
        one, other = (asyncio.create_task(there.client.download(blob)) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        assert (await other).read_bytes() == DATA
        assert one.cancelled()

    in_a_world(tmp_path, act)


def test_a_site_without_room_says_so_before_it_fetches(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA)
        with pytest.raises(NoRoom, match="raise its limit"):
            await there.client.download(blob)
        assert there.service.streams == 0

    in_a_world(tmp_path, act, site_limit=10)


@pytest.mark.parametrize(
    ("refusal", "there_too", "says"),
    [
        pytest.param("no order of yours names it", True, "PERMISSION_DENIED: no order", id="gate"),
        pytest.param("", False, "NOT_FOUND: blob .* is not here", id="unknown"),
    ],
)
def test_a_refused_download_is_not_tried_again(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    refusal: str,
    there_too: bool,
    says: str,
) -> None:
    async def act(there: World) -> None:
        blob = put(there.mediator, DATA) if there_too else blob_of(DATA)
        there.gate.refusal = refusal
        with pytest.raises(TransferRefused, match=says):
            await there.client.download(blob)
        assert there.service.streams == 1

    with caplog.at_level(logging.WARNING):
        in_a_world(tmp_path, act)
    assert "site paris: " in caplog.text


# -- up ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_an_upload_goes_on_where_it_was_cut(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    fine = TransferSettings(piece_bytes=2_000, first_pause_s=0.001)

    async def act(there: World) -> None:
        blob = put(there.site, DATA)
        # So far apart that some pieces are on the disk by then, and not only on their way there.
        there.breaks.cuts = [rng.randrange(9, 16) for _ in range(3)]
        await there.client.upload(blob, run="r", key="1")
        assert there.mediator.path(blob.digest).read_bytes() == DATA
        offsets = there.service.offsets
        assert len(offsets) == 4
        assert offsets == sorted(set(offsets))
        assert there.gate.booked[Direction.FROM_SITE] >= len(DATA)
        assert there.booked[Direction.FROM_SITE] >= len(DATA)

    in_a_world(tmp_path, act, settings=fine)


def test_what_is_there_already_is_not_pushed(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.site, DATA)
        put(there.mediator, DATA)
        await there.client.upload(blob, run="r", key="1")
        assert there.service.streams == 0

    in_a_world(tmp_path, act)


def test_an_upload_that_arrives_spoiled_is_pushed_anew_but_not_for_ever(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.site, DATA)
        there.breaks.spoiled = [3]
        await there.client.upload(blob, run="r", key="1")
        assert there.mediator.path(blob.digest).read_bytes() == DATA
        there.mediator.path(blob.digest).unlink()
        there.breaks.spoiled = [1] * 10
        with pytest.raises(TransferFailed, match="DATA_LOSS"):
            await there.client.upload(blob, run="r", key="1")
        assert there.service.streams == 5

    in_a_world(tmp_path, act)


def test_uploads_of_one_digest_for_two_orders_push_it_once(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        blob = put(there.site, DATA)
        orders = (there.client.upload(blob, run="r", key=str(key)) for key in range(4))
        await asyncio.gather(*orders)
        assert there.service.streams == 1

    in_a_world(tmp_path, act)


def test_a_site_cannot_upload_what_it_has_not(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        with pytest.raises(BadBlob, match="there is no blob"):
            await there.client.upload(blob_of(DATA), run="r", key="1")

    in_a_world(tmp_path, act)


# -- strangers --------------------------------------------------------------------------------

BLOB = blob_of(DATA)
HEAD = Piece(DATA[:10], BLOB.digest)


async def offered(there: World, blob: Blob = BLOB, key: str = "1", site: str = "paris") -> int:
    request = pb.OfferRequest(
        blob=pb.Blob(digest=blob.digest, size=blob.size), order=pb.OrderId(run="r", key=key)
    )
    reply = await there.stub.offer(request, metadata=(("site", site),))
    return int(reply.offset)


async def pushed(there: World, *pieces: Any, site: str = "paris") -> int:
    async def stream() -> AsyncIterator[Any]:
        for piece in pieces:
            yield piece

    return int((await there.stub.push(stream(), metadata=(("site", site),))).size)


@pytest.mark.parametrize(
    ("pieces", "code", "says"),
    [
        pytest.param([], Code.INVALID_ARGUMENT, "without a piece", id="no piece"),
        pytest.param([Piece(b"x")], Code.INVALID_ARGUMENT, "was offered", id="no name"),
        pytest.param([Piece(b"x", "f" * 64)], Code.INVALID_ARGUMENT, "was offered", id="unknown"),
        pytest.param(
            [Piece(b"x", BLOB.digest, 5)], Code.OUT_OF_RANGE, "goes on at 0", id="another offset"
        ),
        pytest.param(
            [HEAD, Piece(b"x", "", 3)], Code.OUT_OF_RANGE, "goes on at 10", id="a later offset"
        ),
        pytest.param(
            [HEAD, Piece(b"x", "f" * 64)], Code.INVALID_ARGUMENT, "was due", id="another's piece"
        ),
        pytest.param([HEAD, Piece(b"")], Code.INVALID_ARGUMENT, "is empty", id="an empty piece"),
        pytest.param(
            [Piece(DATA, BLOB.digest), Piece(b"x")],
            Code.OUT_OF_RANGE,
            "1 more came after 100000",
            id="more than was offered",
        ),
    ],
)
def test_a_bad_push_is_refused_and_a_right_one_goes_through_after_it(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    pieces: list[Piece],
    code: grpc.StatusCode,
    says: str,
) -> None:
    async def act(there: World) -> None:
        put(there.site, DATA)
        assert await offered(there) == 0
        with pytest.raises(grpc.aio.AioRpcError, match=says) as refused:
            await pushed(there, *pieces)
        assert refused.value.code() is code
        await there.client.upload(BLOB, run="r", key="1")
        assert there.mediator.has(BLOB)

    with caplog.at_level(logging.WARNING):
        in_a_world(tmp_path, act)
    assert f"site paris: {code.name}" in caplog.text


@pytest.mark.parametrize(
    ("blob", "code"),
    [
        pytest.param(pb.Blob(digest="../x", size=1), Code.INVALID_ARGUMENT, id="a path"),
        pytest.param(pb.Blob(digest="a" * 64, size=2**63), Code.INVALID_ARGUMENT, id="too large"),
        pytest.param(
            pb.Blob(digest="a" * 64, size=200_001), Code.RESOURCE_EXHAUSTED, id="over the limit"
        ),
    ],
)
def test_a_bad_offer_is_refused(tmp_path: Path, blob: pb.Blob, code: grpc.StatusCode) -> None:
    async def act(there: World) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await there.stub.offer(pb.OfferRequest(blob=blob))
        assert refused.value.code() is code
        assert not list(there.mediator.folder.iterdir())

    in_a_world(tmp_path, act)


def test_a_refused_offer_is_not_tried_again(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        there.gate.refusal = "no such order"
        with pytest.raises(TransferRefused, match="PERMISSION_DENIED: no such order"):
            await there.client.upload(put(there.site, DATA), run="r", key="1")

    in_a_world(tmp_path, act)


def test_one_site_cannot_push_what_another_has_offered(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        await offered(there, site="lyon")
        with pytest.raises(grpc.aio.AioRpcError, match="was offered"):
            await pushed(there, HEAD)

    in_a_world(tmp_path, act)


def test_an_order_has_one_blob_on_offer_and_the_part_of_another_is_removed(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        await offered(there)
        assert await pushed(there, HEAD) == 10
        assert await offered(there) == 10
        assert await offered(there, blob_of(b"other")) == 0
        assert not list(there.mediator.folder.iterdir())
        with pytest.raises(grpc.aio.AioRpcError, match="was offered"):
            await pushed(there, HEAD)

    in_a_world(tmp_path, act)


def test_the_oldest_of_too_many_offers_is_forgotten(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        await offered(there)
        assert await pushed(there, HEAD) == 10
        for number in range(OFFERS_PER_SITE):
            await offered(there, blob_of(str(number).encode()), key=f"k{number}")
        assert not list(there.mediator.folder.iterdir())

    in_a_world(tmp_path, act)


@pytest.mark.parametrize(
    ("forgotten", "left"),
    [
        pytest.param(("r",), set(), id="a run: all of it"),
        pytest.param(("another",), {"paris 1", "paris 2", "lyon 1"}, id="another run: nothing"),
        pytest.param(("r", "paris"), {"lyon 1"}, id="a run at a site: that site's"),
        pytest.param(("r", "paris", "1"), {"paris 2", "lyon 1"}, id="an order: that one's"),
        pytest.param(("r", "", "1"), {"paris 2"}, id="an order at all sites: all of that name"),
        pytest.param(("r", "rome"), {"paris 1", "paris 2", "lyon 1"}, id="a strange site: nothing"),
    ],
)
def test_what_is_forgotten_is_removed_and_nothing_else(
    tmp_path: Path, forgotten: tuple[str, ...], left: set[str]
) -> None:
    async def act(there: World) -> None:
        found = {}
        for each in ("paris 1", "paris 2", "lyon 1"):
            site, key = each.split()
            blob = blob_of(each.encode() * 10)
            assert await offered(there, blob, key, site) == 0
            assert await pushed(there, Piece(b"begun", blob.digest), site=site) == 5
            found[each] = there.mediator.folder / f"{blob.digest}.{site}.part"
        run, site, key = (*forgotten, "", "")[:3]
        there.service.forget(run, site=site, key=key)
        assert {each for each, path in found.items() if path.exists()} == left

    in_a_world(tmp_path, act)


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_double_and_are_spread(failures: int, chance: float) -> None:
    settings = TransferSettings(first_pause_s=0.5, longest_pause_s=3.0)
    whole = {1: 0.5, 2: 1.0, 3: 2.0}.get(failures, 3.0)
    assert whole / 2 <= settings.pause_s(failures, chance) <= whole
    assert settings.pause_s(failures, 0.0) < settings.pause_s(failures, 0.5)


def test_an_offer_ends_an_earlier_push_of_the_same_blob(tmp_path: Path) -> None:
    async def act(there: World) -> None:
        put(there.site, DATA)
        await offered(there)
        call = there.stub.push()
        await call.write(HEAD)
        while not there.gate.booked:
            await asyncio.sleep(0)
        await there.client.upload(BLOB, run="r", key="1")
        assert there.mediator.has(BLOB)
        await call.write(Piece(DATA[10:20]))
        await call.done_writing()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call
        assert ended.value.code() is Code.ABORTED

    in_a_world(tmp_path, act)


def test_a_push_that_stalls_is_ended_by_the_mediator(tmp_path: Path) -> None:
    impatient = TransferSettings(stall_s=0.05, piece_bytes=1)

    async def act(there: World) -> None:
        await offered(there)
        call = there.stub.push()
        await call.write(HEAD)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call
        assert ended.value.code() is Code.DEADLINE_EXCEEDED
        assert await offered(there) == 10

    in_a_world(tmp_path, act, service_settings=impatient)


def test_random_bytes_at_each_call_end_that_call_only(tmp_path: Path) -> None:
    rng = random.Random(1)

    async def act(there: World) -> None:
        put(there.site, DATA)
        await offered(there)
        for name in ("Fetch", "Offer", "Push") * 100:
            call: Any = there.channel.stream_stream(f"/fedpilot.v1.SiteService/{name}")
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in call(iter([rng.randbytes(rng.randrange(60)) for _ in range(2)])):
                    pass
        await there.client.upload(BLOB, run="r", key="1")

    in_a_world(tmp_path, act)
