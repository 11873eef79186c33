"""What a site says to a mediator, message by message, and what it hears."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.wire.messages import PROTOCOL
from fedpilot.mediator.wire.rpc import SITE, Stub

TOO_LATE = "Internal error from Core"
"""What gRPC says of a write that came after the end of its call, in the place of why that ended."""


async def conversation(
    channel: grpc.aio.Channel, *messages: pb.FromSite
) -> tuple[list[pb.ToSite], grpc.StatusCode, str]:
    """What a site hears that says these things, and how it ends."""
    while True:
        call = Stub(channel, SITE).session()
        heard = []
        try:
            for message in messages:
                await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # refused before all was said
        try:
            while (answer := await asyncio.wait_for(call.read(), 60)) is not grpc.aio.EOF:
                heard.append(answer)
        except grpc.aio.AioRpcError:
            pass
        if (details := str(await call.details())) != TOO_LATE:
            return heard, await call.code(), details


def hello(site: str = "paris", **changes: Any) -> pb.FromSite:
    return pb.FromSite(
        number=1, hello=pb.Hello(**{"protocol": PROTOCOL, "site": site, "agent": "a", **changes})
    )


def beat(number: int) -> pb.FromSite:
    return pb.FromSite(number=number, heartbeat=pb.Heartbeat())
