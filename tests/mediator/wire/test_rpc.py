"""Channels try again soon, and let a slow other side finish what it has begun."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from fedpilot.mediator.wire.rpc import CHANNEL_OPTIONS

SLOW_S = 1.5


def test_whoever_takes_long_to_greet_is_not_called_again_meanwhile() -> None:
    called = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal called
        called += 1
        await reader.read()
        writer.close()

    async def call() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        options = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(SLOW_S):
                    await channel.channel_ready()
        server.close()

    asyncio.run(call())
    assert called == 1
