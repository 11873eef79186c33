"""What a mediator has open at a site: kept for coordinators that may come back, within bounds."""

from __future__ import annotations

import pytest

from fedpilot.mediator.core.exchange import Effect
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.orders.site_table import (
    ADOPTED,
    ADOPTED_ANSWER_BYTES,
    ADOPTED_BLOB_BYTES,
    OpenOrder,
    SiteOrders,
)
from fedpilot.mediator.wire.messages import OrderId, RunId, id_message

RUN = RunId("run")
ID = OrderId(RUN, "round/1")
OTHER = OrderId(RUN, "round/2")
ANSWER = pb.Answer(id=id_message(ID), done=pb.Done(kind="done"))
LOST = pb.Failure(kind="SiteLost", message="silent")


def goes_on(id: OrderId) -> bool:
    return True


def over(id: OrderId) -> bool:
    return False


def order(id: OrderId) -> pb.Order:
    return pb.Order(id=id_message(id), verb="work", round=1)


def test_what_a_site_holds_for_a_restarted_mediator_is_kept_until_somebody_asks() -> None:
    orders = SiteOrders()
    orders.connected([ID], goes_on, ADOPTED)
    assert orders.replied(ID, ANSWER)[0] is Effect.NOTHING
    effect, found = orders.ask(ID, order(ID))
    assert effect is Effect.DELIVER
    assert found.reply == ANSWER


def test_what_a_site_holds_for_a_run_that_is_over_may_be_forgotten() -> None:
    orders = SiteOrders()
    assert orders.connected([ID], over, ADOPTED) == ([ID], [])
    assert orders.replied(ID, ANSWER)[0] is Effect.ACKNOWLEDGE


def test_answers_wait_while_no_coordinator_is_attached() -> None:
    orders = SiteOrders()
    orders.ask(ID, order(ID))
    orders.sent(ID)
    assert orders.unask(orders.of_run(RUN)) == []
    assert orders.replied(ID, ANSWER)[0] is Effect.NOTHING
    assert orders.ask(ID, order(ID))[0] is Effect.DELIVER


def test_an_order_that_was_not_sent_goes_with_its_coordinator() -> None:
    orders = SiteOrders()
    orders.ask(ID, order(ID))
    assert [each.key for each in orders.unask(orders.of_run(RUN))] == [ID]
    assert orders.unsent() == []
    assert orders.ask(ID, order(ID))[0] is Effect.SEND


def test_a_lost_site_fails_what_it_had_not_answered_and_its_late_answers_are_unwanted() -> None:
    orders = SiteOrders()
    for id in (ID, OTHER):
        orders.ask(id, order(id))
    orders.replied(OTHER, pb.Answer(id=id_message(OTHER)))
    (ended,) = orders.given_up(LOST)
    assert ended.key == ID
    assert ended.reply is not None
    assert ended.reply.failure == LOST
    assert orders.connected([ID], goes_on, ADOPTED).released == [ID]
    assert orders.replied(ID, ANSWER)[0] is Effect.ACKNOWLEDGE
    assert OTHER in orders.open  # its answer is here, and may be asked for


# -- orders that only the site speaks of --------------------------------------------------------


def adopted(count: int) -> tuple[SiteOrders, list[OpenOrder]]:
    orders = SiteOrders()
    orders.connected(
        [OrderId(RUN, f"made/up/{number}") for number in range(count)], goes_on, ADOPTED
    )
    return orders, list(orders.open.values())


def test_what_nobody_has_asked_for_is_dropped_once_the_site_does_not_hold_it() -> None:
    orders = SiteOrders()
    orders.connected([ID, OTHER], goes_on, ADOPTED)
    orders.ask(OTHER, order(OTHER))
    found = orders.connected([], goes_on, ADOPTED)
    assert [each.key for each in found.forgotten] == [ID]
    assert list(orders.open) == [OTHER]
    assert [each.key for each in orders.unsent()] == [OTHER]  # somebody waits for that


def test_orders_that_nobody_has_asked_for_are_bounded() -> None:
    orders, kept = adopted(10_000)
    assert len(kept) == ADOPTED
    more = [OrderId(RUN, f"more/{number}") for number in range(5)]
    orders.ask(kept[0].key, order(kept[0].key))  # which makes room for one
    orders.connected([*(each.key for each in kept), *more], goes_on, ADOPTED)
    assert list(orders.open.keys() - {each.key for each in kept}) == more[:1]


@pytest.mark.parametrize(
    ("kept", "more", "fits"),
    [
        pytest.param(0, {"answer_bytes": ADOPTED_ANSWER_BYTES}, True, id="an answer may be large"),
        pytest.param(0, {"blob_bytes": ADOPTED_BLOB_BYTES}, True, id="so may a blob"),
        pytest.param(100, {"answer_bytes": ADOPTED_ANSWER_BYTES}, False, id="answers"),
        pytest.param(0, {"blob_bytes": ADOPTED_BLOB_BYTES + 1}, False, id="blobs"),
        pytest.param(100, {"blob_bytes": ADOPTED_BLOB_BYTES}, True, id="each apart"),
    ],
)
def test_what_is_kept_for_orders_that_nobody_has_asked_for_is_bounded(
    kept: int, more: dict[str, int], fits: bool
) -> None:
    orders, (first, second) = adopted(2)
    if kept:
        done = pb.Done(kind="done", header_json="x" * kept)
        orders.replied(first.key, pb.Answer(id=id_message(first.key), done=done))
    assert orders.too_much(second, **more) is not fits
    orders.ask(second.key, order(second.key))
    assert not orders.too_much(second, **more)
