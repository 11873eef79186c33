"""What a client's move costs is what the cost model says of the assignment with it elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator.core.assignment import (
    Assignment,
    ClientMove,
    Exchange,
    Explained,
    RoundWork,
    SiteCapacity,
    assign,
    explained,
    places_of,
    round_cost,
    share_of,
)
from fedpilot.mediator.core.assignment.explaining import Need
from fedpilot.mediator.core.links import LinkSpeed

speeds = st.none() | st.floats(1.0, 1e6)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Assignment, list[SiteCapacity], RoundWork, Exchange]:
    """Clients anywhere, on a graph."""
    names = draw(st.lists(st.sampled_from("abcde"), min_size=1, unique=True))
    sites = [
        SiteCapacity(
            name,
            draw(st.integers(1, 5)),
            draw(st.none() | st.floats(0.01, 10)),
            LinkSpeed(up=draw(speeds), down=draw(speeds), round_trip_s=draw(speeds)),
        )
        for name in names
    ]
    clients = draw(st.integers(1, 20))
    places = np.array(
        draw(st.lists(st.sampled_from(names), min_size=clients, max_size=clients)), dtype=object
    )
    shares = {name: share_of(np.flatnonzero(places == name)) for name in names}
    client = st.integers(0, clients - 1)
    edges = np.array(draw(st.lists(st.tuples(client, client), max_size=60)), dtype=np.int64)
    made = draw(st.sampled_from([Exchange.between, Exchange.directed]))
    samples = draw(st.lists(st.integers(0, 50), min_size=clients, max_size=clients))
    work = RoundWork(
        samples=draw(st.sampled_from([None, np.array(samples)])),
        model_bytes=draw(st.integers(0, 1000)),
        sum_bytes=draw(st.integers(0, 1000)),
        mixing_steps=draw(st.integers(1, 3)),
    )
    given = {name: len(share) for name, share in shares.items()}
    assignment = Assignment(strategy="locality", movable=shares, given=given)
    return assignment, sites, work, made(*edges.reshape(-1, 2).T)


def costs_at(
    client: int,
    to: str,
    assignment: Assignment,
    sites: list[SiteCapacity],
    work: RoundWork,
    exchange: Exchange,
) -> tuple[float, int]:
    """The seconds of a round, and the bytes that cross between sites, with the client there."""
    places = places_of(assignment.shares, sites, assignment.population)
    places[client] = [site.name for site in sites].index(to)
    found = round_cost(places, sites, work, exchange)
    return found.seconds, found.crossing_models * work.given_bytes


@settings(max_examples=settings().max_examples // 3)
@given(problems(), st.randoms(use_true_random=False))
def test_a_price_is_the_cost_model_s_with_the_client_moved(
    problem: tuple[Assignment, list[SiteCapacity], RoundWork, Exchange], random: Any
) -> None:
    assignment, sites, work, exchange = problem
    client = random.randrange(assignment.population)
    found = explained(client, assignment, sites, work, exchange)
    if len(sites) == 1:
        assert found.next_best is None
        return
    price = found.next_best
    assert price is not None
    now = costs_at(client, found.site, assignment, sites, work, exchange)
    timed = any(site.link.has_speed for site in sites)
    costs = {
        site.name: costs_at(client, site.name, assignment, sites, work, exchange)
        for site in sites
        if site.name != found.site
    }
    seconds, nbytes = costs[price.site]
    assert price.nbytes == nbytes - now[1]
    assert (price.seconds, found.seconds) == ((seconds - now[0], now[0]) if timed else (None, None))
    best = min(costs.values())[0] if timed else min(each[1] for each in costs.values())
    assert (seconds if timed else nbytes) == pytest.approx(best)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 5))]
)
def test_a_price_counts_the_other_receivers_of_the_models_that_a_client_takes(
    seed: int, directed: bool
) -> None:
    """In graphs where clients share many neighbors at every site."""
    random = np.random.default_rng(seed)
    one, other = random.integers(0, 24, (2, 90))
    exchange = Exchange.directed(one, other) if directed else Exchange.between(one, other)
    places = random.integers(0, 3, 24)
    shares = {name: share_of(np.flatnonzero(places == at)) for at, name in enumerate("abc")}
    speeds = random.uniform(1, 100, (3, 2))
    sites = [
        SiteCapacity(name, 1, 1.0, LinkSpeed(up=up, down=down))
        for name, (up, down) in zip("abc", speeds.tolist(), strict=True)
    ]
    work = RoundWork(samples=random.integers(1, 9, 24), model_bytes=100, mixing_steps=2)
    assignment = Assignment(strategy="locality", movable=shares)
    for client in range(24):
        found = explained(client, assignment, sites, work, exchange)
        assert found.next_best is not None
        now, there = (
            costs_at(client, to, assignment, sites, work, exchange)
            for to in (found.site, found.next_best.site)
        )
        assert found.next_best.seconds == there[0] - now[0]
        assert found.next_best.nbytes == there[1] - now[1]


def with_need(sites: list[SiteCapacity], need: Need, part: float = 1.0) -> list[SiteCapacity]:
    """The sites with what a move needs, or with a part of it."""
    return [
        changed(each, need.what, need.amount * part) if each.name == need.site else each
        for each in sites
    ]


def changed(site: SiteCapacity, what: str, amount: float) -> SiteCapacity:
    link = site.link
    match what:
        case "vnodes":
            return replace(site, vnodes=site.vnodes + int(amount))
        case "link_up":
            return replace(site, link=replace(link, up=amount))
        case "link_down":
            return replace(site, link=replace(link, down=amount))
    assert link.up is not None
    assert link.down is not None
    return replace(site, link=replace(link, up=link.up * amount, down=link.down * amount))


@settings(max_examples=settings().max_examples // 3)
@given(problems(), st.data())
def test_what_would_make_a_move_pay_does_and_a_little_less_does_not(
    problem: tuple[Assignment, list[SiteCapacity], RoundWork, Exchange], data: st.DataObject
) -> None:
    assignment, sites, work, exchange = problem
    client = data.draw(st.integers(0, assignment.population - 1))
    found = explained(client, assignment, sites, work, exchange)
    for need in found.needs or ():
        there = with_need(sites, need)
        at = costs_at(client, found.site, assignment, there, work, exchange)
        moved = costs_at(client, need.site, assignment, there, work, exchange)
        assert moved < at if found.seconds is not None else moved[1] < at[1]
        again = explained(client, assignment, there, work, exchange)
        if again.next_best is not None and again.next_best.site == need.site:
            assert again.pays
            assert again.next_best.full is again.next_best.keeps is None
        if need.what != "vnodes":
            less = with_need(sites, need, 1 / 1.015)
            at, moved = (
                costs_at(client, to, assignment, less, work, exchange)
                for to in (found.site, need.site)
            )
            assert moved[0] >= at[0] * (1 - 1e-6)


SLOW = LinkSpeed(up=10.0, down=10.0)
FAST = LinkSpeed(up=1000.0, down=1000.0)
PAIRS = Exchange.between(np.array([0, 0, 1, 3]), np.array([1, 3, 2, 4]))
"""0 to 2 are a path, 3 and 4 a pair, and 0 also exchanges with 3."""
WORK = RoundWork(model_bytes=1000, samples=np.full(6, 10))
SHARES = {"a": (range(3),), "b": (range(3, 6),)}


def told(
    client: int = 0,
    *,
    links: Mapping[str, LinkSpeed] | None = None,
    vnodes: Mapping[str, int] | None = None,
    exchange: Exchange | None = PAIRS,
    pace: float | None = None,
    measured: Mapping[str, float] | None = None,
    there: str = "ab",
    **changes: Any,
) -> Explained:
    assignment = replace(
        Assignment(strategy="locality", movable=SHARES, given={"a": 3, "b": 3}, reason="so"),
        **changes,
    )
    paces = measured or {}
    sites = [
        SiteCapacity(
            n,
            (vnodes or {}).get(n, 1),
            paces.get(n, pace),
            (links or {}).get(n, LinkSpeed()),
            pace_measured=n in paces,
        )
        for n in there
    ]
    return explained(client, assignment, sites, WORK if exchange else None, exchange)


MOVED = ClientMove(round_number=4, origin="b", to="a", clients=(range(1),), reason="which was lost")
FULL = {"a": (range(2), range(5, 6)), "b": (range(2, 5),)}
APART = {"a": (range(2),), "b": (range(2, 6),)}
GIVEN = Exchange.directed(np.array([1, 2, 0]), np.array([0, 0, 3]))
MEDIUM = LinkSpeed(up=1e4, down=1e4)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        pytest.param(
            told(),
            "site: a, since strategy 'locality' gave site a 3 of 6 clients, this one among them; "
            "so",
            id="the strategy and its reason",
        ),
        pytest.param(
            told(moves=(MOVED,)),
            "moved: it was at site b until round 4, which was lost",
            id="moves",
        ),
        pytest.param(told(), "neighbors: 1 of 2 at a, 1 at b", id="where its neighbors are"),
        pytest.param(told(5), "neighbors: none", id="a client without any"),
        pytest.param(
            told(2),
            "next best site: b, where 2 KB more cross between sites in a round; no site's link is "
            "known, so the seconds are not either",
            id="bytes where no link is known",
        ),
        pytest.param(
            told(2, links={"a": FAST, "b": SLOW}),
            "next best site: b, where a round takes 1 min 41 s longer than now, 3 min 21 s",
            id="seconds where one is",
        ),
        pytest.param(
            told(5, links={"a": FAST, "b": SLOW}),
            "next best site: a, where a round takes as long as now, 3 min 21 s",
            id="a move that changes nothing",
        ),
        pytest.param(
            told(links={"a": FAST, "b": SLOW}),
            "room: b is full, with 3 clients that may move",
            id="a site that is full",
        ),
        pytest.param(
            told(2, links={"a": FAST, "b": SLOW}),
            "what would make the move pay: up to 64 more vnodes, or a faster link, at b would not",
            id="nothing that is tried would do",
        ),
        pytest.param(
            told(1, vnodes={"b": 2}, pace=20.0, links={"a": SLOW, "b": SLOW}),
            "what would make the move pay: a link of b that is 1.01 times as fast both ways",
            id="a link would do that is faster both ways",
        ),
        pytest.param(
            told(2, exchange=GIVEN, links={"a": MEDIUM, "b": MEDIUM}, movable=APART),
            "what would make the move pay: a link up of 10.1 KB/s at a",
            id="a link would do that is faster up",
        ),
        pytest.param(
            told(3, exchange=GIVEN, links={"a": MEDIUM, "b": MEDIUM}, movable=APART),
            "what would make the move pay: a link down of 10.1 KB/s at a",
            id="a link would do that is faster down",
        ),
        pytest.param(
            told(movable=APART, links={"a": SLOW, "b": SLOW}),
            "room: a keeps at least 2 clients that may move",
            id="a site that can spare none",
        ),
        pytest.param(
            told(2, movable=FULL),
            "what would make the move pay: 1 more vnode at a",
            id="a vnode would make room",
        ),
        pytest.param(
            told(2, movable=APART),
            "room: a has room for it; `reassign_every` moves clients in mid-run",
            id="nothing is in the way",
        ),
        pytest.param(
            told(measured={"a": 0.002, "b": 0.0311}, links={"a": FAST, "b": SLOW}),
            "pace: a sample takes a vnode 2 ms at a and 31.1 ms at b, as measured",
            id="paces that were measured",
        ),
        pytest.param(
            told(measured={"b": 0.0311}),
            "pace: a sample takes a vnode 31.1 ms at b, as measured",
            id="the pace that was measured",
        ),
        pytest.param(
            told(movable={}, pinned=SHARES),
            "what would move it: nothing, its data is pinned to a",
            id="data that may not move",
        ),
        pytest.param(told(there="a"), "next best site: not known while b is away", id="away"),
        pytest.param(
            told(there="a", movable={"a": (range(6),)}),
            "next best site: there is no other one",
            id="one site",
        ),
        pytest.param(
            told(5, links={"a": FAST}),
            "not known: the link up of site b: counts as free",
            id="half of what has to be known",
        ),
        pytest.param(
            told(strategy="data_affinity"),
            "strategy: data_affinity divides clients by other things than a round's costs",
            id="a strategy that ignores costs",
        ),
        pytest.param(
            told(3, strategy="capacity"),
            "what would move it: 1 more vnode at a; capacity divides clients in their order, "
            "not by the cost of a round",
            id="a client that more vnodes elsewhere would draw",
        ),
        pytest.param(
            told(strategy="round_robin"),
            "strategy: round_robin divides clients in their order, not by the cost of a round",
            id="a strategy that ignores vnodes",
        ),
        pytest.param(
            told(exchange=None, vnodes={"b": 2}, strategy="capacity"),
            "balance: a has 3 clients that may move on 1 vnode; of the others, b has 3 clients "
            "that may move on 2 vnodes, the fewest a vnode",
            id="balance in a star",
        ),
        pytest.param(
            told(exchange=None, strategy="round_robin"),
            "what would move it: up to 64 more vnodes at b would not",
            id="a client in a star that stays",
        ),
        pytest.param(
            told(3, exchange=None, strategy="capacity"),
            "what would move it: 1 more vnode at a",
            id="a client in a star that vnodes would draw",
        ),
    ],
)
def test_it_is_said_in_sentences(found: Explained, sentence: str) -> None:
    assert sentence in found.sentences


def test_a_pace_that_was_only_planned_is_not_said_to_be_measured() -> None:
    found = told(pace=20.0, links={"a": SLOW, "b": SLOW})
    assert found.paces == ()
    assert not any(sentence.startswith("pace") for sentence in found.sentences)


def test_explaining_says_what_the_strategy_decided() -> None:
    """The clients of a pair are where `assign` puts them, with its reason."""
    sites = [SiteCapacity("a", 2, link=FAST), SiteCapacity("b", 1, link=SLOW)]
    assignment = assign("locality", 6, sites, exchange=PAIRS, work=WORK)
    for client in range(6):
        found = explained(client, assignment, sites, WORK, PAIRS)
        assert assignment.reason in found.why
        assert found.to_json()["sentences"] == list(found.sentences)
