"""Random bytes at every RPC of a mediator."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any
from zlib import crc32

import grpc
import grpc.aio

from fedpilot.mediator.identity import Role
from fedpilot.mediator.identity.tls import joining_credentials
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.rpc import JOIN, SITE, USER
from mediators import Here, channel_to

Code = grpc.StatusCode
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

    call = make(one() if method.client_streaming else data, timeout=60)
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
