"""BlobGate: which blobs a site may fetch and push, by its certificate and its open orders."""

from __future__ import annotations

from typing import Any

from ...core.rules.roles import Act
from ...core.traffic import Direction
from ...proto import federation_pb2 as pb
from ...wire.blobs.blob import Blob
from ...wire.messages import BadMessage, order_id
from ..connections.authorization import Guard
from ..orders.order_dispatcher import OrderDispatcher


class BlobGate:
    """Answers for the guard and the dispatcher."""

    def __init__(self, guard: Guard, orders: OrderDispatcher) -> None:
        self._guard = guard
        self._orders = orders

    def site_of(self, context: Any) -> str:
        """The site that calls; PeerRefused or NotPermitted."""
        return self._guard.admit(context, Act.FETCH).name

    def refuses_fetch(self, site: str, digest: str) -> str:
        """Why a site may not have that blob; empty if it may."""
        return self._orders.refuses_fetch(site, digest)

    def refuses_push(self, site: str, run: str, key: str, blob: Blob) -> str:
        """Why an order's answer may not bring that blob; empty if it may."""
        try:
            return self._orders.refuses_push(site, order_id(pb.OrderId(run=run, key=key)), blob)
        except BadMessage as error:
            return str(error)

    def book(self, site: str, direction: Direction, digest: str, nbytes: int) -> None:
        """Bytes of a blob crossed the site's boundary."""
        self._orders.book_blob(site, direction, digest, nbytes)
