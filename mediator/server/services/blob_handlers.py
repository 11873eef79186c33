"""Fetch, Offer and Push as gRPC calls them: what is no message, and who may not, is refused here.

The transfers themselves, and their refusals, are in wire/transfer/service.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ...errors import MediatorError
from ...proto import federation_pb2 as pb
from ...wire.messages import BadMessage, parsed
from ...wire.rpc import SITE
from ...wire.transfer import BlobService, Piece, pack, unpack
from ..connections.authorization import refuse

Act = Callable[[Any, Any], Awaitable[Any]]


def blob_handlers(service: BlobService) -> grpc.GenericRpcHandler:
    """The handlers; they come before those of the rest of SiteService."""

    async def fetch(data: bytes, context: Any) -> None:
        await _guarded("fetch", service.fetch, lambda: parsed(pb.FetchRequest, data), context)

    async def offer(data: bytes, context: Any) -> pb.OfferReply:
        made: pb.OfferReply = await _guarded(
            "offer", service.offer, lambda: parsed(pb.OfferRequest, data), context
        )
        return made

    async def push(stream: AsyncIterator[bytes], context: Any) -> pb.PushReply:
        made: pb.PushReply = await _guarded("push", service.push, lambda: _pieces(stream), context)
        return made

    return grpc.method_handlers_generic_handler(
        SITE.full_name,
        {
            "Fetch": grpc.unary_stream_rpc_method_handler(fetch, None, pack),
            "Offer": grpc.unary_unary_rpc_method_handler(
                offer, None, pb.OfferReply.SerializeToString
            ),
            "Push": grpc.stream_unary_rpc_method_handler(
                push, None, pb.PushReply.SerializeToString
            ),
        },
    )


async def _guarded(name: str, act: Act, request: Callable[[], Any], context: Any) -> Any:
    try:
        return await act(request(), context)
    except MediatorError as error:
        await refuse(context, name, error, None)


async def _pieces(stream: AsyncIterator[bytes]) -> AsyncIterator[Piece]:
    async for data in stream:
        try:
            piece = unpack(data)
        except DecodeError:
            raise BadMessage(f"{len(data)} bytes that are no Piece") from None
        yield piece
