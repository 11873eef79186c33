"""SiteOrders: the open orders of one site, by its coordinators and by the site's own word.

An order stays open until its coordinator confirms the answer, so that a coordinator that was
restarted finds the answer when it asks again. A mediator that was restarted adopts the orders that
the site holds. Only the site vouches for those, so they are bounded: the rest waits at the site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from ...core.exchange import OpenRequest, Reconnected, Requester
from ...proto import federation_pb2 as pb
from ...wire.messages import OrderId, RunId, id_message

ADOPTED = 256
"""Adopted orders of one site; answers to more of them may have to be computed again."""
ADOPTED_ANSWER_BYTES = 32 << 20
"""Of the answers to adopted orders, which are kept until a coordinator asks."""
ADOPTED_BLOB_BYTES = 1 << 30
"""Of the blobs with such answers."""

OpenOrder: TypeAlias = OpenRequest[OrderId, pb.Order, pb.Answer]


class SiteOrders(Requester[OrderId, pb.Order, pb.Answer]):
    """The open orders of a site, in the order in which they came."""

    def reconnected(
        self, held: Iterable[OrderId], goes_on: Callable[[RunId], bool]
    ) -> Reconnected[OrderId, pb.Order, pb.Answer]:
        """A session has begun: orders that the site does not hold will be sent again."""
        return self.connected(held, lambda id: goes_on(id.run), ADOPTED)

    def given_up(self, failure: pb.Failure) -> list[OpenOrder]:
        """The site is lost: end its unanswered orders with that failure as the answer."""
        ended = self.lost()
        for order in ended:
            order.reply = pb.Answer(id=id_message(order.key), failure=failure)
        return ended

    def adopted(self) -> list[OpenOrder]:
        """The orders that no coordinator has asked for since this mediator was started."""
        return [order for order in self.open.values() if order.adopted]

    def too_much(self, order: OpenOrder, *, answer_bytes: int = 0, blob_bytes: int = 0) -> bool:
        """Whether keeping an adopted order's answer would exceed the bounds of all adopted orders.

        `blob_bytes` are those of all adopted orders.
        """
        if not order.adopted:
            return False
        others = [each.reply for each in self.adopted() if each is not order]
        answer_bytes += sum(reply.ByteSize() for reply in others if reply is not None)
        return answer_bytes > ADOPTED_ANSWER_BYTES or blob_bytes > ADOPTED_BLOB_BYTES

    def of_run(self, run: RunId) -> list[OrderId]:
        return [id for id in self.open if id.run == run]

    def naming(self, digest: str) -> OpenOrder | None:
        """An order that comes with a blob."""
        return next((order for order in self.open.values() if blob_of(order) == digest), None)


def blob_of(order: OpenOrder) -> str:
    """Digest of the blob that an order comes with; empty if it has none."""
    return order.message.blob.digest if order.message is not None else ""


def round_of(order: OpenOrder) -> int:
    """The round that an order's bytes are booked under."""
    return order.message.round if order.message is not None else 0


def purpose_of(order: OpenOrder) -> str:
    """What an order's bytes are booked under."""
    if order.message is None:
        return "unknown"
    return order.message.purpose or order.message.verb
