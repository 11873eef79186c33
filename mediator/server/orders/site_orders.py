"""SiteOrders: what is open at one site, and what is to be done when something is heard of it.

An order is asked by a coordinator and stays open until that has confirmed its answer, so that a
coordinator which dies in between finds the answer when it asks again. Its key makes it the same
order, whoever asks again. What a site holds and nobody has asked for yet, because the mediator was
restarted, is kept as well: that there are such orders only the site says, so they are bounded, and
whatever does not fit waits at the site until somebody asks. Nothing here sends anything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from ...proto import federation_pb2 as pb
from ...wire.messages import OrderId, RunId, id_message

REMEMBERED = 4_096
"""Orders of a site that nobody waits for any more and whose answers may still come."""
ADOPTED = 256
"""Orders of a site that nobody has asked for yet; answers beyond them may have to be made again."""
ADOPTED_ANSWER_BYTES = 32 << 20
"""Of the answers to them, which are kept until somebody asks."""
ADOPTED_BLOB_BYTES = 1 << 30
"""Of the blobs that such answers bring."""


class Asked(Enum):
    """What an order that is asked for turns out to be."""

    NEW = auto()
    """To be sent."""
    UNDER_WAY = auto()
    """The site has it, or it waits to be sent."""
    ANSWERED = auto()
    """Its answer is here."""


class Heard(Enum):
    """What an answer turns out to be."""

    WANTED = auto()
    """To be passed on."""
    KEPT = auto()
    """Nobody asks for it at the moment, but somebody may."""
    UNWANTED = auto()
    """To be acknowledged, so that the site forgets it."""


@dataclass(slots=True)
class OpenOrder:
    """One order at one site."""

    id: OrderId
    message: pb.Order | None
    """None where the site had it before this mediator was started, and nobody has asked yet."""
    wanted: bool
    """Whether the coordinator that is attached now has asked for it."""
    sent: bool = False
    """Whether the site has it."""
    answer: pb.Answer | None = None
    kept: bool = False
    """Whether the blob that it comes with is kept for it."""
    brought: str = ""
    """Digest of the blob that the answer brings, once that was offered."""
    brought_bytes: int = 0
    """The size of that."""
    moving_at: float | None = None
    """While a blob of it crosses the link: when that began, or last got further."""

    @property
    def adopted(self) -> bool:
        """Whether nobody has asked for it yet: that there is such an order, only the site says."""
        return self.message is None

    @property
    def blob(self) -> str:
        """Digest of the blob that it comes with; empty if it has none."""
        return self.message.blob.digest if self.message is not None else ""

    @property
    def round_number(self) -> int:
        """What its bytes are booked under."""
        return self.message.round if self.message is not None else 0

    @property
    def purpose(self) -> str:
        """What its bytes are booked under."""
        if self.message is None:
            return "unknown"
        return self.message.purpose or self.message.verb


class Reconnected(NamedTuple):
    """What a new session brings to its end."""

    over: list[OrderId]
    """What the site holds for runs that are over."""
    dropped: list[OpenOrder]
    """What nobody has asked for, and the site does not hold any more."""


class SiteOrders:
    """The open orders of a site, in the order in which they came."""

    def __init__(self) -> None:
        self.open: OrderedDict[OrderId, OpenOrder] = OrderedDict()
        self._given_up: OrderedDict[OrderId, None] = OrderedDict()

    def ask(self, id: OrderId, message: pb.Order) -> tuple[Asked, OpenOrder]:
        """A coordinator asks for something, for the first time or again."""
        self._given_up.pop(id, None)
        order = self.open.get(id)
        if order is None:
            order = OpenOrder(id, message, wanted=True)
            self.open[id] = order
            return Asked.NEW, order
        order.wanted = True
        if order.message is None:
            order.message = message
        return (Asked.UNDER_WAY if order.answer is None else Asked.ANSWERED), order

    def unsent(self) -> list[OpenOrder]:
        """What the site has not got yet, the first asked first."""
        return [
            order
            for order in self.open.values()
            if not order.sent and order.answer is None and order.message is not None
        ]

    def reconnected(self, held: Iterable[OrderId], goes_on: Callable[[RunId], bool]) -> Reconnected:
        """A session has begun: what the site does not hold counts as not sent.

        What nobody has asked for is there as long as the site says so, and within a bound.
        """
        holds = set(held)
        dropped = [each for each in self._adopted() if each.id not in holds]
        for order in dropped:
            del self.open[order.id]
        for order in self.open.values():
            order.sent = order.id in holds
        room, over = ADOPTED - len(self._adopted()), []
        for id in sorted(holds - self.open.keys()):
            if not goes_on(id.run):
                over.append(id)
            elif id not in self._given_up and room > 0:
                self.open[id] = OpenOrder(id, None, wanted=False, sent=True)
                room -= 1
        return Reconnected(over, dropped)

    def too_much(self, order: OpenOrder, *, answer_bytes: int = 0, blob_bytes: int = 0) -> bool:
        """Whether an order that nobody has asked for would have more kept than fits beside others.

        It has to come again once somebody asks.
        """
        if not order.adopted:
            return False
        others = [each for each in self._adopted() if each is not order]
        answers = sum(each.answer.ByteSize() for each in others if each.answer is not None)
        blobs = sum(each.brought_bytes for each in others)
        return (
            answers + answer_bytes > ADOPTED_ANSWER_BYTES or blobs + blob_bytes > ADOPTED_BLOB_BYTES
        )

    def _adopted(self) -> list[OpenOrder]:
        return [order for order in self.open.values() if order.adopted]

    def answered(self, id: OrderId, answer: pb.Answer) -> Heard:
        """An answer has come. One that comes twice is wanted once."""
        order = self.open.get(id)
        if order is None:
            return Heard.UNWANTED
        if order.answer is not None:
            return Heard.KEPT
        order.answer, order.sent = answer, True
        return Heard.WANTED if order.wanted else Heard.KEPT

    def end(self, id: OrderId) -> OpenOrder | None:
        """Nobody waits for it any more, answered or not; what it was."""
        order = self.open.pop(id, None)
        if order is None or order.answer is None:
            self._give_up(id)
        return order

    def lost(self, failure: pb.Failure) -> list[OpenOrder]:
        """The site is given up: what it had not answered ends, with that failure as the answer."""
        ended = [order for order in self.open.values() if order.answer is None]
        for order in ended:
            del self.open[order.id]
            self._give_up(order.id)
            order.answer = pb.Answer(id=id_message(order.id), failure=failure)
        return ended

    def detached(self, run: RunId) -> None:
        """The coordinator of a run has gone: answers wait until the next one asks."""
        for order in self.open.values():
            if order.id.run == run:
                order.wanted = False

    def of_run(self, run: RunId) -> list[OpenOrder]:
        """What is open for a run."""
        return [order for order in self.open.values() if order.id.run == run]

    def naming(self, digest: str) -> OpenOrder | None:
        """An order that comes with a blob."""
        return next((order for order in self.open.values() if order.blob == digest), None)

    def bringing(self, digest: str) -> OpenOrder | None:
        """An order whose answer brings a blob."""
        return next((order for order in self.open.values() if order.brought == digest), None)

    def _give_up(self, id: OrderId) -> None:
        self._given_up[id] = None
        self._given_up.move_to_end(id)
        while len(self._given_up) > REMEMBERED:
            self._given_up.popitem(last=False)
