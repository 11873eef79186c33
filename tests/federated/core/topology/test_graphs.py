"""Every topology is the graph that its name says, the same wherever and whenever it is made."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.topology.connectivity import components, in_words
from fedpilot.federated.core.topology.edges import Edges
from fedpilot.federated.core.topology.graphs import (
    GraphOptions,
    NoSuchGraph,
    Topology,
    TopologyName,
    topology,
)

N = TopologyName
EVERY = {
    N.RING: GraphOptions(),
    N.TORUS: GraphOptions(),
    N.K_CONNECTED: GraphOptions(degree=4),
    N.COMPLETE: GraphOptions(),
    N.RANDOM_REGULAR: GraphOptions(degree=4),
    N.ERDOS_RENYI: GraphOptions(probability=0.5),
    N.SMALL_WORLD: GraphOptions(degree=4, probability=0.2),
    N.TREE: GraphOptions(),
    N.MATCHING: GraphOptions(),
    N.EXPONENTIAL: GraphOptions(),
}
CHANGING = (N.MATCHING, N.EXPONENTIAL)


def made(name: TopologyName, nodes: int = 12, seed: int = 3) -> Topology:
    return topology(name, nodes, EVERY[name], seed)


def pairs(edges: Edges) -> set[tuple[int, int]]:
    """(source, receiver) of every edge."""
    return set(zip(edges.sources.tolist(), edges.receivers.tolist(), strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_it_is_the_same_each_time(name: TopologyName) -> None:
    for number in (1, 2, 7):
        first, again = (pairs(made(name).of_round(number)) for _ in range(2))
        assert first == again
        assert first


@pytest.mark.parametrize("name", [name for name in EVERY if name != N.EXPONENTIAL])
def test_who_receives_also_sends(name: TopologyName) -> None:
    assert made(name).of_round(5).is_symmetric


@pytest.mark.parametrize("name", [name for name in EVERY if name not in CHANGING])
@pytest.mark.parametrize("nodes", [12, 35])
def test_it_is_connected(name: TopologyName, nodes: int) -> None:
    assert len(components(made(name, nodes).of_round(1))) == 1


@pytest.mark.parametrize("name", [N.RANDOM_REGULAR, N.ERDOS_RENYI, N.SMALL_WORLD, N.MATCHING])
def test_the_seed_decides_what_is_drawn(name: TopologyName) -> None:
    graphs = {frozenset(pairs(made(name, 40, seed).of_round(1))) for seed in range(4)}
    assert len(graphs) == 4


def test_random_graphs_stay_what_they_were() -> None:
    """Their edges are part of every result: another library version must not change them."""
    found = {
        name.value: sorted(pairs(made(name, 8).of_round(2)))[:6]
        for name in (N.RANDOM_REGULAR, N.ERDOS_RENYI, N.SMALL_WORLD, N.MATCHING)
    }
    assert found == DRAWN


DRAWN = {
    "erdos_renyi": [(0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 2)],
    "matching": [(0, 3), (1, 7), (2, 6), (3, 0), (4, 5), (5, 4)],
    "random_regular": [(0, 1), (0, 4), (0, 5), (0, 6), (1, 0), (1, 4)],
    "small_world": [(0, 4), (0, 5), (0, 6), (0, 7), (1, 2), (1, 4)],
}


@pytest.mark.parametrize("degree", [1, 3, 20, 41, 90, 98, 99])
def test_random_graphs_are_regular_however_dense(degree: int) -> None:
    edges = topology(N.RANDOM_REGULAR, 100, GraphOptions(degree=degree), 0).of_round(1)
    assert edges.received.tolist() == [degree] * 100
    assert edges.is_symmetric


def test_some_nodes_have_the_edges_between_them() -> None:
    edges = made(N.RING, 6).of_round(1).among(np.array([0, 1, 3, 4, 5]))
    assert edges.nodes == 5
    assert pairs(edges) == {(0, 1), (1, 0), (2, 3), (3, 2), (3, 4), (4, 3), (4, 0), (0, 4)}


@pytest.mark.parametrize("nodes", [2, 3, 10])
def test_a_ring_has_two_neighbors(nodes: int) -> None:
    edges = made(N.RING, nodes).of_round(1)
    assert pairs(edges) == {
        pair for i in range(nodes) for j in [(i + 1) % nodes] for pair in [(i, j), (j, i)]
    }


def test_a_torus_wraps_around() -> None:
    edges = topology(N.TORUS, 12, GraphOptions(rows=3), 0).of_round(1)
    assert [to for of, to in sorted(pairs(edges)) if of == 0] == [1, 3, 4, 8]
    assert [to for of, to in sorted(pairs(edges)) if of == 11] == [3, 7, 8, 10]
    assert made(N.TORUS, 12).of_round(1).received.tolist() == [4] * 12


@pytest.mark.parametrize("degree", [2, 4, 10])
def test_k_connected_stays_connected_without_any_k_less_one(degree: int) -> None:
    edges = topology(N.K_CONNECTED, 11, GraphOptions(degree=degree), 0).of_round(1)
    graph = nx.Graph(pairs(edges))
    assert nx.node_connectivity(graph) == degree


@given(st.integers(2, 41), st.integers(1, 100))
def test_a_matching_pairs_everybody_but_one_of_an_odd_number(nodes: int, number: int) -> None:
    edges = topology(N.MATCHING, nodes, GraphOptions(), 1).of_round(number)
    assert np.sort(edges.received).tolist() == [0] * (nodes % 2) + [1] * (nodes // 2 * 2)


@given(st.integers(2, 41), st.integers(1, 100))
def test_on_an_exponential_graph_each_hears_of_all_within_as_many_rounds_as_bits(
    nodes: int, first: int
) -> None:
    graphs = made(N.EXPONENTIAL, nodes)
    heard = np.eye(nodes, dtype=bool)
    for number in range(first, first + (nodes - 1).bit_length()):
        edges = graphs.of_round(number)
        assert edges.received.tolist() == edges.given.tolist() == [1] * nodes
        before = heard.copy()
        heard[edges.receivers] |= before[edges.sources]
    assert heard.all()


@pytest.mark.parametrize(
    ("name", "nodes", "options", "said"),
    [
        (N.RING, 1, GraphOptions(), "1 client, which has no neighbors"),
        (N.TORUS, 7, GraphOptions(), "a number of clients that is no prime"),
        (N.TORUS, 12, GraphOptions(rows=5), "2, 3, 4, 6"),
        (N.K_CONNECTED, 10, GraphOptions(degree=3), "an even number from 2 to 8"),
        (N.K_CONNECTED, 10, GraphOptions(), "no degree"),
        (N.RANDOM_REGULAR, 10, GraphOptions(degree=10), "a number from 1 to 9"),
        (
            N.RANDOM_REGULAR,
            9,
            GraphOptions(degree=3),
            "9 clients: each edge has two ends, and 27 is odd; allowed: 2, 4",
        ),
        (N.ERDOS_RENYI, 9, GraphOptions(), "no probability"),
    ],
)
def test_options_without_a_graph_are_refused_with_what_is_possible(
    name: TopologyName, nodes: int, options: GraphOptions, said: str
) -> None:
    with pytest.raises(NoSuchGraph) as refused:
        topology(name, nodes, options, 0)
    assert said in str(refused.value)


def test_a_graph_in_parts_is_told_by_its_parts() -> None:
    edges = Edges.undirected(7, [(0, 1), (1, 2), (3, 4)])
    assert components(edges) == [[0, 1, 2], [3, 4], [5], [6]]
    names = [[f"c{node}" for node in part] for part in components(edges)]
    assert in_words(names, shown=2) == "c0, c1 and 1 more; c3, c4; and 2 more parts"


def test_edges_without_a_way_back_are_not_symmetric() -> None:
    assert not Edges.of(3, receivers=[1, 2], sources=[0, 1]).is_symmetric
    assert Edges.of(3, receivers=[1, 2, 0, 1], sources=[0, 1, 1, 2]).is_symmetric
