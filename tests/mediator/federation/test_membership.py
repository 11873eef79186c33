"""Sites are lost and come back; their clients belong to others meanwhile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fake_sites import REQUEST, FakeSite, mediator_of, sizes, started
from fedpilot.mediator import (
    Change,
    ChangeKind,
    Payload,
    Promise,
    ReservationRefused,
    RunnersSpent,
)
from fedpilot.mediator.core.assignment import Exchange, RoundWork, moved, size
from fedpilot.mediator.core.links import LinkSpeed
from fedpilot.mediator.federation.membership import SiteMembership


def test_clients_are_assigned_by_the_strategy_that_was_asked_for() -> None:
    mediator = mediator_of(FakeSite("b", vnodes=3), FakeSite("a"), assignment="round_robin")
    with pytest.raises(RuntimeError, match="reserved"):
        _ = mediator.membership.assignment
    mediator.reserve(REQUEST)
    assert mediator.membership.assign(4).shares == {"a": (range(0, 4, 2),), "b": (range(1, 4, 2),)}
    assert mediator.membership.assignment.site_of(3) == "b"


def test_a_lost_site_counts_no_more_and_its_clients_belong_to_others() -> None:
    mediator, _ = started(*"abc")
    heard: list[tuple[str, Payload | None]] = []
    with mediator.events.heard_by(lambda site, payload: heard.append((site, payload))):
        mediator.membership.remove("c", "a storm", round_number=4)
        mediator.membership.remove("c", "told twice", round_number=5)
    mediator.membership.remove("b", "nobody listens")
    assert mediator.membership.sites == ("a",)
    assert sizes(mediator) == {"a": 12, "b": 0, "c": 0}
    assert heard == [("c", None)]
    assert mediator.membership.drain_changes() == [
        Change(site="c", kind=ChangeKind.LOST, reason="a storm", clients=4),
        Change(site="b", kind=ChangeKind.LOST, reason="nobody listens", clients=6),
    ]
    assert mediator.membership.drain_changes() == []
    assert "round 4, which was lost: a storm" in mediator.membership.assignment.explain(11)
    (move, *_) = mediator.membership.explain(11).moves
    assert (move.origin, move.round_number, move.reason) == ("c", 4, "which was lost: a storm")


def test_without_replacement_a_lost_sites_clients_stay_its_own() -> None:
    mediator, _ = started(*"ab", replacement=False)
    mediator.membership.remove("b", "a storm")
    assert sizes(mediator) == {"a": 6, "b": 6}


def test_without_replacement_no_client_moves_to_a_larger_or_a_new_site() -> None:
    mediator, _ = started(*"ab", replacement=False)
    mediator.membership.remove("b", "a storm")
    mediator.membership.know("c")
    for site in "bc":
        mediator.membership.restore(site, Promise(site, 100))
    mediator.membership.rebalance(1.0)
    assert sizes(mediator) == {"a": 6, "b": 6}


@pytest.mark.parametrize(
    ("min_sites", "required", "lost", "words"),
    [
        pytest.param(None, (), "c", None, id="others remain"),
        pytest.param(2, (), "c", None, id="as many as are needed"),
        pytest.param(3, (), "c", "at least 3 of 3 sites are needed, 2 are there", id="too few"),
        pytest.param(1, ("c",), "c", "site c is required", id="a required one"),
        pytest.param(None, (), "abc", "at least 1 of 3", id="none remains"),
    ],
)
def test_what_a_gang_lacks(
    min_sites: int | None, required: tuple[str, ...], lost: str, words: str | None
) -> None:
    mediator = mediator_of(*map(FakeSite, "abc"))
    assert mediator.membership.lacking() is None
    mediator.reserve(REQUEST, min_sites=min_sites, required=required)
    for site in lost:
        mediator.membership.remove(site, "a storm")
    found = mediator.membership.lacking()
    assert found is None if words is None else words in str(found)


def test_a_site_whose_runners_are_spent_is_not_asked_again() -> None:
    mediator, sites = started(*"ab")
    mediator.membership.give_up("b", RunnersSpent("b", "killed by SIGKILL"))
    assert mediator.membership.excluded == {"b": "killed by SIGKILL"}
    sites["b"].log.clear()
    with pytest.raises(ReservationRefused, match="killed by SIGKILL"):
        mediator.readmit("b").result(5)
    assert sites["b"].log == []
    assert not mediator.membership.hopeless()
    mediator.membership.give_up("a", RunnersSpent("a", "killed by SIGSEGV"))
    assert mediator.membership.hopeless()
    assert "site a is gone: killed by SIGSEGV" in str(mediator.membership.lacking())


def test_a_site_that_is_left_alone_keeps_what_it_has_and_gets_nothing_new() -> None:
    mediator, sites = started(*"abc")
    heard: list[str] = []
    with mediator.events.heard_by(lambda site, _: heard.append(site)):
        mediator.membership.leave_alone(["b"])
        mediator.membership.leave_alone(["b"])
    assert heard == ["b"]
    mediator.membership.remove("c", "a storm")
    assert sizes(mediator) == {"a": 8, "b": 4, "c": 0}
    assert list(mediator.membership.share_out((range(3),))) == ["a"]
    mediator.membership.remove("a", "a storm")
    assert sizes(mediator) == {"a": 8, "b": 4, "c": 0}, "they wait for somebody"
    assert mediator.membership.share_out((range(3),)) == {}
    mediator.membership.leave_alone(())
    assert mediator.membership.share_out((range(3),)) == {"b": (range(3),)}
    assert sites["b"].held


def test_clients_are_assigned_by_the_links_that_sites_promise() -> None:
    """Six clients in a ring and a pair: `b`'s link is slow, so the pair is there alone."""
    ends = np.array([(0, 1), (1, 2), (2, 3), (3, 0), (4, 5)])
    mediator = mediator_of(FakeSite("a", vnodes=2), FakeSite("b"), assignment="locality")
    mediator.reserve(REQUEST)
    promises = mediator.membership.promises
    slow = replace(promises["b"], link=LinkSpeed(up=1.0, down=1.0))
    mediator.membership.form({**promises, "b": slow})
    work = RoundWork(model_bytes=10)
    found = mediator.membership.assign(6, exchange=Exchange.between(*ends.T), work=work)
    assert found.shares["b"] == (range(4, 6),)
    assert "makes a round take" in found.why(4)
    # At a, client 4 would give its model to b and take the model of 5: 10 bytes each way, at once.
    price = mediator.membership.explain(4).next_best
    assert price is not None
    assert (price.site, price.seconds) == ("a", pytest.approx(10.0))
    mediator.membership.remove("b", "a storm")
    assert mediator.membership.explain(4).next_best is None


