"""The mediator reserves on all sites or none, and gives back what it cannot use."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial

import pytest

from fake_sites import REQUEST, FakeSite, mediator_of
from fedpilot.mediator import (
    MediatorError,
    Promise,
    Refusal,
    ReservationRefused,
    SiteUnreachable,
)
from fedpilot.mediator.core.reservation import Answer
from fedpilot.mediator.errors import SitesFull
from fedpilot.mediator.federation import gang_reservation


def test_all_sites_promise_and_commit() -> None:
    a, b = FakeSite("a", vnodes=3), FakeSite("b", vnodes=1)
    mediator = mediator_of(a, b)
    assert mediator.membership.sites == ("a", "b")
    assert dict(mediator.reserve(REQUEST)) == {"a": Promise("a", 3), "b": Promise("b", 1)}
    assert a.log == b.log == ["prepare", "commit"]
    assert mediator.membership.promises == {"a": Promise("a", 3), "b": Promise("b", 1)}


def test_a_refusal_releases_all_and_says_why() -> None:
    a, b = FakeSite("a"), FakeSite("b", Refusal("b", "all CPUs are taken"))
    with pytest.raises(ReservationRefused, match="site b: all CPUs are taken"):
        mediator_of(a, b).reserve(REQUEST)
    assert not a.held
    assert "commit" not in a.log


def test_full_sites_are_told_from_others() -> None:
    a, b = FakeSite("a"), FakeSite("b", Refusal("b", "busy", full=True))
    with pytest.raises(SitesFull, match="site b: busy"):
        mediator_of(a, b).reserve(REQUEST)
    assert not a.held


def test_a_site_that_does_not_answer_in_time_may_do_so_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_reservation, "ANSWER_S", -REQUEST.timeout_s)
    a, b = FakeSite("a"), FakeSite("b")
    monkeypatch.setattr(b, "prepare", lambda request: Future())
    with pytest.raises(SitesFull, match="site b: no answer in time"):
        mediator_of(a, b).reserve(REQUEST)
    assert not a.held


def test_enough_sites_go_on_without_the_others() -> None:
    a, b, c = FakeSite("a"), FakeSite("b", Refusal("b", "no")), FakeSite("c")
    mediator = mediator_of(a, b, c)
    mediator.reserve(REQUEST, min_sites=2)
    assert mediator.membership.sites == ("a", "c")
    assert mediator.membership.assign(10).shares == {"a": (range(5),), "c": (range(5, 10),)}


def test_a_required_sites_refusal_is_final() -> None:
    a, b = FakeSite("a"), FakeSite("b", Refusal("b", "no"))
    with pytest.raises(ReservationRefused):
        mediator_of(a, b).reserve(REQUEST, min_sites=1, required={"b"})
    assert not a.held


@pytest.mark.parametrize("verb", ["prepare", "commit", "release"])
@pytest.mark.parametrize("error", [SiteUnreachable("b", "gone"), KeyboardInterrupt()])
def test_whatever_breaks_in_between_nothing_stays_reserved(verb: str, error: BaseException) -> None:
    a, b, c = FakeSite("a"), FakeSite("b"), FakeSite("c", Refusal("c", "no"))
    b.fail_on[verb] = error  # type: ignore[assignment]
    min_sites = 3 if verb == "release" else 2
    with pytest.raises((MediatorError, KeyboardInterrupt)):
        mediator_of(a, b, c).reserve(REQUEST, min_sites=min_sites)
    assert not a.held
    assert not c.held


def test_after_a_refusal_it_can_be_asked_again() -> None:
    a = FakeSite("a", Refusal("a", "busy"))
    mediator = mediator_of(a)
    with pytest.raises(ReservationRefused):
        mediator.reserve(REQUEST)
    a._answer = Promise("a", 1)
    assert set(mediator.reserve(REQUEST)) == {"a"}


def test_sites_prepare_side_by_side() -> None:
    """Each site promises once the other has been asked."""
    sites = {name: FakeSite(name) for name in "ab"}
    asked = {name: threading.Event() for name in "ab"}

    def slowly(name: str, other: str) -> Future[Answer]:
        asked[name].set()
        answer: Future[Answer] = Future()
        threading.Thread(
            target=lambda: asked[other].wait(60) and answer.set_result(Promise(name, 1))
        ).start()
        return answer

    for name, other in ("ab", "ba"):
        sites[name].prepare = partial(lambda n, o, _: slowly(n, o), name, other)  # type: ignore[method-assign]
    assert set(mediator_of(*sites.values()).reserve(REQUEST)) == {"a", "b"}


def test_whatever_a_site_fails_with_when_it_is_asked_to_promise_is_its_refusal() -> None:
    a, b = FakeSite("a"), FakeSite("b", KeyError("vnodes"))
    mediator = mediator_of(a, b)
    assert list(mediator.reserve(REQUEST, min_sites=1)) == ["a"]
