"""Where links are known, clients lie where a round takes the fewest seconds, within the limits."""

from __future__ import annotations

import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator.core.assignment import (
    Assignment,
    Exchange,
    RoundWork,
    SiteCapacity,
    assign,
    places_of,
    round_cost,
)
from fedpilot.mediator.core.assignment.costs import Prices
from fedpilot.mediator.core.assignment.cuts.by_links import lean, slow_links
from fedpilot.mediator.core.assignment.cuts.graph_cuts import Adjacency, by_metis
from fedpilot.mediator.core.assignment.cuts.timed import TimedRound, mapped, refined
from fedpilot.mediator.core.assignment.proportions import proportional
from fedpilot.mediator.core.assignment.room import BALANCE, LEAST
from fedpilot.mediator.core.assignment.shares import members
from fedpilot.mediator.core.links import LinkSpeed

WORK = RoundWork(model_bytes=1000, sum_bytes=2000)


def site(name: str, vnodes: int, rate: float | None) -> SiteCapacity:
    return SiteCapacity(name, vnodes, link=LinkSpeed(up=rate, down=rate))


def between(edges: object) -> Exchange:
    ends = np.array(list(edges), dtype=np.int64).reshape(-1, 2)  # type: ignore[call-overload]
    return Exchange.between(ends[:, 0], ends[:, 1])


def seconds(
    assignment: Assignment, there: list[SiteCapacity], among: Exchange, work: RoundWork = WORK
) -> float:
    places = places_of(assignment.shares, there, assignment.population)
    return round_cost(places, there, work, among).seconds


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, list[SiteCapacity], Exchange]:
    clients = draw(st.integers(2, 60))
    client = st.integers(0, clients - 1)
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
    rates = st.sampled_from([None, 1.0, 1e3, 1e4])
    there = [site(name, draw(st.integers(0, 20)), draw(rates)) for name in names]
    pairs = draw(st.lists(st.tuples(client, client), max_size=120))
    directed = draw(st.booleans())
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    made = Exchange.directed if directed else Exchange.between
    return clients, there, made(ends[:, 0], ends[:, 1])