@pytest.mark.parametrize(
    ("pace", "clients"),
    [
        pytest.param(None, {"a": 31, "b": 29}, id="a slow link costs a site clients"),
        pytest.param(1.0, {"a": 30, "b": 30}, id="but not where computation takes much longer"),
    ],
)
def test_clients_are_assigned_by_links_and_paces(
    pace: float | None, clients: dict[str, int]
) -> None:
    mediator = mediator_of(FakeSite("a"), FakeSite("b"), assignment="locality")
    mediator.reserve(REQUEST)
    there, fast = mediator.membership.promises, LinkSpeed(up=1e3, down=1e3)
    slow = replace(fast, up=10.0)  # so what counts is how many models `b` gives
    links = {"a": fast, "b": slow}
    mediator.membership.form({s: replace(p, link=links[s]) for s, p in there.items()})
    ends = np.random.default_rng(2).integers(0, 60, (150, 2))
    found = mediator.membership.assign(
        60,
        exchange=Exchange.between(*ends.T),
        work=RoundWork(model_bytes=10, samples=np.full(60, 100)),
        seconds_per_sample=pace,
    )
    assert {site: size(share) for site, share in found.shares.items()} == clients


def test_without_links_another_site_has_no_price() -> None:
    mediator = mediator_of(FakeSite("a"), FakeSite("b"), assignment="locality")
    mediator.reserve(REQUEST)
    trip = LinkSpeed(round_trip_s=0.5)
    promises = mediator.membership.promises
    mediator.membership.form({s: replace(p, link=trip) for s, p in promises.items()})
    exchange = Exchange.between(np.array([0]), np.array([1]))
    mediator.membership.assign(2, exchange=exchange, work=RoundWork(model_bytes=10))
    price = mediator.membership.explain(0).next_best
    assert price is not None
    assert (price.seconds, price.nbytes, price.full) == (None, -20, 1)


