"""Clients that exchange with each other are at one site, within its part of the vnodes."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from fedpilot.mediator.core.assignment import Assignment, Exchange, SiteCapacity, assign
from fedpilot.mediator.core.assignment.cuts import graph_cuts
from fedpilot.mediator.core.assignment.cuts.communities import by_communities
from fedpilot.mediator.core.assignment.cuts.graph_cuts import (
    Adjacency,
    by_bisection,
    by_metis,
    crossing,
    in_order,
    refined,
    within,
)
from fedpilot.mediator.core.assignment.proportions import proportional
from fedpilot.mediator.core.assignment.room import BALANCE
from fedpilot.mediator.core.assignment.shares import members, share_of

Ends = npt.NDArray[np.int64]
THREE = [SiteCapacity("a", 1), SiteCapacity("b", 2), SiteCapacity("c", 3)]


def exchange(edges: object) -> Exchange:
    ends = np.array(list(edges), dtype=np.int64).reshape(-1, 2)  # type: ignore[call-overload]
    return Exchange.between(ends[:, 0], ends[:, 1])


def places(assignment: Assignment, clients: int) -> npt.NDArray[np.int64]:
    found = np.full(clients, -1)
    for number, share in enumerate(assignment.shares.values()):
        found[members(share)] = number
    return found


def cut(assignment: Assignment, among: Exchange) -> int:
    at = places(assignment, assignment.population)
    return int((at[among.ends[:, 0]] != at[among.ends[:, 1]]).sum())


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, list[SiteCapacity], Exchange]:
    clients = draw(st.integers(1, 60))
    client = st.integers(0, clients - 1)
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True))
    there = [SiteCapacity(name, draw(st.integers(0, 20))) for name in names]
    return clients, there, exchange(draw(st.lists(st.tuples(client, client), max_size=120)))


@given(problems(), st.data())
def test_each_client_has_a_site_within_five_percent_of_its_part_and_stays_at_its_data(
    problem: tuple[int, list[SiteCapacity], Exchange], data: st.DataObject
) -> None:
    clients, there, among = problem
    first = data.draw(st.integers(0, clients))
    pinned = {there[0].name: [range(first, clients)]} if first < clients else {}
    assignment = assign("locality", clients, there, pinned, among)
    assert sorted(np.concatenate([members(s) for s in assignment.shares.values()])) == list(
        range(clients)
    )
    assert (places(assignment, clients) >= 0).all()
    for site, ranges in pinned.items():
        assert {*ranges[0]} <= {*members(assignment.share(site)).tolist()}
    vnodes = {site.name: site.vnodes for site in there}
    if not pinned and sum(vnodes.values()):
        for name, part in proportional(clients, vnodes).items():
            count = len(members(assignment.share(name)))
            assert count <= max(part, math.floor(part * (1 + BALANCE)))


@settings(max_examples=settings().max_examples // 3)
@given(problems(), st.randoms())
def test_the_order_of_sites_and_pairs_does_not_matter(
    problem: tuple[int, list[SiteCapacity], Exchange], random: object
) -> None:
    clients, there, among = problem
    again = exchange(among.ends[::-1, ::-1].tolist())
    assert assign("locality", clients, there[::-1], exchange=again) == assign(
        "locality", clients, there, exchange=among
    )


@settings(max_examples=settings().max_examples // 3)
@given(problems())
def test_it_never_cuts_more_than_the_order_of_clients(
    problem: tuple[int, list[SiteCapacity], Exchange],
) -> None:
    clients, there, among = problem
    ours = assign("locality", clients, there, exchange=among)
    if sum(site.vnodes for site in there):
        assert cut(ours, among) <= cut(assign("capacity", clients, there), among)


def test_communities_are_not_cut() -> None:
    """Three cliques of 10, 20 and 30 clients that lie scattered in the population."""
    order = np.random.default_rng(3).permutation(60)
    blocks = np.split(order, [10, 30])
    edges = [(a, b) for block in blocks for a in block for b in block if a < b]
    among = exchange([*edges, (blocks[0][0], blocks[1][0]), (blocks[1][1], blocks[2][0])])
    assignment = assign("locality", 60, THREE, exchange=among)
    assert cut(assignment, among) == 2
    assert [len(members(assignment.share(name))) for name in "abc"] == [10, 20, 30]
    others = "their order 424, communities 2, recursive METIS 2"
    why = f"dividing by k-way METIS cuts 2 of 672 edges ({others})"
    assert why in assignment.explain(0)


def test_a_ring_is_cut_in_the_order_of_its_clients() -> None:
    among = exchange((i, (i + 1) % 12) for i in range(12))
    assignment = assign("locality", 12, THREE, exchange=among)
    assert assignment.shares == {"a": (range(2),), "b": (range(2, 6),), "c": (range(6, 12),)}
    assert cut(assignment, among) == 3


def test_a_graph_that_is_too_large_to_cut_in_time_is_divided_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedpilot.mediator.core.assignment.locality.MOST_EDGES", 5)
    among = exchange((i, i + 2) for i in range(10))
    assignment = assign("locality", 12, THREE, exchange=among)
    assert "METIS" not in assignment.reason
    assert "their order" in assignment.reason


def test_clients_go_where_their_pinned_neighbors_are() -> None:
    """Clients 0 to 5 exchange with 6 to 11 each, of which 6 to 8 stay at b and 9 to 11 at a."""
    alike = [SiteCapacity("a", 1), SiteCapacity("b", 1)]
    pinned = {"b": [range(6, 9)], "a": [range(9, 12)]}
    among = exchange((i, i + 6) for i in range(6))
    assignment = assign("locality", 12, alike, pinned, among)
    assert assignment.movable["b"] == (range(3),)
    assert assignment.movable["a"] == (range(3, 6),)


def test_a_site_with_many_pinned_clients_gets_fewer_others() -> None:
    alike = [SiteCapacity("a", 1), SiteCapacity("b", 1)]
    assignment = assign("locality", 12, alike, {"a": [range(5)]}, exchange([(0, 11)]))
    assert len(members(assignment.share("a"))) == len(members(assignment.share("b"))) == 6


@pytest.mark.parametrize("seed", range(3))
def test_it_cuts_as_few_as_the_best_way_alone(seed: int) -> None:
    graphs = [
        nx.barabasi_albert_graph(600, 3, seed=seed),
        nx.connected_watts_strogatz_graph(600, 6, 0.2, seed=seed),
        nx.random_regular_graph(4, 600, seed=seed),
    ]
    for drawn in graphs:
        among = exchange(drawn.edges())
        graph = Adjacency.of(600, among.ends, np.zeros((600, 3), dtype=np.int64))
        goal = np.array([100, 200, 300])
        alone = [in_order(goal), by_metis(graph, goal, recursive=False)]
        alone.append(by_metis(graph, goal, recursive=True))
        most = np.floor(goal * 1.05)
        fits = [p for p in alone if (np.bincount(p, minlength=3) <= most).all()]
        best = min(crossing(graph, parts) for parts in fits)
        assert cut(assign("locality", 600, THREE, exchange=among), among) <= best


def communities(nodes: int, outside: float) -> Adjacency:
    """Eight communities, four edges drawn for each node: so large a part of them leaves its own."""
    random = np.random.default_rng(1)
    block = random.permutation(np.repeat(np.arange(8), nodes // 8))
    one, order = np.repeat(np.arange(nodes), 4), np.argsort(block, kind="stable")
    mates = order[block[one] * (nodes // 8) + random.integers(0, nodes // 8, len(one))]
    other = np.where(random.random(len(one)) < outside, random.integers(0, nodes, len(one)), mates)
    ends = np.sort(np.stack([one, other], axis=1), axis=1)
    ends = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
    return Adjacency.of(nodes, ends, np.zeros((nodes, 8), dtype=np.int64))


@pytest.mark.parametrize(("outside", "most"), [(0.25, 1.0), (0.45, 1.0), (1.0, 1.02)])
def test_a_graph_is_divided_often_only_if_that_cuts_fewer_edges(
    outside: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are no communities, two divisions are as good as ten."""
    monkeypatch.setattr(graph_cuts, "MANY_EDGES", 0)
    graph, goal = communities(4000, outside), np.full(8, 500)
    best = crossing(graph, by_metis(graph, goal, recursive=True))
    assert crossing(graph, by_bisection(graph, goal, graph.edges)) <= best * most
    once = crossing(graph, by_metis(graph, goal, recursive=True, tries=2))
    assert (once > best * most) == (outside < 1)
    assert crossing(graph, by_bisection(graph, goal, 0)) == once


