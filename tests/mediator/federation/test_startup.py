"""A workload is checked at all sites before it starts at any; sites that come back start anew."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from fake_sites import REQUEST, FakeSite, dies, mediator_of, sizes, started
from fedpilot.mediator import (
    ChangeKind,
    Payload,
    Promise,
    Refusal,
    ReservationRefused,
    RunnersSpent,
    SiteUnreachable,
)
from fedpilot.mediator.errors import AnswerUnreadable


def test_every_site_checks_before_any_starts() -> None:
    log: list[str] = []
    sites = [FakeSite(name) for name in "ab"]
    for site in sites:
        site.log = log
    mediator = mediator_of(*sites)
    mediator.reserve(REQUEST)
    log.clear()
    notes: list[Payload] = []
    mediator.start("w", {site: Payload(kind="spec") for site in "ab"}, notes.append)
    assert log == ["check w", "check w", "start", "start"]
    assert [note.header["site"] for note in notes] == ["a", "b"]


def test_a_site_that_finds_the_spec_wrong_keeps_all_from_starting() -> None:
    a, b = FakeSite("a"), FakeSite("b")
    b.fail_on["check w"] = ValueError("no such data")
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST)
    with pytest.raises(ValueError, match="no such data"):
        mediator.start("w", {"a": Payload(kind="s"), "b": Payload(kind="s")}, lambda _: None)
    assert "start" not in a.log + b.log


def test_a_site_that_comes_back_is_started_anew_and_given_work_bit_by_bit() -> None:
    mediator, sites = started(*"ab")
    mediator.membership.remove("b", "a storm", round_number=1)
    mediator.membership.drain_changes()
    sites["b"].log.clear()
    assert mediator.readmit("b").result(60) == Promise("b", 1)
    assert sites["b"].log == ["prepare", "commit", "check w", "start"]
    assert mediator.membership.sites == ("a", "b")
    assert [change.kind for change in mediator.membership.drain_changes()] == [ChangeKind.RETURNED]
    found = []
    for number in range(2, 6):
        mediator.membership.rebalance(0.25, round_number=number)
        found.append(sizes(mediator)["b"])
    assert found == [3, 6, 6, 6]


def test_whoever_is_there_is_not_started_again() -> None:
    mediator, sites = started(*"ab")
    sites["b"].log.clear()
    assert mediator.readmit("b").result(60) == Promise("b", 1)
    assert sites["b"].log == []


@pytest.mark.parametrize("verb", ["prepare", "commit", "check w", "start"])
def test_a_site_that_cannot_come_back_holds_nothing(verb: str) -> None:
    mediator, sites = started(*"ab")
    mediator.membership.remove("b", "a storm")
    sites["b"].fail_on[verb] = SiteUnreachable("b", "still a storm")
    with pytest.raises(SiteUnreachable):
        mediator.readmit("b").result(60)
    assert mediator.membership.sites == ("a",)
    assert not sites["b"].held


def test_a_site_that_refuses_to_come_back_says_why() -> None:
    mediator, sites = started(*"ab")
    mediator.membership.remove("b", "a storm")
    sites["b"]._answer = Refusal("b", "all CPUs are taken")
    with pytest.raises(ReservationRefused, match="all CPUs are taken"):
        mediator.readmit("b").result(60)


def test_a_site_that_joins_later_is_given_work() -> None:
    mediator, _ = started("a")
    new = FakeSite("new")
    mediator.add(new, Payload(kind="spec"))
    mediator.readmit("new").result(60)
    mediator.membership.rebalance(1.0)
    assert new.log == ["prepare", "commit", "check w", "start"]
    assert sizes(mediator) == {"a": 6, "new": 6}


@pytest.mark.parametrize("verb", ["check w", "start"])
@pytest.mark.parametrize(("min_sites", "fails"), [(1, False), (2, True), (None, True)])
def test_a_site_that_is_lost_at_the_start_is_done_without_if_it_may(
    verb: str, min_sites: int | None, fails: bool
) -> None:
    a, b = FakeSite("a"), FakeSite("b")
    b.fail_on[verb] = SiteUnreachable("b", "a storm")
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST, min_sites=min_sites)
    mediator.membership.assign(12)
    with pytest.raises(SiteUnreachable) if fails else nullcontext():
        mediator.start("w", dict.fromkeys("ab", Payload(kind="s")), lambda _: None)
    if not fails:
        assert sizes(mediator) == {"a": 12, "b": 0}


@pytest.mark.parametrize("verb", ["check w", "start"])
def test_a_site_whose_runner_dies_at_the_start_begins_again(verb: str) -> None:
    a, b = FakeSite("a"), FakeSite("b")
    dies(b, verb, 2)
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST)
    mediator.membership.assign(12)
    mediator.start("w", dict.fromkeys("ab", Payload(kind="s")), lambda _: None)
    assert mediator.membership.sites == ("a", "b")
    assert b.held


def test_a_site_whose_runners_are_spent_at_the_start_is_the_reason_why_it_fails() -> None:
    a, b = FakeSite("a"), FakeSite("b")
    dies(b, "start", 3, last=RunnersSpent("b", "killed by SIGKILL"))
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST)
    mediator.membership.assign(12)
    with pytest.raises(RunnersSpent, match="site b is lost: killed by SIGKILL"):
        mediator.start("w", dict.fromkeys("ab", Payload(kind="s")), lambda _: None)


def test_a_site_that_spends_its_runners_while_it_comes_back_is_out() -> None:
    mediator, sites = started(*"ab")
    mediator.membership.remove("b", "its runner was killed")
    sites["b"].fail_on["start"] = RunnersSpent("b", "killed by SIGKILL")
    with pytest.raises(RunnersSpent):
        mediator.readmit("b").result(5)
    assert list(mediator.membership.excluded) == ["b"]


def test_a_site_that_cannot_be_read_at_the_start_is_done_without() -> None:
    a, b = FakeSite("a"), FakeSite("b")
    b.fail_on["start"] = AnswerUnreadable("b", "BadPayload", "no JSON")
    mediator = mediator_of(a, b)
    mediator.reserve(REQUEST, min_sites=1)
    mediator.membership.assign(12)
    mediator.start("w", dict.fromkeys("ab", Payload(kind="s")), lambda _: None)
    assert sizes(mediator) == {"a": 12, "b": 0}
    assert list(mediator.membership.distrusted) == ["b"]
