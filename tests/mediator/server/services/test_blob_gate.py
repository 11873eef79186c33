"""A site reads and brings the blobs of its own orders, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from fedpilot.mediator import Payload
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.blobs.blob import Blob
from fedpilot.mediator.wire.messages import PROTOCOL, blob_message
from fedpilot.mediator.wire.payloads import write
from fedpilot.mediator.wire.rpc import SITE, Stub
from fedpilot.mediator.wire.transfer import BlobStub, Piece
from mediators import Here, channel_to, eventually, mediating
from runs_at_mediators import (
    ROUND,
    blobs,
    failure_of,
    orders,
    quick,
    run,
    seen,
)

Code = grpc.StatusCode


def test_a_site_has_only_its_own_orders_blobs(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            here.agent("paris", hold_answers=True) as paris,
            here.agent("rome") as rome,
        ):
            await here.submit("run", orders("paris"), wait_for=2)
            await eventually(lambda: ROUND in paris.worked)
            assert len(blobs(here)) == 1, blobs(here)
            (digest,) = blobs(here)
            assert await fetched(rome, digest) is Code.PERMISSION_DENIED
            assert await fetched(paris, digest) is Code.OK
            assert await fetched(paris, "0" * 64) is Code.PERMISSION_DENIED
            assert await fetched(paris, "../../../etc/passwd") is Code.INVALID_ARGUMENT
            order = pb.OrderId(run="run", key="round/1")
            blob = pb.Blob(digest="1" * 64, size=10)
            async with rome.connect() as channel:
                offer = Stub(channel, SITE).offer(pb.OfferRequest(blob=blob, order=order))
                code, text = await failure_of(offer)
                assert code is Code.PERMISSION_DENIED
                assert "no coordinator waits" in text

    run(test())


async def fetched(agent: Any, digest: str) -> grpc.StatusCode:
    async with agent.connect() as channel:
        call = Stub(channel, SITE).fetch(pb.FetchRequest(digest=digest))
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        code: grpc.StatusCode = await call.code()
        return code


def test_an_answer_whose_blob_was_not_pushed_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m", health=quick(grace_s=30.0)) as here,
            here.agent("paris", hold_answers=True) as agent,
        ):
            await here.submit("run", orders("paris"), wait_for=1, then="wait")
            await eventually(lambda: ROUND in agent.worked)
            await agent.stop()
            _, blob = write(Payload(kind="x", tensors={"x": np.zeros(3)}), agent.blobs)
            assert blob is not None
            await _answer_without_pushing(here, blob)
            await eventually(lambda: any("was not pushed" in m for m in caplog.messages))
            assert not seen(here, "answer")
            agent.release_answers()
            await agent.start()
            await eventually(lambda: seen(here, "answer"))

    run(test())


def test_what_a_lost_site_had_brought_in_part_is_removed(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            mediating(tmp_path / "m") as here,
            here.agent("paris", hold_answers=True) as agent,
        ):
            await here.submit("run", orders("paris", numbers=0), wait_for=1, then="wait")
            await eventually(lambda: ROUND in agent.worked)
            digest = "1" * 64
            part = here.folder / "blobs" / f"{digest}.paris.part"
            order = pb.OrderId(run="run", key="round/1")
            async with agent.connect() as channel:
                stub = BlobStub(channel)
                await stub.offer(pb.OfferRequest(blob=pb.Blob(digest=digest, size=10), order=order))
                call = stub.push()
                await call.write(Piece(b"begun", digest))
                await eventually(part.exists)
                agent.silent = True
                await here.state("paris", "lost")
                await eventually(lambda: not part.exists())
                await call.write(Piece(b"ended"))
                await call.done_writing()
                code, _ = await failure_of(call)
                assert code is Code.ABORTED

    run(test())


async def _answer_without_pushing(here: Here, blob: Blob) -> None:
    id = pb.OrderId(run="run", key="round/1")
    done = pb.Done(kind="done", header_json="{}", blob=blob_message(blob))
    async with channel_to(here.address, here.keys("paris")) as channel:
        call = Stub(channel, SITE).session()
        hello = pb.Hello(protocol=PROTOCOL, site="paris", agent="b", held=[id])
        await call.write(pb.FromSite(number=1, hello=hello))
        answer = pb.Answer(id=id, done=done)
        await call.write(pb.FromSite(number=2, answer=answer))
        await call.write(pb.FromSite(number=3, heartbeat=pb.Heartbeat()))
        while (await call.read()).WhichOneof("content") != "renewal":
            pass
