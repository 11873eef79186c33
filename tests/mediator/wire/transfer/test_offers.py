"""A mediator takes the one blob that an order has on offer, and refuses all other pushes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from broken_transfers import DATA, Code, World, blob_of, in_a_world, put
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.transfer import (
    OFFERS_PER_SITE,
    Piece,
    TransferRefused,
    TransferSettings,
)

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