@pytest.mark.parametrize(
    ("left_alone", "to"),
    [
        pytest.param([], {"a", "b"}, id="clients move where that makes a round shorter"),
        pytest.param(["b"], {"a"}, id="none to a site that gets no new clients"),
    ],
)
def test_clients_move_by_the_links_as_they_are_now(left_alone: list[str], to: set[str]) -> None:
    mediator = mediator_of(FakeSite("a"), FakeSite("b"), assignment="locality")
    mediator.reserve(REQUEST)
    membership = mediator.membership
    exchange = Exchange.between(*np.random.default_rng(1).integers(0, 100, (250, 2)).T)
    membership.assign(100, exchange=exchange, work=RoundWork(model_bytes=10))
    before = membership.assignment
    membership.know_links(
        {"a": LinkSpeed(up=10.0, down=10.0), "b": LinkSpeed(up=1e3, down=1e3), "c": LinkSpeed()}
    )
    membership.leave_alone(left_alone)
    found = membership.reassignment(
        state_bytes=1, round_number=3, rounds_left=9, window=3, room={"a": 99, "b": 99}
    )
    assert found is not None
    assert {move.to for move in found.moves} == to
    membership.move(found.moves)
    assert membership.assignment == moved(before, found.moves)


def computing() -> SiteMembership:
    """Two sites with equal links, on which a round is computation almost alone."""
    mediator = mediator_of(FakeSite("a"), FakeSite("b"), assignment="locality")
    mediator.reserve(REQUEST)
    membership = mediator.membership
    exchange = Exchange.between(*np.random.default_rng(1).integers(0, 100, (250, 2)).T)
    work = RoundWork(model_bytes=10, samples=np.full(100, 10))
    membership.assign(100, exchange=exchange, work=work, seconds_per_sample=1.0)
    membership.know_links(dict.fromkeys("ab", LinkSpeed(up=1e6, down=1e6)))
    return membership


def ways(membership: SiteMembership) -> set[tuple[str, str]]:
    """From where clients should move to which site."""
    found = membership.reassignment(
        state_bytes=1, round_number=3, rounds_left=9, window=3, room={"a": 99, "b": 99}
    )
    assert found is not None
    return {(move.origin, move.to) for move in found.moves}


@pytest.mark.parametrize(
    ("paces", "moves"),
    [
        pytest.param({}, set(), id="equal as planned"),
        pytest.param({"a": 7.0, "b": 7.0}, set(), id="equal, and not as planned"),
        pytest.param({"a": 1.0, "b": 3.0}, {("b", "a")}, id="clients leave a slow site"),
        pytest.param({"b": 3.0}, set(), id="a site without a measurement counts as the other"),
    ],
)
def test_clients_move_by_the_paces_that_sites_have_shown(
    paces: dict[str, float], moves: set[tuple[str, str]]
) -> None:
    membership = computing()
    membership.know_paces(paces)
    assert ways(membership) == moves


def test_a_pace_that_changes_by_a_tenth_stays_as_it_is() -> None:
    membership = computing()

    def known(**paces: float) -> dict[str, float]:
        membership.know_paces(paces)
        return {each.site: each.seconds_per_sample for each in membership.explain(0).paces}

    assert known(a=1.0, b=1.0) == {"a": 1.0, "b": 1.0}
    assert known(a=1.09, b=1.2) == {"a": 1.0, "b": 1.2}
    assert known(a=1.11) == {"a": 1.11}


def test_paces_of_sites_that_are_away_do_not_hide_the_plan_s() -> None:
    membership = computing()
    membership.know_paces({"c": 5.0})
    assert membership.explain(0).unknown == ("the round trips of all sites: count as free",)


def test_while_a_site_with_clients_is_away_nothing_is_decided() -> None:
    mediator = mediator_of(FakeSite("a"), FakeSite("b"), assignment="locality")
    mediator.reserve(REQUEST)
    exchange = Exchange.between(np.array([0]), np.array([1]))
    mediator.membership.assign(2, exchange=exchange, work=RoundWork(model_bytes=10))
    mediator.membership.replacement = False
    mediator.membership.remove("b", "the cable was cut")
    asked = {"state_bytes": 1, "round_number": 3, "rounds_left": 9, "window": 3}
    assert mediator.membership.reassignment(**asked, room={}) is None
