"""The gRPC handlers of Fetch, Offer and Push, and the gate for the blobs of a site.

Transfers and their refusals are in `wire/transfer/service.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ...core.rules.roles import Act
from ...core.traffic import Direction
from ...errors import MediatorError
from ...proto import federation_pb2 as pb
from ...wire.blobs.blob import Blob
from ...wire.messages import BadMessage, order_id, parsed
from ...wire.rpc import SITE
from ...wire.transfer import BlobService, Piece, pack, unpack
from ..connections.authorization import Guard, refuse
from ..orders.order_dispatcher import OrderDispatcher


@dataclass(frozen=True)
class BlobGate:
    """A `wire.transfer.service.Gate` that checks a site's certificate and open orders."""

    _guard: Guard
    _orders: OrderDispatcher

    def site_of(self, context: Any) -> str:
        """The calling site; PeerRefused or NotPermitted."""
        return self._guard.admit(context, Act.FETCH).name

    def refuses_fetch(self, site: str, digest: str) -> str:
        """Say why a site may not fetch a blob; empty if it may."""
        return self._orders.refuses_fetch(site, digest)

    def refuses_push(self, site: str, run: str, key: str, blob: Blob) -> str:
        """Say why an order's answer may not bring a blob; empty if it may."""
        try:
            return self._orders.refuses_push(site, order_id(pb.OrderId(run=run, key=key)), blob)
        except BadMessage as error:
            return str(error)

    def book(self, site: str, direction: Direction, digest: str, nbytes: int) -> None:
        """Count bytes of a blob that crossed the site's boundary."""
        self._orders.book_blob(site, direction, digest, nbytes)


def blob_handlers(service: BlobService) -> grpc.GenericRpcHandler:
    """Make the handlers; add them before those of the rest of SiteService."""
    fetch: Any = _guarded("fetch", service.fetch, partial(parsed, pb.FetchRequest))
    offer: Any = _guarded("offer", service.offer, partial(parsed, pb.OfferRequest))
    push: Any = _guarded("push", service.push, _pieces)
    offered, pushed = pb.OfferReply.SerializeToString, pb.PushReply.SerializeToString
    return grpc.method_handlers_generic_handler(
        SITE.full_name,
        {
            "Fetch": grpc.unary_stream_rpc_method_handler(fetch, None, pack),
            "Offer": grpc.unary_unary_rpc_method_handler(offer, None, offered),
            "Push": grpc.stream_unary_rpc_method_handler(push, None, pushed),
        },
    )


def _guarded(
    name: str, act: Callable[[Any, Any], Awaitable[Any]], read: Callable[[Any], Any]
) -> Callable[[Any, Any], Awaitable[Any]]:
    """Wrap `act`: parse the call's bytes with `read`, and turn its errors into refusals."""

    async def call(data: Any, context: Any) -> Any:
        try:
            return await act(read(data), context)
        except MediatorError as error:
            await refuse(context, name, error, None)

    return call


async def _pieces(stream: AsyncIterator[bytes]) -> AsyncIterator[Piece]:
    async for data in stream:
        try:
            piece = unpack(data)
        except DecodeError:
            raise BadMessage(f"{len(data)} bytes that are no Piece") from None
        yield piece
