"""An order is worked on once and its answer passed on once, whoever is restarted when."""

from __future__ import annotations

import pytest

from fedpilot.mediator.core.restarts import RestartSettings, pause_before_restart
from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.connections.rate_limiter import Pacing
from fedpilot.mediator.server.orders.site_orders import (
    ADOPTED,
    ADOPTED_ANSWER_BYTES,
    ADOPTED_BLOB_BYTES,
    REMEMBERED,
    Asked,
    Heard,
    OpenOrder,
    SiteOrders,
)
from fedpilot.mediator.wire.messages import OrderId, RunId, id_message

RUN = RunId("run")
ID = OrderId(RUN, "round/1")
OTHER = OrderId(RUN, "round/2")
ORDER = pb.Order(id=id_message(ID), verb="work", round=1)
ANSWER = pb.Answer(id=id_message(ID), done=pb.Done(kind="done"))
LOST = pb.Failure(kind="SiteLost", message="silent")


def goes_on(run: RunId) -> bool:
    return True


def over(run: RunId) -> bool:
    return False


def asked() -> SiteOrders:
    orders = SiteOrders()
    assert orders.ask(ID, ORDER)[0] is Asked.NEW
    return orders


def test_an_answer_is_wanted_once() -> None:
    orders = asked()
    assert orders.answered(ID, ANSWER) is Heard.WANTED
    assert orders.answered(ID, ANSWER) is Heard.KEPT
    orders.end(ID)
    assert orders.answered(ID, ANSWER) is Heard.UNWANTED


def test_an_order_that_is_asked_again_is_the_same_order() -> None:
    orders = asked()
    orders.unsent()[0].sent = True
    assert orders.ask(ID, ORDER)[0] is Asked.UNDER_WAY
    assert orders.unsent() == []
    orders.answered(ID, ANSWER)
    assert orders.ask(ID, ORDER)[0] is Asked.ANSWERED


def test_after_a_reconnect_only_what_the_site_does_not_hold_is_sent_again() -> None:
    orders = asked()
    orders.ask(OTHER, pb.Order(id=id_message(OTHER)))
    for order in orders.unsent():
        order.sent = True
    assert orders.reconnected([ID], goes_on) == ([], [])
    assert [order.id for order in orders.unsent()] == [OTHER]


def test_what_a_site_holds_for_a_restarted_mediator_is_kept_until_somebody_asks() -> None:
    orders = SiteOrders()
    orders.reconnected([ID], goes_on)
    assert orders.answered(ID, ANSWER) is Heard.KEPT
    how, order = orders.ask(ID, ORDER)
    assert how is Asked.ANSWERED
    assert order.answer == ANSWER


def test_what_a_site_holds_for_a_run_that_is_over_may_be_forgotten() -> None:
    orders = SiteOrders()
    assert orders.reconnected([ID], over) == ([ID], [])
    assert orders.answered(ID, ANSWER) is Heard.UNWANTED


def test_answers_wait_while_no_coordinator_is_attached() -> None:
    orders = asked()
    orders.detached(RUN)
    assert orders.answered(ID, ANSWER) is Heard.KEPT
    assert orders.ask(ID, ORDER)[0] is Asked.ANSWERED


def test_a_lost_site_fails_what_it_had_not_answered_and_its_late_answers_are_unwanted() -> None:
    orders = asked()
    orders.ask(OTHER, pb.Order(id=id_message(OTHER)))
    orders.answered(OTHER, pb.Answer(id=id_message(OTHER)))
    (ended,) = orders.lost(LOST)
    assert ended.id == ID
    assert ended.answer is not None
    assert ended.answer.failure == LOST
    assert orders.reconnected([ID], goes_on) == ([], [])
    assert orders.answered(ID, ANSWER) is Heard.UNWANTED
    assert OTHER in orders.open  # its answer is here, and may be asked for


def test_a_lost_order_may_be_asked_of_the_site_again() -> None:
    orders = asked()
    orders.lost(LOST)
    assert orders.ask(ID, ORDER)[0] is Asked.NEW
    assert orders.answered(ID, ANSWER) is Heard.WANTED


def test_what_was_given_up_is_remembered_within_a_bound() -> None:
    orders = SiteOrders()
    for number in range(REMEMBERED + 10):
        orders.end(OrderId(RUN, f"round/{number}"))
    held = [OrderId(RUN, f"round/{number}") for number in (0, REMEMBERED)]
    orders.reconnected(held, goes_on)
    assert list(orders.open) == [held[0]]


