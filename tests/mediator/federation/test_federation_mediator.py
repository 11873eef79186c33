"""The mediator gives all back at its end, and sends nothing after it."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext

import pytest

from fake_sites import REQUEST, FakeSite, mediator_of, started
from fedpilot.mediator import (
    MediatorError,
    Payload,
    SiteLost,
    SiteUnreachable,
)


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        pytest.param(SiteUnreachable("a", "gone"), False, id="out of reach: its lease ends it"),
        pytest.param(RuntimeError("a bug"), True, id="anything else is told"),
    ],
)
def test_one_site_that_cannot_be_released_does_not_keep_the_others(
    error: Exception, fails: bool
) -> None:
    a, b, c = FakeSite("a"), FakeSite("b"), FakeSite("c")
    mediator = mediator_of(a, b, c)
    mediator.reserve(REQUEST)
    a.fail_on["release"] = error
    with pytest.raises(type(error)) if fails else nullcontext():
        mediator.close()
    assert not b.held
    assert not c.held


def test_closing_releases_everything_and_may_be_done_twice() -> None:
    a = FakeSite("a")
    with mediator_of(a) as mediator:
        mediator.reserve(REQUEST)
        assert a.held
    assert not a.held
    mediator.close()
    assert mediator.membership.sites == ("a",)
    assert mediator.membership.promises == {}


def test_a_site_that_is_back_after_the_end_gives_all_back() -> None:
    mediator, sites = started(*"ab")
    mediator.membership.remove("b", "a storm")
    slow: Future[None] = Future()
    sites["b"].start = lambda notify: slow  # type: ignore[method-assign]
    back = mediator.readmit("b")
    mediator.close()
    sites["b"].held = True
    slow.set_result(None)
    with pytest.raises(MediatorError, match="ended meanwhile"):
        back.result(60)
    assert not sites["b"].held


def test_after_the_end_no_order_is_sent() -> None:
    mediator, sites = started(*"ab")
    mediator.close()
    with pytest.raises(SiteLost, match="has ended"):
        mediator.orders.deliver("a", Payload(kind="train"), purpose="node").result(5)
    assert "deliver" not in sites["a"].log
