"""Random bytes at every RPC: refused in one line each, the mediator alive, its memory flat."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from zlib import crc32

import grpc
import grpc.aio
import pytest

from fedpilot.mediator.identity import Role
from fedpilot.mediator.identity.tls import joining_credentials
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.rpc import JOIN, SITE, USER
from mediators import Here, channel_to, eventually, mediating, process, reaching

Code = grpc.StatusCode
STRINGS = 200
"""Per RPC; `make soak` sends 10,000."""
SLACK_BYTES = 16 << 20
ALLOWED = {
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.PERMISSION_DENIED,
    Code.NOT_FOUND,
    Code.FAILED_PRECONDITION,
    Code.RESOURCE_EXHAUSTED,
    Code.OUT_OF_RANGE,
    Code.ALREADY_EXISTS,  # a string may be a right request for the same run
}


def strings(seed: int, count: int) -> list[bytes]:
    """Random bytes: pure noise, and messages that were damaged."""
    rng = random.Random(seed)
    right = [
        pb.FromSite(number=1, hello=pb.Hello(protocol=1, site="oslo")).SerializeToString(),
        pb.OfferRequest(blob=pb.Blob(digest="0" * 64, size=9)).SerializeToString(),
        pb.SubmitRequest(protocol=1, run="r", config_yaml="{", name="n").SerializeToString(),
        pb.ChangeSiteRequest(site="oslo", change="cordon").SerializeToString(),
        pb.Piece(digest="0" * 64, offset=5, data=b"x" * 50).SerializeToString(),
    ]
    made = []
    for number in range(count):
        if number % 2:
            made.append(rng.randbytes(rng.randrange(200)))
        else:
            damaged = bytearray(rng.choice(right))
            for _ in range(rng.randrange(1, 6)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            made.append(bytes(damaged[: rng.randrange(1, len(damaged) + 1)]))
    return made


def plain(data: bytes) -> bytes:
    return data


async def send(channel: grpc.aio.Channel, service: Any, name: str, data: bytes) -> Any:
    """How one RPC ends that is sent these bytes."""
    method = service.methods_by_name[name]
    kinds = {True: "stream", False: "unary"}
    kind = f"{kinds[method.client_streaming]}_{kinds[method.server_streaming]}"
    make = getattr(channel, kind)(
        f"/{service.full_name}/{name}", request_serializer=plain, response_deserializer=plain
    )

    async def one() -> AsyncIterator[bytes]:
        yield data

    call = make(one() if method.client_streaming else data, timeout=10)
    try:
        if method.server_streaming:
            async for _ in call:
                break
            call.cancel()
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return Code.OK


def memory_of(pid: int) -> int:
    """Bytes of memory that are a process's own."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


async def attack(here: Here, count: int) -> None:
    """Send as many strings to every RPC, as everybody who may call it."""
    bare = joining_credentials(here.keys.authority.certificate)
    async with (
        grpc.aio.secure_channel(here.join_address, bare) as stranger,
        channel_to(here.address, here.keys("mallory")) as site,
        channel_to(here.address, here.keys("root", Role.ADMIN)) as admin,
    ):
        for channel, service in ((stranger, JOIN), (site, SITE), (admin, USER)):
            for method in service.methods:
                for data in strings(crc32(method.name.encode()), count):
                    code = await send(channel, service, method.name, data)
                    assert code in ALLOWED, (method.name, data, code)


@pytest.mark.parametrize(
    "count", [pytest.param(STRINGS), pytest.param(10_000, marks=pytest.mark.soak)]
)
@pytest.mark.timeout(3_000)
def test_random_bytes_at_every_rpc_are_refused(tmp_path: Path, count: int) -> None:
    log = tmp_path / "mediator.log"

    async def test() -> None:
        with process(tmp_path / "m") as (mediator, (port, join_port)):
            addresses = f"localhost:{port}", f"localhost:{join_port}"
            async with reaching(tmp_path / "m", *addresses) as here, here.agent("paris") as agent:
                await here.state("paris", "ready")
                await attack(here, count)
                before, said = memory_of(mediator.pid), len(refusals(log))
                await attack(here, count)
                assert memory_of(mediator.pid) - before < SLACK_BYTES
                assert len(refusals(log)) - said > 20 * count / 3
                assert "Traceback" not in log.read_text()
                await here.state("paris", "ready")
                assert agent.welcomed.is_set()

    asyncio.run(test())


def refusals(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "refused" in line or "site " in line]


def test_a_message_of_many_megabytes_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        async with mediating(tmp_path / "m") as here:
            async with channel_to(here.address, here.keys("mallory")) as channel:
                for service, name in ((SITE, "Offer"), (SITE, "Push"), (SITE, "Fetch")):
                    code = await send(channel, service, name, b"\x0a" + bytes(9 << 20))
                    assert code is Code.RESOURCE_EXHAUSTED, name
            bare = joining_credentials(here.keys.authority.certificate)
            async with grpc.aio.secure_channel(here.join_address, bare) as channel:
                code = await send(channel, JOIN, "Join", bytes(100 << 10))
                assert code is Code.RESOURCE_EXHAUSTED

    asyncio.run(test())


def test_a_site_that_floods_is_read_slowly_and_disturbs_nobody(tmp_path: Path) -> None:
    async def test() -> None:
        limits = {"messages_per_s": 50.0, "messages_at_once": 100}
        async with (
            mediating(tmp_path / "m", **limits) as here,
            here.agent("flood") as flood,
            here.agent("paris") as paris,
        ):
            await eventually(lambda: flood.welcomed.is_set() and paris.welcomed.is_set())
            for number in range(5_000):
                flood.say("run", "noise", {"number": number})
            await here.state("paris", "ready")
            await eventually(lambda: paris.renewed == [])
            entry = (await here.sites())["flood"]
            assert entry["bytes"]["from_site"] < 5_000 * 40

    asyncio.run(test())