# -- orders that only the site speaks of --------------------------------------------------------


def adopted(count: int) -> tuple[SiteOrders, list[OpenOrder]]:
    orders = SiteOrders()
    orders.reconnected([OrderId(RUN, f"made/up/{number}") for number in range(count)], goes_on)
    return orders, list(orders.open.values())


def test_what_nobody_has_asked_for_is_dropped_once_the_site_does_not_hold_it() -> None:
    orders = SiteOrders()
    orders.reconnected([ID, OTHER], goes_on)
    orders.ask(OTHER, pb.Order(id=id_message(OTHER)))
    found = orders.reconnected([], goes_on)
    assert [order.id for order in found.dropped] == [ID]
    assert list(orders.open) == [OTHER]
    assert [order.id for order in orders.unsent()] == [OTHER]  # somebody waits for that


def test_orders_that_nobody_has_asked_for_are_bounded() -> None:
    orders, kept = adopted(10_000)
    assert len(kept) == ADOPTED
    more = [OrderId(RUN, f"more/{number}") for number in range(5)]
    orders.ask(kept[0].id, pb.Order(id=id_message(kept[0].id)))  # which makes room for one
    orders.reconnected([*(order.id for order in kept), *more], goes_on)
    assert list(orders.open.keys() - {order.id for order in kept}) == more[:1]


@pytest.mark.parametrize(
    ("kept", "more", "fits"),
    [
        pytest.param({}, {"answer_bytes": ADOPTED_ANSWER_BYTES}, True, id="an answer may be large"),
        pytest.param({}, {"blob_bytes": ADOPTED_BLOB_BYTES}, True, id="so may a blob"),
        pytest.param({"answer": 100}, {"answer_bytes": ADOPTED_ANSWER_BYTES}, False, id="answers"),
        pytest.param({"blob": 100}, {"blob_bytes": ADOPTED_BLOB_BYTES}, False, id="blobs"),
        pytest.param({"blob": 100}, {"answer_bytes": ADOPTED_ANSWER_BYTES}, True, id="each apart"),
    ],
)
def test_what_is_kept_for_orders_that_nobody_has_asked_for_is_bounded(
    kept: dict[str, int], more: dict[str, int], fits: bool
) -> None:
    orders, (first, second) = adopted(2)
    if nbytes := kept.get("answer"):
        done = pb.Done(kind="done", header_json="x" * nbytes)
        orders.answered(first.id, pb.Answer(id=id_message(first.id), done=done))
    first.brought_bytes = kept.get("blob", 0)
    assert orders.too_much(second, **more) is not fits
    orders.ask(second.id, pb.Order(id=id_message(second.id)))
    assert not orders.too_much(second, **more)


# -- pacing and restarts --------------------------------------------------------------------------


def test_who_sends_no_more_than_allowed_is_never_slowed() -> None:
    pacing = Pacing(10, 5, now=0.0)
    assert [pacing.pause_s(0.1 * n) for n in range(100)] == [0.0] * 100


def test_who_sends_too_much_is_read_at_the_allowed_rate() -> None:
    pacing, now = Pacing(10, 5, now=0.0), 0.0
    for _ in range(105):
        now += pacing.pause_s(now)
    assert now == pytest.approx(10.0, abs=0.2)


def test_a_message_that_is_given_back_does_not_count() -> None:
    pacing = Pacing(10, 5, now=0.0)
    for _ in range(100):
        assert pacing.pause_s(0.0) == 0.0
        pacing.give_back()
    assert [pacing.pause_s(0.0) for _ in range(6)] == [0.0] * 5 + [0.1]


RESTARTS = RestartSettings(most=3, window_s=100.0, first_pause_s=1.0, longest_pause_s=3.0)


@pytest.mark.parametrize(
    ("deaths", "pause"),
    [
        pytest.param([50.0], 1.0, id="the first death is followed by a short pause"),
        pytest.param([40.0, 50.0], 2.0, id="pauses grow"),
        pytest.param([30.0, 40.0, 50.0], 3.0, id="up to the longest"),
        pytest.param([20.0, 30.0, 40.0, 50.0], None, id="the budget is used up"),
        pytest.param([-90.0, -80.0, -70.0, 50.0], 1.0, id="old deaths do not count"),
    ],
)
def test_a_coordinator_is_started_again_within_a_budget(
    deaths: list[float], pause: float | None
) -> None:
    assert pause_before_restart(deaths, 50.0, RESTARTS) == pause