@settings(max_examples=settings().max_examples // 3)
@given(problems(), st.data())
def test_each_client_has_a_site_within_the_limits_and_stays_at_its_data(
    problem: tuple[int, list[SiteCapacity], Exchange], data: st.DataObject
) -> None:
    clients, there, among = problem
    first = data.draw(st.integers(0, clients))
    pinned = {there[0].name: [range(first, clients)]} if first < clients else {}
    samples = np.arange(clients) if data.draw(st.booleans()) else None
    work = replace(WORK, samples=samples)
    assignment = assign("locality", clients, there, pinned, among, work)
    shares = assignment.shares.values()
    assert sorted(np.concatenate([members(s) for s in shares])) == list(range(clients))
    for name, ranges in pinned.items():
        assert {*ranges[0]} <= {*members(assignment.share(name)).tolist()}
    vnodes = {each.name: each.vnodes for each in there}
    if not pinned and sum(vnodes.values()):
        for name, part in proportional(clients, vnodes).items():
            count = len(members(assignment.share(name)))
            assert part / LEAST <= count <= max(part, math.floor(part * (1 + BALANCE)))


@settings(max_examples=settings().max_examples // 3)
@given(problems())
def test_a_round_never_takes_longer_than_with_clients_in_their_order(
    problem: tuple[int, list[SiteCapacity], Exchange],
) -> None:
    clients, there, among = problem
    ours = assign("locality", clients, there, exchange=among, work=WORK)
    timed = any(each.link.up for each in there)
    if sum(each.vnodes for each in there) and timed:
        plain = assign("capacity", clients, there)
        assert seconds(ours, there, among) <= seconds(plain, there, among) * (1 + 1e-9)


@settings(max_examples=settings().max_examples // 3)
@given(problems())
def test_the_order_of_sites_does_not_matter(
    problem: tuple[int, list[SiteCapacity], Exchange],
) -> None:
    clients, there, among = problem
    found = assign("locality", clients, there, exchange=among, work=WORK)
    assert assign("locality", clients, there[::-1], exchange=among, work=WORK) == found


EIGHT = [site(name, 5, 1e3 if name == "d" else 1e4) for name in "abcdefgh"]
"""`d` has a tenth of the others' bandwidth."""


@pytest.mark.parametrize(
    "edges",
    [
        pytest.param(nx.grid_2d_graph(40, 40, periodic=True), id="a torus"),
        pytest.param(nx.connected_watts_strogatz_graph(1600, 4, 0.1, seed=7), id="a small world"),
        pytest.param(nx.barabasi_albert_graph(1600, 3, seed=7), id="with hubs"),
    ],
)
def test_over_a_slow_link_a_round_takes_at_most_seven_tenths_of_metis(
    edges: nx.Graph[object],
) -> None:
    among = between(nx.convert_node_labels_to_integers(edges).edges())
    ours = assign("locality", 1600, EIGHT, exchange=among, work=WORK)
    graph = Adjacency.of(1600, among.ends, np.zeros((1600, 8), dtype=np.int64))
    metis = round_cost(by_metis(graph, np.full(8, 200), recursive=False), EIGHT, WORK, among)
    assert seconds(ours, EIGHT, among) <= 0.7 * metis.seconds
    assert "makes a round take" in ours.reason
    assert "k-way METIS" in ours.reason


def test_a_part_goes_to_the_site_whose_link_suits_it() -> None:
    """Clients 4 and 5 exchange with each other alone, so `a` can have them without its link."""
    among = between([(0, 2), (0, 3), (1, 2), (1, 3), (4, 5)])
    there = [site("a", 1, 1.0), site("b", 1, 1e3), site("c", 1, 1e3)]
    timed = TimedRound.of(6, among, Prices.of(there), WORK)
    everybody, limits = np.ones(6, dtype=bool), np.full(3, 2)
    places = mapped(timed, np.array([0, 0, 1, 1, 2, 2]), everybody, limits, limits)
    assert places.tolist()[4:] == [0, 0]
    assert timed.seconds(places) < timed.seconds(np.array([0, 0, 1, 1, 2, 2]))


@settings(max_examples=settings().max_examples // 3)
@given(problems(), st.data())
def test_refining_keeps_limits_and_pinned_clients_and_never_lengthens_a_round(
    problem: tuple[int, list[SiteCapacity], Exchange], data: st.DataObject
) -> None:
    clients, there, among = problem
    timed = TimedRound.of(clients, among, Prices.of(there), WORK)
    place = st.integers(0, len(there) - 1)
    before = np.array(data.draw(st.lists(place, min_size=clients, max_size=clients)))
    free = np.array(data.draw(st.lists(st.booleans(), min_size=clients, max_size=clients)))
    sizes = np.bincount(before[free], minlength=len(there))
    least, most = sizes // 2, sizes + 1
    for change in (mapped, refined):
        after = change(timed, before, free, least, most)
        counts = np.bincount(after[free], minlength=len(there))
        assert (after[~free] == before[~free]).all()
        assert ((least <= counts) & (counts <= most)).all()
    assert timed.seconds(after) <= timed.seconds(before)


def test_clients_leave_a_slow_site_for_those_that_exchange_with_them() -> None:
    """Client 3 has two neighbors at b, and one at a, whose link is slow."""
    among = between([(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (3, 5), (4, 5)])
    there = [site("a", 1, 1.0), site("b", 1, 1e3)]
    timed = TimedRound.of(6, among, Prices.of(there), WORK)
    before, every = np.array([0, 0, 0, 0, 1, 1]), np.ones(6, dtype=bool)
    after = refined(timed, before, every, np.full(2, 2), np.full(2, 4))
    assert after.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_site_of_half_the_pace_gets_half_the_clients() -> None:
    there = [SiteCapacity("a", 4, 0.02), SiteCapacity("b", 4, 0.01)]
    shares = assign("locality", 30, there).shares
    assert [len(members(shares[name])) for name in "ab"] == [10, 20]


def test_sizes_spare_the_dearest_site_and_stay_near_the_goal() -> None:
    goal = np.array([100, 100, 100, 100])
    found = lean(goal, goal // 2, goal + 5, np.array([1.0, 1.0, 10.0, 1.0]))
    assert found.tolist() == [105, 105, 85, 105]
    free = lean(goal, goal // 2, goal + 5, np.zeros(4))
    assert free.tolist() == goal.tolist()


def test_links_are_slow_beside_the_fastest_one() -> None:
    assert slow_links(np.array([5, 5, 5, 5, 0]), np.array([1.0, 9.0, 2.0, 10.0, 0.1])).tolist() == [
        3,
        1,
    ]
    assert slow_links(np.full(3, 5), np.full(3, 5.0)).tolist() == []
