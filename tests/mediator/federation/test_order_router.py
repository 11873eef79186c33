"""Orders reach their sites, answers come back, and both are booked."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future
from functools import partial

import numpy as np
import pytest

from fake_sites import REQUEST, FakeSite, mediator_of, refuse, sizes, started, wrong_from
from fedpilot.mediator import (
    Change,
    ChangeKind,
    Payload,
    SiteLost,
    SiteUnreachable,
)
from fedpilot.mediator.core.traffic import Direction, Flow
from fedpilot.mediator.errors import AnswerUnreadable
from fedpilot.mediator.federation.futures import done


def test_an_order_and_its_answer_are_carried_and_booked() -> None:
    a, b = FakeSite("a"), FakeSite("b")
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST)
    order = Payload(kind="round", tensors={"w": np.zeros((2, 5), dtype=np.float32)})
    answer = mediator.orders.deliver("b", order, round_number=3, purpose="training")
    assert answer.result(60).kind == "echo"
    assert b.orders == [order]
    assert a.orders == []
    assert mediator.orders.drain_traffic() == [
        (Flow(3, "b", Direction.FROM_SITE, "training"), 24),
        (Flow(3, "b", Direction.TO_SITE, "training"), 40),
    ]


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
def test_an_answer_that_does_not_come_is_not_booked(how: str) -> None:
    a = FakeSite("a")
    pending: Future[Payload] = Future()
    a.make_answer = lambda _: pending
    mediator = mediator_of(a)
    mediator.reserve(REQUEST)
    answer = mediator.orders.deliver("a", Payload(kind="round"), purpose="training")
    if how == "fails":
        pending.set_exception(SiteUnreachable("a", "gone"))
    else:
        pending.cancel()
        pending.set_running_or_notify_cancel()
    with pytest.raises((SiteUnreachable, CancelledError)):
        answer.result(1)
    assert [flow.direction for flow, _ in mediator.orders.drain_traffic()] == [Direction.TO_SITE]


def test_an_order_has_a_key_by_which_it_is_the_same_order() -> None:
    a = FakeSite("a")
    mediator = mediator_of(a)
    mediator.reserve(REQUEST)
    for key in ("round/3", "round/3", None, None):
        mediator.orders.deliver("a", Payload(kind="round"), purpose="training", key=key)
    assert a.keys[:2] == ["round/3", "round/3"]
    assert len(set(a.keys)) == 3


def test_an_answer_is_booked_by_the_time_it_is_there() -> None:
    """Whoever waits for an answer may drain the ledger next; its bytes belong to this round."""
    a = FakeSite("a")
    pending: Future[Payload] = Future()
    waiter_may_go = threading.Event()
    pending.add_done_callback(
        lambda _: waiter_may_go.wait(2)
    )  # a slow thread, before any accounting
    a.make_answer = lambda _: pending
    mediator = mediator_of(a)
    mediator.reserve(REQUEST)
    answer = mediator.orders.deliver("a", Payload(kind="round"), round_number=1, purpose="training")
    thread = threading.Thread(
        target=pending.set_result, args=(Payload(kind="x", tensors={"x": np.zeros(1)}),)
    )
    thread.start()
    threading.Timer(0.2, waiter_may_go.set).start()
    answer.result(60)
    drained = dict(mediator.orders.drain_traffic())
    waiter_may_go.set()
    thread.join(60)
    assert Flow(1, "a", Direction.FROM_SITE, "training") in drained


@pytest.mark.parametrize("drains", [True, False])
def test_a_site_that_has_gone_is_sent_no_order(drains: bool) -> None:
    """Whoever sends it has seen the site there a moment before."""
    mediator, sites = started(*"ab")
    (mediator.orders.drain if drains else mediator.membership.remove)(
        "b", "its admin wants it empty"
    )
    sites["b"].log.clear()
    answer = mediator.orders.deliver("b", Payload(kind="train"), purpose="training")
    with pytest.raises(SiteLost, match="its admin wants it empty"):
        answer.result(5)
    assert "deliver" not in sites["b"].log
    assert mediator.orders.drain_traffic() == []


def test_a_site_that_drains_takes_orders_while_it_is_at_work_and_is_released_after_them() -> None:
    mediator, sites = started(*"ab")
    first: Future[Payload] = Future()
    second: Future[Payload] = Future()
    sites["b"].make_answer = lambda order: first if order.kind == "train" else second
    mediator.orders.deliver("b", Payload(kind="train"), purpose="training")
    drained = mediator.orders.drain("b", "its admin wants it empty")
    mediator.orders.deliver("b", Payload(kind="close"), purpose="training")
    first.set_result(Payload(kind="done"))
    assert sites["b"].held
    assert not drained.done()
    second.set_result(Payload(kind="done"))
    drained.result(5)
    assert not sites["b"].held
    with pytest.raises(SiteLost):
        mediator.orders.deliver("b", Payload(kind="close"), purpose="training").result(5)


def test_a_clients_order_follows_it_to_its_next_site() -> None:
    mediator, sites = started(*"ab")
    sites["b"].make_answer = lambda _: done(partial(refuse, "b"))
    answer = mediator.orders.deliver_to_client(11, Payload(kind="train"), purpose="node")
    assert answer.result(60).kind == "echo"
    assert [order.kind for order in sites["a"].orders] == ["train"]
    assert mediator.membership.sites == ("a",)


def test_an_answer_that_cannot_be_is_asked_of_the_next_site_and_its_site_done_without() -> None:
    mediator, sites = started(*"abc")
    problem_of = wrong_from(sites["a"], sites["c"])
    order = Payload(kind="try")
    for client in (0, 11):
        answer = mediator.orders.deliver_to_client(
            client, order, purpose="node", problem_of=problem_of
        )
        assert answer.result(60).kind == "echo"
    assert list(mediator.membership.distrusted) == ["a", "c"]
    assert mediator.membership.sites == ("b",)


def test_where_nobody_else_may_be_asked_it_fails_with_what_is_wrong() -> None:
    mediator, sites = started(*"ab", replacement=False)
    problem_of = wrong_from(sites["b"])
    answer = mediator.orders.deliver_to_client(
        11, Payload(kind="x"), purpose="node", problem_of=problem_of
    )
    with pytest.raises(AnswerUnreadable, match="it is a lie"):
        answer.result(60)


@pytest.mark.parametrize(
    ("replacement", "also_lost"),
    [pytest.param(False, (), id="it may not move"), pytest.param(True, "a", id="none is left")],
)
def test_a_clients_order_fails_where_it_can_go_nowhere(
    replacement: bool, also_lost: tuple[str, ...]
) -> None:
    mediator, sites = started(*"ab", replacement=replacement)
    for site in also_lost:
        mediator.membership.remove(site, "a storm")
    sites["b"].make_answer = lambda _: done(partial(refuse, "b"))
    with pytest.raises(SiteLost):
        mediator.orders.deliver_to_client(11, Payload(kind="train"), purpose="node").result(60)


def test_a_site_that_is_drained_finishes_its_work_and_is_released() -> None:
    mediator, sites = started(*"ab")
    pending: Future[Payload] = Future()
    sites["b"].make_answer = lambda _: pending
    answer = mediator.orders.deliver("b", Payload(kind="round"), purpose="training")
    drained = mediator.orders.drain("b", "it is drained")
    assert mediator.membership.sites == ("a",)
    assert sizes(mediator) == {"a": 12, "b": 0}
    assert sites["b"].held
    pending.set_result(Payload(kind="late"))
    drained.result(60)
    assert answer.result(60).kind == "late"
    assert not sites["b"].held
    assert mediator.membership.drain_changes() == [
        Change(site="b", kind=ChangeKind.DRAINED, reason="it is drained", clients=6)
    ]
    assert "which was drained: it is drained" in mediator.membership.assignment.explain(11)
    assert mediator.orders.drain("a", "so is this").done()