@pytest.mark.parametrize("seed", range(4))
def test_communities_as_large_as_the_sites_are_found(seed: int) -> None:
    """Sites of 2 to 23 vnodes, and eight edges inside a community for one that leaves it."""
    random, sizes = np.random.default_rng(seed), 40 * (2 + 3 * np.arange(8))
    block = random.permutation(in_order(sizes))
    one, order = np.repeat(np.arange(len(block)), 4), np.argsort(block, kind="stable")
    first = np.searchsorted(block[order], np.arange(8))
    mates = order[first[block[one]] + (random.random(len(one)) * sizes[block[one]]).astype(int)]
    strangers = random.integers(0, len(block), len(one))
    other = np.where(random.random(len(one)) < 1 / 9, strangers, mates)
    ends = Exchange.between(one[one != other], other[one != other]).ends
    graph = Adjacency.of(len(block), ends, np.zeros((len(block), 8), dtype=np.int64))
    most = np.floor(sizes * 1.05).astype(np.int64)
    parts = within(graph, by_communities(graph, most), most)
    assert crossing(graph, parts) <= 1.02 * crossing(graph, block)
    assert crossing(graph, refined(graph, parts, most)) <= 1.01 * crossing(graph, block)


@settings(max_examples=settings().max_examples // 3)
@given(st.integers(1, 300), st.integers(0, 600), st.integers(0, 99))
def test_every_graph_is_divided_by_its_communities(nodes: int, drawn: int, seed: int) -> None:
    ends = np.random.default_rng(seed).integers(0, nodes, (drawn, 2))
    ends = np.unique(np.sort(ends[ends[:, 0] != ends[:, 1]], axis=1), axis=0)
    graph = Adjacency.of(nodes, ends, np.zeros((nodes, 3), dtype=np.int64))
    parts = by_communities(graph, np.array([nodes, 0, 5]))
    assert parts.shape == (nodes,)
    assert set(parts.tolist()) <= {0, 2}


def test_a_part_above_its_limit_gives_up_what_it_loses_the_least_by() -> None:
    """Vertices 0 to 3 are a clique, and 4 hangs at it alone."""
    ends = np.array([(a, b) for a in range(4) for b in range(a)] + [(3, 4)])
    graph = Adjacency.of(6, np.sort(ends, axis=1), np.zeros((6, 2), dtype=np.int64))
    parts = within(graph, np.array([0, 0, 0, 0, 0, 1]), np.array([4, 4]))
    assert parts.tolist() == [0, 0, 0, 0, 1, 1]
    assert crossing(graph, parts) == 1


@given(st.lists(st.integers(0, 40), unique=True))
def test_a_share_of_clients_is_these_clients(clients: list[int]) -> None:
    ascending = np.array(sorted(clients), dtype=np.int64)
    assert members(share_of(ascending)).tolist() == sorted(clients)
